"""`codl.compile`, `codl run` and `codl package`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray

from codl import files
from codl.engine.engine import Engine
from codl.errors import CodlError, DeviceError, UnknownNameError, UnsupportedError
from codl.files import BUNDLE
from codl.ir.records.results import Conditions, Latency, TimeSpan, doubts
from codl.jobs import options as opt
from codl.jobs.model import ModelJob, check_summary, digests_of, read_inputs
from codl.jobs.options import function, option, recorded, soc_on
from codl.machine.placement import HINTS, LocalSoc
from codl.measure.inputs import random_inputs
from codl.measure.timing import Effort, TimedTogether
from codl.plan import op_placement
from codl.plan.op_placement import OpPlacement
from codl.plan.strategies import DEFAULT, Context
from codl.runtime.loaded import sharing_ms, totals_ms
from codl.targets.connect import connect, prepare

if TYPE_CHECKING:
    from codl.engine.stream import Lanes
    from codl.frontend.convert import Source
    from codl.frontend.models.deployment import Deployment
    from codl.plan.cost_model import CostModel
    from codl.targets.base import Target

NPZ = ".npz"


@dataclass(frozen=True)
class RunReport:
    """The results of measuring one engine.

    `energy_mj` is per inference, by `energy_sensors`; None without sensors. `spans` are of one
    inference; `placed` has the processor and milliseconds of each op in it. `conditions` are of the
    timed runs.
    """

    outputs: Mapping[str, NDArray[Any]]
    latency_ms: Latency
    energy_mj: float | None
    energy_sensors: tuple[str, ...]
    spans: list[TimeSpan]
    placed: list[OpPlacement]
    conditions: Conditions


def measure(
    engine: Engine,
    target: Target,
    inputs: Mapping[str, NDArray[Any]],
    cost: CostModel | None,
    *,
    rounds: int,
) -> RunReport:
    """Run an engine on inputs by name: one untimed run, then `rounds` timed runs.

    The time of a net or kernel is divided among its ops in proportion to the predictions of `cost`,
    or equally without it. An engine that adapts first serves as many inferences; then its plan is
    timed.
    """
    outputs = engine(inputs)
    for _ in range(rounds if engine.adaptation is not None else 0):
        engine.run()
    effort = Effort(min_rounds=1, min_seconds=0, warm=rounds)
    try:
        times = _timed(engine, target, effort)
    except DeviceError as error:
        engine.recover(error)
        times = _timed(engine, target, effort)
    spans = engine.profile()
    planned = op_placement.predicted(engine.network, engine.plan, engine.soc, cost)
    placed = op_placement.standing_in(planned, engine.fallbacks)
    return RunReport(
        outputs=outputs,
        latency_ms=times.latency_ms["run"],
        energy_mj=times.energy_mj.get("run"),
        energy_sensors=times.sensors,
        spans=spans,
        placed=op_placement.measured(
            placed, totals_ms(spans), {"cpu": engine.nets, "gpu": engine.executable.fused}
        ),
        conditions=times.conditions,
    )


def _timed(engine: Engine, target: Target, effort: Effort) -> TimedTogether:
    times = target.time({"run": engine.loaded}, effort, with_energy=True)
    if times.failed:
        raise DeviceError(times.failed["run"])
    return times


@dataclass(frozen=True)
class Opened:
    """An engine, its target and inputs; for a model also its context and cost model."""

    engine: Engine
    target: Target
    inputs: Mapping[str, NDArray[Any]]
    context: Context | None = None
    cost: CostModel | None = None
    source: Source | None = None


@dataclass(frozen=True, kw_only=True)
class EngineJob(ModelJob):
    """A model compiled to an engine, with the engine's options."""

    adaptive: Annotated[
        bool,
        option(
            "--adapt/--no-adapt",
            help="Rebalance the plan when a processor becomes slower or faster, during --rounds "
            "runs before the timed ones.",
        ),
    ] = False
    check: opt.CheckOption = True
    strict: Annotated[
        bool, option("--strict", help="Without fallbacks: a kernel or GPU failure is an error.")
    ] = False

    @property
    def keeps_plan(self) -> bool:
        """True where a plan or a strategy is asked for, by which streams run, too."""
        return self.plan is not None or self.strategy_name != DEFAULT

    def opened(self, stack: ExitStack, inputs: Path | None = None) -> Opened:
        """The model's engine on the target, which the stack closes: load, plan, compile, check."""
        from codl.validate.first_check import checked_engine  # a bundle needs no ONNX

        network, source = self.load_with_source(check=self.check)
        arrays = read_inputs(network, inputs, self.deployment, random_inputs)
        context = stack.enter_context(self.connected())
        plan = self.plan_of(network, context)
        self.reporter.stage(f"Loading {network.name}: building its kernels and packing its weights")
        engine = checked_engine(
            network,
            plan,
            context.device,
            context.tuning,
            source=source,
            recovers=not self.strict,
            strict=self.strict,
        )
        if self.adaptive:
            from codl.plan.strategies.adapter import PlanAdapter

            engine.adapt(PlanAdapter(context, network))
        if not self.keeps_plan:
            engine.make_lanes = partial(_lanes, context, source, self.strict)
        cost = context.default_cost(network)
        return Opened(engine, context.device, arrays, context, cost, source)


