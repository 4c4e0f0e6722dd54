"""Models on which another engine's OpenCL backend is known to fail, on the GPU side alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper
from support.devices import here
from support.some import some

import codl.kernels
from codl.engine.engine import Engine
from codl.frontend.convert import convert, simplify
from codl.frontend.graph.integer_products import session_options
from codl.frontend.graph.onnx_import import import_onnx
from codl.ir import Array
from codl.plan.build_plan import default_plan
from codl.records.soc import Soc


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: dict[str, tuple[int, ...]],
    outputs: Sequence[str],
    **constants: np.ndarray,
) -> onnx.ModelProto:
    given = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()]
    made = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    fixed = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "known", given, made, fixed)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def check(proto: onnx.ModelProto, soc: Soc, inputs: dict[str, Array]) -> dict[str, Array]:
    """Everything on the GPU, one op to a chain and in one chain, against ONNX Runtime."""
    session = ort.InferenceSession(
        proto.SerializeToString(), session_options(1), ["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    expected = dict(zip(names, session.run(names, inputs), strict=True))
    network = convert(simplify(import_onnx(proto, "known")))
    outputs: dict[str, Array] = {}
    for chained in (False, True):
        plan = default_plan(network, soc, "gpu", chained=chained)
        with Engine(network, plan, here(soc)) as engine:
            outputs = engine(inputs)
        for name, reference in expected.items():
            assert outputs[name].shape == reference.shape
            np.testing.assert_allclose(outputs[name], reference, rtol=1e-4, atol=1e-5)
    return outputs


def random(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def test_tensors_of_four_and_three_axes_are_broadcast(soc: Soc) -> None:
    nodes = [helper.make_node("Add", ["a", "b"], ["y"]), helper.make_node("Mul", ["b", "a"], ["z"])]
    shapes = {"a": (2, 5, 7, 3), "b": (5, 1, 3)}
    proto = model(nodes, shapes, ["y", "z"])
    check(proto, soc, {name: random(*shape) for name, shape in shapes.items()})


def test_a_view_is_split(soc: Soc) -> None:
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["view"]),
        helper.make_node("Split", ["view", "parts"], ["p", "q", "r"], axis=1),
    ]
    sizes = {"shape": np.array([2, 9, 4, 5]), "parts": np.array([2, 3, 4])}
    proto = model(nodes, {"x": (2, 6, 30)}, ["p", "q", "r"], **sizes)
    check(proto, soc, {"x": random(2, 6, 30)})


def test_softmax_over_every_axis_of_three(soc: Soc) -> None:
    names = ["s0", "s1", "s2"]
    nodes = [helper.make_node("Softmax", ["x"], [n], axis=axis) for axis, n in enumerate(names)]
    proto = model(nodes, {"x": (3, 17, 33)}, names)
    check(proto, soc, {"x": 20 * random(3, 17, 33)})


def test_layer_norm_divides_like_by_like(soc: Soc) -> None:
    node = helper.make_node("LayerNormalization", ["x", "scale", "bias"], ["y"], axis=-1)
    scale, bias = random(19) + 2, random(19)
    proto = model([node], {"x": (2, 11, 19)}, ["y"], scale=scale, bias=bias)
    check(proto, soc, {"x": 3 * random(2, 11, 19) + 5})


def test_no_kernel_divides_by_a_double() -> None:
    """A literal without a suffix is a double, by which no vector of floats may be divided."""
    for path in some(Path(codl.kernels.__path__[0]).rglob("*.cl")):
        code = re.sub(r"//.*|/\*(?s:.*?)\*/", "", path.read_text())
        assert not re.search(r"/\s*\(?\s*\d+\.\d*(?![\dfFeE])", code), path


def test_gelu_of_large_negative_numbers_is_a_number(soc: Soc) -> None:
    nodes = [
        helper.make_node("Gelu", ["x"], ["exact"]),
        helper.make_node("Gelu", ["x"], ["approximate"], approximate="tanh"),
    ]
    x = np.array([-3.4e38, -1e30, -1e10, -1e4, -100, -20, -10, -5, -1, 0, 1, 20, 1e4], np.float32)
    proto = model(nodes, {"x": (1, 1, 1, 13)}, ["exact", "approximate"])
    outputs = check(proto, soc, {"x": x.reshape(1, 1, 1, 13)})
    assert all(np.isfinite(value).all() for value in outputs.values())
