"""A model on a SoC, how it is planned and run: what the jobs of models share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from numpy.typing import NDArray

from codl.errors import CodlError, UnsupportedError
from codl.frontend import models
from codl.ir import Network
from codl.ir.plan import Plan, load_plan
from codl.ir.records import soc as socs
from codl.ir.records.gpu_limits import UNLIMITED, GpuLimits
from codl.ir.records.results import Checked, Digests
from codl.ir.records.soc import Soc
from codl.ir.types import PRECISIONS
from codl.jobs import options as opt
from codl.jobs.options import DeviceJob, option, soc_on
from codl.machine.placement import LocalSoc, limits_of
from codl.measure import FOLDER as DATASETS
from codl.measure.dataset import dataset_digest
from codl.measure.inputs import read_file, read_npz
from codl.plan.strategies import DEFAULT, Context, find
from codl.plan.strategies.base import Profiling
from codl.predict import FOLDER as PREDICTORS
from codl.targets.connect import connect

if TYPE_CHECKING:
    from codl.frontend.convert import Source
    from codl.frontend.models.deployment import Deployment
    from codl.targets.base import Target

#: The precision that stores tensors as a type, and computes in float32.
STORED_AS: Mapping[str, str] = {
    p.element: name for name, p in PRECISIONS.items() if p.arithmetic == "float32"
}


@dataclass(frozen=True, kw_only=True)
class PlanningJob(DeviceJob):
    """A job that plans, and may run plans on the device."""

    predictor: Annotated[
        str | None, option("--predictor", help="Plan with one of {codl.predict:ESTIMATORS}.")
    ] = None
    plan_time_s: Annotated[
        float | None,
        option(
            "--plan-time",
            help="Time to run plans to find a faster one, such as 90s; by default while they gain.",
            read=opt.time_of("--plan-time"),
        ),
    ] = None
    profile: Annotated[
        bool,
        option(
            "--profile/--no-profile",
            help="Run plans where there is a device, and keep their latencies in ./profiles; or "
            "plan by predictions alone.",
        ),
    ] = True
    batch: opt.BatchOption = None
    max_kernel_ms: Annotated[
        float | None,
        option(
            "--max-kernel-ms",
            metavar="MS",
            help="Split GPU kernels that run longer, such as 1 for a smooth interface.",
        ),
    ] = None
    gpu_duty: Annotated[
        float | None,
        option(
            "--gpu-duty",
            metavar="SHARE",
            help="The largest fraction of the time that the GPU is busy, such as 0.7.",
        ),
    ] = None
    dataset: opt.DatasetsOption = DATASETS
    predictors: Annotated[Path, option("--predictors", help=opt.IN_PREDICTORS)] = PREDICTORS

    def context_of(self, soc: Soc, **more: Any) -> Context:
        """The context of strategies; `more` are further fields."""
        return Context.of(
            soc,
            self.dataset,
            note=self.reporter.stage,
            predictors_folder=self.predictors,
            predictor=self.predictor,
            plan_time_s=self.plan_time_s,
            **more,
        )

    def limits(self, soc: Soc, deployment: Deployment | None = None) -> GpuLimits:
        """The GPU's limits: as asked for, else of a deployment file, else of the SoC."""
        usual, given = limits_of(soc), deployment.limits if deployment else UNLIMITED
        longest = (self.max_kernel_ms, given.max_kernel_ms, usual.max_kernel_ms)
        duties = (self.gpu_duty, given.gpu_duty if given.gpu_duty < 1 else None, usual.gpu_duty)
        known = next((ms for ms in longest if ms is not None), None)
        return GpuLimits(known, next(duty for duty in duties if duty is not None))

    def placed(self, soc: LocalSoc, deployment: Deployment | None = None) -> LocalSoc:
        """The SoC with the requested limits."""
        limits = self.limits(soc, deployment)
        return replace(soc, placement=replace(soc.placement, limits=limits))


def profiling(target: Target, profile: bool = True) -> Profiling | None:
    """The profiling of networks on a target; None if it is off, or on a replay."""
    return Profiling() if profile and target.replays is None else None


