"""Plants faulty kernels in a deep model, and sees whether they are found and got around.

    python scripts/plant_kernels.py --nodes 600 --rounds 5

In every round one op of each kind gets a kernel with a subtle bug, another one each time. What is
named and what runs instead must be exactly these ops, and the outputs right with that.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from random import Random
from time import monotonic

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import numpy as np
from support.devices import here, opened
from support.faults import FAULTS, Faulty, default_of, one_of_each_kind, plant

from codl.ir import Array, Network, parse
from codl.ir.network import Layer
from codl.kernels import registry
from codl.kernels.tuning import Tuning
from codl.machine.placement import LocalSoc, describe
from codl.measure.budget import Budget
from codl.measure.op_runner import operands
from codl.validate.references import ModelAndSource
from codl.validate.remedy import find_remedy
from codl.validate.validation import ModelUnderTest, validate

SIZES = "1x16x12x12"
#: Blocks of ops from a tensor of `SIZES` to another one. `x` is what goes in, `t` what the op in
#: front made, `before` is a tensor of an earlier block, and other names are constants.
BLOCKS: tuple[tuple[tuple[str, str], ...], ...] = (
    (("conv2d in={} oc=16 kernel=3x3 pad=1 act=relu", "x"),),
    (("conv2d in={} oc=16 kernel=3x3 pad=1 groups=16", "x"),),
    (("pooling in={} kernel=3x3 stride=1 pad=1", "x"),),
    (("conv_transpose2d in={} oc=16 kernel=3x3 size=12x12 crop=1x1", "x"),),
    (
        ("resize in={} size=24x24 mode=linear", "x"),
        ("pooling in=1x16x24x24 mode=avg kernel=2x2 stride=2", "t"),
    ),
    (("fc in={} oc=16", "x"), ("eltwise in={},1x16x1x1 mode=mul", "x t")),
    (("concat in={},{}", "x before"), ("conv2d in=1x32x12x12 oc=16 kernel=1x1", "t")),
    (
        ("reshape in={} to=1x144x16", "x"),
        ("matmul in=1x144x16 matrix=16x16", "t"),
        ("reshape in=1x144x16 to={}", "t"),
    ),
    (("transpose in={} perm=0x1x3x2", "x"),),
    (("matmul in={},{}", "x before"), ("softmax in={} axes=3", "t")),
    (("norm in={},1x16x1x1,1x16x1x1 groups=16 axis=1", "x scale bias"),),
    (("reduce in={} mode=mean axes=2x3 keepdims=1", "x"), ("eltwise in={},1x16x1x1", "x t")),
    (
        ("slice in={} starts=0x8x0x0 steps=1x1x1x1 to=1x8x12x12", "x"),
        ("tile in=1x8x12x12 repeats=1x2x1x1", "t"),
    ),
    (("pad in={} before=0x0x1x1 after=0x0x-1x-1", "x"),),
    (
        ("concat_nd in={},{} axis=2", "x before"),
        ("slice in=1x16x24x12 starts=0x0x0x0 steps=1x1x2x1 to={}", "t"),
    ),
    (("gather in={},16 axis=1", "x order"),),
    (("attention in={},{},{} scale=0.3", "x before x"),),
)
#: What follows a block: what went in is added, and values are brought back to about 1.
BEHIND = (
    ("eltwise in={},{}", "x t"),
    ("norm in={},1x16x1x1,1x16x1x1 groups=16 axis=1", "t scale bias"),
)


def deep_network(nodes: int, seed: int = 0) -> tuple[Network, dict[str, Array]]:
    """A network of about so many layers, every kind of op in turn, and an input for it."""
    dice, stream = Random(seed), ["x"]
    layers: list[Layer] = []
    blocks: list[Sequence[tuple[str, str]]] = []
    while len(layers) < nodes:
        if not blocks:
            blocks = dice.sample(BLOCKS, len(BLOCKS))
        known = {"x": stream[-1], "before": dice.choice(stream)}
        for text, names in (*blocks.pop(), *BEHIND):
            reads = tuple(known.get(name, name) for name in names.split())
            layers.append(_layer(text.replace("{}", SIZES), reads, len(layers)))
            known["t"] = layers[-1].output
        stream.append(known["t"])
    last = layers[-1]
    shape = parse(f"softmax in={SIZES} axes=3").output
    network = Network(
        "deep", tuple(layers), {"x": shape}, {"y": (last.output, tuple(shape))}, _constants()
    )
    return network, {"x": np.random.default_rng(seed).standard_normal(shape).astype(np.float32)}


def _layer(text: str, reads: tuple[str, ...], number: int) -> Layer:
    op = parse(text)
    _, weights = operands(op)
    return Layer(f"{op.kind}_{number}", op, reads, f"t{number}", weights)


def _constants() -> dict[str, Array]:
    return {
        "scale": np.linspace(0.5, 1.5, 16, dtype=np.float32).reshape(1, 16, 1, 1),
        "bias": np.linspace(-0.5, 0.5, 16, dtype=np.float32).reshape(1, 16, 1, 1),
        "order": np.arange(16, dtype=np.float32)[::-1].reshape(1, 16, 1, 1).copy(),
    }


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
