"""Ops as text: some of every kind, and some as models have them."""

from __future__ import annotations

from codl.ir.op_text import parse

#: At least one that each kernel variant accepts.
EVERY_KIND = (
    "conv2d in=1x64x14x14 oc=64 kernel=3 pad=1",
    "conv2d in=1x64x14x14 oc=64 kernel=3 pad=1 groups=64",
    "conv2d in=1x64x14x14 oc=64 kernel=3 pad=1 groups=8",
    "conv2d in=1x64x14x14 oc=64 kernel=1",
    "conv2d in=1x64x14x14 oc=64 kernel=7 pad=3",
    "conv2d in=1x64x14x14 oc=2 kernel=3 pad=1",
    "conv2d in=1x64x14x14 oc=32 kernel=5 pad=2",
    "pooling in=1x64x14x14 mode=avg kernel=2 stride=2",
    "fc in=1x64x1x1 oc=64",
    "concat in=1x64x14x14,1x32x14x14",
    "eltwise in=1x64x14x14,1x64x14x14",
    "reshape in=1x64x14x14 to=1x12544",
    "conv2d in=1x64x14x14 oc=2 kernel=3 pad=1",
    "conv2d in=1x64x14x14 oc=32 kernel=5 pad=2",
    "pooling in=1x64x14x14 mode=avg kernel=14",
    "conv_transpose2d in=1x64x14x14 oc=32 kernel=4 stride=2 size=28x28 crop=1",
    "resize in=1x64x14x14 size=28x28",
    "matmul in=64x32,32x48",
    "max_indices in=1x8x14x14 kernel=2 stride=2",
    "norm in=64x32 axis=1",
    "norm in=1x64x14x14,1x64x1x1,1x64x1x1 axis=1 groups=64",
    "reduce in=64x32 axes=1 mode=sum",
    "softmax in=64x32 axes=1",
    "pad in=5x20 before=1x3 after=1x40",
    "slice in=100x100 starts=9x0 steps=1x3 to=20x34",
    "tile in=1x3x1x40 repeats=2x1x50x1",
    "transpose in=100x17 perm=1x0",
    "windows in=1x8x14x5 count=6 kernel=3 stride=2",
    "concat_nd in=7x5x1,7x5x2 axis=2",
    "gather in=100x17,5 axis=0",
    "onnx in=1x8x14 to=1x8x14 nodes=CumSum digest=0123456789abcdef",
)
#: Of known models.
OF_MODELS = [
    parse(text)
    for text in (
        "conv2d in=1x64x56x56 oc=64 kernel=3x3 pad=1 act=relu",
        "conv2d in=1x512x14x14 oc=512 kernel=3x3 pad=1 act=relu",
        "conv2d in=1x256x28x28 oc=128 kernel=1x1",
        "conv2d in=1x3x224x224 oc=64 kernel=7x7 stride=2x2 pad=3",
        "conv2d in=1x96x28x28 oc=96 kernel=3x3 pad=1 groups=96",
        "pooling in=1x64x112x112 kernel=3x3 stride=2x2 pad=1",
        "pooling in=1x2048x7x7 mode=avg kernel=7x7",
        "fc in=1x512x7x7 oc=4096",
        "fc in=1x2048x1x1 oc=1000",
        "eltwise in=1x256x28x28,1x256x28x28",
        "concat in=1x512x13x13,1x1024x13x13",
        "softmax in=1x1000x1x1 axes=1",
    )
]
