"""Operators by family: shapes, FLOPs, input regions and a float64 reference.

A family's module is imported when an op of one of its kinds is used.
"""

from codl.ir.ops.base import OP_TYPES

#: The kinds of op of each module.
KINDS = {
    "eltwise": ("eltwise",),
    "matmul": ("matmul", "fc", "attention"),
    "reductions": ("reduce", "softmax", "norm"),
    "convolution": ("conv2d", "conv_transpose2d"),
    "movement": ("transpose", "slice", "tile", "pad", "reshape", "concat", "concat_nd", "gather"),
    "onnx_model": ("onnx",),
    "resize": ("resize",),
    "window": ("pooling",),
}

for module, kinds in KINDS.items():
    for kind in kinds:
        OP_TYPES.add_lazy(kind, f"{__name__}.{module}")
