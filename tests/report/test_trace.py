"""Traces, read back: what is nested, and in order."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.devices import here
from support.plans import row
from support.simulated import SOC, soc_with
from support.some import some
from support.synthetic_predictors import Line, SyntheticPredictors

from codl.engine.engine import Engine
from codl.ir.plan import Plan
from codl.ir.records.results import Conditions, TimeSpan
from codl.kernels.tuning import Tuning
from codl.lower.lowering import lower
from codl.machine.placement import LocalSoc
from codl.measure.inputs import random_inputs
from codl.plan.build_plan import chain_of
from codl.plan.cost_model import CostModel
from codl.plan.predicted_plan import make_plan
from codl.report.recording import predict, record
from codl.report.trace import write_trace
from codl.runtime.loaded import Timeline
from codl.targets.base import Target

pb = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
COST = SyntheticPredictors(least_ms=0.0, flops=1e6, exchange=Line(0.01))
#: GPUs that see the host's memory, and those to which it is copied.
SOCS = {"copied": SOC, "shared": soc_with(fine_grained_svm=True)}


@dataclass
class ReadSlice:
    """A slice as a reader of Perfetto's format sees it."""

    track: str
    name: str
    category: str
    begin_ns: int
    end_ns: int
    depth: int
    notes: dict[str, Any]


@dataclass
class ReadTrace:
    slices: dict[str, list[ReadSlice]] = field(default_factory=lambda: defaultdict(list))
    counters: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def of(self, process: str, *categories: str) -> list[ReadSlice]:
        every = next(slices for name, slices in self.slices.items() if name.startswith(process))
        return [one for one in every if not categories or one.category in categories]


def read(path: Path) -> ReadTrace:
    """Of a file; every track must go on in time, and close what it opens."""
    packets = pb.Trace.FromString(path.read_bytes()).packet
    described = [packet.track_descriptor for packet in packets]
    tracks = {track.uuid: track for track in described if track.uuid}
    last: dict[int, int] = defaultdict(int)
    opened: dict[int, list[ReadSlice]] = defaultdict(list)
    trace = ReadTrace()
    for packet in packets:
        event = packet.track_event
        if not event.track_uuid:
            continue
        track = tracks[event.track_uuid]
        process = tracks[track.parent_uuid].process.process_name
        assert packet.timestamp >= last[track.uuid]
        last[track.uuid] = packet.timestamp
        stack = opened[track.uuid]
        if event.type == event.TYPE_COUNTER:
            assert track.HasField("counter")
            trace.counters[track.name].append(event.double_counter_value)
        elif event.type == event.TYPE_SLICE_END:
            stack.pop().end_ns = packet.timestamp
        else:
            one = ReadSlice(
                track.name,
                event.name,
                event.categories[0],
                packet.timestamp,
                packet.timestamp,
                len(stack),
                {note.name: _value(note) for note in event.debug_annotations},
            )
            trace.slices[process].append(one)
            stack.append(one)
    assert not any(opened.values())
    return trace


def _value(note: Any) -> Any:
    texts = [value.string_value for value in note.array_values]
    return texts or (note.string_value if note.HasField("string_value") else note.double_value)


def planned(soc: Any) -> tuple[Any, Plan]:
    """Four convolutions: two chains on both processors, and one on either."""
    network = row(4)
    layers = network.layers
    cuts = [(layers[:1], "H", 0.5), (layers[1:2], "OC", 0.5), (layers[2:3], "H", 0.0)]
    chains = [chain_of(part, dim, ratio) for part, dim, ratio in cuts]  # type: ignore[arg-type]
    chains.append(chain_of(layers[3:], "H", 1.0))
    return network, make_plan(
        network, CostModel(soc, COST), chains, strategy="test", sharing="missing"
    )


