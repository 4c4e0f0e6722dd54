"""What a user has of codl with the default check on: right outputs, an error, or a wrong one.

    python scripts/planted_models.py SOC FOLDER "MODEL WAY" ...

codl is whatever is importable, such as a copy with a fault. Each model runs as `codl.compile` makes
it, by a plan that is named by its way; its outputs are compared with ONNX Runtime's, on inputs that
the check has not seen. A line of JSON tells of each what came of it.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from inspect import signature
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import TensorProto
from support.onnx_models import floats, model, node
from support.random_plans import random_plan

from codl.errors import CodlError, CodlWarning
from codl.frontend.convert import read_network
from codl.frontend.models.builder import ModelBuilder
from codl.ir.network import Network
from codl.ir.plan import Chain, Plan
from codl.ir.records.gpu_limits import GpuLimits
from codl.ir.types import PROCESSORS
from codl.kernels import registry
from codl.machine.placement import LocalSoc, load
from codl.plan.build_plan import preferring
from codl.targets.connect import connect
from codl.validate.first_check import checked_engine

#: An output may be off by so much of its largest value: of float32, and where halves are stored.
CLOSE, CLOSE_HALF = 1e-3, 3e-2
#: How many ops a chain has that both processors share.
TOGETHER = 3


def convolutions(b: ModelBuilder) -> None:
    x = b.relu(b.conv(b.input("image", (1, 3, 37, 29)), 12, 3, pad=1))
    y = b.conv(b.clip(b.conv(x, 12, 3, pad=1, groups=12), 0.0, 6.0), 12, 1, pad=0)
    x = b.relu(b.add(x, y))
    x = b.leaky_relu(b.batch_norm(b.conv(x, 20, 5, pad=(1, 2, 3, 2), stride=2)), 0.1)
    b.output(x)
    x = b.max_pool(b.conv(x, 16, 3, pad=1, groups=4), 2, 2)
    x = b.concat([b.conv(x, 7, 3, pad=2, dilation=2), b.conv(x, 9, (1, 3), pad=(0, 1, 0, 1))])
    b.output(b.fully_connected(b.flatten(b.global_average_pool(x)), 21))


def batches(b: ModelBuilder) -> None:
    x = b.relu(b.conv(b.input("image", (3, 5, 13, 11)), 12, 3, pad=1))
    x = b.add(x, b.conv(x, 12, 3, pad=1))
    b.output(b.fully_connected(b.flatten(b.max_pool(x, 3, 2)), 10))


def large_batch(b: ModelBuilder) -> None:
    x = b.input("image", (3, 2, 256, 256))
    b.output(b.relu(b.conv(x, 2, 3, pad=1)))


def transposed(b: ModelBuilder) -> None:
    x = b.input("image", (1, 6, 9, 7))
    x = b.relu(b.conv_transpose(x, 10, 4, stride=2, pad=(1, 1, 1, 1)))
    x = b.upsample(b.conv(x, 8, 3, pad=1), 2)
    sizes = b.constant("sizes", np.array([1, 8, 25, 31], np.int64))
    y = b.node("Resize", [x, "", "", sizes], mode="linear")
    b.output(x)
    b.output(b.conv_transpose(y, 5, 3, stride=1, pad=(0, 1, 2, 1)))


def pools(b: ModelBuilder) -> None:
    x = b.conv(b.input("image", (1, 3, 23, 19)), 10, 3, pad=1)
    y = b.average_pool(x, 3, 2, pad=(1, 1, 1, 1))
    counted = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 0, 0]}
    z = b.node("AveragePool", [x], count_include_pad=1, **counted)
    w = b.node("MaxPool", [x], ceil_mode=1, **counted)
    b.output(b.add(y, b.max_pool(x, 3, 2, pad=(0, 2, 2, 0))))
    b.output(b.relu(z))
    b.output(w)
    b.output(b.global_average_pool(x))
    b.output(b.node("GlobalMaxPool", [x]))


def moves(b: ModelBuilder) -> None:
    x = b.conv(b.input("image", (1, 3, 12, 10)), 12, 3, pad=1)
    y = b.transpose(x, (0, 1, 3, 2))
    b.output(b.matmul(b.part(y, 3, 1, 11), b.part(x, 2, 2, 12)))
    pads = b.constant("pads", np.array([0, 0, 1, 2, 0, 0, 2, 1], np.int64))
    b.output(b.relu(b.node("Pad", [x, pads])))
    b.output(b.node("Pad", [b.node("Tanh", [b.input("wide", (1, 2, 9, 40))]), pads]))
    order = b.constant("order", np.array([3, 0, 7, 7, 1], np.int64))
    b.output(b.node("Gather", [x, order], axis=1))
    b.output(b.transpose(b.reshape(x, (1, 3, 4, 12, 10)), (0, 2, 1, 3, 4)))
    b.output(b.node("Tile", [y, b.constant("times", np.array([1, 1, 2, 1], np.int64))]))
    b.output(b.concat([x, b.part(x, 2, 0, 5)], axis=2))
    b.output(b.node("DepthToSpace", [x], blocksize=2))
    steps = [np.array(v, np.int64) for v in ([11, 8], [0, 1], [1, 3], [-2, -3])]
    names = [b.constant(f"step{i}", v) for i, v in enumerate(steps)]
    b.output(b.node("Slice", [x, *names]))


def arithmetic(b: ModelBuilder) -> None:
    x = b.conv(b.input("image", (1, 3, 11, 21)), 8, 3, pad=1)
    y = b.input("scale", (1, 8, 1, 1))
    positive = b.shifted(b.node("Abs", [x]), 0.5)
    b.output(b.node("Sub", [b.mul(x, y), b.input("row", (1, 1, 1, 21))]))
    b.output(b.node("Div", [y, positive]))
    b.output(b.node("Pow", [positive, b.constant("power", np.float32(1.5))]))
    b.output(b.node("Max", [b.node("Sqrt", [positive]), b.node("Tanh", [x])]))
    b.output(b.node("PRelu", [x, b.constant("slope", np.linspace(-1, 1, 8, dtype=np.float32)
                                            .reshape(8, 1, 1))]))  # fmt: skip
    b.output(b.node("HardSwish", [b.scaled(x, 3.0)]))
    b.output(b.mul(b.node("Sigmoid", [x]), b.node("Exp", [b.scaled(x, 0.2)])))
    b.output(b.node("Min", [b.node("Elu", [x], alpha=0.7), b.node("HardSigmoid", [x])]))
    b.output(b.gelu(b.node("Neg", [x])))
    b.output(b.node("Reciprocal", [positive]))


def norms(b: ModelBuilder) -> None:
    x = b.conv(b.input("image", (1, 3, 14, 11)), 12, 3, pad=1)
    b.output(b.instance_norm(x))
    b.output(b.layer_norm(b.shifted(x, 3.0), epsilon=1e-3))
    y = b.reshape(x, (1, 12, 154))
    b.output(b.softmax(b.scaled(y, 4.0)))
    b.output(b.node("Softmax", [x], axis=1))
    b.output(b.node("ReduceMean", [x], axes=[2, 3], keepdims=1))
    b.output(b.node("ReduceMax", [x], axes=[1], keepdims=0))
    b.output(b.node("ReduceL2", [y], axes=[2]))
    b.output(b.node("LogSoftmax", [y], axis=2))


def products(b: ModelBuilder) -> None:
    x = b.input("x", (2, 17, 24))
    y = b.linear(b.layer_norm(x), 20)
    b.output(b.gelu(y))
    b.output(b.matmul(y, b.transpose(b.linear(x, 20, bias=False), (0, 2, 1))))
    b.output(b.matmul(b.part(b.node("Abs", [x]), 1, 0, 2), b.transpose(x, (0, 2, 1))))
    z = b.reshape(x, (34, 24))
    weight = b.learned("w", (24, 13), spread=0.3)
    bias = b.learned("c", (34, 1), spread=1.0)
    b.output(b.node("Gemm", [z, weight, bias], alpha=0.5, beta=2.0))
    b.output(b.node("Einsum", [x, x], equation="bij,bkj->bik"))


def attentions(b: ModelBuilder) -> None:
    x = b.layer_norm(b.input("x", (1, 19, 32)))
    mask = b.constant("mask", np.triu(np.full((19, 19), -1e4, np.float32), 1))
    heads = [b.reshape(b.linear(x, 32), (1, 19, 4, 8)) for _ in range(3)]
    q, v = (b.transpose(heads[i], (0, 2, 1, 3)) for i in (0, 2))
    k = b.transpose(heads[1], (0, 2, 3, 1))
    scores = b.add(b.scaled(b.matmul(q, k), 8**-0.5), mask)
    mixed = b.transpose(b.matmul(b.softmax(scores), v), (0, 2, 1, 3))
    x = b.add(x, b.linear(b.reshape(mixed, (1, 19, 32)), 32))
    b.output(b.linear(b.gelu(b.linear(b.layer_norm(x), 48)), 32))


def embeddings(b: ModelBuilder) -> None:
    tokens = b.input("tokens", (1, 7), TensorProto.INT64)
    table = b.learned("table", (1, 24), spread=1.0)
    wide = b.node("Cast", [tokens], to=TensorProto.FLOAT)
    x = b.matmul(b.reshape(wide, (1, 7, 1)), table)
    b.output(b.linear(b.layer_norm(x), 12))


def groups(b: ModelBuilder) -> None:
    x = b.conv(b.input("image", (1, 3, 15, 13)), 32, 3, pad=1)
    b.output(b.conv(x, 64, 3, pad=1, groups=2))
    b.output(b.conv(x, 48, (3, 5), pad=(1, 2, 1, 2), groups=16))


def depthwise(b: ModelBuilder) -> None:
    x = b.relu(b.conv(b.input("image", (1, 3, 14, 28)), 24, 3, pad=1))
    b.output(b.conv(x, 24, 3, pad=1, groups=24))
    b.output(b.conv(x, 24, 5, pad=2, stride=2, groups=24))


def tiny(b: ModelBuilder) -> None:
    x = b.relu(b.conv(b.input("image", (1, 3, 6, 6)), 16, 3, pad=1))
    b.output(b.conv(x, 20, 3, pad=1))
    b.output(b.conv(b.max_pool(x, 3, 3), 16, 3, pad=1))


def plain(b: ModelBuilder) -> None:
    x = b.relu(b.conv(b.input("image", (1, 3, 15, 13)), 32, 3, pad=1))
    x = b.relu(b.conv(x, 40, 3, pad=1))
    b.output(b.conv(x, 12, 1, pad=0))
    b.output(b.conv(x, 24, (3, 5), pad=(1, 2, 1, 2)))


def narrow(b: ModelBuilder) -> None:
    x = b.relu(b.conv(b.input("image", (1, 3, 15, 13)), 36, 3, pad=1))
    b.output(b.conv(x, 3, 3, pad=1))


def dense(b: ModelBuilder) -> None:
    x = b.conv(b.input("image", (2, 3, 9, 7)), 19, 3, pad=1)
    b.output(b.relu(b.fully_connected(b.flatten(x), 37)))


def activations(b: ModelBuilder) -> None:
    for i in range(4):
        x = b.conv(b.input(f"image{i}", (1, 3, 9, 8)), 10, 3, pad=1, gain=8.0)
        kinds = ("HardSwish", "Sigmoid", "HardSigmoid")
        b.output(b.node(kinds[i], [x]) if i < len(kinds) else b.clip(x, -1.0, 2.0))


def small_norm(b: ModelBuilder) -> None:
    b.output(b.layer_norm(b.scaled(b.input("x", (1, 11, 24)), 1e-2), epsilon=1e-3))


def large_softmax(b: ModelBuilder) -> None:
    b.output(b.softmax(b.scaled(b.input("x", (1, 11, 27)), 100.0)))


def gathers(b: ModelBuilder) -> None:
    table = b.input("table", (2, 9, 24))
    rows = b.constant("rows", np.array([8, 0, 3, 3], np.int64))
    b.output(b.node("Gather", [b.relu(table), rows], axis=1))
    b.output(b.node("Gather", [b.node("Tanh", [table]), rows], axis=2))


def long_attention(b: ModelBuilder) -> None:
    x = b.input("x", (2, 3, 150, 20))
    mask = b.constant("mask", np.linspace(-9, 3, 150 * 150, dtype=np.float32).reshape(150, 150))
    scores = b.add(b.scaled(b.matmul(x, b.transpose(b.relu(x), (0, 1, 3, 2))), 0.1), mask)
    b.output(b.matmul(b.softmax(scores), b.node("Tanh", [x])))


def halved_constants(b: ModelBuilder) -> None:
    x = b.input("x", (1, 8, 12, 5))
    value = np.random.default_rng(2).standard_normal((1, 8, 12, 5)).astype(np.float32)
    b.output(b.mul(b.add(x, b.constant("c", value)), b.node("Sin", [x])))


def dilated(b: ModelBuilder) -> None:
    x = b.relu(b.conv(b.input("image", (1, 3, 31, 17)), 8, 3, pad=3, dilation=3))
    b.output(b.conv(x, 12, 3, pad=(2, 1, 2, 1), dilation=(2, 1)))


def joined(b: ModelBuilder) -> None:
    x = b.relu(b.conv(b.input("image", (1, 3, 26, 15)), 9, 3, pad=1))
    near, far = b.conv(x, 8, 1, pad=0), b.conv(x, 8, 7, pad=3)
    b.output(b.add(b.relu(near), b.relu(far)))
    b.output(b.concat([b.max_pool(x, 3, 1, pad=1), far]))


def skips(b: ModelBuilder) -> None:
    x = first = b.relu(b.conv(b.input("image", (1, 4, 19, 13)), 16, 3, pad=1))
    for _ in range(3):
        y = b.conv(b.relu(b.conv(x, 24, 1, pad=0)), 16, 3, pad=1)
        x = b.relu(b.add(x, y))
    b.output(b.concat([first, x]))
    b.output(b.add(y, b.conv(x, 16, 1, pad=0)))


def behind(b: ModelBuilder) -> None:
    x = b.relu(b.conv(b.input("image", (1, 4, 17, 13)), 16, 3, pad=1))
    b.output(b.add(x, b.relu(b.conv(x, 16, 3, pad=1))))
    y = b.conv(x, 16, 3, pad=1)
    b.output(b.mul(b.relu(b.add(x, y)), y))
    b.output(b.add(b.relu(y), y))


def viewed(b: ModelBuilder) -> None:
    x = b.node("Tanh", [b.linear(b.input("x", (1, 12, 24)), 32)])
    y = b.softmax(b.reshape(x, (1, 4, 12, 8)))
    z = b.reshape(b.node("Sin", [x]), (1, 8, 12, 4))
    b.output(b.matmul(b.linear(b.reshape(y, (1, 48, 8)), 8), b.reshape(z, (1, 8, 48))))
    b.output(b.add(b.reshape(z, (1, 12, 32)), x))


def raw_norms(b: ModelBuilder) -> None:
    x = b.input("x", (1, 12, 9, 7))
    scale, shift, mean = (b.constant(n, np.linspace(-1, 1.5, 12, dtype=np.float32)) for n in "sbm")
    spread = b.constant("v", np.linspace(1e-4, 0.1, 12, dtype=np.float32))
    b.output(b.node("BatchNormalization", [x, scale, shift, mean, spread], epsilon=0.02))
    few = [b.constant(n, np.linspace(0.2, 2, 4, dtype=np.float32)) for n in ("gs", "gb")]
    b.output(b.node("InstanceNormalization", [b.reshape(b.relu(x), (1, 4, 189)), *few]))


def group_norms() -> onnx.ModelProto:
    constants = {"s": np.linspace(0.2, 2, 4, dtype=np.float32), "b": floats(4, seed=3)}
    nodes = [node("Tanh", "x", "t"), node("GroupNormalization", "t s b", "y", num_groups=4)]
    return model(nodes, {"x": (1, 12, 5, 6)}, ["y"], constants, opset=18)


def slices(b: ModelBuilder) -> None:
    x = b.node("Tanh", [b.input("x", (2, 8, 11, 6))])
    bounds = ([-7, -1, 5], [-2, -8, 0], [2, 1, 3], [2, -3, -1])
    names = [b.constant(f"c{i}", np.array(own, np.int64)) for i, own in enumerate(bounds)]
    b.output(b.node("Slice", [x, *names]))
    ends = [b.constant(f"e{i}", np.array(own, np.int64)) for i, own in enumerate(([-3], [99], [2]))]
    b.output(b.node("Slice", [x, *ends]))


def splits() -> onnx.ModelProto:
    nodes = [node("Split", "x", "a b c", axis=1), node("Mul", "b c", "y"), node("Add", "a y", "z")]
    return model(nodes, {"x": (1, 9, 6, 5)}, ["z", "c"])


def old_softmax() -> onnx.ModelProto:
    nodes = [node("Tanh", "x", "t"), node("Softmax", "t", "y", axis=2), node("Softmax", "t", "z")]
    return model(nodes, {"x": (2, 4, 5, 3)}, ["y", "z"], opset=11)


def far_axes() -> onnx.ModelProto:
    nodes = [
        node("ReduceSumSquare", "x", "y", axes=[0, 2], keepdims=0),
        node("ReduceSumSquare", "x", "z", axes=[0, 2, 4], keepdims=1),
        node("ReduceLogSum", "p", "w", axes=[1, 3]),
        node("Abs", "x", "p"),
    ]
    return model(nodes, {"x": (2, 3, 4, 3, 2)}, ["y", "z", "w"])


def gates(b: ModelBuilder) -> None:
    x = b.input("x", (1, 7, 19))
    b.output(b.mul(x, b.node("Sigmoid", [b.scaled(x, 1.3)])))
    b.output(b.mul(x, b.node("Sigmoid", [b.scaled(x, 1.702)])))
    inner = b.shifted(b.node("Erf", [b.scaled(x, 0.5)]), 1.0)
    b.output(b.scaled(b.mul(x, inner), 0.5))
    b.output(b.gelu(x))
    b.output(b.node("HardSigmoid", [b.node("Sin", [x])], alpha=0.3, beta=0.1))


def leaks(b: ModelBuilder) -> None:
    x = b.input("x", (1, 7, 9, 5))
    b.output(b.node("LeakyRelu", [x]))
    b.output(b.leaky_relu(b.max_pool(x, 2, 2), 0.3))


def terms(b: ModelBuilder) -> None:
    xs = [b.input(f"x{i}", (1, 6, 5, 4)) for i in range(4)]
    for kind in ("Sum", "Max", "Min", "Mean"):
        b.output(b.node(kind, xs))


def gemms() -> onnx.ModelProto:
    dice = np.random.default_rng(6)
    constants = {"w": (11, 8), "v": (5, 8), "c": (11,), "one": (1,), "rows": (5, 1)}
    nodes = [
        node("Gemm", "x w c", "y0", transB=1, beta=0.3, alpha=2.0),
        node("Gemm", "x w one", "y1", transB=1, beta=-2.0),
        node("Gemm", "x v rows", "y2", transB=1, beta=0.5),
        node("Tanh", "z", "t"),
        node("Gemm", "x t", "y3", transB=1),
        node("Gemm", "q t", "y5", transB=1),
        node("Gemm", "x x", "y4", transA=1, alpha=0.1),
    ]
    given = {
        name: dice.standard_normal(sizes).astype(np.float32) for name, sizes in constants.items()
    }
    return model(nodes, {"x": (5, 8), "q": (1, 8), "z": (3, 8)}, [f"y{i}" for i in range(6)], given)


def sums_of_products() -> onnx.ModelProto:
    equations = {"abcd,ebcd->ade": "a x", "abcd,aecb->edac": "a y", "abc,dc->bda": "u v"}
    inputs = {"a": (2, 3, 4, 5), "x": (6, 3, 4, 5), "y": (2, 7, 4, 3), "u": (4, 4, 4), "v": (4, 4)}
    nodes = [
        node("Einsum", names, f"o{i}", equation=equation)
        for i, (equation, names) in enumerate(equations.items())
    ]
    return model(nodes, inputs, [f"o{i}" for i in range(3)])


def same_windows(b: ModelBuilder) -> None:
    x = b.conv(b.input("image", (1, 3, 12, 10)), 6, 3, pad=1)
    weight = b.learned("w", (8, 6, 4, 3), spread=0.2)
    for auto in ("SAME_UPPER", "SAME_LOWER"):
        b.output(b.node("Conv", [x, weight], auto_pad=auto, kernel_shape=[4, 3]))
        b.output(b.node("MaxPool", [x], auto_pad=auto, kernel_shape=[2, 2]))


def rounded_up(b: ModelBuilder) -> None:
    x = b.input("image", (1, 5, 11, 10))
    window = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [0, 1, 1, 0], "ceil_mode": 1}
    for counted in (0, 1):
        b.output(b.node("AveragePool", [x], count_include_pad=counted, **window))
    b.output(b.node("MaxPool", [x], **window))


def folded(b: ModelBuilder) -> None:
    x = b.input("x", (9, 16))
    b.output(b.linear(b.batch_norm(b.node("Neg", [x]), scale=3.0), 5))
    slope = b.constant("slope", np.linspace(0.5, 2, 16, dtype=np.float32))
    y = b.shifted(b.mul(x, slope), 0.7)
    b.output(b.scaled(b.linear(y, 12), 3.0))
    b.output(b.node("Sub", [b.constant("one", np.float32(1.0)), b.linear(b.node("Sin", [x]), 8)]))
    z = b.scaled(b.node("Cos", [x]), 2.5)
    b.output(z)
    b.output(b.linear(z, 7))


def aliased() -> onnx.ModelProto:
    dice = np.random.default_rng(8)
    weight = dice.standard_normal((6, 4, 3, 3)).astype(np.float32) / 6
    nodes = [
        node("Conv", "x w", "a", pads=[1, 1, 1, 1]),
        node("Identity", "a", "o1"),
        node("Identity", "o1", "b"),
        node("Relu", "b", "c"),
        node("Flatten", "c", "o2"),
        node("Sigmoid", "c", "d"),
        node("Dropout", "d", "o3"),
        node("Relu", "a", "o4"),
        node("MatMul", "z v", "m"),
        node("Mul", "m two", "s"),
        node("Identity", "s", "o5"),
        node("Identity", "o5", "r"),
        node("Sin", "r", "o6"),
    ]
    outputs = [f"o{i}" for i in range(1, 7)]
    constants = {"w": weight, "v": weight[:, :, 0, 0], "two": np.float32(2)}
    return model(nodes, {"x": (1, 4, 7, 6), "z": (5, 6)}, outputs, constants)


def casts() -> onnx.ModelProto:
    nodes = [
        node("Mul", "x three", "m"),
        node("Cast", "m", "whole", to=TensorProto.INT64),
        node("Cast", "whole", "y", to=TensorProto.FLOAT),
        node("Add", "y x", "z"),
    ]
    return model(nodes, {"x": (1, 5, 6, 4)}, ["z"], {"three": np.float32(3)})


def shuffled(b: ModelBuilder) -> None:
    x = b.conv(b.input("image", (1, 3, 8, 6)), 12, 3, pad=1)
    y = b.transpose(b.reshape(x, (1, 3, 4, 8, 6)), (0, 2, 1, 3, 4))
    b.output(b.conv(b.reshape(y, (1, 12, 8, 6)), 8, 3, pad=1))


def spelled_norms() -> onnx.ModelProto:
    scale = np.linspace(0.5, 2, 8, dtype=np.float32)
    constants = {
        "e": np.float32(1e-3), "two": np.float32(2), "s": scale, "to": np.array([1, 4, -1]),
        "back": np.array([1, 8, 6, 8]), "gs": scale[:4], "gb": scale[2:6],
        "cs": scale.reshape(8, 1, 1), "ones": np.ones(4, np.float32),
        "zeros": np.zeros(4, np.float32),
    }  # fmt: skip
    nodes = []
    for name, axis in (("l", -1), ("m", 2)):
        nodes += [
            node("Pow", "x two", f"{name}0"),
            node("ReduceMean", f"{name}0", f"{name}1", axes=[axis]),
            node("Add", f"{name}1 e", f"{name}2"),
            node("Sqrt", f"{name}2", f"{name}3"),
            node("Div", f"x {name}3", f"{name}4"),
            node("Mul", f"{name}4 s", f"{name}y"),
        ]
    for name, own in (("g", "gs gb"), ("h", "ones zeros")):
        nodes += [
            node("Reshape", "x to", f"{name}0"),
            node("InstanceNormalization", f"{name}0 {own}", f"{name}1"),
            node("Reshape", f"{name}1 back", f"{name}2"),
            node("Mul", f"{name}2 cs", f"{name}3"),
            node("Add", f"{name}3 cs", f"{name}y"),
        ]
    return model(nodes, {"x": (1, 8, 6, 8)}, ["ly", "my", "gy", "hy"], constants)


def twice(b: ModelBuilder) -> None:
    x = b.conv(b.input("image", (1, 3, 9, 8)), 8, 3, pad=1)
    b.output(b.node("Tanh", [b.relu(x)]))
    b.output(b.node("Sigmoid", [b.leaky_relu(b.conv(x, 8, 1, pad=0), 0.2)]))


MODELS: Mapping[str, Callable[..., onnx.ModelProto | None]] = {
    own.__name__: own
    for own in (
        convolutions, batches, large_batch, transposed, pools, moves, arithmetic, norms, products,
        attentions, embeddings, groups, depthwise, tiny, plain, narrow, dense,
        activations, small_norm, large_softmax, gathers, long_attention,
        halved_constants, dilated, joined, skips, behind, viewed, raw_norms, group_norms, slices,
        splits, old_softmax, far_axes, gates, leaks, terms, gemms, sums_of_products, same_windows,
        rounded_up, folded, aliased, casts, shuffled, spelled_norms, twice,
    )
}  # fmt: skip


def _real(soc: LocalSoc) -> LocalSoc:
    """The device as if it were a real GPU: vectors of four, and work-groups that share memory."""
    gpu = soc.gpu
    like = replace(gpu, type="gpu", vector_width=4, compute_units=16, local_mem_bytes=48 << 10)
    return replace(soc, gpu=like)


def _apart(soc: LocalSoc) -> LocalSoc:
    """The device as if it did not see the CPU's memory."""
    return replace(soc, gpu=replace(soc.gpu, unified_memory=False, fine_grained_svm=False))


