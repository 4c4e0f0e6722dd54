"""Measures strategies against each other: interleaved in one run, outputs checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from codl import graph, models
from codl.collect.protocol import Latency
from codl.errors import CodlError
from codl.execute.engine import Engine
from codl.execute.gpu_half import Fallback
from codl.execute.program import build_program
from codl.execute.timeline import Span
from codl.ops import Array, Network, lower
from codl.ops.plan import Plan
from codl.plan import unmeasured
from codl.plan.clocks import program_ms
from codl.plan.cost import CostModel
from codl.strategies import ideal
from codl.strategies.base import Context, Strategy
from codl.strategies.machine import Machine

SEED = 7
Note = Callable[[str], None]


@dataclass(frozen=True)
class Effort:
    """How long to measure: warm-up rounds, then at least so many rounds and seconds."""

    warm_up: int = 2
    min_rounds: int = 15
    min_seconds: float = 10.0


@dataclass(frozen=True)
class Result:
    """One strategy on one model.

    `latency_ms` is None where it failed, and `reason` says why. `speedup` is over the better single
    processor of the same run, `of_ideal` the ideal latency over this one. `fallbacks` are kernel
    variants that failed and were got around. `gpu_storage` is how the GPU's tensors lie;
    `precision` what its tensors are stored, computed and accumulated in. `slowdown` is how many
    times slower each processor was than when the dataset was measured; predictions know nothing
    of that.
    """

    model: str
    strategy: str
    latency_ms: Latency | None
    predicted_ms: float | None
    source: str
    cosine: float | None = None
    max_rel_err: float | None = None
    speedup: float | None = None
    of_ideal: float | None = None
    status: str = "ok"
    reason: str = ""
    fallbacks: tuple[Fallback, ...] = ()
    gpu_storage: tuple[str, ...] = ()
    precision: Mapping[str, str] | None = None
    slowdown: Mapping[str, float] | None = None


@dataclass(frozen=True)
class Reference:
    """A model's inputs, made from a seed, and what ONNX Runtime makes of them."""

    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]


def load(model: str) -> tuple[Network, Reference]:
    """Import a model and run it in ONNX Runtime on seeded inputs."""
    source = models.load(model)
    imported = graph.import_onnx(source.proto, source.name)
    network = lower(graph.simplify(imported))
    inputs = {name: x.reshape(imported.shapes[name]) for name, x in random_inputs(network).items()}
    options = graph.session_options()
    session = ort.InferenceSession(
        source.proto.SerializeToString(), options, ["CPUExecutionProvider"]
    )
    names = list(network.outputs)
    outputs = dict(zip(names, session.run(names, inputs), strict=True))
    return network, Reference(inputs, outputs)


def random_inputs(network: Network) -> dict[str, Array]:
    """Uniform in 0 ... 1, as images are, from a fixed seed."""
    random = np.random.default_rng(SEED)
    return {n: random.random(tuple(s), np.float32) for n, s in network.inputs.items()}


def evaluate(
    model: str,
    strategies: Sequence[Strategy],
    context: Context,
    *,
    with_ideal: bool = False,
    effort: Effort | None = None,
    note: Note = lambda text: None,
) -> tuple[list[Result], dict[str, list[Span]]]:
    """Measure strategies on one model.

    Returns a result for every strategy (and the ideal), and a timeline for each that ran.
    """
    note(f"{model}: importing, reference by ONNX Runtime")
    network, reference = load(model)
    engines: dict[str, Engine] = {}
    failed: dict[str, str] = {}
    for strategy in strategies:
        note(f"{model}: building {strategy.name}")
        try:
            plan = strategy.plan(network, context)
            engines[strategy.name] = Engine(network, plan, context.soc)
        except CodlError as error:
            failed[strategy.name] = str(error)
    errors = {name: compare(engine, reference) for name, engine in engines.items()}
    note(f"{model}: measuring {', '.join(engines)} interleaved")
    machine = Machine.of(context.soc, context.dataset) if engines else None
    beside = machine.visit if machine else lambda: None
    runs = {name: engine.run for name, engine in engines.items()}
    latencies = interleave(runs, effort or Effort(), beside)
    slowdown = machine.slowdown() if machine else None
    limit = _ideal(network, context) if with_ideal else None
    cost = context.default_cost()
    results = [
        Result(model, s.name, None, None, "measured", status="failed", reason=failed[s.name])
        if s.name in failed
        else _result(
            model,
            engines[s.name],
            latencies,
            errors[s.name],
            limit,
            _predicted_ms(network, engines[s.name].plan, cost),
            slowdown,
        )
        for s in strategies
    ]
    if limit is not None:
        results.append(limit)
    timelines = {name: engine.profile() for name, engine in engines.items()}
    for engine in engines.values():
        engine.close()
    return results, timelines


