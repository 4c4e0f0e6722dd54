"""Batches of images: split by images, rows and channels, against ONNX Runtime."""

from __future__ import annotations

from functools import cache

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_execute import make_plan

from codl.execute.engine import Engine
from codl.execute.program import build_program
from codl.graph import import_onnx, session_options, simplify
from codl.models.builder import ModelBuilder
from codl.ops import Array, Layer, Network, Region, Reshape, Shape, Span, lower, parse
from codl.ops.chain import cut
from codl.soc import Soc
from codl.strategies.evaluation import max_rel_err


def residual(images: int) -> onnx.ModelProto:
    """Residual adds, a depthwise convolution, a concat, poolings and two fully connected layers."""
    b = ModelBuilder("residual")
    x = b.input("image", (images, 3, 19, 13))
    x = b.relu(b.conv(x, 20, 3, pad=1))
    x = b.relu(b.add(x, b.conv(x, 20, 3, pad=1)))
    x = b.relu(b.conv(x, 20, 3, pad=1, stride=2, groups=20))
    x = b.concat([x, b.conv(x, 12, 1, pad=0)])
    b.output(x)
    x = b.max_pool(x, 2, 2)
    x = b.relu(b.fully_connected(b.flatten(x), 18))
    b.output(b.fully_connected(x, 7))
    return b.build()


@cache
def case(images: int) -> tuple[Network, Array, dict[str, Array]]:
    proto = residual(images)
    network = lower(simplify(import_onnx(proto, "residual")))
    x = np.random.default_rng(images).random((images, 3, 19, 13), np.float32)
    session = ort.InferenceSession(
        proto.SerializeToString(), session_options(1), ["CPUExecutionProvider"]
    )
    names = list(network.outputs)
    return network, x, dict(zip(names, session.run(names, {"image": x}), strict=True))


def able(network: Network, cuts: list[tuple[int, str, float]]) -> list[tuple[int, str, float]]:
    """One processor alone where an op of a chain cannot be cut as is wanted."""
    layers, made = list(network.layers), []
    for length, dim, ratio in cuts:
        taken, layers = layers[:length], layers[length:]
        legal = all(dim in layer.op.dims for layer in taken)
        if dim == "OC":
            legal = legal and all(layer.op.acts_on_channels_alone for layer in taken[1:])
        made.append((length, dim, ratio if legal else round(ratio)))
    return made


CUTS = st.lists(
    st.tuples(
        st.integers(1, 5),
        st.sampled_from(["N", "N", "H", "OC"]),
        st.sampled_from([0.0, 0.2, 0.5, 0.7, 1.0]),
    ),
    min_size=1,
    max_size=6,
)


@given(images=st.integers(1, 5), cuts=CUTS, sharing=st.sampled_from(["gather", "missing"]))
@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_any_plan_of_a_batch_gives_the_same_outputs(
    images: int, cuts: list[tuple[int, str, float]], sharing: str, first_soc: Soc
) -> None:
    network, x, expected = case(images)
    plan = make_plan(network, first_soc, able(network, cuts), sharing)
    with Engine(network, plan, first_soc) as engine:
        for _ in range(2):  # the second run reuses everything
            outputs = engine({"image": x})
            for name, reference in expected.items():
                assert outputs[name].shape == reference.shape
                assert max_rel_err(outputs[name], reference) <= 1e-4


@pytest.mark.parametrize("gpu_ratio", [0.25, 0.5, 0.75])
def test_the_whole_network_is_one_chain_of_images(gpu_ratio: float, first_soc: Soc) -> None:
    network, x, expected = case(4)
    plan = make_plan(network, first_soc, [(len(network.layers), "N", gpu_ratio)], "missing")
    program = build_program(network, plan, first_soc)
    mine = round(4 * gpu_ratio)
    assert [move.region.images for move in program.segments[0].transfers] == [Span(0, mine)]
    assert {move.region.images for move in program.final} == {Span(0, mine)}
    with Engine(network, plan, first_soc) as engine:
        outputs = engine({"image": x})
    for name, reference in expected.items():
        assert max_rel_err(outputs[name], reference) <= 1e-4


def test_fully_connected_layers_of_a_batch_have_a_row_for_each_image() -> None:
    kinds = [layer.op.kind for layer in case(3)[0].layers]
    assert kinds.count("fc") == 2
    assert "reshape" not in kinds
    assert all("N" in layer.op.dims for layer in case(3)[0].layers)
    assert not any("N" in layer.op.dims for layer in case(1)[0].layers)


def test_what_mixes_images_is_computed_whole_by_whoever_reads_it() -> None:
    first = parse("conv2d in=4x6x5x5 oc=6 kernel=1")
    mixed = Reshape(shapes=((4, 6, 5, 5),), to=(2, 12, 5, 5))
    last = parse("conv2d in=2x12x5x5 oc=8 kernel=3 pad=1")
    ops = (first, mixed, last)
    layers = [Layer(f"l{i}", op, (f"t{i}",), f"t{i + 1}", {}) for i, op in enumerate(ops)]
    for half in cut(layers, ["t3"], "N", 0.5, block=8):
        assert [part.region.images.size for part in half.parts] == [4, 2, 1]
        assert half.inputs == {"t0": Region.whole(Shape(4, 6, 5, 5))}
