"""Benchmarks: ops alone, an interface beside a model, and streams of frames."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from math import ceil
from statistics import fmean
from time import perf_counter
from typing import Annotated, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from codl.engine.engine import Engine
from codl.engine.stream import Stream
from codl.errors import CodlError, DeviceError
from codl.ir import Network, Op, to_text
from codl.ir.records.gpu_limits import UNLIMITED, GpuLimits, LimitedGpu
from codl.ir.records.results import Digests, Latency
from codl.ir.records.tuned import BenchRow
from codl.ir.types import PROCESSORS
from codl.jobs import options as opt
from codl.jobs.interleaved import check_installed, load
from codl.jobs.model import ModelJob, digests_of
from codl.jobs.options import DeviceJob, option, recorded, soc_on
from codl.jobs.run import EngineJob
from codl.jobs.streams import StreamEngines
from codl.machine import threads
from codl.machine.placement import LocalSoc
from codl.measure import FOLDER as DATASETS
from codl.measure import tuning_file
from codl.measure.budget import Budget
from codl.measure.dataset import Dataset
from codl.measure.inputs import random_inputs
from codl.measure.op_runner import ELSEWHERE
from codl.measure.peers import THROUGHPUT_PEERS
from codl.measure.tasks import load_ops
from codl.measure.timing import Effort, Protocol
from codl.measure.ui_frames import Drawn, Frames
from codl.plan.strategies.base import Context
from codl.targets.base import Started, Target
from codl.targets.connect import connect
from codl.targets.requests import Arrays

#: The turns of each engine.
TURNS = 3
#: The limits that are compared where none are named.
USUAL = GpuLimits(max_kernel_ms=1.0, gpu_duty=0.7)
#: The limits that `--frame-rate` chooses from, the loosest first.
LADDER = tuple(
    GpuLimits(longest_ms, duty)
    for longest_ms, duty in (
        (4, 1), (2, 1), (1, 1), (1, 0.9), (1, 0.8), (1, 0.7), (0.5, 0.6), (0.5, 0.5), (0.5, 0.4),
        (0.25, 0.3), (0.25, 0.2)
    )
)  # fmt: skip
BESIDE = ("without limits", "with limits")
#: Frames drawn while an engine ran, and the seconds of its runs.
Beside: TypeAlias = tuple[Drawn, list[float]]


@dataclass(frozen=True, kw_only=True)
class BenchOps(DeviceJob):
    """Measure ops in every kernel variant, or in those for this SoC alone, while there is time."""

    source: Annotated[
        str | None, opt.argument("A built-in model, an .onnx file or a .csv file of ops.")
    ] = field(default=None, kw_only=False)
    ops: opt.OpsOption = ()
    every: Annotated[bool, option("--every", help="Also variants that are not for this SoC.")] = (
        False
    )
    budget_s: opt.BudgetOption = None
    dataset: opt.DatasetsOption = DATASETS

    def run(self) -> tuple[dict[str, Any], Budget]:
        """What `codl bench ops --json` holds, and what ended it."""
        sources = (*opt.names_of([self.source] if self.source else []), *self.ops)
        if not sources:
            example = '"conv2d in=1x64x56x56 oc=128 kernel=3x3"'
            raise CodlError(f"Name a model, or an op by --ops {example}.")
        soc, budget = soc_on(self, self.serial), Budget(self.budget_s)
        ops = load_ops(sources)
        tuning = tuning_file.read(Dataset.found(soc.name, self.dataset), soc)
        done: list[Op] = []
        rows: list[dict[str, Any]] = []
        refused: list[dict[str, Any]] = []
        elsewhere = 0
        with (
            closing(connect(self.serial, soc)) as target,
            self.reporter.progress(f"Measuring on {soc.name}") as update,
        ):
            origin = recorded(target, Digests(tuning=tuning.fingerprint), **asdict(Protocol()))
            with budget.keeping(done):
                for each in budget.steps(ops, update):
                    measured, others = target.bench(each, tuning, every=self.every)
                    rows += [{"op": to_text(each), **_row(row)} for row in measured]
                    here = [x for x in others if self.every or x.reason != ELSEWHERE]
                    refused += [{"op": to_text(each), **asdict(other)} for other in here]
                    elsewhere += len(others) - len(here)
                    done.append(each)
        result = {
            "soc": soc.name,
            "source": "measured",
            "ops": rows,
            "refused": refused,
            "elsewhere": elsewhere,
            "stopped": budget.ended,
            "left": len(ops) - len(done),
            **origin,
        }
        return result, budget


def _row(row: BenchRow) -> dict[str, Any]:
    latency = row.latency
    return {
        "variant": row.variant,
        "processor": row.processor,
        "latency_ms": latency.level,
        "gflops": row.gflops,
        "p20_ms": latency.p20,
        "p80_ms": latency.p80,
        "runs": latency.runs,
        "choice": None if row.choice is None else dict(row.choice),
    }


def _about(job: ModelJob, network: Network) -> dict[str, Any]:
    soc = job.described.name
    return {"model": network.name, "soc": soc, "serial": job.serial, "source": "measured"}


@dataclass(frozen=True)
class UiRow:
    """Frames of an interface alone, or beside an engine that runs without pauses."""

    beside: str
    frames: Frames
    latency_ms: Latency | None = None
    predicted_ms: float | None = None
    limited: LimitedGpu | None = None


def bench_ui(
    engines: Mapping[str, Engine],
    probe: Target,
    inputs: Mapping[str, NDArray[Any]],
    *,
    seconds: float,
    budget: Budget | None = None,
) -> list[UiRow]:
    """Frames that `probe` draws alone and beside each engine, in turns.

    `probe` runs on the same device in another process. Each engine has `seconds` in all. Ctrl-C
    after the first round of turns ends it early.
    """
    budget, turn_s = budget or Budget(), seconds / TURNS
    rounds: list[tuple[Drawn, dict[str, Beside]]] = []
    probe.draw_frames(0.0)  # opens the device and measures a frame
    for engine in engines.values():
        engine(inputs)
    with budget.keeping(rounds):
        for _ in range(TURNS):
            alone = probe.draw_frames(turn_s)
            beside = {name: _beside(engine, probe, turn_s) for name, engine in engines.items()}
            rounds.append((alone, beside))
    rows = [UiRow("nothing", Frames.of([alone for alone, _ in rounds]))]
    for name, engine in engines.items():
        turns = [beside[name] for _, beside in rounds]
        latency = Latency.of([second for _, samples in turns for second in samples])
        frames, predicted_ms = Frames.of([drawn for drawn, _ in turns]), engine.plan.predicted_ms
        rows.append(UiRow(name, frames, latency, predicted_ms, engine.limited))
    return rows


def _beside(engine: Engine, probe: Target, seconds: float) -> Beside:
    """Draw frames while an engine runs; also returns the seconds of its runs."""
    engine.run()
    samples: list[float] = []
    with ThreadPoolExecutor(1) as thread:
        drawing = thread.submit(probe.draw_frames, seconds)
        while not (samples and drawing.done()):
            begin = perf_counter()
            engine.run()
            samples.append(perf_counter() - begin)
        return drawing.result(), samples


def loosest_limits(frames_per_s: Callable[[GpuLimits], float], wanted: float) -> GpuLimits:
    """The loosest limits with the wanted frame rate, by bisection; the tightest if none has it."""
    at = bisect_left(LADDER, True, key=lambda limits: frames_per_s(limits) >= wanted)
    return LADDER[min(at, len(LADDER) - 1)]


@dataclass(frozen=True, kw_only=True)
class BenchInterface(ModelJob):
    """Draw frames beside nothing, beside a model as it usually runs, and beside it with limits.

    Each is planned for its limits. With `frame_rate`, limits are tried by bisection, and the
    loosest ones beside which the interface draws as many frames a second are taken.
    """

    time_s: Annotated[float, opt.time_option("9s", help="How long to draw beside each.")] = 9.0
    frame_rate: Annotated[
        float | None,
        option(
            "--frame-rate",
            least=1,
            most=60,
            help="Find the loosest limits beside which the interface draws so many frames a "
            "second, in place of --max-kernel-ms and --gpu-duty.",
        ),
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.frame_rate is not None and (self.max_kernel_ms or self.gpu_duty) is not None:
            raise CodlError(
                "--frame-rate finds --max-kernel-ms and --gpu-duty itself: leave them out."
            )

    def run(self) -> tuple[dict[str, Any], Budget]:
        """What `codl bench ui --json` holds, and what ended it: the time, or Ctrl-C."""
        described, budget = soc_on(self, self.serial), Budget()
        network, tried = self.load(), list[dict[str, Any]]()
        inputs = random_inputs(network)
        with ExitStack() as stack:
            unlimited, context = self._engine(network, described, UNLIMITED, stack)
            probe = stack.enter_context(closing(context.device.fresh()))

            def frames_per_s(limits: GpuLimits) -> float:
                with ExitStack() as inner:
                    engine, _ = self._engine(network, described, limits, inner)
                    engine(inputs)
                    drawn, samples = _beside(engine, probe, self.time_s / TURNS)
                rate, latency_ms = Frames.of([drawn]).per_second, Latency.of(samples).median
                row = {"limits": asdict(limits), "frames_per_s": rate, "latency_ms": latency_ms}
                tried.append(row)
                return rate

            if self.frame_rate is None:
                limits = self.limits(described, self.deployment) or USUAL
            else:
                self.reporter.stage(f"Finding limits for {self.frame_rate:g} frames/s")
                probe.draw_frames(0.0)  # opens the device and measures a frame
                limits = loosest_limits(frames_per_s, self.frame_rate)
            limited, context = self._engine(network, described, limits, stack)
            engines = dict(zip(BESIDE, (unlimited, limited), strict=True))
            plans = {name: loaded.plan for name, loaded in engines.items()}
            of = digests_of(context, network, plans=plans)
            origin = recorded(context.device, of, seconds=self.time_s, turns=TURNS)
            self.reporter.stage(
                f"Drawing frames beside {network.name}, {self.time_s:g} s each",
                len(BESIDE) * self.time_s,
            )
            rows = bench_ui(engines, probe, inputs, seconds=self.time_s, budget=budget)
        without_ms, with_ms = (row.latency_ms.median for row in rows if row.latency_ms is not None)
        result = {
            **_about(self, network),
            "limits": asdict(limits),
            "frame_rate": self.frame_rate,
            "tried": tried,
            "rows": [
                {**asdict(r), "strategy": plans[r.beside].strategy if r.beside in plans else None}
                for r in rows
            ],
            "price": with_ms / without_ms if without_ms else None,
            "stopped": budget.ended,
            **origin,
        }
        return result, budget

    def _engine(
        self, network: Network, described: LocalSoc, limits: GpuLimits, stack: ExitStack
    ) -> tuple[Engine, Context]:
        """An engine planned for some limits, with a target that `stack` closes."""
        soc = replace(described, placement=replace(described.placement, limits=limits))
        target = stack.enter_context(closing(connect(self.serial, soc)))
        context = replace(self.context, soc=soc, target=target)
        plan = self.plan_of(network, context)
        return stack.enter_context(Engine(network, plan, target, context.tuning)), context


@dataclass
class FrameRate:
    """Frame rate over several turns: `seconds` of all turns, and the seconds of each frame.

    A frame's time runs from reading the frame to returning its result. `taken` counts the frames
    of a stream by engine.
    """

    seconds: float = 0.0
    frames_s: list[float] = field(default_factory=list)
    taken: Counter[str] = field(default_factory=Counter)

    @property
    def frames_per_s(self) -> float:
        return len(self.frames_s) / self.seconds

    def to_json(self) -> dict[str, Any]:
        """Frames per second, and percentiles of the milliseconds of a frame."""
        names = ("median", "p20", "p80", "p95", "p99")
        percentiles = 1e3 * np.percentile(self.frames_s, (50, 20, 80, 95, 99))
        latency_ms = dict(zip(names, map(float, percentiles), strict=True))
        runs = len(self.frames_s)
        return {"frames_per_s": self.frames_per_s, "latency_ms": {**latency_ms, "runs": runs}}

    def add_calls(self, engine: Callable[[Any], object], frame: object, seconds: float) -> None:
        """Add a turn of `seconds` in which an engine is called with one frame after the other."""
        engine(frame)  # refills the caches that other engines used
        begin = end = perf_counter()
        while end < begin + seconds:
            start = end
            engine(frame)
            end = perf_counter()
            self.frames_s.append(end - start)
        self.seconds += end - begin

    def add_stream(
        self, stream: Callable[[Iterator[Any]], Stream], frame: object, seconds: float
    ) -> None:
        """Add a turn of a stream, timed once all engines are busy."""
        read: deque[float] = deque()

        def frames() -> Iterator[object]:
            while True:
                read.append(perf_counter())
                yield frame

        with stream(frames()) as results:
            for _ in range(results.in_flight):
                next(results)
                read.popleft()
            before, begin = results.counts, perf_counter()
            end = begin
            while end < begin + seconds:
                next(results)
                end = perf_counter()
                self.frames_s.append(end - read.popleft())
            self.seconds += end - begin
            self.taken.update({name: n - before[name] for name, n in results.counts.items()})


@dataclass(frozen=True, kw_only=True)
class BenchStream(EngineJob):
    """Run frames of a model on both processors at once, and beside it on each one alone, in turns.

    `in_flight` is by default what keeps both processors busy.
    """

    time_s: Annotated[float, opt.time_option("20s", help="How long to run all together.")] = 20.0
    in_flight: Annotated[
        int | None,
        option("--in-flight", least=1, help="The most frames that are read ahead of the results."),
    ] = None
    peers: Annotated[
        Sequence[str],
        opt.list_option(
            "--peers", "Other libraries on all cores, of {codl.measure.peers:THROUGHPUT_PEERS}"
        ),
    ] = ()

    def run(self) -> dict[str, Any]:
        """Time each processor alone and the stream; returns the result of `codl bench stream`."""
        for name in self.peers:
            check_installed(name, THROUGHPUT_PEERS.find(name))
        with ExitStack() as stack:
            opened = self.opened(stack)
            engine, context = stack.enter_context(opened.engine), opened.context
            assert context is not None
            device, model = context.device, engine.network.name
            self.reporter.stage(f"Building the engines of streams of {model}")
            made = StreamEngines(engine, context, opened.source, self.strict)
            alone = self._alone(made, stack)
            frame = dict(opened.inputs)
            with engine.stream([frame], in_flight=self.in_flight) as results:
                next(results)
                in_flight, names = results.in_flight, results.lanes
            peers = []
            for name in self.peers:
                started = stack.enter_context(closing(self._started(name, frame, device)))
                peers.append(_Peer(name, started))
            self.reporter.stage(f"Running frames of {model}", self.time_s)
            rates, stream = {name: FrameRate() for name in alone}, FrameRate()
            turn_s = self.time_s / TURNS / (len(rates) + 1 + len(peers))
            for _ in range(TURNS):
                for name, one in alone.items():
                    threads.wait_until_idle()
                    rates[name].add_calls(one, frame, turn_s)
                threads.wait_until_idle()
                stream.add_stream(partial(engine.stream, in_flight=in_flight), frame, turn_s)
                for peer in peers:
                    threads.wait_until_idle()
                    peer.add_turn(device, turn_s)
            plans = {name: one.plan for name, one in alone.items()}
            of = digests_of(context, engine.network, plans=plans)
            origin = recorded(device, of, seconds=self.time_s, turns=TURNS)
        sum_per_s = sum(rates[name].frames_per_s for name in PROCESSORS if name in rates)
        return {
            **_about(self, engine.network),
            "batch": self.batch,
            **stream.to_json(),
            "in_flight": in_flight,
            "lanes": list(names),
            "taken": dict(stream.taken),
            "alone": [{"name": name, **rate.to_json()} for name, rate in rates.items()],
            "sum_per_s": sum_per_s,
            "share_of_sum": stream.frames_per_s / sum_per_s if sum_per_s else None,
            "expected_ms": dict(made.plan.latency_ms),
            "peers": [peer.to_json() for peer in peers],
            **origin,
        }

    def _started(self, name: str, frame: Arrays, target: Target) -> Started:
        """A library in a process of its own, with the model at fixed sizes, fed and warm."""
        _, reference = load(str(self.model), self.batch)
        shaped = {key: value.reshape(reference.inputs[key].shape) for key, value in frame.items()}
        return target.start_peer(name, reference.model.SerializeToString(), shaped)

    def _alone(self, made: StreamEngines, stack: ExitStack) -> dict[str, Engine]:
        """The engines that run beside the stream, by plan; the stack closes those of others."""
        engine = made.engine
        if self.keeps_plan:
            lanes = engine.lanes
        else:
            lanes = made.lanes()
            engine.make_lanes = lambda _: lanes
        alone = {name: made.of(name) for name in made.plan.plans}
        for other in {*alone.values()} - {*lanes.engines.values(), engine}:
            stack.enter_context(other)
        return alone


@dataclass
class _Peer:
    """A started library, and the median milliseconds of its runs in each turn."""

    name: str
    started: Started
    turns_ms: list[float] = field(default_factory=list)

    def add_turn(self, target: Target, seconds: float) -> None:
        """Run for about `seconds`; the first run, which refills caches, is not counted."""
        runs = ceil(1e3 * seconds / fmean(self.turns_ms)) if self.turns_ms else 1
        times = target.time(
            {self.name: self.started}, Effort(min_rounds=1, min_seconds=0.0, warm=runs)
        )
        if times.failed:
            raise DeviceError(times.failed[self.name])
        self.turns_ms.append(times.latency_ms[self.name].median)

    def to_json(self) -> dict[str, Any]:
        frames_per_s = 1e3 * THROUGHPUT_PEERS[self.name].frames / fmean(self.turns_ms)
        return {"name": self.name, "version": self.started.version, "frames_per_s": frames_per_s}
