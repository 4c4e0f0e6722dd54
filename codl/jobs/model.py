"""A model on a SoC, how it is planned and run: what the jobs of models share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from codl.errors import CodlError, UnknownNameError, UnsupportedError
from codl.frontend import models
from codl.frontend.models.deployment import Deployment
from codl.ir import Network
from codl.ir.plan import Plan, load_plan
from codl.ir.types import PRECISIONS
from codl.jobs import options as opt
from codl.jobs.job import SILENT, Job, Reporter
from codl.measure import FOLDER as DATASETS
from codl.measure.cool_down import CoolDown
from codl.measure.dataset import dataset_digest
from codl.measure.inputs import read_file, read_npz
from codl.predict import FOLDER as PREDICTORS
from codl.records import soc as socs
from codl.records import statistic
from codl.records.gpu_limits import GpuLimits
from codl.records.results import Checked, Digests
from codl.records.soc import Soc
from codl.runtime.placement import HINTS, LocalSoc, limits_of, with_cores
from codl.strategies import DEFAULT, Context, find
from codl.strategies.base import Profiling
from codl.targets.base import Target
from codl.targets.connect import connect
from codl.targets.detect import load_local
from codl.targets.environment import environment_of

if TYPE_CHECKING:
    from codl.frontend.convert import Source

#: The precision that stores tensors as a type, and computes in float32.
STORED_AS: Mapping[str, str] = {
    p.element: name for name, p in PRECISIONS.items() if p.arithmetic == "float32"
}


@dataclass(frozen=True)
class RunOptions:
    """What a person asks of the two processors; None leaves the SoC's own."""

    threads: int | None = None
    cpu_affinity: str | None = None
    gpu_performance: str | None = None
    gpu_priority: str | None = None
    max_kernel_ms: float | None = None
    gpu_duty: float | None = None

    def limits(self, soc: Soc) -> GpuLimits:
        """Those that are asked for, each where it is not the SoC's own; raises `LimitError`."""
        usual = limits_of(soc)
        return GpuLimits(
            usual.max_kernel_ms if self.max_kernel_ms is None else self.max_kernel_ms,
            usual.gpu_duty if self.gpu_duty is None else self.gpu_duty,
        )

    def deployed(self, deployment: Deployment | None) -> RunOptions:
        """With the limits of a deployment file, where no others are asked for."""
        if deployment is None:
            return self
        longest, duty = deployment.limits.max_kernel_ms, deployment.limits.gpu_duty
        return replace(
            self,
            max_kernel_ms=longest if self.max_kernel_ms is None else self.max_kernel_ms,
            gpu_duty=(duty if duty < 1 else None) if self.gpu_duty is None else self.gpu_duty,
        )

    def applied(self, soc: LocalSoc, reporter: Reporter = SILENT) -> LocalSoc:
        """The SoC placed as asked for; raises `CodlError` for cores, threads or hints that cannot
        be.
        """
        hints = {"performance": self.gpu_performance, "priority": self.gpu_priority}
        for kind, hint in hints.items():
            if hint not in (None, *HINTS):
                raise UnknownNameError(f"GPU {kind} hint", str(hint), HINTS)
        changed = with_cores(soc, self.cpu_affinity, self.threads)
        placement = replace(
            changed.placement,
            performance=self.gpu_performance or soc.placement.performance,
            priority=self.gpu_priority or soc.placement.priority,
            limits=self.limits(soc),
        )
        if placement.threads != soc.cpu.threads:
            reporter.note(
                f"Threads of the CPU side: {placement.threads}, on the cores "
                f"{', '.join(map(str, placement.cpu_cores))}; plans are made with predictors for "
                f"{soc.cpu.threads}."
            )
        return replace(soc, placement=placement)


def profiling(target: Target, profile: Path | bool = True) -> Profiling | None:
    """How networks are profiled on a target: by a file, or not at all where that is off.

    Nothing runs on a replay. Raises `CodlError` where a file is named for one.
    """
    if target.replays is not None:
        if isinstance(profile, Path):
            raise CodlError(f"{profile} is of a machine, and {target.serial} replays a dataset.")
        return None
    if isinstance(profile, Path):
        return Profiling(file=profile)
    return Profiling() if profile else None