@dataclass(frozen=True, kw_only=True)
class Compile(EngineJob):
    """Make a model ready to run on both processors of a SoC.

    Without a `plan` the strategy plans, with predictors of `codl train` and kernels of
    `codl tune`. Plans run on the device until they gain no more, or for `plan_time_s` seconds, and
    their profile is kept in `./profiles`. An `adaptive` engine rebalances its plan. Outputs are
    compared once with ONNX Runtime's (`engine.checked`): wrong ops run in other kernels, with a
    `CodlWarning`; a `strict` engine raises instead. Raises `CodlError` for a missing file, name or
    device, and `WrongResultError` if no kernels give right outputs.

    >>> engine = codl.compile("model.onnx", soc="host")
    >>> y = engine(x)
    """

    def run(self) -> Engine:
        """The engine, with which its target is closed."""
        with ExitStack() as stack:
            engine = self.opened(stack).engine
            engine.owned = stack.pop_all()
        return engine


@dataclass(frozen=True, kw_only=True)
class Run(EngineJob):
    """Run a model by a plan or a strategy, or a bundle, and measure its latency.

    Raises `CodlError` for a missing file, name or device, and `UnsupportedError` for options that
    a bundle fixes.
    """

    model: Annotated[str | Path, opt.argument(f"{opt.MODELS}, or a bundle (.codl).", read=str)]
    threads: opt.ThreadsOption = None
    gpu_performance: Annotated[
        str | None, option("--gpu-performance", help="A hint: {codl.machine.placement:HINTS}.")
    ] = None
    gpu_priority: Annotated[
        str | None, option("--gpu-priority", help="A hint: {codl.machine.placement:HINTS}.")
    ] = None
    inputs: Annotated[
        Path | None, option("--inputs", help="Inputs by name; seeded random ones by default.")
    ] = None
    outputs: Annotated[
        Path | None,
        option("--outputs", help="Where outputs go, an .npz file.", read=opt.writable_as(NPZ)),
    ] = None
    rounds: Annotated[int, opt.rounds_option("Timed runs, in a row.")] = 20
    trust: Annotated[
        bool,
        option("--trust", help="Load a bundle of another user or machine. It can run any code."),
    ] = False

    def placed(self, soc: LocalSoc, deployment: Deployment | None = None) -> LocalSoc:
        """The SoC with the requested settings; raises `CodlError` for invalid threads or hints."""
        hints = {"performance": self.gpu_performance, "priority": self.gpu_priority}
        for kind, hint in hints.items():
            if hint not in (None, *HINTS):
                raise UnknownNameError(f"GPU {kind} hint", str(hint), HINTS)
        place = super().placed(soc, deployment).placement
        if self.threads is not None:
            place = place.with_threads(self.threads)
        if place.threads != soc.cpu.threads:
            self.reporter.note(
                f"Threads of the CPU side: {place.threads}, on the cores "
                f"{', '.join(map(str, place.cpu_cores))}; plans are made with predictors for "
                f"{soc.cpu.threads}."
            )
        chosen: dict[str, Any] = {kind: hint for kind, hint in hints.items() if hint}
        return replace(soc, placement=replace(place, **chosen))

    def run(self) -> tuple[dict[str, Any], RunReport]:
        """The result of `codl run --json`, and its report."""
        is_bundle = Path(self.model).suffix == BUNDLE
        with ExitStack() as stack:
            opened = _open_bundle(self, stack) if is_bundle else self.opened(stack, self.inputs)
            context, target = opened.context, opened.target
            with (engine := opened.engine):
                if self.strict and engine.fallbacks:
                    raise CodlError(f"--strict: {'; '.join(map(str, engine.fallbacks))}")
                self.reporter.stage(f"Running {engine.network.name}, {self.rounds} times")
                done = measure(engine, target, opened.inputs, opened.cost, rounds=self.rounds)
                if context is not None and engine.adaptation and engine.adaptation.changes:
                    from codl.plan.strategies.device_loop import keep_run

                    keep_run(engine, context, done.latency_ms.level)
            of = digests_of(context, engine.network, plans={engine.network.name: engine.plan})
            origin = recorded(target, of, rounds=self.rounds)
        if self.outputs is not None:
            with files.writing(self.outputs) as unfinished, unfinished.open("wb") as file:
                np.savez(file, allow_pickle=False, **done.outputs)
            self.reporter.note(f"Wrote {self.outputs}")
        return {"serial": self.serial, **_result(engine, done, self), **origin}, done


