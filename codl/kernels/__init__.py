"""Kernel variants: descriptions of implementations of ops, compiled and run by `codl.runtime`.

The module of an op kind is imported when its variants are first used. It lists them in `VARIANTS`,
in order of preference; variants for a CPU as OpenCL device come last.
"""

from codl.kernels.registry import VARIANTS

#: The module of each op kind.
MODULES = {
    "attention": "attention",
    "concat": "concat",
    "concat_nd": "strided",
    "conv2d": "conv2d",
    "conv_transpose2d": "conv_transpose2d",
    "eltwise": "eltwise",
    "fc": "fc",
    "reshape": "strided",
    "matmul": "matmul",
    "norm": "rows",
    "onnx": "cpu",
    "pooling": "pooling",
    "resize": "resize",
    "reduce": "rows",
    "softmax": "rows",
    **dict.fromkeys(("gather", "transpose", "slice", "tile", "pad"), "strided"),
}

for kind, module in MODULES.items():
    VARIANTS.add_lazy(kind, f"{__name__}.{module}")
