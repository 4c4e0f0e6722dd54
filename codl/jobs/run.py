"""A model, or a bundle, by one plan: made ready, run and packaged."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from codl import bundle, files
from codl.bundle.archive import Archive
from codl.engine.engine import Engine
from codl.errors import CodlError, UnsupportedError
from codl.evaluation.run_report import RunReport, measure, record
from codl.files import BUNDLE
from codl.jobs import options as opt
from codl.jobs.job import function
from codl.jobs.model import ModelJob, RunOptions, check_summary, digests_of, read_inputs, recorded
from codl.jobs.options import option
from codl.jobs.trace import RUNS, power_w, trace_file, write_trace
from codl.measure.inputs import random_inputs
from codl.plan.cost_model import CostModel
from codl.records.results import doubts
from codl.runtime.loaded import sharing_ms
from codl.strategies import Context
from codl.strategies.adapter import PlanAdapter
from codl.strategies.device_loop import keep_run
from codl.targets.base import Target
from codl.targets.connect import connect
from codl.targets.detect import load_local

NPZ = ".npz"


def _arrays_file(text: str) -> Path:
    if not text.endswith(NPZ):
        raise ValueError(f"outputs go to an {NPZ} file, got {text}")
    return opt.writable(Path(text))


def _bundle_file(text: str) -> Path:
    if not text.endswith(BUNDLE):
        raise ValueError(f"must end in {BUNDLE}, got {text}")
    return opt.writable(Path(text))


AdaptOption = Annotated[
    bool,
    option(
        "--adapt/--no-adapt",
        help="Change to a balanced plan where one processor becomes slower or faster. Both plans "
        "are in memory while they are compared. As many inferences as --rounds come before those "
        "that are timed.",
    ),
]
StrictOption = Annotated[
    bool,
    option("--strict", help="Fall back on nothing: a kernel or a GPU that fails is an error."),
]
ModelOrBundle = Annotated[str | Path, opt.argument(f"{opt.MODELS}, or a bundle (.codl).", read=str)]
ThreadsOption = Annotated[
    int | None, option("--threads", help="Threads of the CPU side; one a core by default.")
]
AffinityOption = Annotated[
    str | None,
    option(
        "--cpu-affinity", help="Cores of the CPU side: none, big, little, or a list such as 0,1."
    ),
]
PerformanceOption = Annotated[
    str | None, option("--gpu-performance", help="A hint: {codl.runtime.placement:HINTS}.")
]
PriorityOption = Annotated[
    str | None, option("--gpu-priority", help="A hint: {codl.runtime.placement:HINTS}.")
]
InputsOption = Annotated[
    Path | None, option("--inputs", help="Inputs by name; seeded random ones by default.")
]
OutputsOption = Annotated[
    Path | None,
    option("--outputs", help="Where outputs go, an .npz file.", read=_arrays_file),
]
TrustOption = Annotated[
    bool,
    option(
        "--trust",
        help="Load a bundle though it was not written by this user on this machine: it may do "
        "anything.",
    ),
]
TraceOption = Annotated[
    Path | None,
    option(
        "--trace",
        metavar="FILE",
        help="Profile it some times more, and write a trace for Perfetto, as `codl trace` does.",
        read=trace_file,
    ),
]
BundleOption = Annotated[
    Path, option("-o", "--output", help="The bundle, such as m.codl.", read=_bundle_file)
]


@dataclass(frozen=True)
class Opened:
    """An engine, its target and its inputs, and of a model what it was planned with."""

    engine: Engine
    target: Target
    inputs: Mapping[str, NDArray[Any]]
    context: Context | None = None
    cost: CostModel | None = None


@dataclass(frozen=True, kw_only=True)
class EngineJob(ModelJob):
    """A model that is made ready to run, and how its engine behaves."""

    adaptive: AdaptOption = False
    check: opt.CheckOption = True
    strict: StrictOption = False

    def opened(self, stack: ExitStack, inputs: Path | None = None) -> Opened:
        """The model's engine on the target, which the stack closes: load, plan, compile, check."""
        from codl.validate.first_check import EngineBuilder, first_check  # a bundle needs no ONNX

        network, source = self.load_with_source(check=self.check)
        arrays = read_inputs(network, inputs, self.deployment, random_inputs)
        context = stack.enter_context(self.connected())
        plan = self.plan_of(network, context)
        self.reporter.stage(f"Loading {network.name}: building its kernels and packing its weights")
        builder = EngineBuilder(
            network, plan, context.device, context.tuning, not self.strict, self.strict
        )
        engine = builder.build()
        if source is not None:
            engine = first_check(engine, builder, source)
        if self.adaptive:
            engine.adapt(PlanAdapter(context, network))
        return Opened(engine, context.device, arrays, context, context.default_cost(network))


@dataclass(frozen=True, kw_only=True)
class Compile(EngineJob):
    """Make a model ready to run on both processors of a SoC.

    `model` is a built-in name or an `.onnx` file; `soc` a SoC file or its name in `./socs`. `plan`
    is a file of `codl search`; without one the strategy plans, with the predictors that
    `codl train` left in `./predictors`. Kernels are as `codl tune` left them in `./lat_datasets`.
    Some plans run before the fastest is taken, for `plan_time_s` seconds, or as long as they gain;
    what they took is kept in `./profiles`. `batch` is how many images a run takes; `shapes` are
    those of inputs whose sizes the model leaves open. An `adaptive` engine changes to a balanced
    plan where one processor becomes slower or faster; see `codl.engine.engine.Engine`. Its outputs
    are compared once with ONNX Runtime's, on inputs from a seed (`engine.checked`): ops that are
    wrong run in other kernels, with a `CodlWarning`; a `strict` engine refuses them. Without
    `check` nothing is compared. Raises `CodlError` where something is missing or unknown, and
    `WrongResultError` where no kernels make the outputs right.

    >>> engine = codl.compile("model.onnx", soc="host")
    >>> y = engine(x)
    """

    def run(self) -> Engine:
        """The engine, with which its target is closed."""
        with ExitStack() as stack:
            engine = self.opened(stack).engine
            engine.owns(stack.pop_all())
        return engine


