"""Evaluation: strategies and peers on one model, interleaved in one run, outputs checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

from numpy.typing import NDArray

from codl.engine.engine import Engine
from codl.errors import CodlError, DeviceError, UnknownNameError, UnsupportedError
from codl.frontend import models
from codl.ir import Network
from codl.ir.plan import Plan
from codl.ir.records.gpu_limits import UNLIMITED
from codl.ir.records.results import (
    SINGLES,
    EvalRow,
    Latency,
    PeerRun,
    TimeSpan,
    doubts,
    times_faster,
)
from codl.ir.records.soc import Soc
from codl.machine.placement import require_local
from codl.measure import drift
from codl.measure.budget import Budget
from codl.measure.closeness import Closeness, closeness, worst
from codl.measure.drift import slowdown
from codl.measure.inputs import random_inputs
from codl.measure.peers import PEERS, Peer, PeerJob, Tensors
from codl.measure.timing import Effort, TimedTogether
from codl.plan.cost_model import CostModel
from codl.plan.price import paced, predicted_timeline, stage_times, walk
from codl.plan.strategies import STRATEGIES, ideal
from codl.plan.strategies.base import Context, Strategy
from codl.targets.base import Started

if TYPE_CHECKING:  # evaluations load without ONNX
    import onnx


@dataclass(frozen=True)
class Evaluation:
    """Rows of all strategies, the ideal and the peers, with plans and timelines.

    `timelines` are profiled spans by strategy, `predicted` the predicted spans, and `plans` the
    plans by fingerprint; `digest` is the model's.
    """

    model: str
    digest: str
    rows: Sequence[EvalRow]
    timelines: Mapping[str, Sequence[TimeSpan]]
    plans: Mapping[str, Plan]
    predicted: Mapping[str, Sequence[TimeSpan]] = field(default_factory=dict)


@dataclass(frozen=True)
class ReferenceRun:
    """A model with seeded inputs and ONNX Runtime's outputs for them."""

    model: onnx.ModelProto
    inputs: Mapping[str, NDArray[Any]]
    outputs: Mapping[str, NDArray[Any]]


def load(model: str, batch: int | None = None) -> tuple[Network, ReferenceRun]:
    """Import a model for `batch` images at a time; run it in ONNX Runtime on seeded inputs."""
    from codl.frontend.convert import network_of
    from codl.frontend.graph.integer_products import reference_session
    from codl.frontend.graph.onnx_import import generations, import_onnx, said_by_onnx_runtime
    from codl.frontend.graph.shapes import fix_shapes

    source = models.load(model, batch)
    imported = import_onnx(source.model, source.name)
    network = network_of(imported)
    inputs = {name: x.reshape(imported.shapes[name]) for name, x in random_inputs(network).items()}
    names, problem = list(network.outputs), None
    for loaded in generations(source.model):
        try:
            values = reference_session(loaded).run(names, inputs)
        except Exception as error:  # ONNX Runtime's exceptions share no base class
            problem = problem or error
            continue
        outputs = dict(zip(names, values, strict=True))
        return network, ReferenceRun(fix_shapes(loaded.whole(), {}), inputs, outputs)
    raise UnsupportedError(f"ONNX Runtime cannot run the model: {said_by_onnx_runtime(problem)}")


def check_installed(name: str, peer: type[Peer]) -> None:
    """Raise `CodlError` for a peer whose packages are not installed."""
    if missing := [package for package in peer.packages if find_spec(package) is None]:
        raise CodlError(
            f"The peer {name!r} needs {', '.join(missing)}, which is not installed: "
            "`pip install codl[peers]`."
        )


