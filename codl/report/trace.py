"""Traces for Perfetto (https://ui.perfetto.dev): a recording as tracks, slices, flows, counters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, groupby
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, TypeAlias

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TrackDescriptor, TrackEvent
from perfetto.trace_builder.proto_builder import TraceProtoBuilder

from codl import files
from codl.evaluation.run_report import Recording
from codl.ir.executable import Access, Executable, GpuOp, Net, OnnxNet, Relayout, Step, Transfer
from codl.ir.plan import Plan
from codl.plan.price import PlacedSpan
from codl.records.results import SpanKind

#: What a slice shows beside its name.
Notes: TypeAlias = "Mapping[str, str | float | Sequence[str]]"
#: Milliseconds by the net or the step, and the kind, of spans.
Totals: TypeAlias = "Mapping[tuple[int | None, int | None, SpanKind], float]"
#: A trace begins here, and every packet is of one sequence.
BEGIN_NS, SEQUENCE = 1_000_000, 1
#: Tracks of an inference from the top.
COMPUTING, QUEUE, TRANSFERS, WAITS = "CPU", "GPU queue", "transfers", "waits"
TRACKS = (COMPUTING, QUEUE, TRANSFERS, WAITS)
#: The category of slices around a processor's shard of a chain.
CHAIN = "chain"
#: Kinds of the CPU's spans by track; all of the GPU's are in its queue.
OF_CPU: Mapping[SpanKind, str] = {
    "net": COMPUTING,
    "layer": COMPUTING,
    "copy": TRANSFERS,
    "map": TRANSFERS,
    "unmap": TRANSFERS,
    "sync": WAITS,
}
#: Kinds that wait for memory or for data: these begin before the data are there.
WAITING: tuple[SpanKind, ...] = ("map", "sync")


@dataclass
class Slice:
    """What took from `start_ns` to `end_ns`; an instant where both are equal and it `is_instant`.

    Flows go through it, and those of `ending` end in it.
    """

    name: str
    category: str
    start_ns: int
    end_ns: int
    notes: Notes = field(default_factory=dict)
    inner: list[Slice] = field(default_factory=list)
    flows: list[int] = field(default_factory=list)
    ending: list[int] = field(default_factory=list)
    is_instant: bool = False


class TrackSummary(NamedTuple):
    """A track of a trace: how many slices it has, and the milliseconds of these."""

    process: str
    track: str
    slices: int
    ms: float


@dataclass(frozen=True)
class WrittenTrace:
    """The file of a trace, and what is in it."""

    path: Path
    bytes: int
    tracks: tuple[TrackSummary, ...]
    flows: int
    counters: tuple[str, ...]


def write_trace(recording: Recording, out: Path, *, title: str, source: str) -> WrittenTrace:
    """Write a recording as a Perfetto trace.

    Processes are called by the `title`; `source` says what predictions rest on. Raises `CodlError`
    where the file cannot be written. A crash leaves no half of it.
    """
    packets, tracks, flows = _Packets(), [], count(1)
    measured = [lanes_of(recording, run.spans, run.at_ms, flows) for run in recording.inferences]
    predicted = [
        lanes_of(recording, recording.predicted, at_ms, flows, is_predicted=True)
        for at_ms in _apart(recording)
    ]
    counters: tuple[str, ...] = ()
    processes = {f"measured: {title}": measured, f"predicted ({source}): {title}": predicted}
    for name, runs in processes.items():
        if not runs:
            continue
        process = packets.process(name)
        for rank, track in enumerate(TRACKS):
            slices = [piece for lanes in runs for piece in lanes[track]]
            packets.slices(packets.track(process, track, rank), slices)
            tracks.append(_summary(name, track, slices))
        if runs is measured:
            counters = packets.counters(process, recording)
    path = files.write(out, packets.content)
    used = next(flows) - 1
    return WrittenTrace(path, path.stat().st_size, tuple(tracks), used, counters)


def _apart(recording: Recording) -> Iterator[float]:
    """When predicted inferences begin: with measured ones, but not before the last is over."""
    done_ms = 0.0
    if not recording.predicted:
        return
    for at_ms in [run.at_ms for run in recording.inferences] or [0.0]:
        if at_ms >= done_ms:
            done_ms = at_ms + max(placed.span.end_ms for placed in recording.predicted)
            yield at_ms


def _summary(process: str, track: str, slices: Sequence[Slice]) -> TrackSummary:
    leaves = [
        piece for outer in slices for piece in (outer.inner if outer.category == CHAIN else [outer])
    ]
    ms = 1e-6 * sum(piece.end_ns - piece.start_ns for piece in leaves)
    return TrackSummary(process, track, len(leaves), ms)


def lanes_of(
    recording: Recording,
    spans: Sequence[PlacedSpan],
    at_ms: float,
    flows: Iterator[int],
    *,
    is_predicted: bool = False,
) -> dict[str, list[Slice]]:
    """The slices of one inference that began at `at_ms`, by track."""
    executable, plan = recording.executable, recording.plan
    notes = _NoteMaker(executable, plan, _others_ms(recording, is_predicted), is_predicted)
    pieces = [(placed, _slice(placed, at_ms, notes)) for placed in spans]
    lanes: dict[str, list[Slice]] = {track: [] for track in TRACKS}
    for track in TRACKS:
        lane = [
            (placed, piece)
            for placed, piece in pieces
            if track == (QUEUE if placed.span.processor == "gpu" else OF_CPU[placed.span.kind])
        ]
        lane.sort(key=lambda pair: (pair[1].start_ns, pair[0].span.kind == "layer"))
        _nest(lane)
        for stage, group in groupby(lane, key=lambda pair: pair[0].stage):
            inner = [piece for placed, piece in group if placed.span.kind != "layer"]
            is_chain = track in (COMPUTING, QUEUE)
            lanes[track] += [_chain(executable, plan, stage, inner)] if is_chain else inner
    _draw_flows(executable, pieces, flows)
    return lanes


def _slice(placed: PlacedSpan, at_ms: float, notes: _NoteMaker) -> Slice:
    span = placed.span
    start, end = (BEGIN_NS + round(1e6 * (at_ms + ms)) for ms in (span.start_ms, span.end_ms))
    return Slice(span.label, span.kind, start, end, notes.of(placed))


def _nest(lane: Sequence[tuple[PlacedSpan, Slice]]) -> None:
    """Put layers into their nets; nothing begins before what is above it on its track is over.

    Clocks of two kinds differ by microseconds at most, and so do spans that should not overlap.
    """
    done, net = BEGIN_NS, None
    for placed, piece in lane:
        if placed.span.kind == "layer" and net is not None:
            begin = net.inner[-1].end_ns if net.inner else net.start_ns
            piece.start_ns = min(max(piece.start_ns, begin), net.end_ns)
            piece.end_ns = min(max(piece.end_ns, piece.start_ns), net.end_ns)
            net.inner.append(piece)
            continue
        piece.start_ns = max(piece.start_ns, done)
        done = piece.end_ns = max(piece.end_ns, piece.start_ns)
        net = piece


def _chain(executable: Executable, plan: Plan, stage: int, inner: list[Slice]) -> Slice:
    """A processor's shard of a chain around what it is made of."""
    label = executable.stages[stage].label
    chain = next((chain for chain in plan.chains if chain.label == label), None)
    if chain is None:
        return Slice(label, CHAIN, inner[0].start_ns, inner[-1].end_ns, inner=inner)
    name = f"{label}  {chain.dim} {chain.gpu_ratio:.2f}"
    notes: Notes = {
        "dimension": chain.dim,
        "GPU ratio": chain.gpu_ratio,
        "ops": chain.ops,
    }
    return Slice(name, CHAIN, inner[0].start_ns, inner[-1].end_ns, notes, inner)


