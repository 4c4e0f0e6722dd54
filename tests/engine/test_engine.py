"""An engine in use: threads, many runs, memory that tensors take in turns."""

from __future__ import annotations

import linecache
import resource
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import permutations, product
from statistics import median
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, helper
from support.devices import here
from support.onnx_models import model, node
from support.plans import CUTS, branching, branching_case, image, legal, make_plan, one_by_one, row
from support.references import converted, imported
from support.simulated import SOC
from support.some import some

from codl.engine.engine import Engine, fallbacks_of
from codl.errors import CodlError, DeviceError, UnsupportedError
from codl.ir.executable import GpuOp, Refusal
from codl.ir.plan import Plan
from codl.ir.records.results import Fallback
from codl.ir.records.soc import Soc
from codl.ir.region import Shape
from codl.ir.types import BLOCKED, PLANAR, Processor
from codl.kernels.tuning import Tuning
from codl.lower import pieces
from codl.lower.assembly import lifetimes
from codl.lower.lowering import lower
from codl.lower.partition import PartitionedPlan, partition_plan
from codl.measure.closeness import max_rel_err
from codl.plan.build_plan import default_plan
from codl.runtime.loaded import Footprint as Memory
from codl.runtime.session import Session


def test_many_threads_get_their_own_outputs(first_soc: Soc) -> None:
    """Two engines, each called with many inputs from four threads."""
    network = row(3)
    cuts = [(1, "H", 0.5), (1, "OC", 0.5), (1, "H", 0.4)]
    plans = [
        make_plan(network, first_soc, cuts, "missing"),
        default_plan(network, first_soc, "cpu"),
    ]
    inputs = [image(network, seed) for seed in range(12)]
    with (
        Engine(network, plans[0], here(first_soc)) as one,
        Engine(network, plans[1], here(first_soc)) as two,
    ):
        expected = [two(x) for x in inputs]
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(one, inputs)), list(pool.map(two, inputs))
    for outputs in some(found):
        for own, reference in some(zip(outputs, expected, strict=True)):
            for name, value in some(reference.items()):
                np.testing.assert_allclose(own[name], value, rtol=1e-4, atol=1e-5)


def test_ten_thousand_runs_leak_nothing(first_soc: Soc) -> None:
    """A leak grows in every part of the runs; a driver's pool grows once, at any time."""
    network = row(2)
    plan = make_plan(network, first_soc, [(1, "H", 0.5), (1, "OC", 0.5)], "missing")
    with Engine(network, plan, here(first_soc)) as engine:
        engine.feed(image(network))
        resident = [_resident_bytes()]
        for _ in range(5):
            for _ in range(2_000):
                engine.run()
            resident.append(_resident_bytes())
    assert median(np.diff(resident)) < 2_000 * 200  # 200 bytes a run


def test_engines_leave_no_texts_of_functions_behind(first_soc: Soc) -> None:
    """pyopencl writes one for every kernel object, which Python's `linecache` keeps for ever."""
    network = row(2)
    plan = default_plan(network, first_soc, "gpu")
    Engine(network, plan, here(first_soc)).close()
    before = len(linecache.cache)
    Engine(network, plan, here(first_soc)).close()
    assert len(linecache.cache) == before


