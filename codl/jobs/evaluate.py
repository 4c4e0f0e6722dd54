"""`codl.evaluate`: strategies against each other on models."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any

from codl.errors import CodlError
from codl.frontend.models import check_is_there
from codl.ir.environment import Environment
from codl.ir.records import statistic
from codl.ir.records.results import Conditions, Digests, EvalRequest
from codl.ir.records.verdicts import ModelVerdict, remember
from codl.jobs import options as opt
from codl.jobs.interleaved import Evaluation, check_peers, failed_row, with_opencl_all
from codl.jobs.interleaved import evaluate as evaluate_model
from codl.jobs.model import PlanningJob, digests_of, profiling
from codl.jobs.options import function, soc_on
from codl.machine.placement import limits_of, require_local
from codl.measure import HOT_C, LONGEST_S, SEED
from codl.measure.budget import Budget
from codl.measure.cool_down import CoolDown, low_battery
from codl.measure.timing import Effort
from codl.plan.strategies import STRATEGIES, Context, Strategy, find, ideal
from codl.report.results import EvalResult, parse_as
from codl.report.verdict import model_verdicts
from codl.targets.base import environment_of, under
from codl.targets.connect import connect

#: The models and the strategies that are compared by default.
USUAL_MODELS = ("yolov2",)
USUAL = ("cpu", "gpu", "mulayer", "codl-paper", "codl", ideal.NAME)


@dataclass
class EvalRun:
    """An evaluation, and its rows so far."""

    asked: EvalRequest
    strategies: Sequence[Strategy]
    context: Context
    environment: Environment | None
    digests: Digests
    sensors: tuple[str, ...]
    done: list[Evaluation] = field(default_factory=list)
    #: Why models could not be evaluated, by model: they have failed rows, and no digest.
    failed: dict[str, str] = field(default_factory=dict)
    budget: Budget = field(default_factory=Budget)
    #: Why it ended early, where that is the battery.
    reason: str = ""

    def run(self, cooling: CoolDown, budget: Budget | None = None) -> None:
        """Measure all models, until the battery is low, the budget is over, or Ctrl-C.

        Each model has its share of the budget. A failed model has a row with the reason for each
        strategy and peer.
        """
        self.budget = budget or Budget()
        with self.budget.keeping(self.done):
            for model, share in self.budget.shared(self.asked.models):
                try:
                    now = self.context.device.conditions()
                    if reason := low_battery(now):
                        self.reason = reason
                        return
                    cooling.wait(now, share.left_s / 2)
                    measured = evaluate_model(
                        model,
                        self.strategies,
                        self.context,
                        with_ideal=ideal.NAME in self.asked.strategies,
                        peers=self.asked.peers,
                        effort=Effort(min_seconds=self.asked.seconds),
                        batch=self.asked.batch,
                        budget=share,
                    )
                    self.done.append(measured)
                except Exception as error:
                    is_known = isinstance(error, CodlError)
                    defect = "" if is_known else f"a defect of codl: {type(error).__name__}: "
                    self.failed[model] = reason = f"{defect}{error}"
                    names = [*self.asked.strategies, *self.asked.peers]
                    rows = [failed_row(model, name, reason) for name in names]
                    self.done.append(Evaluation(model, "", rows, {}, {}))

    @property
    def result(self) -> EvalResult:
        return parse_as(EvalResult, self.to_json())

    @property
    def incomplete(self) -> str:
        """The models that were not measured, as a sentence; else empty."""
        left = self.asked.models[len(self.done) :]
        return f"The evaluation was ended early: {', '.join(left)} not measured." if left else ""

    def to_json(self, *, with_timelines: bool = True) -> dict[str, Any]:
        rows = [row for evaluation in self.done for row in evaluation.rows]
        if self.environment is not None:
            seen = Conditions.over([row.conditions for row in rows if row.conditions])
            self.environment = under(self.environment, seen)
        digests = replace(
            self.digests,
            models={
                evaluation.model: evaluation.digest for evaluation in self.done if evaluation.digest
            },
        )
        plans = {name: plan for evaluation in self.done for name, plan in evaluation.plans.items()}
        timelines = [
            {
                "model": evaluation.model,
                "strategy": name,
                "spans": [asdict(span) for span in spans],
                "predicted": [asdict(span) for span in evaluation.predicted.get(name, ())],
            }
            for evaluation in self.done
            for name, spans in evaluation.timelines.items()
        ]
        result: dict[str, Any] = {
            "soc": require_local(self.context.soc).to_json(),
            "serial": self.context.device.serial,
            "batch": self.asked.batch,
            "energy_sensors": list(self.sensors),
            "environment": None if self.environment is None else asdict(self.environment),
            "digests": asdict(digests),
            "asked": asdict(self.asked),
            "stopped": "battery" if self.reason else self.budget.ended,
            "left": len(self.asked.models) - len(self.done),
            "incomplete": self.incomplete,
            "rows": [asdict(row) for row in rows],
            "timelines": timelines if with_timelines else [],
            "plans": {name: plan.to_json() for name, plan in plans.items()},
        }
        verdicts = model_verdicts(parse_as(EvalResult, result))
        result["verdicts"] = [asdict(verdict) for verdict in verdicts]
        return result

    @property
    def verdicts(self) -> tuple[ModelVerdict, ...]:
        """What to use for each model that ran with right outputs."""
        return model_verdicts(self.result)

    def remember(self) -> None:
        """Keep the verdicts for `codl models`; those of a replay are not kept.

        Raises `CodlError` where the file of verdicts cannot be read or written.
        """
        digests = {
            evaluation.model: plan.digest
            for evaluation in self.done
            for plan in evaluation.plans.values()
        }
        if self.context.device.replays is None:
            remember(self.verdicts, digests, self.context.soc.name)

    def check(self) -> None:
        """Raise `CodlError` for an early end, and for models that failed."""
        rows = sum(len(evaluation.rows) for evaluation in self.done)
        kept = f"{rows} rows of models before that are kept."
        self.budget.check(kept)
        if self.reason:
            raise CodlError(f"{self.reason} {kept}")
        if self.failed:
            reasons = "\n".join(f"{model}: {reason}" for model, reason in self.failed.items())
            raise CodlError(f"{len(self.failed)} of {len(self.done)} models failed:\n{reasons}")


@dataclass(frozen=True, kw_only=True)
class Evaluate(PlanningJob):
    """Compare strategies and other libraries on models, in turns in one run.

    `seconds` is the least time for each model, `plan_time_s` the time to run plans, `budget_s` the
    limit of all. A failed model has rows with the reason; `check()` of the result raises
    `CodlError` for failures and an early end. Raises `CodlError` for a missing model, strategy,
    peer, SoC or device.

    >>> rows = codl.evaluate(["yolov2"], soc="host", strategies=["cpu", "codl"]).result.rows
    """

    models: opt.ModelsOption = field(default=USUAL_MODELS, kw_only=False)
    strategies: Annotated[
        Sequence[str],
        opt.list_option(
            "--strategies",
            f"Of {{codl.plan.strategies:STRATEGIES}}, {ideal.NAME}; by default {','.join(USUAL)}",
        ),
    ] = USUAL
    peers: Annotated[
        Sequence[str], opt.list_option("--peers", "Other libraries, of {codl.measure.peers:PEERS}")
    ] = ()
    seconds: Annotated[float, opt.time_option("20s")] = 20.0
    budget_s: opt.BudgetOption = None
    cool_down_s: opt.CoolDownOption = LONGEST_S
    hot_c: opt.HotOption = HOT_C

    def run(self) -> EvalRun:
        """Open the target, and measure one model after the other."""
        budget = Budget(self.budget_s)
        asked = self._request()
        described = self.placed(soc_on(self, self.serial))
        peers = with_opencl_all(asked.peers, described)
        check_peers(peers, described)
        asked = replace(asked, peers=tuple(peers), limits=limits_of(described))
        context = self.context_of(described)
        with closing(connect(self.serial, described)) as target:
            how = profiling(target, self.profile)
            context = replace(context, target=target, profiling=how)
            effort = Effort(min_seconds=asked.seconds)
            protocol = {
                "min_rounds": effort.min_rounds,
                "min_seconds": effort.min_seconds,
                "warm": effort.warm,
                "statistic": statistic.NAME,
                "seed": SEED,
                **asdict(asked.limits),
            }
            run = EvalRun(
                asked,
                [find(name) for name in asked.strategies if name != ideal.NAME],
                context,
                environment_of(target, protocol),
                digests_of(context),
                tuple(target.describe().sensors),
            )
            cooling = CoolDown(target.conditions, self.reporter.note, self.hot_c, self.cool_down_s)
            run.run(cooling, budget)
        try:
            run.remember()
        except CodlError as error:  # what was measured is worth more
            self.reporter.warn(f"The verdicts are not kept: {error}")
        return run

    def _request(self) -> EvalRequest:
        """The request of the options; raises `CodlError` for a missing model or strategy."""
        for model in self.models:
            check_is_there(model)
        if not any(name != ideal.NAME for name in self.strategies):
            raise CodlError(f"Name at least one of {', '.join(STRATEGIES)}; got {self.strategies}.")
        for name in self.strategies:
            if name != ideal.NAME:
                find(name)
        return EvalRequest(
            models=tuple(self.models),
            strategies=tuple(dict.fromkeys(self.strategies)),
            peers=tuple(dict.fromkeys(self.peers)),
            batch=self.batch,
            precision=self.precision,
            seconds=self.seconds,
        )


evaluate = function(Evaluate)
