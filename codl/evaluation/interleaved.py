"""Evaluation: strategies and peers on one model, interleaved in one run, outputs checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from codl.engine.engine import Engine
from codl.engine.opencl_peer import OpenClAll
from codl.errors import CodlError, DeviceError, UnknownNameError, UnsupportedError
from codl.evaluation.closeness import Closeness, closeness, worst
from codl.frontend import models
from codl.ir import Network
from codl.ir.plan import Plan
from codl.measure import drift
from codl.measure.budget import Budget
from codl.measure.drift import slowdown
from codl.measure.inputs import random_inputs
from codl.measure.peers import PEERS, Tensors
from codl.measure.timing import Effort, TimedTogether
from codl.plan.cost_model import CostModel
from codl.plan.price import predicted_spans, stage_times, walk
from codl.plan.profile_feedback import paced
from codl.records import statistic
from codl.records.results import SINGLES, EvalRow, Latency, PeerRun, TimeSpan, doubts, times_faster
from codl.records.soc import Soc
from codl.strategies import STRATEGIES, ideal
from codl.strategies.base import Context, Strategy
from codl.targets.base import Started, Target

if TYPE_CHECKING:  # strategies, which are imported all together, need no ONNX
    import onnx


@dataclass(frozen=True)
class Evaluation:
    """A row for every strategy, the ideal and every peer, and what they rest on.

    `timelines` are the spans of a profile for each strategy that ran, `predicted` those that it was
    predicted to have, `plans` what ran, by fingerprint; `digest` is that of the `model`. One that
    Ctrl-C ended `is_cut_short`: it has fewer rounds, and no profiles.
    """

    model: str
    digest: str
    rows: Sequence[EvalRow]
    timelines: Mapping[str, Sequence[TimeSpan]]
    plans: Mapping[str, Plan]
    predicted: Mapping[str, Sequence[TimeSpan]] = field(default_factory=dict)
    is_cut_short: bool = False


@dataclass(frozen=True)
class ReferenceRun:
    """A model, inputs for it, made from a seed, and what ONNX Runtime makes of them."""

    model: onnx.ModelProto
    inputs: Mapping[str, NDArray[Any]]
    outputs: Mapping[str, NDArray[Any]]


def load(model: str, batch: int | None = None) -> tuple[Network, ReferenceRun]:
    """Import a model for `batch` images at a time; run it in ONNX Runtime on seeded inputs."""
    from codl.frontend.convert import network_of
    from codl.frontend.graph.integer_products import session_options
    from codl.frontend.graph.onnx_import import generations, import_onnx, said_by_onnx_runtime
    from codl.frontend.graph.shapes import fix_batch

    source = models.load(model, batch)
    imported = import_onnx(source.model, source.name)
    network = network_of(imported)
    inputs = {name: x.reshape(imported.shapes[name]) for name, x in random_inputs(network).items()}
    names, problem = list(network.outputs), None
    for loaded in generations(source.model):
        try:
            values = loaded.session(session_options()).run(names, inputs)
        except Exception as error:  # ONNX Runtime's exceptions share no base class
            problem = problem or error
            continue
        outputs = dict(zip(names, values, strict=True))
        return network, ReferenceRun(fix_batch(loaded.whole()), inputs, outputs)
    raise UnsupportedError(f"ONNX Runtime cannot run the model: {said_by_onnx_runtime(problem)}")


def check_peers(names: Sequence[str], soc: Soc) -> None:
    """Raise `CodlError` for a peer that is unknown, not installed, or nothing for this SoC."""
    for name in names:
        if name not in PEERS:
            raise UnknownNameError("peer", name, PEERS)
        missing = [package for package in PEERS[name].packages if find_spec(package) is None]
        if missing:
            raise CodlError(
                f"The peer {name!r} needs {', '.join(missing)}, which is not installed: "
                "`pip install codl[peers]`."
            )
        if name == OpenClAll.name and not soc.gpu.is_cpu:
            raise CodlError(
                f"opencl-all is our kernels on every core of a CPU; the OpenCL device of "
                f"{soc.name!r} is a {soc.gpu.type}: the strategy is called gpu."
            )


def with_opencl_all(names: Sequence[str], soc: Soc) -> list[str]:
    """Beside other libraries on every core of a host, our own kernels on every core."""
    added = [OpenClAll.name] if names and soc.gpu.is_cpu else []
    return list(dict.fromkeys([*names, *added]))


@contextmanager
def started(
    names: Sequence[str],
    model: onnx.ModelProto,
    network: Network,
    inputs: Tensors,
    context: Context,
    target: Target,
) -> Iterator[Mapping[str, Started | CodlError]]:
    """Peers of a model on a target, fed and warm, or why they cannot be; they end with the context.

    `model` has fixed sizes, and `network` is what codl made of it.
    """
    peers: dict[str, Started | CodlError] = {}
    try:
        for name in names:
            context.note(f"{network.name}: starting {name}")
            try:
                is_ours = name == OpenClAll.name
                plan = STRATEGIES["gpu"].plan(network, context) if is_ours else None
                peers[name] = target.start_peer(name, model.SerializeToString(), inputs, plan)
            except CodlError as error:
                peers[name] = error
        yield peers
    finally:
        for peer in peers.values():
            if not isinstance(peer, CodlError):
                peer.close()


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
    """Measure strategies, and other libraries on all cores, on one model.

    `batch` is the number of images at a time, by default the model's own. Strategies that lead
    to the same executable are timed as one: they can differ by noise alone. Everybody has turns of
    several runs, since that is how a model is used; the first run of a turn is kept apart. In a
    budget there may be fewer rounds than the effort says, and there is one at least.
    """
    context.note(f"{model}: importing, reference by ONNX Runtime")
    network, reference = load(model, batch)
    target, effort = context.device, effort or Effort()
    plans: dict[str, Plan] = {}
    with ExitStack() as opened:
        engines, rows = _engines(model, strategies, network, reference, context, plans, opened)
        models: dict[str, Any] = {name: engine.loaded for name, engine in engines.items()}
        usual_ms = drift.first_ms(context.dataset) if engines else {}
        older = set(context.dataset.statistics().values()) - {statistic.NAME}
        if usual_ms and older:
            context.note(f"{model}: slowdowns are over latencies by the {', '.join(older)}")
        with started(peers, reference.model, network, reference.inputs, context, target) as others:
            for name, peer in others.items():
                rows[name] = _of_peer(model, name, peer, reference)
                if rows[name].status == "ok":
                    models[name] = peer
            context.note(f"{model}: measuring {', '.join(models)} interleaved")
            anchors = context.tuning if usual_ms else None
            max_seconds = budget.share().seconds if budget else None
            effort = replace(effort, max_seconds=max_seconds, keep_cut=True)
            times = target.time(models, effort, with_energy=True, anchors=anchors)
        if times.sensors:
            context.note(f"energy by {', '.join(times.sensors)}")
        for name, row in rows.items():
            if reason := times.failed.get(_timed_as(row)):
                rows[name] = failed_row(model, name, reason)
        slower = slowdown(times.anchors, usual_ms)
        is_whole = not times.is_cut_short  # a command that was interrupted has little time left
        limit = _ideal(network, context) if with_ideal and is_whole else None
        rows = {name: _completed(row, times, limit, slower) for name, row in rows.items()}
        foreseen: dict[str, Sequence[TimeSpan]] = {}
        if is_whole:
            rows, foreseen = _predicted(rows, engines, network, context)
        results = [rows.pop(strategy.name) for strategy in strategies]
        results += [*([limit] if limit else []), *rows.values()]
        profiles: dict[str, Sequence[TimeSpan]] = {}
        for name in times.latency_ms.keys() & engines.keys() if is_whole else ():
            with suppress(CodlError):  # its latency is kept
                profiles[name] = engines[name].profile()
        timelines, predicted = (
            {r.strategy: spans[_timed_as(r)] for r in results if _timed_as(r) in spans}
            for spans in (profiles, foreseen)
        )
    return Evaluation(
        model,
        network.content_digest,
        results,
        timelines,
        plans,
        predicted,
        is_cut_short=times.is_cut_short,
    )


def _engines(
    model: str,
    strategies: Sequence[Strategy],
    network: Network,
    reference: ReferenceRun,
    context: Context,
    plans: dict[str, Plan],
    opened: ExitStack,
) -> tuple[dict[str, Engine], dict[str, EvalRow]]:
    """The engine of every strategy that has a plan that runs, and what is known of each so far.

    One that would be the same as another's is not kept; its row says so. What runs is added to
    `plans`, and what is `opened` is closed there.
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
    """The worst of all outputs, against the reference.

    Raises `DeviceError` where an output is missing, of another size, or not finite elsewhere than
    the reference is.
    """
    close = []
    for name, expected in reference.outputs.items():
        if name not in outputs or outputs[name].size != expected.size:
            shapes = ", ".join(f"{n} {v.shape}" for n, v in outputs.items()) or "none"
            raise DeviceError(f"The output {name!r} must be {expected.shape}, got {shapes}.")
        got = outputs[name].reshape(expected.shape)
        finite = np.isfinite(expected)
        same = (got == expected) | (np.isnan(got) & np.isnan(expected))
        off = np.count_nonzero(np.where(finite, ~np.isfinite(got), ~same))
        if off:
            raise DeviceError(
                f"The output {name!r} is NaN or infinite elsewhere than in ONNX Runtime: "
                f"{off} of {expected.size} elements."
            )
        close.append(closeness(got, expected))
    return worst(close)


