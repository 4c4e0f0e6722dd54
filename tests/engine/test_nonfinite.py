"""NaN, infinities and random numbers that a network makes, in each library and on the GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import helper
from support.devices import here
from support.libraries import INSTALLED, preferred
from support.onnx_models import floats, model, node
from support.references import imported, model_of_values

from codl.engine.engine import Engine
from codl.frontend.convert import load_network
from codl.ir.types import Processor
from codl.machine.placement import LocalSoc
from codl.plan.build_plan import default_plan, preferring

READERS = {
    "sigmoid": node("Sigmoid", "l", "y"),
    "clip": node("Clip", "l c.low c.high", "y"),
    "maximum": node("ReduceMax", "l", "y", axes=[3]),
    "max pool": node("MaxPool", "l", "y", kernel_shape=[1, 2]),
    "convolution": node("Conv", "l w", "y", pads=[1, 1, 1, 1]),
    "group convolution": node("Conv", "l g", "y", pads=[1, 1, 1, 1], group=4),
    "depthwise convolution": node("Conv", "l d", "y", pads=[1, 1, 1, 1], group=8),
    "two outputs of a channel": node("Conv", "l m", "y", pads=[1, 1, 1, 1], group=8),
}
WEIGHTS = {
    "w": floats(8, 8, 3, 3),
    "g": floats(8, 2, 3, 3),
    "d": floats(8, 1, 3, 3),
    "m": floats(16, 1, 3, 3),
}
LIMITS = {"c.low": np.float32(0), "c.high": np.float32(6)}


@pytest.fixture
def saved(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    reader = READERS[request.param]
    constants = {k: v for k, v in (WEIGHTS | LIMITS).items() if k in reader.input}
    path = tmp_path / "log.onnx"
    # Which of NaN and a number is the larger one differs between builds of ONNX Runtime.
    log = [node("Log", "x", "l")]
    if "Max" in reader.op_type:
        log = [node("Abs", "x", "a"), node("Log", "a", "l")]
    nodes = [*log, reader]
    onnx.save(model(nodes, {"x": (1, 8, 12, 12)}, ["y"], constants), path)
    return path


@pytest.mark.parametrize("library", [*INSTALLED, "opencl"])
@pytest.mark.parametrize("saved", READERS, indirect=True)
def test_what_a_logarithm_makes_comes_out_as_in_onnxruntime(
    saved: Path, library: str, first_soc: LocalSoc
) -> None:
    """Logarithms of zeros and of negative numbers, without the check of first results."""
    x = floats(1, 8, 12, 12)
    x[0, 0, :2, :3] = 0
    want = ort.InferenceSession(saved).run(None, {"x": x})[0]
    network = load_network(str(saved))
    with preferred(library):
        side: Processor = "gpu" if library == "opencl" else "cpu"
        plan = preferring(network, first_soc, side)
    with Engine(network, plan, here(first_soc)) as engine:
        y = engine({"x": x})["y"]
    np.testing.assert_array_equal(np.isnan(y), np.isnan(want))
    np.testing.assert_array_equal(np.isposinf(y), np.isposinf(want))
    # A max pool of -inf alone is -inf or the lowest float, as ONNX Runtime's kernel for the CPU is.
    lowest = np.finfo(np.float32).min
    np.testing.assert_array_equal(y <= lowest, want <= lowest)


@pytest.mark.parametrize(
    "nodes",
    [
        [node("Abs", "x", "a"), node("Add", "a one", "b"), node("Log", "b", "c")],
        [node("Mul", "x x", "a"), node("ReduceMean", "a", "m"), node("Sqrt", "m", "c")],
        [node("Pow", "x three", "c")],
        [node("Clip", "x one", "a"), node("Div", "x a", "c")],
    ],
)
def test_what_is_always_finite_is_left_to_every_library(
    nodes: list[onnx.NodeProto], tmp_path: Path
) -> None:
    used = {name for each in nodes for name in each.input}
    values = {"one": np.float32(1), "three": np.float32(3)}
    constants = {name: value for name, value in values.items() if name in used}
    saved = model([*nodes, node("Sigmoid", "c", "y")], {"x": (1, 8, 6, 6)}, ["y"], constants)
    onnx.save(saved, tmp_path / "finite.onnx")
    network = load_network(str(tmp_path / "finite.onnx"))
    assert not any(layer.op.nonfinite for layer in network.layers)


KINDS = ("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli")


def _drawn(kind: str, x: str, name: str) -> Any:
    if kind == "Bernoulli":
        return helper.make_node(kind, ["half"], [name])
    if kind.endswith("Like"):
        return helper.make_node(kind, [x], [name])
    return helper.make_node(kind, [], [name], shape=[2, 40])


@pytest.mark.parametrize("kind", KINDS)
def test_two_nodes_draw_other_numbers(kind: str, first_soc: LocalSoc) -> None:
    nodes = [helper.make_node("Add", ["x", "halves"], ["half"])]
    for i in range(3):
        nodes.append(_drawn(kind, "x", f"r{i}"))
        nodes.append(helper.make_node("Tanh", [f"r{i}"], [f"t{i}"]))  # groups lie apart
    x = {"x": np.zeros((2, 40), np.float32)}
    fixed = {"halves": np.float32(0.5)}
    outputs = ("t0", "t1", "t2")
    proto = model_of_values(nodes, x, fixed, outputs=outputs)
    drawn: list[NDArray[Any]] = []
    network = imported(proto)
    plan = default_plan(network, first_soc, "cpu", chained=False)
    with Engine(network, plan, here(first_soc)) as engine:
        for _ in range(2):
            drawn += [np.array(value) for value in engine(x).values()]
    for i, one in enumerate(drawn):
        assert one.std() > 0.1
        for other in drawn[:i]:
            assert not np.array_equal(one, other)