def check_peers(names: Sequence[str], soc: Soc) -> None:
    """Raise `CodlError` for a peer that is unknown, not installed, or unusable on this SoC."""
    for name in names:
        if name not in PEERS:
            raise UnknownNameError("peer", name, PEERS)
        check_installed(name, PEERS[name])
        if name == OpenClAll.name and not soc.gpu.is_cpu:
            raise CodlError(
                f"opencl-all is our kernels on every core of a CPU; the OpenCL device of "
                f"{soc.name!r} is a {soc.gpu.type}: the strategy is called gpu."
            )


def with_opencl_all(names: Sequence[str], soc: Soc) -> list[str]:
    """The peers `names`; if any, and the GPU is a CPU, codl's kernels on all its cores too."""
    added = [OpenClAll.name] if names and soc.gpu.is_cpu else []
    return list(dict.fromkeys([*names, *added]))


def evaluate(
    model: str,
    strategies: Sequence[Strategy],
    context: Context,
    *,
    with_ideal: bool = False,
    peers: Sequence[str] = (),
    effort: Effort | None = None,
    batch: int | None = None,
    budget: Budget | None = None,
) -> Evaluation:
    """Measure strategies, and peers on all cores, on one model.

    `batch` is the number of images per inference, by default the model's own. Strategies with equal
    executables are timed once, because their latencies could differ only by noise. All take turns
    of several runs; the first run of a turn is kept apart. A budget may end the rounds early, but
    not before the first.
    """
    context.note(f"{model}: importing, reference by ONNX Runtime")
    network, reference = load(model, batch)
    plans: dict[str, Plan] = {}
    with ExitStack() as opened:
        engines, rows = _engines(model, strategies, network, reference, context, plans, opened)
        usual_ms = drift.first_ms(context.dataset) if engines else {}
        models: dict[str, Any] = {name: engine.loaded for name, engine in engines.items()}
        target = context.device
        with ExitStack() as running:
            for name in peers:
                context.note(f"{network.name}: starting {name}")
                try:
                    is_ours = name == OpenClAll.name
                    plan = STRATEGIES["gpu"].plan(network, context) if is_ours else None
                    content = reference.model.SerializeToString()
                    peer = target.start_peer(name, content, reference.inputs, plan)
                    running.callback(peer.close)
                    rows[name] = _of_peer(model, name, peer, reference)
                    models[name] = peer
                except CodlError as error:
                    rows[name] = failed_row(model, name, str(error))
            context.note(f"{model}: measuring {', '.join(models)} interleaved")
            anchors = context.tuning if usual_ms else None
            max_seconds = budget.share().seconds if budget else None
            effort = replace(effort or Effort(), max_seconds=max_seconds)
            times = target.time(models, effort, with_energy=True, anchors=anchors)
        if times.sensors:
            context.note(f"energy by {', '.join(times.sensors)}")
        slower = slowdown(times.anchors, usual_ms)
        limit = _ideal(network, context) if with_ideal else None
        rows = {name: _completed(row, times, limit, slower) for name, row in rows.items()}
        rows, foreseen = _predicted(rows, engines, network, context)
        profiles: dict[str, Sequence[TimeSpan]] = {}
        for name in times.latency_ms.keys() & engines.keys():
            with suppress(CodlError):  # the latency is kept without a profile
                profiles[name] = engines[name].profile()
    results = [rows.pop(strategy.name) for strategy in strategies]
    results += [*([limit] if limit else []), *rows.values()]
    timelines, predicted = (
        {row.strategy: spans[_timed_as(row)] for row in results if _timed_as(row) in spans}
        for spans in (profiles, foreseen)
    )
    return Evaluation(model, network.content_digest, results, timelines, plans, predicted)