def _ideal(network: Network, context: Context) -> EvalRow:
    try:
        limit = ideal.bound(network, context.soc, context.dataset)
    except CodlError as error:
        reason = str(error)
        return EvalRow(
            network.name, ideal.NAME, None, None, "computed", status="failed", reason=reason
        )
    ms = limit.latency_ms
    return EvalRow(network.name, ideal.NAME, Latency(ms, ms, ms, 0), None, "computed")


def _predicted(
    rows: Mapping[str, EvalRow],
    engines: Mapping[str, Engine],
    network: Network,
    context: Context,
) -> tuple[dict[str, EvalRow], dict[str, Sequence[TimeSpan]]]:
    """Rows with what was predicted: with the profile where there is one, and without.

    Beside them the timelines that were, by what was timed.
    """
    profile = context.profiling.of(network) if context.profiling else None
    alone = context.default_cost(network, profiled=False)
    profiled = context.default_cost(network) if profile is not None else alone
    before = None if profile is None else profile.slowdown
    completed, spans = dict(rows), dict[str, Sequence[TimeSpan]]()
    for name, row in rows.items():
        engine = engines.get(_timed_as(row))
        if engine is None:
            continue
        expected = _Expected.of(engine, profiled, row.slowdown, before)
        if expected.spans:
            spans[_timed_as(row)] = expected.spans
        completed[name] = replace(
            row, predicted_ms=expected.ms, predicted_over_measured=expected.over(row.latency_ms)
        )
        if profile is not None:
            expected = _Expected.of(engine, alone, row.slowdown)
            completed[name] = replace(
                completed[name],
                unprofiled_ms=expected.ms,
                unprofiled_over_measured=expected.over(row.latency_ms),
            )
    return completed, spans