# Flows.


def _draw_flows(
    executable: Executable, pieces: Sequence[tuple[PlacedSpan, Slice]], flows: Iterator[int]
) -> None:
    """A flow for every transfer: from what makes the tensor, through all that moves it, to what
    reads it, as far as there are such.
    """
    by_step: dict[int, list[int]] = defaultdict(list)
    for at, (placed, _) in enumerate(pieces):
        if placed.step is not None and isinstance(executable.steps[placed.step], Transfer):
            by_step[placed.step].append(at)
    for way in by_step.values():
        step = _step(executable, pieces[way[0]][0])
        assert isinstance(step, Transfer)
        source, target = ("cpu", "gpu") if step.direction == "to_gpu" else ("gpu", "cpu")
        tensor = executable.tensors[step.source.tensor].name
        makers = [
            (placed, piece)
            for placed, piece in pieces[: way[0]]
            if placed.span.processor == source and tensor in _made(executable, placed)
        ]
        moves = [pieces[at] for at in way if pieces[at][0].span.kind not in WAITING]
        readers = [
            (placed, piece)
            for placed, piece in pieces[way[-1] :]
            if placed.span.processor == target and tensor in _read(executable, placed)
        ]
        path = [*makers[-1:], *moves, *readers[:1]]
        waits = [pieces[at] for at in way if pieces[at][0].span.kind == "sync"]
        if waits and not readers and moves[-1:] == path[-1:]:  # nothing reads it but the caller
            path += [(placed, _arrival(wait)) for placed, wait in waits[-1:]]
        if len({placed.span.processor for placed, _ in path}) == 2:
            flow = next(flows)
            for _, piece in path[:-1]:
                piece.flows.append(flow)
            path[-1][1].ending.append(flow)


