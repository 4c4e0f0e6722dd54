"""Converters of ONNX nodes to operators, one module for each family.

Each module adds to `base.CONVERTERS`. Some are imported when a model has their nodes.
"""

from codl.frontend.converters import elementwise, matmul, movement, windows
from codl.frontend.converters.base import CONVERTERS

__all__ = ["elementwise", "matmul", "movement", "windows"]

#: ONNX nodes of modules that few convolutional networks need.
NODES = {
    "reductions": (
        *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean"),
        *("ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare", "Softmax", "LogSoftmax"),
        *("BatchNormalization", "LayerNormalization", "RMSNormalization"),
        *("SimplifiedLayerNormalization", "InstanceNormalization", "GroupNormalization"),
        "Attention",
    ),
    "resize": ("Resize", "Upsample"),
}

for module, nodes in NODES.items():
    for node in nodes:
        CONVERTERS.add_lazy(node, f"{__name__}.{module}")
