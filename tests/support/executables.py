"""Small executables with everything in them that an executable may have; no device is needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codl.ir.constants import array_digest
from codl.ir.executable import Executable
from codl.ir.executable_json import decode, encode
from codl.ir.network import Layer, Network
from codl.ir.op_text import parse
from codl.ir.ops.base import Array
from codl.ir.plan import Plan
from codl.ir.records.soc import Soc
from codl.kernels.tuning import Tuning
from codl.lower.lowering import lower
from support.fuzzing import Subject
from support.mutations import TREE
from support.plans import make_plan
from support.simulated import SOC, soc_with

OPS = (
    ("conv2d in=2x3x9x7 oc=8 kernel=3 pad=1", ("x",)),
    ("conv2d in=2x8x9x7 oc=8 kernel=3 pad=1", ("t0",)),
    ("eltwise in=2x8x9x7,2x8x9x7 act=relu", ("t1", "t0")),
    ("norm in=2x8x9x7,1x8x1x1,1x8x1x1 axis=1 epsilon=0.01", ("t2", "scale", "bias")),
    ("pooling in=2x8x9x7 mode=max kernel=2 stride=2", ("t3",)),
    ("fc in=2x8x4x3 oc=12", ("t4",)),
)
CUTS = ((3, "H", 0.5), (1, "N", 0.5), (1, "OC", 0.5), (1, "OC", 0.4))


def small_network() -> Network:
    """A residual block, a norm by constants, a pooling and a product, of two images."""
    constants = {name: numbers((1, 8, 1, 1)) for name in ("scale", "bias")}
    return network_of(OPS, constants)


def network_of(
    ops: Sequence[tuple[str, tuple[str, ...]]], constants: dict[str, Array] | None = None
) -> Network:
    """Layers by their ops and inputs: `x` is the network's, `t0` the first one's output."""
    layers = []
    for index, (text, inputs) in enumerate(ops):
        op = parse(text)
        weights = {name: numbers(shape) for name, shape in op.weight_shapes.items()}
        layers.append(Layer(f"op{index}", op, inputs, f"t{index}", weights))
    last = layers[-1].op.output
    given, results = {"x": layers[0].op.input}, {"y": (layers[-1].output, tuple(last))}
    return Network("small", tuple(layers), given, results, constants or {})


def numbers(shape: tuple[int, ...]) -> Array:
    """Values between -1 and 1 that are the same on every machine."""
    values = (np.arange(prod(shape)) * 7919 % 255 - 127) / np.float32(128)
    return values.astype(np.float32).reshape(shape)


def small_plan(network: Network, soc: Soc) -> Plan:
    """Chains cut at every dimension; the norm runs in ONNX Runtime on the CPU."""
    plan = make_plan(network, soc, CUTS)
    own = {"op3": {"cpu": "cpu_ort", "gpu": "gpu_direct"}}
    chains = [
        replace(chain, variants={name: own.get(name, of) for name, of in chain.variants.items()})
        for chain in plan.chains
    ]
    return replace(plan, chains=tuple(chains))


#: Memory that is mapped, memory that both processors see, and images of half precision.
SOCS = (
    SOC,
    soc_with(fine_grained_svm=True, vector_width=8),
    soc_with(memory_types=("image2d",), element="float16"),
)


def small_executable(soc: Soc = SOC) -> Executable:
    network = small_network()
    return lower(network, small_plan(network, soc), soc, Tuning())


def encoded(executable: Executable) -> tuple[bytes, dict[str, NDArray[Any]]]:
    """The JSON of an executable, and its arrays by their digests."""
    kept: dict[str, NDArray[Any]] = {}

    def put(array: NDArray[Any]) -> str:
        digest = array_digest(array)
        kept[digest] = array
        return digest

    return encode(executable, put), kept


def executables() -> Subject:
    """The JSON of executables that have everything; each is read, or one clear error comes."""
    arrays: dict[str, Any] = {}
    seeds = []
    for soc in SOCS:
        content, own = encoded(small_executable(soc))
        seeds.append(content)
        arrays |= own
    return Subject("executables", seeds, TREE, lambda content: decode(content, arrays.__getitem__))