def _limited(soc: LocalSoc) -> LocalSoc:
    """Kernels may take no time at all, and so are cut to the smallest pieces."""
    limits = GpuLimits(max_kernel_ms=1e-3)
    return replace(soc, placement=replace(soc.placement, limits=limits))


SOCS = {"real": _real, "apart": _apart, "limited": _limited}


def main() -> None:
    soc, folder, *cases = sys.argv[1:]
    described = load(soc)
    for case in cases:
        name, way = case.split()
        row = {"case": case, **outcome(name, way, described, Path(folder))}
        print(json.dumps(row), flush=True)


def _made(name: str) -> onnx.ModelProto:
    """A model of `MODELS`, which are built, or written as they are."""
    if "b" not in signature(MODELS[name]).parameters:
        return MODELS[name]()  # type: ignore[return-value]
    b = ModelBuilder(name, seed=1)
    MODELS[name](b)
    return b.build()


def outcome(name: str, way: str, soc: LocalSoc, folder: Path) -> dict[str, Any]:
    """`right`, `fallback`, `error` or `wrong`, and why."""
    path = folder / f"{name}.onnx"
    onnx.save(_made(name), path)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            problem = _problem(str(path), way, soc)
        except CodlError as error:
            return {"outcome": "error", "detail": f"{type(error).__name__}: {error}"[:300]}
        except Exception as error:
            return {"outcome": "error", "detail": f"defect, {type(error).__name__}: {error}"[:300]}
    if problem:
        return {"outcome": "wrong", "detail": problem}
    said = [str(one.message) for one in told if issubclass(one.category, CodlWarning)]
    return {"outcome": "fallback" if said else "right", "detail": "; ".join(said)[:300]}


