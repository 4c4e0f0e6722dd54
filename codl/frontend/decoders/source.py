"""Decoders by name or file: the model without its large constants, and those beside it.

So a model of any size is optimised as fast as a small one, its constants are there once, and a
model of more than 2 GB, which no ONNX model can have inside, needs no file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray
from onnx import helper

from codl.errors import UnknownNameError
from codl.frontend.decoders.build import DECODERS, DecoderSizes, describe
from codl.frontend.graph.weights import array_of
from codl.frontend.models.builder import ModelBuilder
from codl.frontend.models.deployment import load_onnx

#: Constants of fewer elements stay in the model: shapes may depend on them.
LARGE = 1 << 12
#: Nodes that take a large constant as it is; one that others read stays, to be folded.
READERS = ("MatMul", "MatMulNBits", "Gather", "GatherBlockQuantized")


@dataclass(frozen=True)
class DecoderSource:
    """`model` gives the ONNX model for so many new tokens and a capacity of the cache.

    Its large constants are declared as inputs, and `weights` has them by name.
    """

    name: str
    model: Callable[[int, int], onnx.ModelProto]
    weights: Mapping[str, NDArray[Any]]


def read_decoder(model: str) -> DecoderSource:
    """A built-in decoder by name, or one in an `.onnx` file; raises as `codl.frontend.models`."""
    if model in DECODERS:
        return built(model, DECODERS[model])
    path = Path(model)
    if not path.is_file():
        raise UnknownNameError("language model", model, DECODERS, fix="An ONNX file is a path.")
    proto, weights = _parted(load_onnx(path))
    return DecoderSource(path.stem, lambda tokens, capacity: proto, weights)


def built(name: str, sizes: DecoderSizes, *, seed: int = 0) -> DecoderSource:
    """A decoder of any sizes with weights from a seed."""
    whole = ModelBuilder(name, seed=seed, apart=True)
    describe(whole, sizes, tokens=1, capacity=1)

    def model(tokens: int, capacity: int) -> onnx.ModelProto:
        builder = ModelBuilder(name, weights=False)
        describe(builder, sizes, tokens=tokens, capacity=capacity)
        return builder.build()

    return DecoderSource(name, model, whole.arrays)


def _parted(proto: onnx.ModelProto) -> tuple[onnx.ModelProto, dict[str, NDArray[Any]]]:
    """A model without its large constants, and those."""
    graph, weights = proto.graph, {}
    others = {name for node in graph.node if node.op_type not in READERS for name in node.input}
    kept = []
    for item in graph.initializer:
        array = array_of(item)
        if item.name in others or array.size < LARGE:
            kept.append(item)
            continue
        weights[item.name] = array
        graph.input.append(helper.make_tensor_value_info(item.name, item.data_type, array.shape))
    del graph.initializer[:]
    graph.initializer.extend(kept)
    return proto, weights