def _arrival(wait: Slice) -> Slice:
    """An instant at the end of a wait."""
    name = f"arrived: {wait.name}"
    wait.inner.append(Slice(name, "arrived", wait.end_ns, wait.end_ns, is_instant=True))
    return wait.inner[-1]


def _made(executable: Executable, placed: PlacedSpan) -> set[str]:
    """The tensors that a span computes."""
    if placed.net is not None:
        return _named(executable, _outputs(executable.nets[placed.net]))
    step = _step(executable, placed)
    if isinstance(step, GpuOp):
        return _named(executable, [step.writes])
    return _named(executable, [step.target]) if isinstance(step, Relayout) else set()


def _read(executable: Executable, placed: PlacedSpan) -> set[str]:
    """The tensors that a span computes with."""
    if placed.net is not None:
        return _named(executable, _inputs(executable.nets[placed.net]))
    step = _step(executable, placed)
    if isinstance(step, GpuOp):
        return _named(executable, step.reads)
    return _named(executable, [step.source]) if isinstance(step, Relayout) else set()


def _step(executable: Executable, placed: PlacedSpan) -> Step | None:
    return None if placed.step is None else executable.steps[placed.step]


def _named(executable: Executable, accesses: Iterable[Access]) -> set[str]:
    return {executable.tensors[access.tensor].name for access in accesses}


def _inputs(net: Net) -> list[Access]:
    if isinstance(net, OnnxNet):
        return [binding.access for binding in net.inputs]
    return [access for _, access in net.inputs]


def _outputs(net: Net) -> list[Access]:
    if isinstance(net, OnnxNet):
        return [binding.access for binding in net.outputs]
    return [access for _, access in net.outputs]


# Notes.


def _others_ms(recording: Recording, is_predicted: bool) -> Totals:
    """What was predicted of measured spans; of predicted ones, what was measured in the mean."""
    if not is_predicted:
        return _totals(recording.predicted)
    runs = [_totals(run.spans) for run in recording.inferences]
    return {key: fmean(run.get(key, 0.0) for run in runs) for run in runs for key in run}


def _totals(spans: Iterable[PlacedSpan]) -> Totals:
    totals: dict[tuple[int | None, int | None, SpanKind], float] = defaultdict(float)
    for placed in spans:
        totals[placed.net, placed.step, placed.span.kind] += placed.span.ms
    return totals