def context_of(
    soc: Soc,
    dataset: Path = DATASETS,
    predictors: Path = PREDICTORS,
    predictor: str | None = None,
    *,
    plan_time_s: float | None = None,
    reporter: Reporter = SILENT,
    **more: Any,
) -> Context:
    """What strategies plan with; `more` are fields of the context."""
    return Context.of(
        soc,
        dataset,
        note=reporter.stage,
        predictors_folder=predictors,
        predictor=predictor,
        plan_time_s=plan_time_s,
        **more,
    )


def deployment_of(model: str, reporter: Reporter = SILENT) -> Deployment | None:
    """How a deployment file wants a model run; None for models that are no part of one."""
    deployment = models.deployment_of(model)
    if deployment is not None and deployment.ignored:
        reporter.note(f"Without effect here: {', '.join(deployment.ignored)}.")
    return deployment


def adapted(context: Context, deployment: Deployment | None) -> Context:
    """The context with what a deployment file says of Winograd and of storage.

    Raises `UnsupportedError` for a type of storage that the SoC's latencies are not of.
    """
    if deployment is None:
        return context
    stored = context.soc.gpu.element
    if deployment.element not in (None, stored) and deployment.strategy != "cpu":
        raise UnsupportedError(
            f"{deployment.file}, models.{deployment.name}.data_type: it wants the GPU's tensors "
            f"stored as {deployment.element}, those of the SoC {context.soc.name!r} are {stored}. "
            f"--precision {STORED_AS[deployment.element]} has them so; kernels for that have to be "
            "measured and trained, too."
        )
    return replace(context, winograd=deployment.winograd)


def read_inputs(
    network: Network,
    file: Path | None,
    deployment: Deployment | None,
    usual: Callable[[Network], Mapping[str, NDArray[Any]]],
) -> Mapping[str, NDArray[Any]]:
    """Inputs from a file, from those that a deployment names, or the usual ones."""
    if file is not None:
        return read_npz(file, network)
    if deployment is None or not deployment.input_files:
        return usual(network)
    files = deployment.input_files
    if "" in files:
        return read_npz(files[""], network)
    return {name: read_file(path, name, network) for name, path in files.items()}


