"""Language models: a decoder with its key-value cache in, a network of one step out."""

from __future__ import annotations

from codl.frontend.decoders.build import DECODERS, DecoderSource, exported, read_decoder
from codl.frontend.decoders.step import LAST_ROW, PAST_LENGTH, POSITIONS, Step, step_of

__all__ = [
    "DECODERS",
    "LAST_ROW",
    "PAST_LENGTH",
    "POSITIONS",
    "DecoderSource",
    "Step",
    "exported",
    "read_decoder",
    "step_of",
]
