"""A job: a model on a SoC, how it is planned and run; commands and functions begin with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from codl.api.reporter import SILENT, Reporter
from codl.errors import CodlError, UnknownNameError, UnsupportedError
from codl.frontend import models
from codl.frontend.models.deployment import Deployment
from codl.ir import Network
from codl.ir.plan import Plan, load_plan
from codl.ir.types import PRECISIONS
from codl.measure import dataset as datasets
from codl.measure.cool_down import CoolDown
from codl.measure.dataset import dataset_digest
from codl.measure.inputs import read_file, read_npz
from codl.predict import FOLDER
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
    from codl.validate.references import Source

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
    dataset: Path = datasets.FOLDER,
    predictors: Path = FOLDER,
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


def strategy_of(asked: str | None, deployment: Deployment | None) -> str:
    """The strategy that is asked for, else what the runtime of a deployment means."""
    return asked or (deployment.strategy if deployment else "") or DEFAULT


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
class Job:
    """A model, the SoC that it is for, at what precision, and how it is planned.

    `plan` is the file of one that was made before. Without a `device` nothing runs, and the SoC
    need not be at hand. With one, plans run before the fastest is taken, for `plan_time_s` seconds
    or as long as they gain, unless `profile` is off; `profile` may be a file of what ran before.
    `deployment`, `described` and `context` are read when first
    asked for; each raises `CodlError` where something is missing or unknown.
    """

    model: str
    soc: str | Path
    serial: str = "local"
    device: bool = True
    precision: str | None = None
    plan: Path | None = None
    strategy: str | None = None
    predictor: str | None = None
    plan_time_s: float | None = None
    batch: int | None = None
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    dataset: Path = datasets.FOLDER
    predictors: Path = FOLDER
    options: RunOptions = RunOptions()
    profile: Path | bool = True
    reporter: Reporter = SILENT

    @cached_property
    def deployment(self) -> Deployment | None:
        return deployment_of(self.model, self.reporter)

    @cached_property
    def wanted(self) -> RunOptions:
        """The options, with the limits of a deployment file."""
        return self.options.deployed(self.deployment)

    @cached_property
    def described(self) -> Soc:
        """The SoC, placed as the options want it where something runs."""
        if not self.device:
            return socs.load(self.soc, self.precision)
        local = load_local(self.soc, self.serial, self.precision)
        return self.wanted.applied(local, self.reporter)

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

    def check(self) -> None:
        """Raise what `context` raises now, before a model is read, which takes longer."""
        _ = self.context

    @property
    def strategy_name(self) -> str:
        return strategy_of(self.strategy, self.deployment)

    @contextmanager
    def connected(self) -> Iterator[Context]:
        """The context with the target that the job's serial leads to, open meanwhile."""
        with closing(connect(self.serial, self.described)) as target:
            yield replace(self.context, target=target, profiling=profiling(target, self.profile))

    def plan_of(self, network: Network, context: Context) -> Plan:
        """The plan in the job's file, where there is one, else what the strategy plans."""
        if self.plan is not None:
            return load_plan(self.plan)
        self.reporter.stage(f"Planning {network.name} by {self.strategy_name}")
        return find(self.strategy_name).plan(network, context)

    def read_network(self) -> Network:
        """The model with its weights; raises `CodlError` where it cannot be read."""
        from codl.frontend.convert import load_network

        return load_network(self.model, self.batch, self.shapes)

    def read_with_source(self, *, check: bool) -> tuple[Network, Source | None]:
        """The same, and to `check` it its source; raises what `check` raises before it reads."""
        from codl.validate.references import read_network

        self.check()
        self.reporter.stage(f"Reading {self.model}")
        return read_network(self.model, self.batch, self.shapes, check=check)


def recorded(target: Target, digests: Digests, **protocol: Any) -> dict[str, Any]:
    """The keys `environment`, None where the target is no machine, and `digests` of a result."""
    environment = environment_of(target, {**protocol, "statistic": statistic.NAME})
    return {
        "environment": None if environment is None else asdict(environment),
        "digests": asdict(digests),
    }


def told_of(checked: Checked | None) -> dict[str, Any]:
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