def _resident_bytes() -> int:
    """Memory of this process now, in bytes (Linux)."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def test_a_closed_engine_says_so(first_soc: Soc) -> None:
    network = row(1)
    with Engine(network, default_plan(network, first_soc, "cpu"), here(first_soc)) as engine:
        engine(image(network))
    with pytest.raises(CodlError, match="engine of 'row' is closed"):
        engine(image(network))


def numbers_through(
    kind: int, value: float, soc: Soc, cast: int | None = None
) -> NDArray[np.generic]:
    """What comes out of `x + 0` for one value, as another type if it is `cast`."""
    dtype, to = (helper.tensor_dtype_to_np_dtype(own) for own in (kind, cast or kind))
    nodes = [node("Add", "x zero", "sum"), node("Cast", "sum", "y", to=cast or kind)]
    zero, types = {"zero": np.zeros((1, 3), dtype)}, {"x": dtype.name, "y": to.name}
    network = imported(model(nodes, {"x": [1, 3]}, ["y"], zero, types, opset=18))
    with Engine(network, default_plan(network, soc, "cpu"), here(soc)) as engine:
        return engine(np.array([[value, 0, 1]], dtype))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (TensorProto.DOUBLE, 0.1),
        (TensorProto.DOUBLE, -np.inf),
        (TensorProto.INT64, (1 << 24) - 1),
        (TensorProto.INT32, 1 - (1 << 24)),
    ],
)
def test_numbers_that_float32_holds_come_out(kind: int, value: float, first_soc: Soc) -> None:
    (got, *_) = numbers_through(kind, value, first_soc).ravel()
    assert got == pytest.approx(value, rel=1e-7)


@pytest.mark.parametrize(
    ("kind", "value", "cast", "message"),
    [
        (TensorProto.DOUBLE, 1.7e9 + 1, None, r"input 'x' has .*1700000001.* float32 cannot hold"),
        (TensorProto.INT64, (1 << 24) + 1, None, r"'x' reaches 1.67772e\+07"),
        (TensorProto.FLOAT, 3e7, TensorProto.INT64, r"integer output 'y' reaches 3e\+07"),
    ],
)
def test_numbers_that_float32_does_not_hold_are_refused(
    kind: int, value: float, cast: int | None, message: str, first_soc: Soc
) -> None:
    """Rounded they would look right."""
    with pytest.raises(UnsupportedError, match=message):
        numbers_through(kind, value, first_soc, cast)


@pytest.mark.parametrize("side", ["cpu", "gpu"])
def test_a_deeper_network_needs_no_more_memory(side: Processor, first_soc: Soc) -> None:
    """Op by op; weights aside."""
    held = []
    for length in (4, 16):
        network = row(length)
        plan = default_plan(network, first_soc, side, chained=False)
        with Engine(network, plan, here(first_soc)) as engine:
            held.append((engine.memory.cpu_bytes, engine.memory.gpu_bytes))
    assert held[0] == held[1]


def test_weights_are_counted_where_they_are(first_soc: Soc) -> None:
    """Rows of both sides need all weights of an op, channels their own."""
    network = row(2)
    given = sum(w.nbytes for layer in network.layers for w in layer.weights.values())

    def memory(plan: Plan) -> Memory:
        with Engine(network, plan, here(first_soc)) as engine:
            return engine.memory

    cpu = memory(default_plan(network, first_soc, "cpu"))
    gpu = memory(default_plan(network, first_soc, "gpu"))
    assert (cpu.cpu_weight_bytes, cpu.gpu_weight_bytes) == (given, 0)
    assert gpu.cpu_weight_bytes == 0
    assert gpu.gpu_weight_bytes >= given
    rows = memory(make_plan(network, first_soc, [(2, "H", 0.5)], "missing"))
    assert rows.cpu_weight_bytes == given
    assert rows.gpu_weight_bytes >= given
    first, second = network.layers
    split = memory(make_plan(network, first_soc, [(1, "OC", 1.0), (1, "OC", 0.0)], "missing"))
    assert split.cpu_weight_bytes == sum(w.nbytes for w in second.weights.values())
    assert split.gpu_weight_bytes >= sum(w.nbytes for w in first.weights.values())
    assert split.total > split.cpu_weight_bytes + split.gpu_weight_bytes


@given(cuts=CUTS, in_place=st.booleans(), sharing=st.sampled_from(["gather", "missing"]))
@settings(max_examples=25, derandomize=True)
def test_memory_is_free_only_when_nobody_touches_it(
    cuts: Sequence[tuple[int, str, float]], in_place: bool, sharing: str, first_soc: Soc
) -> None:
    """Against every moment at which either processor may touch a tensor, however late it is."""
    network = converted(branching())
    plan = make_plan(network, first_soc, legal(network, cuts), sharing)
    program = partition_plan(network, plan, first_soc)
    lives = lifetimes(program, shared_in_place=in_place)
    touched = _touched(program, in_place)
    overlapping = [
        (side, one, other)
        for side in ("cpu", "gpu")
        for one, other in permutations(lives[side], 2)  # type: ignore[index]
        if lives[side][one].last < lives[side][other].first  # type: ignore[index]
        for a, b in product(touched[side, one], touched[side, other])
        if not (a.by == b.by == "gpu" and a.begin <= b.begin) and a.end > b.begin
    ]
    assert overlapping == []
    assert all(moments for moments in touched.values())
    assert {name for _, name in touched} >= {name for name, _ in network.outputs.values()}


class Moment(NamedTuple):
    """When a command that touches memory is given, and has ended at the latest; and whose it is."""

    by: str
    begin: float
    end: float


def _touched(program: PartitionedPlan, in_place: bool) -> dict[tuple[str, str], list[Moment]]:
    """Of every tensor on either side.

    Time goes by stages: an exchange at `s`, the CPU's wait at `s + 0.25`, its net at `s + 0.5`.
    What the GPU does may be as late as the CPU's next wait for what was enqueued behind it.
    """
    exchanges = [*(segment.transfers for segment in program.segments), program.final]
    waits = [s for s, moves in enumerate(exchanges) if any(t.direction == "to_cpu" for t in moves)]
    found: dict[tuple[str, str], list[Moment]] = {}

    def touch(side: str, tensor: str, moment: Moment) -> None:
        found.setdefault((side, tensor), []).append(moment)

    for s, moves in enumerate(exchanges):
        this = next((w + 0.25 for w in waits if w >= s), 1e9)
        later = next((w + 0.25 for w in waits if w > s), 1e9)
        for move in moves:
            touch("gpu", move.tensor, Moment("gpu", s, later))
            if move.direction == "to_cpu":
                touch("cpu", move.tensor, Moment("gpu", s, this))
            else:
                read = Moment("gpu", s, later) if in_place else Moment("cpu", s, s)
                touch("cpu", move.tensor, read)
    for s, segment in enumerate(program.segments):
        for tensor in (*segment.cpu.inputs, *segment.cpu.outputs):
            touch("cpu", tensor, Moment("cpu", s + 0.5, s + 0.5))
        for tensor in (*segment.gpu.inputs, *segment.gpu.outputs):
            touch("gpu", tensor, Moment("gpu", s + 0.1, 1e9))
    return found


@given(cuts=CUTS, sharing=st.sampled_from(["gather", "missing"]))
@settings(max_examples=6, derandomize=True)
def test_where_memory_must_be_mapped_outputs_are_the_same(
    cuts: Sequence[tuple[int, str, float]], sharing: str, soc: Soc
) -> None:
    """As on a device that does not see the host's memory, which is most of them."""
    network, x, expected = branching_case()
    plan = make_plan(network, soc, legal(network, cuts), sharing)
    mapped = replace(soc, gpu=replace(soc.gpu, fine_grained_svm=False))
    with Engine(network, plan, here(mapped)) as engine:
        for _ in range(2):
            outputs = engine({"image": x})
            for name, reference in some(expected.items()):
                assert max_rel_err(outputs[name], reference) <= 1e-4