@dataclass(frozen=True, kw_only=True)
class Run(EngineJob):
    """Run a model by a plan or a strategy, or a bundle, and measure its latency.

    Raises `CodlError` where something is missing or unknown, and `UnsupportedError` for what cannot
    be changed in a bundle.
    """

    model: ModelOrBundle
    threads: ThreadsOption = None
    cpu_affinity: AffinityOption = None
    gpu_performance: PerformanceOption = None
    gpu_priority: PriorityOption = None
    inputs: InputsOption = None
    outputs: OutputsOption = None
    rounds: Annotated[int, opt.rounds_option("Timed runs, in a row.")] = 20
    trust: TrustOption = False
    trace: TraceOption = None

    @cached_property
    def options(self) -> RunOptions:
        limits = RunOptions(max_kernel_ms=self.max_kernel_ms, gpu_duty=self.gpu_duty)
        asked = replace(
            limits,
            threads=self.threads,
            cpu_affinity=self.cpu_affinity,
            gpu_performance=self.gpu_performance,
            gpu_priority=self.gpu_priority,
        )
        return asked.deployed(self.deployment)

    def run(self) -> tuple[dict[str, Any], RunReport]:
        """What `codl run --json` holds, and the report behind it: open, run, trace."""
        is_bundle = Path(self.model).suffix == BUNDLE
        with ExitStack() as stack:
            opened = _open_bundle(self, stack) if is_bundle else self.opened(stack, self.inputs)
            with (engine := opened.engine):
                done = _measured(opened, self)
                if self.trace is not None:
                    recording = record(
                        engine, opened.target, opened.cost, runs=RUNS, power_w=power_w(done)
                    )
                    write_trace(recording, self.trace, engine.network, engine.soc, self.reporter)
            of = digests_of(
                opened.context, engine.network, plans={engine.network.name: engine.plan}
            )
            origin = recorded(opened.target, of, rounds=self.rounds)
        if self.outputs is not None:
            _write(self.outputs, done.outputs)
            self.reporter.note(f"Wrote {self.outputs}")
        return {"serial": self.serial, **_result(engine, done, self), **origin}, done


@dataclass(frozen=True, kw_only=True)
class Package(ModelJob):
    """Write a model, planned and compiled, as one file.

    Raises `CodlError` where something is missing or unknown, or where the bundle computes what the
    engine that made it does not.
    """

    output: BundleOption
    check: opt.CheckOption = True

    def run(self) -> dict[str, Any]:
        """What `codl package --json` holds: load, plan, compile and write."""
        from codl.bundle.packaging import package

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


def _open_bundle(job: Run, stack: ExitStack) -> Opened:
    """Load a bundle."""
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
    described = load_local(job.soc, job.serial) if job.soc else bundle.soc_of(archive)
    placed = job.options.applied(described, job.reporter)
    target = stack.enter_context(closing(connect(job.serial, placed)))
    engine = bundle.load(
        job.model,
        soc=placed,
        connected=lambda soc: target,
        trusted=job.trust,
        check=job.check,
    )
    arrays = read_inputs(engine.network, job.inputs, job.deployment, random_inputs)
    return Opened(engine, target, arrays)


def _measured(opened: Opened, job: Run) -> RunReport:
    """Run it; the latency of a plan that it has changed to is kept for the next time."""
    engine, context = opened.engine, opened.context
    if job.strict and engine.fallbacks:
        raise CodlError(f"--strict: {'; '.join(map(str, engine.fallbacks))}")
    job.reporter.stage(f"Running {engine.network.name}, {job.rounds} times")
    done = measure(engine, opened.target, opened.inputs, opened.cost, rounds=job.rounds)
    if context is not None and engine.adaptation is not None and engine.adaptation.changes:
        keep_run(engine, context, done.latency_ms.level)
    return done


def _write(file: Path, outputs: Mapping[str, NDArray[Any]]) -> None:
    with files.writing(file) as partial, partial.open("wb") as opened:
        np.savez(opened, allow_pickle=False, **outputs)


def _result(engine: Engine, done: RunReport, job: Run) -> dict[str, Any]:
    return {
        "model": engine.network.name,
        "soc": engine.soc.name,
        "batch": job.batch,
        "strategy": engine.plan.strategy,
        "latency_ms": asdict(done.latency_ms),
        "predicted_ms": engine.plan.predicted_ms,
        "doubts": list(
            doubts(
                done.latency_ms,
                predicted_ms=engine.plan.predicted_ms,
                quota_periods=done.conditions.quota_periods,
            )
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
        "options": {**asdict(job.options), "threads": engine.soc.placement.threads},
        "limited": None if engine.limited is None else asdict(engine.limited),
        "memory_bytes": asdict(engine.memory),
        "adaptation": None if engine.adaptation is None else asdict(engine.adaptation),
        "placement": [asdict(placement) for placement in done.placed],
        "spans": [asdict(span) for span in done.spans],
    }