def _problem(path: str, way: str, soc: LocalSoc) -> str:
    """How outputs of a checked engine differ from ONNX Runtime's, whose are the inputs; or ""."""
    serial, _, own = way.rpartition("@")
    *kinds, own = own.split("/")
    for kind in kinds:
        soc = SOCS[kind](soc)
    network, source = read_network(path)
    plan = plan_of(network, soc, own)
    target = connect(serial or "local", soc)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(path, options, ["CPUExecutionProvider"])
    names = [item.name for item in session.get_outputs()]
    close = CLOSE_HALF if "fp16" in way or "half" in way else CLOSE
    with checked_engine(network, plan, target, source=source, recovers=True) as engine:
        runs = []
        for seed in range(3):
            feeds = {item.name: _values(item, seed) for item in session.get_inputs()}
            runs.append((engine(feeds), session.run(names, feeds)))
        # What a run gave is still there after the others.
        for seed, (got, expected) in enumerate(runs):
            for name, right in zip(names, expected, strict=True):
                if problem := _differs(got[name], right, close):
                    return f"{name}, run {seed}: {problem}"
    return ""


def _values(item: Any, seed: int) -> NDArray[Any]:
    dice = np.random.default_rng(100 + seed)
    if "int" in item.type:
        return dice.integers(0, 50, item.shape).astype(np.int64)
    return ((1 + seed) * dice.standard_normal(item.shape)).astype(np.float32)