def _engines(
    model: str,
    strategies: Sequence[Strategy],
    network: Network,
    reference: ReferenceRun,
    context: Context,
    plans: dict[str, Plan],
    opened: ExitStack,
) -> tuple[dict[str, Engine], dict[str, EvalRow]]:
    """The engines to time, by strategy, and a row of each strategy before it is measured.

    A strategy with the same executable as an earlier one has no engine; its row names that
    strategy. Adds the plans to `plans`; `opened` closes the engines.
    """
    engines: dict[str, Engine] = {}
    by_digest: dict[str, str] = {}
    rows: dict[str, EvalRow] = {}
    for strategy in strategies:
        context.note(f"{model}: building {strategy.name}")
        try:
            plan = strategy.plan(network, context)
            engine = Engine(network, plan, context.device, context.tuning)
            opened.callback(engine.close)
            row = _of_engine(model, engine, reference)
            plans[plan.fingerprint] = plan
            first = by_digest.setdefault(engine.executable.digest(), strategy.name)
            if first == strategy.name:
                engines[first] = engine
            else:
                engine.close()
                row = replace(row, same_as=first)
            rows[strategy.name] = row
        except CodlError as error:
            rows[strategy.name] = failed_row(model, strategy.name, str(error))
    return engines, rows


def compare(outputs: Mapping[str, NDArray[Any]], reference: ReferenceRun) -> Closeness:
    """The worst closeness of all outputs to the reference.

    Raises `DeviceError` for a missing output, a wrong size, or NaN and infinities in other places.
    """
    close = []
    for name, expected in reference.outputs.items():
        if name not in outputs or outputs[name].size != expected.size:
            shapes = ", ".join(f"{n} {v.shape}" for n, v in outputs.items()) or "none"
            raise DeviceError(f"The output {name!r} must be {expected.shape}, got {shapes}.")
        close.append(found := closeness(outputs[name], expected))
        if not found.has_same_kinds:
            off = found.nan + found.inf + found.hidden
            raise DeviceError(
                f"The output {name!r} is NaN or infinite elsewhere than in ONNX Runtime: "
                f"{off} of {expected.size} elements."
            )
    return worst(close)


def _ideal(network: Network, context: Context) -> EvalRow:
    try:
        ms = ideal.bound(network, context.soc, context.dataset).latency_ms
    except CodlError as error:
        return replace(failed_row(network.name, ideal.NAME, str(error)), source="computed")
    return EvalRow(network.name, ideal.NAME, Latency(ms, ms, ms, 0), source="computed")


def _predicted(
    rows: Mapping[str, EvalRow], engines: Mapping[str, Engine], network: Network, context: Context
) -> tuple[dict[str, EvalRow], dict[str, Sequence[TimeSpan]]]:
    """Add predicted latencies to rows, both with the profile, if any, and without.

    Also returns the predicted timelines by the name of the timed strategy.
    """
    profile = context.profiling.of(network) if context.profiling else None
    alone = context.default_cost(network, profiled=False)
    profiled = context.default_cost(network) if profile is not None else alone
    before = (None if profile is None else profile.slowdown) or {}
    completed, spans = dict(rows), dict[str, Sequence[TimeSpan]]()
    for name, row in rows.items():
        timed = _timed_as(row)
        if timed not in engines:
            continue
        slower = row.slowdown
        pace = slower and {side: by / before.get(side, 1.0) for side, by in slower.items()}
        ms, over, foreseen = _prediction(engines[timed], profiled, row, pace)
        if foreseen:
            spans[timed] = foreseen
        completed[name] = replace(row, predicted_ms=ms, predicted_over_measured=over)
        if profile is not None:
            ms, over, _ = _prediction(engines[timed], alone, row, slower)
            completed[name] = replace(
                completed[name], unprofiled_ms=ms, unprofiled_over_measured=over
            )
    return completed, spans


def _prediction(
    engine: Engine, cost: CostModel | None, row: EvalRow, pace: Mapping[str, float] | None
) -> tuple[float | None, float | None, Sequence[TimeSpan]]:
    """Predicted milliseconds, their ratio to what was measured at this `pace`, and the timeline.

    They are by the default predictor, if trained, else the plan's own. A plan without a prediction
    keeps None: its variants may have no predictors.
    """
    if cost is None or engine.plan.predicted_ms is None:
        return engine.plan.predicted_ms, None, ()
    times = stage_times(engine.executable, cost)
    spans = tuple(placed.span for placed in predicted_timeline(engine.executable, times))
    over = None
    if pace is not None and row.latency_ms:
        paced_ms = walk(engine.executable, paced(times, pace)).latency_ms
        over = paced_ms / row.latency_ms.level if paced_ms else None
    return walk(engine.executable, times).latency_ms, over, spans


