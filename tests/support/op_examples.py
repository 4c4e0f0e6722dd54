"""Ops as text: some of every kind, and some as models have them."""

from __future__ import annotations

from codl.ir import OP_TYPES, parse

#: Of every kind of op that is registered, such that each kernel variant accepts one.
EVERY_KIND = tuple(text for op_type in OP_TYPES.values() for text in op_type.examples)
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
