"""Decoders by name or from a file, with their large constants beside them.

So a model of any size is optimised as fast as a small one, its constants are there once, and a
model of more than 2 GB, which no ONNX model can have inside, needs no file. Built-in ones are in
their published shapes, with weights from a seed, written as the exporters of onnxruntime-genai and
Optimum write them: attention is one node, which gets the cache and hands it out again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import pi
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

from codl.errors import UnknownNameError
from codl.files import printable
from codl.frontend.graph.weights import Model
from codl.frontend.models.builder import ModelBuilder
from codl.frontend.models.deployment import load_onnx

#: What inputs and outputs are called, of layer {0} where that is one of them.
TOKENS, LOGITS = "input_ids", "logits"
PAST, PRESENT = (
    ("past_key_values.{0}.key", "past_key_values.{0}.value"),
    (
        "present.{0}.key",
        "present.{0}.value",
    ),
)
LAST_KEYS, ALL_KEYS = "seqlens_k", "total_sequence_length"


@dataclass(frozen=True)
class Stretched:
    """Rotary frequencies of a longer context (Llama 3.1): slow ones are `factor` times slower.

    Slow are those of fewer than `slow` turns in a context of `context` tokens; those of more than
    `fast` turns stay, and the ones between are mixed.
    """

    factor: float
    slow: float
    fast: float
    context: int

    def of(self, frequencies: NDArray[np.float64]) -> NDArray[np.float64]:
        turns = self.context * frequencies / (2 * pi)
        kept = np.clip((turns - self.slow) / (self.fast - self.slow), 0, 1)
        return frequencies * (kept + (1 - kept) / self.factor)


@dataclass(frozen=True)
class DecoderSizes:
    """A Llama: `heads` of `each` features share `groups` of keys and values.

    `has_norms`: queries and keys are normalized head by head, as Qwen 3 does.
    """

    layers: int
    features: int
    heads: int
    groups: int
    each: int
    widened: int
    words: int
    theta: float
    epsilon: float
    has_norms: bool = False
    stretched: Stretched | None = None


#: By name: Ben Allal et al. 2025, the Qwen team 2025, and Meta 2024.
DECODERS: Mapping[str, DecoderSizes] = {
    "smollm2_135m": DecoderSizes(30, 576, 9, 3, 64, 1536, 49152, 1e5, 1e-5),
    "qwen3_0_6b": DecoderSizes(28, 1024, 16, 8, 128, 3072, 151936, 1e6, 1e-6, has_norms=True),
    "llama3_2_1b": DecoderSizes(
        16, 2048, 32, 8, 64, 8192, 128256, 5e5, 1e-5, stretched=Stretched(32, 1, 4, 8192)
    ),
}


def describe(b: ModelBuilder, sizes: DecoderSizes, *, tokens: int, capacity: int) -> None:
    """One step of `tokens` new tokens, with caches of a capacity, to the logits of all of them."""
    ids = b.input(TOKENS, (1, tokens), TensorProto.INT64)
    for name, shape in ((LAST_KEYS, (1,)), (ALL_KEYS, ())):
        b.input(name, shape, TensorProto.INT32)
    table = b.learned("embedding", (sizes.words, sizes.features), spread=1.0)
    x = b.node("Gather", [table, ids], axis=0)
    angles = _tables(b, sizes, capacity)
    for layer in range(sizes.layers):
        x = b.add(x, _attention(b, _norm(b, x, sizes), sizes, angles, layer, capacity))
        y = _norm(b, x, sizes)
        gate = b.silu(b.linear(y, sizes.widened, bias=False))
        y = b.mul(gate, b.linear(y, sizes.widened, bias=False))
        x = b.add(x, b.linear(y, sizes.features, bias=False, gain=2))
    x = b.linear(_norm(b, x, sizes), sizes.words, bias=False)
    b.output(b.node("Identity", [x], name=LOGITS))


def _attention(
    b: ModelBuilder,
    x: str,
    sizes: DecoderSizes,
    angles: tuple[str, str],
    layer: int,
    capacity: int,
) -> str:
    narrow = sizes.groups * sizes.each
    widths = (sizes.heads * sizes.each, narrow, narrow)
    queries, keys, values = (b.linear(x, width, bias=False) for width in widths)
    if sizes.has_norms:
        queries, keys = (_norm_of_heads(b, x, sizes) for x in (queries, keys))
    cache = (1, sizes.groups, capacity, sizes.each)
    past = [b.input(name.format(layer), cache) for name in PAST]
    present = [name.format(layer) for name in PRESENT]
    mixed = b.foreign(
        "GroupQueryAttention",
        [queries, keys, values, *past, LAST_KEYS, ALL_KEYS, *angles],
        {f"attention{layer}": b.shapes[queries], **dict.fromkeys(present, cache)},
        num_heads=sizes.heads,
        kv_num_heads=sizes.groups,
        do_rotary=1,
    )
    for name in present:
        b.output(name)
    return b.linear(mixed, sizes.features, bias=False)


def _norm(b: ModelBuilder, x: str, sizes: DecoderSizes) -> str:
    """x over its root mean square, times a scale for every feature."""
    shape = b.shapes[x]
    name = f"{x}.norm"
    scale = b.learned(f"{name}.scale", shape[-1:], spread=0.1, mean=1.0)
    rule = {"axis": -1, "epsilon": sizes.epsilon}
    return b.foreign("SimplifiedLayerNormalization", [x, scale], {name: shape}, domain="", **rule)


def _norm_of_heads(b: ModelBuilder, x: str, sizes: DecoderSizes) -> str:
    """The sizes of 0 are those that are there, whatever the number of tokens."""
    width = b.shapes[x][2]
    apart = b.reshape(x, (0, 0, width // sizes.each, sizes.each))
    return b.reshape(_norm(b, apart, sizes), (0, 0, width))


def _tables(b: ModelBuilder, sizes: DecoderSizes, capacity: int) -> tuple[str, str]:
    """Cosines and sines of all places by which features are turned."""
    frequencies = sizes.theta ** -(np.arange(0, sizes.each, 2) / sizes.each)
    if sizes.stretched is not None:
        frequencies = sizes.stretched.of(frequencies)
    angles = np.arange(capacity)[:, None] * frequencies
    tables = {"cos_cache": np.cos(angles), "sin_cache": np.sin(angles)}
    cos, sin = (b.constant(name, v.astype(np.float32)) for name, v in tables.items())
    return cos, sin


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
    return DecoderSource(printable(path.stem), lambda tokens, capacity: read)


def built(name: str, sizes: DecoderSizes, *, seed: int = 0) -> DecoderSource:
    """A decoder of any sizes with weights from a seed."""
    whole = ModelBuilder(name, seed=seed, apart=True)
    describe(whole, sizes, tokens=1, capacity=1)

    def model(tokens: int, capacity: int) -> Model:
        builder = ModelBuilder(name, weights=False)
        describe(builder, sizes, tokens=tokens, capacity=capacity)
        return builder.model().with_weights(whole.arrays)

    return DecoderSource(name, model)


def exported(name: str, capacity: int) -> onnx.ModelProto:
    """A built-in decoder with rotary angles of at most `capacity` tokens.

    Raises `UnknownNameError` for a name that is none's.
    """
    if name not in DECODERS:
        raise UnknownNameError("language model", name, DECODERS)
    return with_weights(built(name, DECODERS[name]), capacity)


def with_weights(source: DecoderSource, capacity: int) -> onnx.ModelProto:
    """The model with weights, and without fixed numbers of tokens; may have more than 2 GB."""
    proto = source.model(2, capacity).whole()
    for info in proto.graph.input:
        dims = info.type.tensor_type.shape.dim
        if info.name == TOKENS:
            dims[0].dim_param, dims[1].dim_param = "batch_size", "sequence_length"
        elif info.name.startswith("past"):
            dims[0].dim_param, dims[2].dim_param = "batch_size", "past_sequence_length"
    for info in proto.graph.output:
        info.type.tensor_type.ClearField("shape")
    return proto