def _of_engine(model: str, engine: Engine, reference: ReferenceRun) -> EvalRow:
    """The row of a strategy before its latency is measured."""
    close = compare(engine(reference.inputs), reference)
    return EvalRow(
        model,
        engine.plan.strategy,
        predicted_ms=engine.plan.predicted_ms,
        cosine=close.cosine,
        max_rel_err=close.max_rel_err,
        fallbacks=engine.fallbacks,
        gpu_storage=tuple(map(str, engine.storages)),
        precision=engine.precision,
        memory_bytes=asdict(engine.memory),
        plan=engine.plan.fingerprint,
        limited=engine.limited,
    )


def _of_peer(model: str, name: str, peer: Started, reference: ReferenceRun) -> EvalRow:
    """The row of a peer before its latency is measured; raises `DeviceError` for wrong outputs."""
    close = compare(peer.outputs(), reference)
    run = PeerRun(peer.version, peer.threads, peer.busy_cores)
    return EvalRow(model, name, cosine=close.cosine, max_rel_err=close.max_rel_err, peer=run)


def failed_row(model: str, name: str, reason: str) -> EvalRow:
    """The row of a strategy or peer without a latency."""
    return EvalRow(model, name, status="failed", reason=reason)


def _timed_as(row: EvalRow) -> str:
    """The name under which a row's executable is timed."""
    return row.same_as or row.strategy


def _completed(
    row: EvalRow, times: TimedTogether, limit: EvalRow | None, slower: Mapping[str, float] | None
) -> EvalRow:
    """The row with its latency and energy, and its ratios to rows of the same run."""
    latencies, name = times.latency_ms, _timed_as(row)
    if name in times.failed:
        return failed_row(row.model, row.strategy, times.failed[name])
    if name not in latencies:
        return row
    latency, cold_ms = latencies[name], times.cold_ms.get(name)
    quota_periods = times.conditions.quota_periods
    return replace(
        row,
        latency_ms=latency,
        cold_ms=cold_ms,
        speedup=times_faster(map(latencies.get, SINGLES), latency),
        of_ideal=times_faster([limit.latency_ms] if limit else [], latency),
        slowdown=None if row.peer else slower,
        energy_mj=times.energy_mj.get(name),
        conditions=times.conditions,
        doubts=doubts(latency, cold_ms, predicted_ms=row.predicted_ms, quota_periods=quota_periods),
    )


class OpenClAll:
    """The OpenCL peer: the plan of the strategy `gpu` on a CPU's OpenCL device, on all cores."""

    name: ClassVar[str] = "opencl-all"
    packages: ClassVar[tuple[str, ...]] = ()

    def __init__(self, job: PeerJob) -> None:
        from codl.frontend.convert import load_network
        from codl.targets.local import LocalTarget

        soc = require_local(job.soc)
        if job.plan is None:
            raise CodlError(f"The peer {self.name!r} needs a plan to run by.")
        place = replace(soc.placement, cpu_cores=job.cores, gpu_cores=job.cores, limits=UNLIMITED)
        soc = replace(soc, gpu=replace(soc.gpu, compute_units=job.threads), placement=place)
        network = load_network(str(job.model))
        self._engine = Engine(network, job.plan, LocalTarget(soc))
        self.version = soc.gpu.driver

    def feed(self, inputs: Tensors) -> None:
        self._engine.feed(inputs)

    def run(self) -> None:
        self._engine.run()

    def outputs(self) -> Tensors:
        return self._engine.outputs