@dataclass(frozen=True)
class _Expected:
    """What a plan is predicted to take, how many times longer on the machine as it was, and what
    each processor is predicted to do when.
    """

    ms: float | None
    drift: float = 0.0
    spans: tuple[TimeSpan, ...] = ()

    @classmethod
    def of(
        cls,
        engine: Engine,
        cost: CostModel | None,
        slower: Mapping[str, float] | None,
        profiled: Mapping[str, float] | None = None,
    ) -> _Expected:
        """By the default predictor, whatever the plan was made with, where that is trained.

        A plan made without any is in variants that may have none. Processors are `slower` than when
        the dataset was measured, and were when the model was `profiled`.
        """
        if cost is None or engine.plan.predicted_ms is None:
            return cls(engine.plan.predicted_ms)
        times = stage_times(engine.executable, cost)
        usual_ms = walk(engine.executable, times).latency_ms
        spans = predicted_spans(engine.executable, times)
        if not usual_ms or slower is None:
            return cls(usual_ms, spans=spans)
        pace = {side: factor / (profiled or {}).get(side, 1.0) for side, factor in slower.items()}
        drift = walk(engine.executable, paced(times, pace)).latency_ms / usual_ms
        return cls(usual_ms, drift, spans)

    def over(self, latency: Latency | None) -> float | None:
        """Over what was measured; None where that, or the machine's pace, is not known."""
        expected_ms = (self.ms or 0.0) * self.drift
        return expected_ms / latency.level if latency and expected_ms else None


