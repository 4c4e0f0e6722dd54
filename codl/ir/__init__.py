"""Plain data that every stage shares: regions, operators, networks, plans, SoCs."""

from codl.ir.network import Layer, Network
from codl.ir.op_text import OP_TYPES, parse, to_text
from codl.ir.ops.base import Activation, Array, Dim, Op, Pad, Weights, split
from codl.ir.ops.concat import Concat
from codl.ir.ops.concat_gather import ConcatNd, Gather
from codl.ir.ops.conv2d import Conv2d
from codl.ir.ops.conv_transpose2d import ConvTranspose2d
from codl.ir.ops.eltwise import Eltwise
from codl.ir.ops.fully_connected import FullyConnected
from codl.ir.ops.matmul import MatMul
from codl.ir.ops.max_indices import MaxIndices
from codl.ir.ops.movement import PadNd, Slice, Tile, Transpose, Windows
from codl.ir.ops.nd import NdOp
from codl.ir.ops.norm import Norm
from codl.ir.ops.onnx_model import OnnxModel
from codl.ir.ops.pool2d import Pool2d
from codl.ir.ops.reduce import Reduce
from codl.ir.ops.reshape import Reshape
from codl.ir.ops.resize import Resize
from codl.ir.ops.softmax import Softmax
from codl.ir.ops.window import Size2
from codl.ir.region import Region, Shape, Span

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
    "parse",
    "split",
    "to_text",
]
