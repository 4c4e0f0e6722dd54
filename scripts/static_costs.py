"""Write what phones' compilers say of kernels in every tuning choice: `codl.kernels.static_cost`.

    python scripts/static_costs.py [--jobs N]

A number is the mean over programs of typical ops; "" stands for a choice that is not there. What
was compiled before is not compiled again. Needs both families of compilers: `codl kernels --setup`.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from statistics import mean
from typing import Any

import codl.kernels
from codl.ir import parse
from codl.kernels.static_cost import FILE, code_name
from codl.phone_compilers import compiler, gpus
from codl.phone_compilers.figures import figures
from codl.phone_compilers.programs import NeededOp, programs_of
from codl.records.kernel_figures import KernelFigures

#: One GPU of each family, and precisions: Mali's compiler takes a second or more for a program.
PLAYED = {"adreno": ("adreno630", ("float32", "half")), "mali": ("malig76", ("float32",))}
#: Waves in flight of a kernel that leaves Malis' threads as many as there may be.
FULL_WAVES = 16
OPS = (
    "conv2d in=1x64x56x56 oc=64 kernel=3x3 pad=1 act=relu",
    "conv2d in=1x512x7x7 oc=512 kernel=3x3 pad=1 act=relu",
    "conv2d in=1x64x56x56 oc=128 kernel=3x3 stride=2 pad=1 act=relu",
    "conv2d in=1x256x28x28 oc=256 kernel=1x1 act=relu",
    "conv2d in=1x512x7x7 oc=256 kernel=1x1",
    "conv2d in=1x96x56x56 oc=96 kernel=3x3 pad=1 groups=96 act=clip:0:6",
    "conv2d in=1x240x14x14 oc=240 kernel=5x5 pad=2 groups=240",
    "fc in=1x1280x1x1 oc=1000",
    "matmul in=128x768 matrix=768x768",
    "matmul in=1x768 matrix=768x3072",
)


def costs(rows: list[KernelFigures], family: str) -> dict[str, dict[str, list[float]]]:
    """[instructions, slots, loads, private accesses, waves] by kernel and choice."""
    together: dict[str, Any] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row.error or not row.variant.startswith(("conv2d", "fc", "matmul")):
            continue
        macs = row.hot_macs if row.slots_per_100_macs else 0
        numbers = (
            row.instructions,
            row.hot_slots / macs if macs else 0.0,
            row.hot_loads / macs if macs else 0.0,
            row.hot_spills / macs if macs else 0.0,
            row.waves if family == "adreno" else FULL_WAVES * row.waves / 2,
        )
        for choice in {code_name(row.choice), ""}:
            together[row.name][choice].append(numbers)
    return {
        name: {
            choice: [round(mean(column), 3) for column in zip(*numbers, strict=True)]
            for choice, numbers in sorted(choices.items())
        }
        for name, choices in sorted(together.items())
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--only", choices=PLAYED, help="leave the other family as it is")
    asked = parser.parse_args()
    path = Path(codl.kernels.__path__[0], FILE)
    result = json.loads(path.read_text()) if asked.only else {}
    for family, (name, precisions) in PLAYED.items():
        if asked.only not in (None, family):
            continue
        needed = {"typical": [NeededOp(parse(text)) for text in OPS]}
        socs = [gpus.soc_of(name, each) for each in precisions]
        listed = programs_of(needed, socs).only(("conv2d", "fc", "matmul"), all_choices=True)
        played = gpus.GPUS[name]
        done = compiler.compile_all(played, listed.programs.values(), jobs=asked.jobs)
        print(name, done.version, len(listed.programs), "programs")
        result[family] = costs(figures(listed, done, played), family)
    path.write_text(json.dumps(result, indent=0, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