def adapted(context: Context, deployment: Deployment | None) -> Context:
    """The context with a deployment's Winograd setting.

    Raises `UnsupportedError` for another stored type than that of the SoC's latencies.
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
    """Inputs from a file, else from a deployment's files, else the usual ones."""
    if file is not None:
        return read_npz(file, network)
    if deployment is None or not deployment.input_files:
        return usual(network)
    files = deployment.input_files
    if "" in files:
        return read_npz(files[""], network)
    return {name: read_file(path, name, network) for name, path in files.items()}


@dataclass(frozen=True, kw_only=True)
class ModelJob(PlanningJob):
    """A model, the SoC that it runs on, and how it is planned.

    `plan` is a plan file. Without a `device` nothing runs. With one, plans run for `plan_time_s`
    seconds or while they gain, and the fastest is taken, unless `profile` is off. `deployment`,
    `described` and `context` are read on first use; each raises `CodlError` for a missing file or
    name.
    """

    model: Annotated[str | Path, opt.argument(f"{opt.MODELS}.", read=str)] = field(kw_only=False)
    plan: Annotated[Path | None, option("--plan", help="A plan of `codl search`.")] = None
    strategy: Annotated[
        str | None,
        option(
            "--strategy",
            help="One of {codl.plan.strategies:STRATEGIES}; by default the deployment file's "
            "runtime, or {codl.plan.strategies:DEFAULT}.",
        ),
    ] = None
    shapes: Annotated[
        Mapping[str, tuple[int, ...]],
        option(
            "--shape",
            help="Sizes of an input with open ones, such as NAME=1x3x224x224; may be repeated.",
            read=opt.read_shapes,
            many=True,
        ),
    ] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.plan is not None and self.strategy is not None:
            raise CodlError(
                f"A plan is made already: leave out the plan {str(self.plan)!r} or the strategy "
                f"{self.strategy!r}."
            )

    @property
    def device(self) -> bool:
        """True where plans may run on a device."""
        return True

    @cached_property
    def deployment(self) -> Deployment | None:
        deployment = models.deployment_of(str(self.model))
        if deployment is not None and deployment.ignored:
            self.reporter.note(f"Without effect here: {', '.join(deployment.ignored)}.")
        return deployment

    @cached_property
    def described(self) -> Soc:
        """The SoC, with the requested settings where something runs."""
        if not self.device:
            return socs.load(self.soc, self.precision)
        return self.placed(soc_on(self, self.serial), self.deployment)

    @cached_property
    def context(self) -> Context:
        """The context of strategies, without a target."""
        return adapted(self.context_of(self.described), self.deployment)

    @property
    def strategy_name(self) -> str:
        return self.strategy or (self.deployment.strategy if self.deployment else "") or DEFAULT

    @contextmanager
    def connected(self) -> Iterator[Context]:
        with closing(connect(self.serial, self.described)) as target:
            how = profiling(target, self.profile)
            yield replace(self.context, target=target, profiling=how)

    def load(self) -> Network:
        """The network with its weights; raises `CodlError` for an unreadable model."""
        from codl.frontend.convert import load_network

        return load_network(str(self.model), self.batch, self.shapes)

    def load_with_source(self, *, check: bool) -> tuple[Network, Source | None]:
        """The network, and with `check` its source; errors of `context` come first."""
        from codl.frontend.convert import read_network

        _ = self.context
        self.reporter.stage(f"Reading {self.model}")
        return read_network(str(self.model), self.batch, self.shapes, check=check)

    def plan_of(self, network: Network, context: Context) -> Plan:
        if self.plan is not None:
            return load_plan(self.plan)
        self.reporter.stage(f"Planning {network.name} by {self.strategy_name}")
        return find(self.strategy_name).plan(network, context)


def check_summary(checked: Checked | None) -> dict[str, Any]:
    """The keys `check_ms` and `check` of a result; None without a check."""
    return {
        "check_ms": None if checked is None else checked.ms,
        "check": None if checked is None else asdict(checked),
    }


def digests_of(
    context: Context | None, *networks: Network, plans: Mapping[str, Plan] | None = None
) -> Digests:
    """Digests of models, of plans by name, and of the context's dataset and tuning."""
    return Digests(
        dataset=dataset_digest(context.dataset) if context else "",
        tuning=context.tuning.fingerprint if context else "",
        models={network.name: network.content_digest for network in networks},
        plans={name: plan.fingerprint for name, plan in (plans or {}).items()},
    )