@dataclass(frozen=True, kw_only=True)
class ModelJob(Job):
    """A model, the SoC that it runs on, and how it is planned.

    `plan` is the file of a plan that was made before. Without a `device` nothing runs, and the SoC
    need not be at hand. With one, plans run before the fastest is taken, for `plan_time_s` seconds
    or as long as they gain, unless `profile` is off; it may be a file of plans that ran.
    `deployment`, `described` and `context` are read when they are first used; each raises
    `CodlError` for a file or a name that is not there.
    """

    model: opt.ModelArgument = field(kw_only=False)
    soc: opt.SocOption = "host"
    serial: opt.SerialOption = "local"
    precision: opt.PrecisionOption = None
    plan: opt.PlanOption = None
    strategy: opt.StrategyOption = None
    predictor: opt.PredictorOption = None
    plan_time_s: opt.PlanTimeOption = None
    profile: opt.ProfileOption = True
    no_profile: opt.NoProfileOption = False
    batch: opt.BatchOption = None
    shapes: opt.ShapeOption = field(default_factory=dict)
    max_kernel_ms: opt.LongestOption = None
    gpu_duty: opt.DutyOption = None
    dataset: opt.DatasetsOption = DATASETS
    predictors: opt.PredictorsOption = PREDICTORS

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.profile, Path) and self.no_profile:
            raise CodlError(
                f"--profile {self.profile} is not used with --no-profile: leave one of them out."
            )
        if self.plan is not None and self.strategy is not None:
            raise CodlError(
                f"A plan is made already: leave out the plan {str(self.plan)!r} or the strategy "
                f"{self.strategy!r}."
            )

    @property
    def device(self) -> bool:
        """Whether the model is planned for a device that is at hand."""
        return True

    @cached_property
    def deployment(self) -> Deployment | None:
        return deployment_of(str(self.model), self.reporter)

    @cached_property
    def options(self) -> RunOptions:
        """The options of the processors, with the limits of a deployment file."""
        limits = RunOptions(max_kernel_ms=self.max_kernel_ms, gpu_duty=self.gpu_duty)
        return limits.deployed(self.deployment)

    @cached_property
    def described(self) -> Soc:
        """The SoC, placed as the options want it where something runs."""
        if not self.device:
            return socs.load(self.soc, self.precision)
        local = load_local(self.soc, self.serial, self.precision)
        return self.options.applied(local, self.reporter)

    @cached_property
    def context(self) -> Context:
        """What strategies plan with, without a target."""
        context = context_of(
            self.described,
            self.dataset,
            self.predictors,
            self.predictor,
            plan_time_s=self.plan_time_s,
            reporter=self.reporter,
        )
        return adapted(context, self.deployment)

    @property
    def strategy_name(self) -> str:
        """The strategy that is asked for, else what the runtime of a deployment means."""
        return self.strategy or (self.deployment.strategy if self.deployment else "") or DEFAULT

    @contextmanager
    def connected(self) -> Iterator[Context]:
        """The context with the target that the serial leads to, open meanwhile."""
        with closing(connect(self.serial, self.described)) as target:
            profile = not self.no_profile and self.profile
            yield replace(self.context, target=target, profiling=profiling(target, profile))

    def load(self) -> Network:
        """The model with its weights; raises `CodlError` where it cannot be read."""
        from codl.frontend.convert import load_network

        return load_network(str(self.model), self.batch, self.shapes)

    def load_with_source(self, *, check: bool) -> tuple[Network, Source | None]:
        """The model, and to `check` it its source; raises what `context` raises before it reads."""
        from codl.frontend.convert import read_network

        _ = self.context
        self.reporter.stage(f"Reading {self.model}")
        return read_network(str(self.model), self.batch, self.shapes, check=check)

    def plan_of(self, network: Network, context: Context) -> Plan:
        """The plan in the job's file, where there is one, else what the strategy plans."""
        if self.plan is not None:
            return load_plan(self.plan)
        self.reporter.stage(f"Planning {network.name} by {self.strategy_name}")
        return find(self.strategy_name).plan(network, context)


def recorded(target: Target, digests: Digests, **protocol: Any) -> dict[str, Any]:
    """The keys `environment`, None where the target is no machine, and `digests` of a result."""
    environment = environment_of(target, {**protocol, "statistic": statistic.NAME})
    return {
        "environment": None if environment is None else asdict(environment),
        "digests": asdict(digests),
    }


def check_summary(checked: Checked | None) -> dict[str, Any]:
    """The keys of a comparison before the first result; None where nobody asked for it."""
    return {
        "check_ms": None if checked is None else checked.ms,
        "check": None if checked is None else asdict(checked),
    }


def digests_of(
    context: Context | None, *networks: Network, plans: Mapping[str, Plan] | None = None
) -> Digests:
    """Of models, their plans by name, and where there is a context its dataset and tuning."""
    return Digests(
        dataset=dataset_digest(context.dataset) if context else "",
        tuning=context.tuning.fingerprint if context else "",
        models={network.name: network.content_digest for network in networks},
        plans={name: plan.fingerprint for name, plan in (plans or {}).items()},
    )


def controlled(
    target: Target, governor: str | None, longest_s: float, hot_c: float, reporter: Reporter
) -> CoolDown:
    """Set the governor that is asked for, and return what waits for a device that is hot.

    What is refused is a warning.
    """
    if governor is not None:
        for place, reason in target.set_governor(governor).refused.items():
            reporter.warn(
                f"The governor {governor!r} is not set for {place}: {reason}. Rows say which "
                "clocks they were measured at."
            )
    return CoolDown(target.conditions, reporter.note, hot_c=hot_c, longest_s=longest_s)