def interleave(
    runs: Mapping[str, Callable[[], None]],
    effort: Effort,
    beside: Callable[[], None] = lambda: None,
) -> dict[str, Latency]:
    """Time several things in turns, so that whatever disturbs the machine disturbs all of them.

    `beside` is called once a round.
    """
    for _ in range(effort.warm_up):
        for run in runs.values():
            run()
    samples: dict[str, list[float]] = {name: [] for name in runs}
    order, begin, rounds = list(runs), perf_counter(), 0
    while order and (rounds < effort.min_rounds or perf_counter() - begin < effort.min_seconds):
        for name in order:
            start = perf_counter()
            runs[name]()
            samples[name].append(perf_counter() - start)
        beside()
        order.append(order.pop(0))  # nobody always follows the same neighbour
        rounds += 1
    return {name: Latency.of(times) for name, times in samples.items()}


def compare(engine: Engine, reference: Reference) -> tuple[float, float]:
    """The worst cosine and max_rel_err over all outputs, against the reference."""
    outputs = engine(reference.inputs)
    pairs = [(outputs[name], expected) for name, expected in reference.outputs.items()]
    return min(cosine(a, b) for a, b in pairs), max(max_rel_err(a, b) for a, b in pairs)


def cosine(a: NDArray[Any], b: NDArray[Any]) -> float:
    """Cosine of the angle between two flattened outputs."""
    x, y = (v.astype(np.float64).ravel() for v in (a, b))
    return float(x @ y / max(float(np.linalg.norm(x) * np.linalg.norm(y)), 1e-300))


def max_rel_err(a: NDArray[Any], reference: NDArray[Any]) -> float:
    """The largest absolute difference over the largest absolute value of the reference."""
    largest = max(float(np.abs(reference).max()), 1e-300)
    return float(np.abs(a.astype(np.float64) - reference).max()) / largest


def _ideal(network: Network, context: Context) -> Result:
    try:
        limit = ideal.bound(network, context.soc, context.dataset)
    except CodlError as error:
        reason = str(error)
        return Result(
            network.name, ideal.NAME, None, None, "computed", status="failed", reason=reason
        )
    ms = limit.latency_ms
    return Result(network.name, ideal.NAME, Latency(ms, ms, ms, 0), None, "computed")


def _predicted_ms(network: Network, plan: Plan, cost: CostModel | None) -> float | None:
    """By the default predictor, whatever the plan was made with, where that is trained."""
    if cost is None:
        return plan.predicted_ms
    cost = unmeasured.filled(cost, network)
    return program_ms(network, build_program(network, plan, cost.soc), cost)


def _result(
    model: str,
    engine: Engine,
    latencies: Mapping[str, Latency],
    errors: tuple[float, float],
    limit: Result | None,
    predicted_ms: float | None,
    slowdown: Mapping[str, float] | None,
) -> Result:
    strategy = engine.plan.strategy
    latency = latencies[strategy]
    singles = [latencies[name].median for name in ("cpu", "gpu") if name in latencies]
    bound = limit.latency_ms if limit else None
    return Result(
        model=model,
        strategy=strategy,
        latency_ms=latency,
        predicted_ms=predicted_ms,
        source="measured",
        cosine=errors[0],
        max_rel_err=errors[1],
        speedup=min(singles) / latency.median if singles else None,
        of_ideal=bound.median / latency.median if bound else None,
        fallbacks=engine.fallbacks,
        gpu_storage=tuple(map(str, engine.storages)),
        precision=engine.precision,
        slowdown=slowdown,
    )


def to_json(results: Sequence[Result]) -> list[dict[str, Any]]:
    return [asdict(result) for result in results]
