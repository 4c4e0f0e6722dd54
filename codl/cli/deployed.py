"""Deployment files on the command line, and the options of a run that are like MACE's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from codl.cli.options import read_budget
from codl.cli.output import note, stage
from codl.errors import UnknownNameError, UnsupportedError
from codl.frontend import models
from codl.frontend.models.deployment import Deployment
from codl.ir import Network
from codl.ir.plan import Plan, load_plan
from codl.measure.inputs import read_file, read_npz
from codl.predict import FOLDER
from codl.records.gpu_limits import GpuLimits
from codl.records.soc import Soc
from codl.runtime.placement import HINTS, LocalSoc, limits_of, with_cores
from codl.strategies import DEFAULT, Context, find


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

    def deployed(self, deployed: Deployment | None) -> RunOptions:
        """With the limits of a deployment file, where no others are asked for."""
        if deployed is None:
            return self
        longest, duty = deployed.limits.max_kernel_ms, deployed.limits.gpu_duty
        return replace(
            self,
            max_kernel_ms=longest if self.max_kernel_ms is None else self.max_kernel_ms,
            gpu_duty=(duty if duty < 1 else None) if self.gpu_duty is None else self.gpu_duty,
        )

    def applied(self, soc: LocalSoc) -> LocalSoc:
        """The SoC placed as asked for; raises `CodlError` for cores, threads or hints that cannot
        be.
        """
        given = {"performance": self.gpu_performance, "priority": self.gpu_priority}
        for kind, hint in given.items():
            if hint not in (None, *HINTS):
                raise UnknownNameError(f"GPU {kind} hint", str(hint), HINTS)
        changed = with_cores(soc, self.cpu_affinity, self.threads)
        own = replace(
            changed.placement,
            performance=self.gpu_performance or soc.placement.performance,
            priority=self.gpu_priority or soc.placement.priority,
            limits=self.limits(soc),
        )
        if own.threads != soc.cpu.threads:
            note(
                f"Threads of the CPU side: {own.threads}, on the cores "
                f"{', '.join(map(str, own.cpu_cores))}; plans are made with predictors for "
                f"{soc.cpu.threads}."
            )
        return replace(soc, placement=own)


def context_of(
    soc: Soc,
    dataset: Path,
    predictors: Path = FOLDER,
    predictor: str | None = None,
    *,
    budget: str | None = None,
    **more: Any,
) -> Context:
    """What strategies plan with, as the options of a command ask for it; `more` is the context's.

    Raises `CodlError` for a budget that is none.
    """
    if budget is not None:
        more["budget_s"] = read_budget(budget)
    more |= {"predictors_folder": predictors, "predictor": predictor}
    return Context.of(soc, dataset, note=stage, **more)


def deployment_of(model: str) -> Deployment | None:
    """How a deployment file wants a model run; None for models that are no part of one."""
    deployment = models.deployment_of(model)
    if deployment is not None and deployment.ignored:
        note(f"Without effect here: {', '.join(deployment.ignored)}.")
    return deployment


def adapted(context: Context, deployed: Deployment | None) -> Context:
    """The context with what a deployment file says of Winograd and of storage.

    Raises `UnsupportedError` for a type of storage that the SoC's latencies are not of.
    """
    if deployed is None:
        return context
    own = context.soc.gpu.element
    if deployed.element not in (None, own) and deployed.strategy != "cpu":
        raise UnsupportedError(
            f"{deployed.file}, models.{deployed.name}.data_type: it wants the GPU's tensors stored "
            f"as {deployed.element}, those of the SoC {context.soc.name!r} are {own}. A SoC of the "
            f"other type is made by `codl soc detect --serial local --name NAME --element "
            f"{deployed.element}`, and has to be measured and trained."
        )
    return replace(context, winograd=deployed.winograd)


def strategy_of(given: str | None, deployed: Deployment | None) -> str:
    """The strategy that is asked for, else what the runtime of a deployment means."""
    return given or (deployed.strategy if deployed else "") or DEFAULT


def plan_of(
    file: Path | None,
    strategy: str | None,
    deployed: Deployment | None,
    *,
    network: Network,
    context: Context,
) -> Plan:
    """The plan in a file of `codl search`, where there is one, else what the strategy plans."""
    if file is not None:
        return load_plan(file)
    chosen = strategy_of(strategy, deployed)
    stage(f"Planning {network.name} by {chosen}")
    return find(chosen).plan(network, context)


def read_inputs(
    network: Network, given: Path | None, deployed: Deployment | None,
    usual: Callable[[Network], Mapping[str, NDArray[Any]]]
) -> Mapping[str, NDArray[Any]]:  # fmt: skip
    """Inputs from a file, from those that a deployment names, or the usual ones."""
    if given is not None:
        return read_npz(given, network)
    if deployed is None or not deployed.input_files:
        return usual(network)
    files = deployed.input_files
    if "" in files:
        return read_npz(files[""], network)
    return {name: read_file(path, name, network) for name, path in files.items()}