@dataclass(frozen=True, kw_only=True)
class Package(ModelJob):
    """Write a model, planned and compiled, as one file.

    Raises `CodlError` for a missing file, name or device, and for a bundle whose outputs differ
    from the engine's.
    """

    output: Annotated[
        Path,
        option("-o", "--output", help="The bundle, such as m.codl.", read=opt.writable_as(BUNDLE)),
    ]
    check: opt.CheckOption = True

    def run(self) -> dict[str, Any]:
        """The result of `codl package --json`."""
        from codl.jobs.bundle.packaging import package

        network, source = self.load_with_source(check=self.check)
        with self.connected() as context:
            plan = self.plan_of(network, context)
            self.reporter.stage(f"Compiling {network.name}, and trying it in a process of its own")
            made = package(
                network, plan, context.device, self.output, context.tuning, source=source
            )
        self.reporter.note(f"Wrote {self.output}")
        times = made.cold_start
        return {
            "model": network.name,
            "soc": plan.soc,
            "serial": self.serial,
            "strategy": plan.strategy,
            "file": str(made.path),
            "bytes": made.bytes,
            "cold_start_ms": times.process_ms,
            "without_interpreter_ms": times.without_interpreter_ms,
            "import_ms": times.import_ms,
            "load_ms": times.load_ms,
            "first_run_ms": times.first_run_ms,
            "max_rel_err": made.max_rel_err,
            **check_summary(made.checked),
            "source": "measured",
        }


compile = function(Compile)


def _lanes(context: Context, source: Source | None, strict: bool, engine: Engine) -> Lanes:
    """The engines that streams of an engine share out their frames to."""
    from codl.jobs.streams import StreamEngines  # few engines have streams

    return StreamEngines(engine, context, source, strict).lanes()


def _open_bundle(job: Run, stack: ExitStack) -> Opened:
    from codl.jobs import bundle
    from codl.jobs.bundle.archive import Archive

    fixed = {
        "plan": job.plan,
        "strategy": job.strategy,
        "batch": job.batch,
        "shape": job.shapes,
        "predictor": job.predictor,
        "adapt": job.adaptive,
        "precision": job.precision,
    }
    if options := [f"--{key}" for key, value in fixed.items() if value]:
        raise UnsupportedError(
            f"{', '.join(options)} cannot change {job.model}: a bundle's plan and shapes are "
            "fixed. `codl package` with these options makes another."
        )
    archive = Archive(Path(job.model))
    if not job.soc:
        prepare(job.serial, install=job.install, tell=job.reporter.tell)
    described = soc_on(job, job.serial) if job.soc else bundle.soc_of(archive)
    placed = job.placed(described, job.deployment)
    target = stack.enter_context(closing(connect(job.serial, placed)))
    engine = bundle.load(
        job.model, soc=placed, connected=lambda soc: target, trusted=job.trust, check=job.check
    )
    arrays = read_inputs(engine.network, job.inputs, job.deployment, random_inputs)
    return Opened(engine, target, arrays)


def _result(engine: Engine, done: RunReport, job: Run) -> dict[str, Any]:
    return {
        "model": engine.network.name,
        "soc": engine.soc.name,
        "batch": job.batch,
        "strategy": engine.plan.strategy,
        "latency_ms": asdict(done.latency_ms),
        "predicted_ms": engine.plan.predicted_ms,
        "doubts": doubts(
            done.latency_ms,
            predicted_ms=engine.plan.predicted_ms,
            quota_periods=done.conditions.quota_periods,
        ),
        "data_sharing_ms": sharing_ms(done.spans),
        "energy_mj": done.energy_mj,
        "energy_sensors": list(done.energy_sensors),
        "source": "measured",
        "fallbacks": [asdict(fallback) for fallback in engine.fallbacks],
        "gpu_failure": engine.gpu_failure,
        **check_summary(engine.checked),
        "planned_fallbacks": [asdict(fallback) for fallback in engine.plan.fallbacks],
        "gpu_storage": list(map(str, engine.storages)),
        "precision": engine.precision,
        "options": {
            "threads": engine.soc.placement.threads,
            "gpu_performance": job.gpu_performance,
            "gpu_priority": job.gpu_priority,
            **asdict(engine.soc.placement.limits),
        },
        "limited": None if engine.limited is None else asdict(engine.limited),
        "memory_bytes": asdict(engine.memory),
        "adaptation": None if engine.adaptation is None else asdict(engine.adaptation),
        "placement": [asdict(placement) for placement in done.placed],
        "spans": [asdict(span) for span in done.spans],
    }