def test_a_closed_session_holds_no_memory_of_the_device(first_soc: Soc) -> None:
    shape = Shape(1, 16, 8, 8)
    session = Session(pieces.relayout(shape, PLANAR, BLOCKED, first_soc), here(first_soc).device)
    memory = weakref.ref(session._handles)
    session.close()
    session.close()  # which changes nothing
    assert memory() is None
    with pytest.raises(DeviceError, match="closed"):
        session.stage(pieces.WORK)


def test_a_kernel_stands_in_for_a_layer_whose_name_looks_fused() -> None:
    """The label of a fused kernel is made of its layers' names, with " + " between them."""
    network = row(2)
    (first, second) = (layer.name for layer in network.layers)
    layers = [replace(layer, name="a + b") for layer in network.layers[:1]]
    named = replace(network, layers=(*layers, *network.layers[1:]))
    plan = one_by_one(named, SOC, "gpu")
    executable = lower(named, plan, SOC, Tuning())
    (step,) = (s for s in executable.steps if isinstance(s, GpuOp) and s.label == "a + b")
    refusals = [
        Refusal("a + b", "gpu_other", None, "it does not build"),
        Refusal(f"{first} + {second}", "gpu_fused", None, "it does not run"),
    ]
    assert fallbacks_of(executable, refusals) == (
        Fallback("a + b", "gpu_other", "it does not build", step.variant),
        Fallback(f"{first} + {second}", "one of gpu_fused", str(refusals[1]), "two kernels"),
    )