def _differs(got: NDArray[Any], right: NDArray[Any], close: float) -> str:
    if got.shape != right.shape:
        return f"{got.shape}, not {right.shape}"
    if (np.isfinite(got) != np.isfinite(right)).any():
        return "other elements are finite"
    x, y = (np.nan_to_num(np.asarray(value, np.float64)) for value in (got, right))
    off, most = np.abs(x - y).max(initial=0.0), np.abs(y).max(initial=0.0)
    return f"off by {off:.3g} of {most:.3g}" if off > close * most + 1e-6 else ""


def plan_of(network: Network, soc: LocalSoc, way: str) -> Plan:
    """By name: `cpu`, `gpu`, either with `:VARIANT`, `H`, `OC`, `N`, `random:SEED`, `half:SEED`.

    A letter cuts all chains along that axis, where they can be. In front of that there is
    `process@` for an agent, or one of `SOCS` with a slash.
    """
    kind, _, detail = way.partition(":")
    if kind in ("random", "half"):
        stored: Any = ("float16",) if kind == "half" else ("float32",)
        return random_plan(network, soc, Random(detail), ratios=(0.5,), stored=stored)
    if kind in PROCESSORS:
        return _in_variant(preferring(network, soc, kind), network, soc, detail)  # type: ignore[arg-type]
    layers, chains = list(network.layers), []
    while layers:
        taken, layers = layers[:TOGETHER], layers[TOGETHER:]
        together = all(kind in layer.op.dims for layer in taken)
        for own in [taken] if together else [[layer] for layer in taken]:
            ratio = 0.5 if all(kind in layer.op.dims for layer in own) else 0.0
            variants = {layer.name: _variants(layer, soc) for layer in own}
            if any(len(found) < len(PROCESSORS) for found in variants.values()):
                ratio = float(all("gpu" in found for found in variants.values()))
            chains.append(Chain(tuple(variants), kind, ratio, variants))  # type: ignore[arg-type]
    return Plan(
        network.name, network.digest, soc.name, "test", "none", "missing", None, tuple(chains)
    )


def _variants(layer: Any, soc: LocalSoc) -> dict[str, str]:
    found = {p: registry.variants(layer.op, p, soc) for p in PROCESSORS}
    return {p: own[0].name for p, own in found.items() if own}


def _in_variant(plan: Plan, network: Network, soc: LocalSoc, name: str) -> Plan:
    """The plan with every op in a variant that can be."""
    ops = {layer.name: layer.op for layer in network.layers}
    chains, used = [], False
    for chain in plan.chains:
        variants = dict(chain.variants)
        for op, own in chain.variants.items():
            for side in own:
                every = registry.variants(ops[op], side, soc, include_unfit=True)  # type: ignore[arg-type]
                if any(variant.name == name for variant in every):
                    variants[op], used = {side: name}, True
        chains.append(replace(chain, variants=variants))
    if name and not used:
        raise AssertionError(f"no op of {network.name} runs in {name}")
    return replace(plan, chains=tuple(chains))


if __name__ == "__main__":
    main()