@dataclass(frozen=True)
class _NoteMaker:
    """Makes the notes of spans; `others_ms` are of the other process."""

    executable: Executable
    plan: Plan
    others_ms: Totals
    is_predicted: bool

    def of(self, placed: PlacedSpan) -> Notes:
        notes: dict[str, str | float | Sequence[str]] = {}
        key = (placed.net, placed.step, placed.span.kind)
        here, there = ("predicted", "measured") if self.is_predicted else ("measured", "predicted")
        notes[f"{here} (ms)"] = placed.span.ms
        if placed.span.kind != "layer" and key in self.others_ms:
            notes[f"{there} (ms)"] = self.others_ms[key]
        label = self.executable.stages[placed.stage].label
        for chain in self.plan.chains:
            if chain.label == label:
                notes |= {"chain": label, "dimension": chain.dim, "GPU ratio": chain.gpu_ratio}
        return {**notes, **self._of_work(placed)}

    def _of_work(self, placed: PlacedSpan) -> Notes:
        if placed.net is not None:
            net = self.executable.nets[placed.net]
            return {
                "ops": [f"{layer.name}: {layer.op}" for layer in net.layers],
                "variants": list(dict.fromkeys(layer.variant for layer in net.layers)),
                "library": type(net).__name__.removesuffix("Net"),
            }
        step = _step(self.executable, placed)
        if isinstance(step, GpuOp):
            ops = zip(step.layers, step.ops, strict=True)
            tuned = {"tuned": f"{step.choice}"} if step.choice else {}
            notes = {"ops": [f"{name}: {op}" for name, op in ops], "variant": step.variant}
            return {**notes, **tuned}
        if isinstance(step, Transfer | Relayout):
            source, target = (self.executable.tensors[x.tensor] for x in (step.source, step.target))
            way = {"way": step.direction} if isinstance(step, Transfer) else {}
            return {
                "tensor": source.name,
                "region": str(step.source.region),
                "bytes": step.source.region.shape(source.shape).bytes,
                "storages": f"{source.storage} to {target.storage}",
                **way,
            }
        return {}


class _Packets:
    """A trace in the making."""

    def __init__(self) -> None:
        self._builder, self._uuids, self._pids = TraceProtoBuilder(), count(1), count(1)

    @property
    def content(self) -> bytes:
        return bytes(self._builder.serialize())

    def process(self, name: str) -> int:
        descriptor = self._described(name)
        descriptor.process.pid, descriptor.process.process_name = next(self._pids), name
        descriptor.child_ordering = TrackDescriptor.EXPLICIT
        return int(descriptor.uuid)

    def track(self, process: int, name: str, rank: int, *, unit: str = "") -> int:
        """A track of slices, or a counter where there is a unit."""
        descriptor = self._described(name)
        descriptor.parent_uuid, descriptor.sibling_order_rank = process, rank
        if unit:
            descriptor.counter.unit_name = unit
        return int(descriptor.uuid)

    def _described(self, name: str) -> Any:
        packet = self._builder.add_packet()
        packet.trusted_packet_sequence_id = SEQUENCE
        packet.track_descriptor.uuid = next(self._uuids)
        packet.track_descriptor.name = name
        return packet.track_descriptor

    def slices(self, track: int, slices: Sequence[Slice]) -> None:
        """In order, each with what is inside it."""
        for piece in slices:
            kind = TrackEvent.TYPE_INSTANT if piece.is_instant else TrackEvent.TYPE_SLICE_BEGIN
            event = self._event(track, piece.start_ns, kind)
            event.name = piece.name
            event.categories.append(piece.category)
            event.flow_ids.extend(piece.flows)
            event.terminating_flow_ids.extend(piece.ending)
            for name, value in piece.notes.items():
                _annotate(event.debug_annotations.add(), name, value)
            self.slices(track, piece.inner)
            if not piece.is_instant:
                self._event(track, piece.end_ns, TrackEvent.TYPE_SLICE_END)

    def counters(self, process: int, recording: Recording) -> tuple[str, ...]:
        """Their names; one that shows nothing has no track."""
        series: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for reading in recording.readings:
            for name, value in reading.values.items():
                series[name].append((reading.at_ms, value))
        if recording.power_w is not None:
            series["power, in the mean of plain runs (W)"].append((0.0, recording.power_w))
        for rank, (name, points) in enumerate(series.items(), start=len(TRACKS)):
            track = self.track(process, name, rank, unit=name.partition("(")[2].rstrip(")"))
            for at_ms, value in points:
                event = self._event(track, BEGIN_NS + round(1e6 * at_ms), TrackEvent.TYPE_COUNTER)
                event.double_counter_value = value
        return tuple(series)

    def _event(self, track: int, at_ns: int, kind: int) -> Any:
        packet = self._builder.add_packet()
        packet.timestamp, packet.trusted_packet_sequence_id = at_ns, SEQUENCE
        packet.track_event.type, packet.track_event.track_uuid = kind, track
        return packet.track_event


def _annotate(annotation: Any, name: str, value: str | float | Sequence[str]) -> None:
    annotation.name = name
    if isinstance(value, str):
        annotation.string_value = value
    elif isinstance(value, int | float):
        annotation.double_value = value
    else:
        for text in value:
            annotation.array_values.add().string_value = text
