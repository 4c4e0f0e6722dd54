"""Nets of ONNX Runtime and of OpenVINO, and shards that mix them with ncnn's."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from onnx import TensorProto
from support.devices import here
from support.kernel_runs import Case, operands, reference
from support.onnx_models import model, node
from support.plans import make_plan
from support.random_ops import movements, norms, ops, products, reductions, softmaxes
from support.some import some

from codl.engine.engine import Engine
from codl.errors import CodlError, DeviceError, MissingPackageError
from codl.ir import Array, Op, Region, Span, parse, split
from codl.ir.executable import NcnnNet, OnnxNet, OpenVinoNet, RunNet
from codl.ir.network import Layer, Network
from codl.ir.onnx_node import stand_in
from codl.ir.ops.base import OP_TYPES
from codl.ir.ops.eltwise import UNARY
from codl.ir.records.soc import Soc
from codl.kernels import registry
from codl.kernels.cpu import CPU_OPENVINO
from codl.kernels.tuning import Tuning
from codl.lower import pieces
from codl.lower.lowering import lower, lower_net
from codl.lower.nets import CpuLayer, Group
from codl.machine.placement import LocalSoc
from codl.measure.op_runner import share_of_ops
from codl.plan.build_plan import default_plan
from codl.runtime import handles
from codl.runtime.onnx_nets import arranges, make_session
from codl.runtime.session import host_session

SOME = settings(max_examples=60, derandomize=True)
WHOLE_ONLY = st.one_of(movements(), norms(), products(), reductions(), softmaxes())


def check(op: Op, part: Region, soc: Soc, inputs: list[Array] | None = None) -> None:
    Case.of(op, inputs=inputs).on_cpu(registry.find(op, "cpu_ort"), soc, part)


def refused(op: Op, soc: Soc) -> bool:
    return registry.find(op, "cpu_ort").refusal(op, soc) is not None


@given(op=ops(), dim=st.sampled_from(["H", "OC"]), ratio=st.sampled_from([0.0, 0.3, 0.5, 0.8]))
@SOME
def test_halves_equal_the_whole(op: Op, dim: Any, ratio: float, first_soc: Soc) -> None:
    for part in some(split(op, dim if dim in op.dims else op.dims[0], ratio)):
        if not part.is_empty and not refused(op.restrict(part), first_soc):
            check(op, part, first_soc)


@given(op=WHOLE_ONLY)
@SOME
def test_ops_of_any_rank_equal_the_reference(op: Op, first_soc: Soc) -> None:
    inputs, _ = operands(op)
    if getattr(op, "mode", "") in ("log_sum", "prod"):
        inputs = [np.abs(1 + 0.02 * x) for x in inputs]
    check(op, Region.whole(op.output), first_soc, inputs)


@pytest.mark.parametrize("mode", UNARY)
def test_functions_of_every_element(mode: str, first_soc: Soc) -> None:
    given = {"selu": (1.67, 1.05), "celu": (0.7,), "thresholded_relu": (0.4,), "shrink": (0.2, 0.5)}
    values = dict(zip(("alpha", "beta"), given.get(mode, ()), strict=False))
    text = " ".join(f"{key}={value}" for key, value in values.items())
    op = parse(f"eltwise in=1x19x3x4 mode={mode} {text}")
    x = np.random.default_rng(0).uniform(0.1, 0.99, op.input).astype(np.float32)
    x = 1 + x if mode == "acosh" else x
    check(op, Region.whole(op.output), first_soc, [x])


@pytest.mark.parametrize(
    "text",
    [
        "conv2d in=3x8x9x7 oc=12 kernel=3 pad=1 act=relu",
        "conv_transpose2d in=2x6x5x4 oc=4 kernel=3 stride=2 size=11x9",
        "pooling in=3x8x9x7 kernel=3 stride=2 mode=avg",
        "fc in=4x8x2x2 oc=5",
        "eltwise in=3x8x9x7,1x8x1x1 mode=mul act=hard_swish",
        "concat in=2x3x4x5,2x7x4x5",
        "reshape in=2x3x4 to=4x6",
        "resize in=2x3x4x5 size=8x9 mode=linear",
    ],
)
def test_batches(text: str, first_soc: Soc) -> None:
    op = parse(text)
    whole = Region.whole(op.output)
    check(op, whole, first_soc)
    if "N" in op.dims:
        check(op, whole._replace(images=Span(1, 2)), first_soc)


def test_slices_are_gathered_by_indices_of_any_sign(first_soc: Soc) -> None:
    op = parse("gather in=5x4,6 axis=0")
    data = np.random.default_rng(0).standard_normal(op.inputs[0], np.float32)
    indices = np.array([0, 4, -1, -5, 9, -9], np.float32).reshape(op.inputs[1])
    check(op, Region.whole(op.output), first_soc, [data, indices])


def layer(name: str, text: str, reads: list[str]) -> Layer:
    op = parse(text)
    return Layer(name, op, tuple(reads), name, operands(op)[1])


def test_a_shard_of_both_libraries(first_soc: Soc) -> None:
    """Two branches, one of which needs ONNX Runtime: four nets, not six."""
    layers = (
        layer("a", "conv2d in=1x8x6x6 oc=16 kernel=3 pad=1", ["x"]),
        layer("b", "softmax in=1x16x36 axes=2", ["a"]),
        layer("c", "conv2d in=1x16x6x6 oc=16 kernel=1", ["a"]),
        layer("b2", "reshape in=1x16x36 to=1x16x6x6", ["b"]),
        layer("d", "reduce in=1x16x6x6 mode=mean axes=2x3 keepdims=1", ["b2"]),
        layer("e", "eltwise in=1x16x6x6,1x16x1x1 mode=prelu", ["c", "d"]),
    )
    shape = layers[0].op.input
    network = Network("both", layers, {"x": shape}, {"e": ("e", tuple(layers[-1].op.output))})
    plan = default_plan(network, first_soc, "cpu")
    executable = lower(network, plan, first_soc, Tuning())
    names = [[x.name for x in net.layers] for net in executable.nets]
    assert names == [["a"], ["b"], ["c", "b2"], ["d", "e"]]
    kinds = [type(net) for net in executable.nets]
    assert kinds == [NcnnNet, OnnxNet, NcnnNet, OnnxNet]

    values = {"x": np.random.default_rng(1).standard_normal(shape, np.float32)}
    for x in layers:
        given = [values[name].reshape(s) for name, s in zip(x.inputs, x.op.inputs, strict=True)]
        values[x.output] = reference(x.op, given, dict(x.weights)).astype(np.float32)
    session = host_session(executable, first_soc)
    session.inputs["x"][...] = values["x"]
    for _ in range(2):
        session.run()
        np.testing.assert_allclose(session.outputs["e"], values["e"], rtol=1e-5, atol=1e-5)
        session.outputs["e"].fill(0)


def test_each_run_reads_what_is_there_then(first_soc: Soc) -> None:
    """Of a part that does not lie densely, and so is copied; by readers of different rows."""
    layers = (
        layer("a", "eltwise in=1x6x8x4 mode=abs", ["x"]),
        layer("b", "slice in=1x6x8x4 starts=0x1x3x0 steps=1x1x1x1 to=1x4x5x4", ["a"]),
        layer("c", "slice in=1x6x8x4 starts=0x2x1x0 steps=1x1x1x1 to=1x4x5x4", ["a"]),
        layer("d", "softmax in=1x4x5x4 axes=3", ["b"]),
        layer("e", "eltwise in=1x4x5x4,1x4x5x4 mode=mul", ["c", "d"]),
    )
    shape = layers[0].op.input
    network = Network("parts", layers, {"x": shape}, {"e": ("e", tuple(layers[-1].op.output))})
    plan = make_plan(network, first_soc, [(1, "OC", 0.0), (4, "H", 0.5)], "missing")
    with Engine(network, plan, here(first_soc)) as engine:
        for seed in range(3):
            x = np.random.default_rng(seed).standard_normal(shape, np.float32)
            part = np.exp(np.abs(x[:, 1:5, 3:8]).astype(np.float64))
            expected = np.abs(x[:, 2:6, 1:6]) * part / part.sum(3, keepdims=True)
            np.testing.assert_allclose(engine({"x": x})["e"], expected, rtol=1e-4, atol=1e-5)


def test_layers_of_one_session_read_parts_of_each_other(first_soc: Soc) -> None:
    first = parse("eltwise in=1x6x8x4,1x6x1x4 mode=add")
    second = parse("eltwise in=1x2x3x4 mode=exp")
    variant, whole = registry.find(first, "cpu_ort"), Region.whole(first.output)
    need = Region(Span(0, 1), Span(1, 3), Span(4, 7))
    piece = pieces.Piece("parts", first_soc)
    shapes = {"x": first.inputs[0], "s": first.inputs[1], "b": first.output}
    tensors = {n: piece.on_host(n, shape, is_shared=False) for n, shape in shapes.items()}
    reads = (("x", Region.whole(shapes["x"])), ("s", Region.whole(shapes["s"])))
    plans = [variant.plan(op, first_soc) for op in (first, second)]
    layers = (
        CpuLayer("a", first, variant, plans[0], reads, "a", whole, {}),
        CpuLayer("b", second, variant, plans[1], (("a", need),), "b", need, {}),
    )
    access = piece.assembly.access
    inputs = {name: access(tensors[name], region) for name, region in reads}
    group = Group(layers, inputs, {"b": access(tensors["b"], need)})
    piece.assembly.emit(RunNet(piece.assembly.net(lower_net(group, piece.assembly))))
    piece.end_stage(pieces.WORK)
    session = host_session(piece.executable(["x", "s"], ["b"]), first_soc)
    random = np.random.default_rng(2)
    for array in session.inputs.values():
        array[...] = random.standard_normal(array.shape, np.float32)
    session.run()
    x, s = session.inputs.values()
    expected = np.exp(x + s)[need.slices]
    np.testing.assert_allclose(session.outputs["b"][need.slices], expected, rtol=1e-5)


def with_a_weight_beside(shape: tuple[int, ...] = (3,)) -> onnx.ModelProto:
    proto = model([node("Add", "x w", "y")], {"x": (3,)}, ["y"])
    stand_in(proto.graph.initializer.add(), "w", TensorProto.FLOAT, shape)
    return proto


@pytest.mark.parametrize("in_place", [False, True])
def test_weights_may_stand_beside_a_model(in_place: bool, first_soc: Soc) -> None:
    weights, x = {"w": np.arange(3, dtype=np.float32)}, np.ones(3, np.float32)
    content = with_a_weight_beside().SerializeToString()
    session = make_session(content, first_soc, ["a"], weights=weights, in_place=in_place)
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], [1, 2, 3])


@pytest.mark.parametrize(
    "wrong", [np.ones(4, np.float32), np.ones(3, np.float16), np.ones(2, np.float32)]
)
def test_weights_beside_a_model_are_as_it_says(wrong: Any, first_soc: Soc) -> None:
    content = with_a_weight_beside().SerializeToString()
    with pytest.raises(CodlError, match="cannot load the model of a"):
        make_session(content, first_soc, ["a"], weights={"w": wrong})
    with pytest.raises(CodlError, match="cannot load the model of a"):
        make_session(content, first_soc, ["a"], weights={"other": wrong})


@pytest.mark.parametrize(
    ("text", "is_in_place"),
    [
        ("matmul in=1x8 matrix=8x4096", True),
        ("matmul in=2x8 matrix=8x4096", False),
        ("matmul in=1x64 matrix=64x96", False),
        ("matmul in=1x64 matrix=96x64 trans_b=1", False),
    ],
)
def test_large_weights_are_read_in_place_where_they_are_read_once(
    text: str, is_in_place: bool, first_soc: Soc
) -> None:
    """Other ones are arranged anew, and both give the same."""
    op = parse(text)
    check(op, Region.whole(op.output), first_soc)
    variant = registry.find(op, "cpu_ort")
    _, weights = operands(op)
    (net,) = pieces.net_alone([op], variant, [weights], first_soc).nets
    assert isinstance(net, OnnxNet)
    assert arranges(net) != is_in_place


def output(op: Op, variant: str, soc: LocalSoc) -> Array:
    inputs, weights = operands(op)
    found: Any = registry.find(op, variant, "cpu")
    session = host_session(pieces.net_alone([op], found, [weights], soc), soc)
    for array, values in zip(session.inputs.values(), inputs, strict=True):
        np.copyto(array, values)
    session.run()
    return session.outputs[pieces.OUTPUT].copy()


@pytest.mark.parametrize("kind", [kind for kind in OP_TYPES if kind != "onnx"])
def test_it_computes_what_onnx_runtime_does(kind: str, first_soc: LocalSoc) -> None:
    pytest.importorskip("openvino")
    for text in OP_TYPES[kind].examples:
        op = parse(text)
        if registry.find(op, CPU_OPENVINO).refusal(op, first_soc) is None:
            reference = output(op, "cpu_ort", first_soc)
            atol = 1e-5 * np.abs(reference).max()
            np.testing.assert_allclose(
                output(op, CPU_OPENVINO, first_soc), reference, atol=atol, err_msg=text
            )


def test_a_missing_library_is_named_with_the_command(
    first_soc: LocalSoc, monkeypatch: pytest.MonkeyPatch
) -> None:
    op = parse("conv2d in=1x16x8x8 oc=16 kernel=3x3 pad=1")
    variant: Any = registry.find(op, CPU_OPENVINO)
    _, weights = operands(op)
    executable = pieces.net_alone([op], variant, [weights], first_soc)
    assert isinstance(executable.nets[0], OpenVinoNet)
    monkeypatch.setattr(handles, "find_spec", lambda _: None)
    with pytest.raises(MissingPackageError, match="`pip install openvino`"):
        host_session(executable, first_soc)


def test_a_shape_that_openvino_does_not_take_is_an_error_of_codl(first_soc: LocalSoc) -> None:
    """It is one that plans are tried with: another plan is taken."""
    pytest.importorskip("openvino")
    op = parse("eltwise in=1x3x5x7 mode=abs")
    variant: Any = registry.find(op, CPU_OPENVINO)
    executable = pieces.net_alone([op], variant, [{}], first_soc)
    (net,) = executable.nets
    (binding,) = net.outputs
    turned = replace(net, outputs=(replace(binding, sizes=binding.sizes[::-1]),))
    with pytest.raises(DeviceError, match="OpenVINO shapes"):
        host_session(replace(executable, nets=(turned,)), first_soc)


@pytest.mark.parametrize("variant", ["cpu_ort", CPU_OPENVINO])
def test_what_moves_tensors_is_no_part_of_an_op(variant: str, first_soc: LocalSoc) -> None:
    """A convolution in blocks has its ends reordered, which takes longer than its few products."""
    if variant == CPU_OPENVINO:
        pytest.importorskip("openvino")
    op = parse("conv2d in=1x64x56x56 oc=64 kernel=1x1 groups=64")
    found: Any = registry.find(op, variant)
    share = share_of_ops(pieces.net_alone([op], found, [operands(op)[1]], first_soc), first_soc)
    assert 0 < share < 0.9
