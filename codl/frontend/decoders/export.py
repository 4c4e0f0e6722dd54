"""Decoders as a file has them: with their weights, and for any number of tokens."""

from __future__ import annotations

import onnx

from codl.errors import UnknownNameError
from codl.frontend.decoders.build import DECODERS, TOKENS
from codl.frontend.decoders.source import DecoderSource, built


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
