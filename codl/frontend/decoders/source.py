"""Decoders by name or file, with their large constants beside them.

So a model of any size is optimised as fast as a small one, its constants are there once, and a
model of more than 2 GB, which no ONNX model can have inside, needs no file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from codl.errors import UnknownNameError
from codl.frontend.decoders.build import DECODERS, DecoderSizes, describe
from codl.frontend.graph.weights import Model
from codl.frontend.models.builder import ModelBuilder
from codl.frontend.models.deployment import load_onnx


@dataclass(frozen=True)
class DecoderSource:
    """`model` gives the ONNX model for so many new tokens and a capacity of the cache."""

    name: str
    model: Callable[[int, int], Model]


def read_decoder(model: str) -> DecoderSource:
    """A built-in decoder by name, or one in an `.onnx` file; raises as `codl.frontend.models`."""
    if model in DECODERS:
        return built(model, DECODERS[model])
    path = Path(model)
    if not path.is_file():
        raise UnknownNameError("language model", model, DECODERS, fix="An ONNX file is a path.")
    read = Model.of(load_onnx(path))
    return DecoderSource(path.stem, lambda tokens, capacity: read)


def built(name: str, sizes: DecoderSizes, *, seed: int = 0) -> DecoderSource:
    """A decoder of any sizes with weights from a seed."""
    whole = ModelBuilder(name, seed=seed, apart=True)
    describe(whole, sizes, tokens=1, capacity=1)

    def model(tokens: int, capacity: int) -> Model:
        builder = ModelBuilder(name, weights=False)
        describe(builder, sizes, tokens=tokens, capacity=capacity)
        return builder.model().with_weights(whole.arrays)

    return DecoderSource(name, model)
