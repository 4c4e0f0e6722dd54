"""What a model's outputs lose in each precision on the GPU: the table of docs/reference/kernels.md.

    python scripts/precisions.py --soc host --exports FOLDER

All ops that the GPU has kernels for run there, in `half` in one that multiplies halves where there
is one, on inputs from a seed, and outputs are compared with ONNX Runtime's. Nothing is timed, so a
device that is a CPU is taken for a phone's GPU here: blocks of four channels, work-groups of 256,
and 32 KiB of local memory.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from codl.errors import CodlError
from codl.frontend.models import BUILT_IN
from codl.ir import Network
from codl.ir.plan import Chain, Plan
from codl.ir.records.soc import Soc
from codl.ir.types import PRECISIONS
from codl.kernels import registry
from codl.kernels.tuning import Tuning
from codl.machine.placement import LocalSoc
from codl.measure.inputs import random_inputs
from codl.plan.build_plan import preferring
from codl.targets.connect import connect
from codl.targets.placed import load_local
from codl.validate.references import ModelAndSource
from codl.validate.validation import ModelUnderTest, check_whole

PHONE = {
    "type": "gpu",
    "vector_width": 4,
    "compute_units": 4,
    "max_work_group_size": 256,
    "wave_size": 64,
    "local_mem_bytes": 32 << 10,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--soc", default="host")
    parser.add_argument("--models", help="built-in ones, with commas between them; all by default")
    parser.add_argument("--exports", type=Path, help="a folder of .onnx files")
    parser.add_argument("--memory", default="buffer", help="buffer or image2d")
    args = parser.parse_args()
    soc = as_phone(load_local(args.soc), args.memory)
    models = (
        (BUILT_IN if args.models is None else args.models.split(",")) if args.models != "" else ()
    )
    exports = sorted(args.exports.glob("*.onnx")) if args.exports else []
    names = " | ".join(f"{name}: cosine | largest error" for name in PRECISIONS)
    print(f"| model | ops | halves multiplied in | {names} |", flush=True)
    print("| --- " * (3 + 2 * len(PRECISIONS)) + "|", flush=True)
    for model in (*models, *map(str, exports)):
        try:
            print(f"| {' | '.join(cells(model, soc))} |", flush=True)
        except CodlError as error:
            print(f"| `{Path(model).stem}` | {error} |", flush=True)


def as_phone(soc: LocalSoc, memory: str) -> LocalSoc:
    if not soc.gpu.is_cpu:
        return soc
    gpu: Any = replace(soc.gpu, memory_types=(memory,), **PHONE)  # type: ignore[arg-type]
    return replace(soc, gpu=gpu)


def cells(model: str, soc: LocalSoc) -> Iterator[str]:
    """A model, its ops, how many of them multiply halves, and how far off its outputs are."""
    loaded = ModelAndSource.load(model)
    network = loaded.network
    plans = {name: multiplying(network, soc.at(name)) for name in PRECISIONS}
    halves = sum(
        variant.endswith("_arithmetic")
        for chain in plans["half"].chains
        for variants in chain.variants.values()
        for variant in variants.values()
    )
    yield f"`{Path(model).stem}`"
    yield str(len(network.layers))
    yield str(halves)
    expected: dict[int, Any] = {}
    for name, plan in plans.items():
        with closing(connect("local", soc.at(name))) as target:
            bench = ModelUnderTest(loaded, target, Tuning(), [random_inputs(network, 0)])
            bench._expected.update(expected)
            close = check_whole(bench, plan).worst
            expected = bench._expected
        yield f"{close.cosine:.7f}"
        yield f"{close.max_rel_err:.1e}"


def multiplying(network: Network, soc: Soc) -> Plan:
    """All on the GPU in default variants; in half in those that multiply halves, if any do."""
    plan = preferring(network, soc, "gpu")
    ops = {layer.name: layer.op for layer in network.layers}

    def changed(chain: Chain) -> Chain:
        variants = {}
        for name, by_side in chain.variants.items():
            able: list[Any] = registry.variants(ops[name], "gpu", soc) if "gpu" in by_side else []
            halves = next((v.name for v in able if v.arithmetic == "float16"), None)
            variants[name] = {"gpu": halves} if halves else by_side
        return replace(chain, variants=variants)

    return replace(plan, chains=tuple(changed(chain) for chain in plan.chains))


if __name__ == "__main__":
    main()
