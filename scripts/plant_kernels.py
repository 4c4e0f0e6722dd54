"""Plants faulty kernels in a deep model, and sees whether they are found and got around.

    python scripts/plant_kernels.py --nodes 600 --rounds 5

In every round one op of each kind gets a kernel with a subtle bug, another one each time. What is
named and what runs instead must be exactly these ops, and the outputs right with that.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from random import Random
from time import monotonic

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from support.deep_network import deep_network
from support.devices import here, opened
from support.faults import FAULTS, Faulty, default_of, one_of_each_kind, plant

from codl.kernels import registry
from codl.kernels.tuning import Tuning
from codl.machine.placement import LocalSoc, describe
from codl.measure.budget import Budget
from codl.validate.references import ModelAndSource
from codl.validate.remedy import find_remedy
from codl.validate.validation import ModelUnderTest, validate


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, default=600)
    parser.add_argument("--rounds", type=int, default=len(FAULTS))
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    device = opened()[0]
    soc, folder = describe("test", device), Path(tempfile.mkdtemp(prefix="codl-faults-"))
    print(f"{device.name} by {device.icd}", flush=True)
    is_right = [one_round(args.nodes, args.seed, turn, soc, folder) for turn in range(args.rounds)]
    if not all(is_right):
        sys.exit(1)


def one_round(nodes: int, seed: int, turn: int, soc: LocalSoc, folder: Path) -> bool:
    """Whether all that was planted was found, and nothing else was."""
    network, inputs = deep_network(nodes, seed)
    faults, dice = list(FAULTS), Random(1000 * seed + turn)
    faulty = {
        layer.name: _registered(Faulty(default_of(layer, soc), fault, folder))
        for number, layer in enumerate(one_of_each_kind(network, dice))
        for fault in [faults[(number + turn) % len(faults)]]
    }
    planted = plant(network, inputs, soc, faulty)
    bench, begin = (
        ModelUnderTest(ModelAndSource(network), here(soc), Tuning(), [inputs]),
        monotonic(),
    )
    found = validate(bench, planted.plan)
    checked = monotonic()
    remedy = find_remedy(bench, found, budget=Budget())
    named = {one.part.layer.name for one in found.bad}
    moved = {one.op for one in remedy.fallbacks}
    cosine = remedy.whole.cosine if remedy.whole else 0.0
    print(
        f"round {turn}: {len(network.layers)} ops, {len(planted.names)} kinds with a fault; "
        f"{len(named & set(planted.names))} of them named and {len(named - set(planted.names))} "
        f"others; {len(moved)} ops moved; cosine {found.whole.worst.cosine:.6f} before and "
        f"{cosine:.6f} after; {checked - begin:.0f} s to check, {monotonic() - checked:.0f} s to "
        "get around",
        flush=True,
    )
    return remedy.ok and named == moved == set(planted.names) and cosine >= found.cosine


def _registered(variant: Faulty) -> Faulty:
    """The one that is registered under its kind and name."""
    for known in registry.VARIANTS.values():
        if (known.op_kind, known.name) == (variant.op_kind, variant.name):
            return known  # type: ignore[return-value]
    registry.register(variant)  # type: ignore[arg-type]
    return variant


if __name__ == "__main__":
    main()
