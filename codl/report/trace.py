"""Traces for Perfetto (https://ui.perfetto.dev): a recording as tracks, slices and counters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, groupby
from pathlib import Path
from typing import Any, TypeAlias

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TrackDescriptor, TrackEvent
from perfetto.trace_builder.proto_builder import TraceProtoBuilder

from codl import files
from codl.ir.executable import Executable, GpuOp, Relayout, Transfer
from codl.ir.plan import Plan
from codl.ir.records.results import SpanKind
from codl.plan.price import PlacedSpan
from codl.report.recording import Recording

#: Notes that a slice shows besides its name.
Notes: TypeAlias = "Mapping[str, str | float | Sequence[str]]"
#: The timestamp at which traces begin, and the packets' only sequence number.
BEGIN_NS, SEQUENCE = 1_000_000, 1
#: Tracks of an inference from top to bottom.
COMPUTING, QUEUE, TRANSFERS, WAITS = "CPU", "GPU queue", "transfers", "waits"
TRACKS = (COMPUTING, QUEUE, TRANSFERS, WAITS)
#: The category of slices around a processor's shard of a chain.
CHAIN = "chain"
#: Tracks of the CPU's spans by kind; all spans of the GPU are in its queue.
OF_CPU: Mapping[SpanKind, str] = {
    "net": COMPUTING,
    "layer": COMPUTING,
    "copy": TRANSFERS,
    "map": TRANSFERS,
    "unmap": TRANSFERS,
    "sync": WAITS,
}


@dataclass
class Slice:
    """A slice from `start_ns` to `end_ns`."""

    name: str
    category: str
    start_ns: int
    end_ns: int
    notes: Notes = field(default_factory=dict)
    inner: list[Slice] = field(default_factory=list)


def write_trace(recording: Recording, out: Path, *, title: str, source: str) -> Path:
    """Write a recording as a Perfetto trace, and return its path.

    `title` names its processes; `source` is the source of its predictions. Raises `CodlError` where
    the file cannot be written. A crash leaves no partial file.
    """
    packets = _Packets()
    measured = [lanes_of(recording, spans, at_ms) for at_ms, spans in recording.inferences]
    predicted = [lanes_of(recording, recording.predicted, at_ms) for at_ms in _apart(recording)]
    processes = {f"measured: {title}": measured, f"predicted ({source}): {title}": predicted}
    for name, runs in processes.items():
        if not runs:
            continue
        process = packets.process(name)
        for rank, track in enumerate(TRACKS):
            slices = [piece for lanes in runs for piece in lanes[track]]
            packets.slices(packets.track(process, track, rank), slices)
        if runs is measured:
            packets.counters(process, recording)
    return files.write(out, packets.content)


def _apart(recording: Recording) -> Iterator[float]:
    """Start times of predicted inferences: with measured ones, unless they would overlap."""
    done_ms = 0.0
    if not recording.predicted:
        return
    for at_ms in [at_ms for at_ms, _ in recording.inferences] or [0.0]:
        if at_ms >= done_ms:
            done_ms = at_ms + max(placed.span.end_ms for placed in recording.predicted)
            yield at_ms


def lanes_of(
    recording: Recording,
    spans: Sequence[PlacedSpan],
    at_ms: float,
) -> dict[str, list[Slice]]:
    """The slices of one inference that began at `at_ms`, by track."""
    executable, plan = recording.executable, recording.plan
    pieces = []
    for placed in spans:
        span, notes = placed.span, _notes(executable, plan, placed)
        start, end = (BEGIN_NS + round(1e6 * (at_ms + ms)) for ms in (span.start_ms, span.end_ms))
        pieces.append((placed, Slice(span.label, span.kind, start, end, notes)))
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
    return lanes


def _nest(lane: Sequence[tuple[PlacedSpan, Slice]]) -> None:
    """Nest layers in their nets, and separate slices that overlap by the clocks' difference."""
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
    """The slice of a processor's shard of a chain, around its inner slices."""
    label = executable.stages[stage].label
    chain = next((chain for chain in plan.chains if chain.label == label), None)
    if chain is None:
        return Slice(label, CHAIN, inner[0].start_ns, inner[-1].end_ns, inner=inner)
    name = f"{label}  {chain.dim} {chain.gpu_ratio:.2f}"
    notes: Notes = {"dimension": chain.dim, "GPU ratio": chain.gpu_ratio, "ops": chain.ops}
    return Slice(name, CHAIN, inner[0].start_ns, inner[-1].end_ns, notes, inner)


def _notes(executable: Executable, plan: Plan, placed: PlacedSpan) -> Notes:
    """What a slice shows: its time, its chain, and its work."""
    notes: dict[str, str | float | Sequence[str]] = {"ms": placed.span.ms}
    label = executable.stages[placed.stage].label
    for chain in plan.chains:
        if chain.label == label:
            notes |= {"chain": label, "dimension": chain.dim, "GPU ratio": chain.gpu_ratio}
    step = None if placed.step is None else executable.steps[placed.step]
    if placed.net is not None:
        net = executable.nets[placed.net]
        notes["ops"] = [f"{layer.name}: {layer.op}" for layer in net.layers]
        notes["variants"] = list(dict.fromkeys(layer.variant for layer in net.layers))
        notes["library"] = type(net).__name__.removesuffix("Net")
    elif isinstance(step, GpuOp):
        notes["ops"] = [f"{n}: {op}" for n, op in zip(step.layers, step.ops, strict=True)]
        notes["variant"] = step.variant
        notes |= {"tuned": f"{step.choice}"} if step.choice else {}
    elif isinstance(step, Transfer | Relayout):
        source, target = (executable.tensors[x.tensor] for x in (step.source, step.target))
        notes["tensor"], notes["region"] = source.name, str(step.source.region)
        notes["bytes"] = step.source.region.shape(source.shape).bytes
        notes["storages"] = f"{source.storage} to {target.storage}"
        notes |= {"way": step.direction} if isinstance(step, Transfer) else {}
    return notes


class _Packets:
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
        """Add a track of slices, or a counter if there is a unit; returns its id."""
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
        """Add slices in order, each with its inner slices."""
        for piece in slices:
            event = self._event(track, piece.start_ns, TrackEvent.TYPE_SLICE_BEGIN)
            event.name = piece.name
            event.categories.append(piece.category)
            for name, value in piece.notes.items():
                _annotate(event.debug_annotations.add(), name, value)
            self.slices(track, piece.inner)
            self._event(track, piece.end_ns, TrackEvent.TYPE_SLICE_END)

    def counters(self, process: int, recording: Recording) -> None:
        """Add counters of sensors with values."""
        series: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for at_ms, values in recording.readings:
            for name, value in values.items():
                series[name].append((at_ms, value))
        if recording.power_w is not None:
            series["power, in the mean of plain runs (W)"].append((0.0, recording.power_w))
        for rank, (name, points) in enumerate(series.items(), start=len(TRACKS)):
            track = self.track(process, name, rank, unit=name.partition("(")[2].rstrip(")"))
            for at_ms, value in points:
                event = self._event(track, BEGIN_NS + round(1e6 * at_ms), TrackEvent.TYPE_COUNTER)
                event.double_counter_value = value

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
