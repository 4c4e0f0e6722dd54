"""Data that all stages share: regions, operators, networks, plans, executables."""

from codl.ir.network import Layer, Network
from codl.ir.op_text import parse, to_text
from codl.ir.ops.base import OP_TYPES, Activation, Array, Dim, Op, Pad, Weights, split
from codl.ir.region import Region, Shape, Span

__all__ = [
    "OP_TYPES",
    "Activation",
    "Array",
    "Dim",
    "Layer",
    "Network",
    "Op",
    "Pad",
    "Region",
    "Shape",
    "Span",
    "Weights",
    "parse",
    "split",
    "to_text",
]
