"""Operators: one file each, with shapes, FLOPs, needed ranges and a float64 reference."""

from typing import TYPE_CHECKING

from codl.later import imported_later
from codl.ops.base import Activation, Array, Dim, Op, Pad, Weights, split
from codl.ops.concat import Concat
from codl.ops.conv2d import Conv2d
from codl.ops.conv_transpose2d import ConvTranspose2d
from codl.ops.eltwise import Eltwise
from codl.ops.fully_connected import FullyConnected
from codl.ops.joining import ConcatNd, Gather
from codl.ops.matmul import MatMul
from codl.ops.max_indices import MaxIndices
from codl.ops.movement import PadNd, Slice, Tile, Transpose, Windows
from codl.ops.nd import NdOp
from codl.ops.network import Layer, Network
from codl.ops.norm import Norm
from codl.ops.onnx_model import OnnxModel
from codl.ops.pool2d import Pool2d
from codl.ops.reduce import Reduce
from codl.ops.region import Region, Shape, Span
from codl.ops.reshape import Reshape
from codl.ops.resize import Resize
from codl.ops.softmax import Softmax
from codl.ops.spec import OP_TYPES, parse, to_text
from codl.ops.window import Size2

if TYPE_CHECKING:
    from codl.ops.lowering import load_network, lower, network_of

__getattr__ = imported_later(
    __name__, dict.fromkeys(("load_network", "lower", "network_of"), "lowering")
)

__all__ = [
    "OP_TYPES",
    "Activation",
    "Array",
    "Concat",
    "ConcatNd",
    "Conv2d",
    "ConvTranspose2d",
    "Dim",
    "Eltwise",
    "FullyConnected",
    "Gather",
    "Layer",
    "MatMul",
    "MaxIndices",
    "NdOp",
    "Network",
    "Norm",
    "OnnxModel",
    "Op",
    "Pad",
    "PadNd",
    "Pool2d",
    "Reduce",
    "Region",
    "Reshape",
    "Resize",
    "Shape",
    "Size2",
    "Slice",
    "Softmax",
    "Span",
    "Tile",
    "Transpose",
    "Weights",
    "Windows",
    "load_network",
    "lower",
    "network_of",
    "parse",
    "split",
    "to_text",
]
