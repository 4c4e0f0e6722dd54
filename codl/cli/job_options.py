"""Options that make a job, said once for all commands that take them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, get_type_hints

from codl.cli import options as opt
from codl.cli.output import TERMINAL
from codl.measure import FOLDER as DATASETS
from codl.predict import FOLDER as PREDICTORS

if TYPE_CHECKING:
    from codl.api.job import Job


@dataclass(frozen=True, kw_only=True)
class SocOptions:
    """A SoC, and by which strategy models are planned for it."""

    soc: opt.SocOption = ""
    serial: opt.SerialOption = "local"
    strategy: opt.StrategyOption = None
    batch: opt.BatchOption = None
    shape: opt.ShapeOption = None
    dataset: opt.DatasetsOption = DATASETS
    predictors: opt.PredictorsOption = PREDICTORS
    predictor: opt.PredictorOption = None

    def job(self, **more: Any) -> Job:
        """The job, and `more` of its fields; raises `CodlError` for values that cannot be."""
        from codl.api.job import Job

        return Job(
            soc=self.soc,
            serial=self.serial,
            strategy=self.strategy,
            batch=self.batch,
            shapes=opt.read_shapes(self.shape),
            dataset=self.dataset,
            predictors=self.predictors,
            predictor=self.predictor,
            reporter=TERMINAL,
            **more,
        )


@dataclass(frozen=True, kw_only=True)
class ModelOptions(SocOptions):
    """With a model, and the plan that it runs by."""

    model: opt.ModelArgument
    plan: opt.PlanOption = None

    def job(self, **more: Any) -> Job:
        return super().job(model=self.model, plan=self.plan, **more)


@dataclass(frozen=True, kw_only=True)
class PlannedOptions(SocOptions):
    """With what takes the device where models are planned."""

    precision: opt.PrecisionOption = None
    plan_time: opt.PlanTimeOption = None
    profile: opt.ProfileOption = None
    no_profile: opt.NoProfileOption = False

    def job(self, **more: Any) -> Job:
        return super().job(
            precision=self.precision,
            plan_time_s=opt.read_plan_time(self.plan_time),
            profile=opt.read_profile(self.profile, self.no_profile),
            **more,
        )


@dataclass(frozen=True, kw_only=True)
class JobOptions(PlannedOptions, ModelOptions):
    """A model that is planned on the device, or runs by a plan."""


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """A command for typer: each parameter that is a dataclass of options is these options."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        if parameter.name in groups:
            parameters += _of_fields(groups[parameter.name])
        else:
            parameters.append(parameter.replace(annotation=hints[parameter.name]))

    @wraps(command)
    def called(**values: Any) -> None:
        made = {
            name: kind(**{field.name: values.pop(field.name) for field in fields(kind)})
            for name, kind in groups.items()
        }
        command(**made, **values)

    keywords = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
    called.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
    called.__annotations__ = {p.name: p.annotation for p in keywords}
    return called


def _of_fields(kind: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(kind)
    ]