@pytest.mark.parametrize("memory", SOCS)
def test_what_is_predicted_can_be_read_back(memory: str, tmp_path: Path) -> None:
    soc = SOCS[memory]
    network, plan = planned(soc)
    executable = lower(network, plan, soc, Tuning())
    recording = predict(executable, plan, CostModel(soc, COST))
    path = write_trace(recording, tmp_path / "a.pftrace", title="row", source="simulated")
    trace = read(path)
    assert list(trace.slices) == ["predicted (simulated): row"]
    inner = trace.of("predicted", "net", "kernel", "copy", "map", "unmap", "transform", "sync")
    assert len(inner) == len(recording.predicted)
    end_ns = 1_000_000 + round(1e6 * (plan.predicted_ms or 0))
    assert max(one.end_ns for one in inner) == pytest.approx(end_ns, abs=2)
    chains = trace.of("predicted", "chain")
    assert {one.notes["GPU ratio"] for one in chains if "GPU ratio" in one.notes} == {0, 0.5, 1}
    conv = next(one for one in trace.of("predicted", "kernel") if one.name == "conv1")
    assert conv.notes["dimension"] == "H"
    assert conv.notes["variant"] == plan.chains[0].variants["conv1"]["gpu"]
    assert conv.notes["ops"][0].startswith("conv1: conv2d")
    assert conv.depth == 1


def test_what_ran_can_be_read_back(first_soc: LocalSoc, tmp_path: Path) -> None:
    network, plan = planned(first_soc)
    target = here(first_soc)
    with Engine(network, plan, target) as engine:
        engine.feed(random_inputs(network))
        recording = record(engine, target, CostModel(first_soc, COST), runs=3, layers=True)
        path = write_trace(recording, tmp_path / "a.pftrace", title="row", source="computed")
    trace = read(path)
    assert len(trace.slices) == 2
    for _, spans in some(recording.inferences):
        for placed in some(spans):
            assert placed.span.end_ms >= placed.span.start_ms >= 0
    nets = trace.of("measured", "net")
    assert len(nets) == 3 * len(engine.executable.nets)
    for one in some(nets):
        assert one.notes["ms"] > 0
        assert one.notes["ops"]
    for _, spans in some(recording.inferences):  # no wait is over before what it waits for
        ends = {x.step: x.span.end_ms for x in spans if x.span.kind == "transform"}
        for placed in some(x for x in spans if x.span.kind == "sync" and x.step in ends):
            assert placed.span.end_ms >= ends[placed.step] - 1.0
    begins = [one.begin_ns for one in trace.of("measured", "net")[:: len(engine.executable.nets)]]
    assert begins == sorted(begins)


def test_sensors_are_counters(tmp_path: Path) -> None:
    network, plan = planned(SOC)
    recording = predict(lower(network, plan, SOC, Tuning()), plan, None)
    one: Any = SimpleNamespace(executable=recording.executable, plan=plan)
    hot = Conditions(temperature_c=61.5, cpu_mhz=2000.0)
    one.profile = lambda runs, layers: []
    target: Target = SimpleNamespace(conditions=lambda: hot)  # type: ignore[assignment]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("codl.report.recording.measured", lambda executable, spans: iter(()))
        recording = record(one, target, None, runs=2, power_w=4.5)
    values = {"temperature (C)": 61.5, "CPU clock (MHz)": 2000.0}
    assert recording.readings[0] == (0.0, values)
    path = write_trace(recording, tmp_path / "a.pftrace", title="row", source="computed")
    counters = read(path).counters
    assert counters["temperature (C)"] == [61.5] * 3
    assert counters["CPU clock (MHz)"] == [2000.0] * 3
    assert next(values for name, values in counters.items() if "power" in name) == [4.5]


def test_clocks_are_laid_over_each_other_where_an_enqueue_took_the_least() -> None:
    """The first one compiles; of the others the host's clock is read microseconds later."""
    timeline = Timeline(_origin=100.0)
    took_s = (5e-3, 2e-6, 9e-6)
    for at, took in enumerate(took_s):
        queued = 7_000_000_000 + at * 10_000_000  # of a clock that began elsewhere
        times = SimpleNamespace(queued=queued, start=queued + 1_000_000, end=queued + 2_000_000)
        event: Any = SimpleNamespace(profile=times)
        timeline._gpu.append(("kernel", f"k{at}", 100.0 + 1e-2 * at + took, event, event))
    starts = [span.start_ms for span in timeline.spans()]
    assert starts == pytest.approx([1.002, 11.002, 21.002], abs=1e-6)
    assert all(isinstance(span, TimeSpan) for span in timeline.spans())