def _of_engine(model: str, engine: Engine, reference: ReferenceRun) -> EvalRow:
    """What is known of a strategy before it is measured."""
    close = compare(engine(reference.inputs), reference)
    return EvalRow(
        model=model,
        strategy=engine.plan.strategy,
        latency_ms=None,
        predicted_ms=engine.plan.predicted_ms,
        source="measured",
        cosine=close.cosine,
        max_rel_err=close.max_rel_err,
        fallbacks=engine.fallbacks,
        gpu_storage=tuple(map(str, engine.storages)),
        precision=engine.precision,
        memory_bytes=asdict(engine.memory),
        plan=engine.plan.fingerprint,
        limited=engine.limited,
    )


def _of_peer(model: str, name: str, peer: Started | CodlError, reference: ReferenceRun) -> EvalRow:
    """What is known of a peer, or why it cannot run, before it is measured."""
    if isinstance(peer, CodlError):
        return failed_row(model, name, str(peer))
    try:
        close = compare(peer.outputs(), reference)
    except CodlError as reason:
        return failed_row(model, name, str(reason))
    return EvalRow(
        model=model,
        strategy=name,
        latency_ms=None,
        predicted_ms=None,
        source="measured",
        cosine=close.cosine,
        max_rel_err=close.max_rel_err,
        peer=PeerRun(peer.version, peer.threads, peer.observed_cores, peer.busy_cores),
    )


def failed_row(model: str, name: str, reason: str) -> EvalRow:
    """The row of a strategy or a peer that has no latency, and why."""
    return EvalRow(model, name, None, None, "measured", status="failed", reason=reason)


def _timed_as(row: EvalRow) -> str:
    """The name of what is timed for a row."""
    return row.same_as or row.strategy


def _completed(
    row: EvalRow,
    times: TimedTogether,
    limit: EvalRow | None,
    slower: Mapping[str, float] | None,
) -> EvalRow:
    """The row with its latency and energy, and how that compares to others of the same run."""
    latencies = times.latency_ms
    latency = latencies.get(_timed_as(row))
    if latency is None:
        return row
    return replace(
        row,
        latency_ms=latency,
        cold_ms=times.cold_ms.get(_timed_as(row)),
        speedup=times_faster(map(latencies.get, SINGLES), latency),
        of_ideal=times_faster([limit.latency_ms] if limit else [], latency),
        slowdown=None if row.peer else slower,
        energy_mj=times.energy_mj.get(_timed_as(row)),
        conditions=times.conditions,
        doubts=doubts(
            latency,
            times.cold_ms.get(_timed_as(row)),
            predicted_ms=row.predicted_ms,
            quota_periods=times.conditions.quota_periods,
        ),
    )


def to_json(results: Sequence[EvalRow]) -> list[dict[str, Any]]:
    return [asdict(result) for result in results]
