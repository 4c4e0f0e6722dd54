"""`codl.evaluate`: strategies against each other on models, and what an earlier file says of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, astuple, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any

from codl.errors import CodlError, InvalidFileError, MismatchError
from codl.evaluation.interleaved import (
    Evaluation,
    check_peers,
    failed_row,
    to_json,
    with_opencl_all,
)
from codl.evaluation.interleaved import evaluate as evaluate_model
from codl.frontend.models import check_is_there
from codl.ir import Network
from codl.ir.environment import ALL, Difference, Environment, check_alike, differences
from codl.ir.plan import Plan, read_plan
from codl.jobs import options as opt
from codl.jobs.job import Job, Reporter, function
from codl.jobs.model import RunOptions, context_of, controlled, profiling
from codl.jobs.options import HERE, option
from codl.measure import FOLDER as DATASETS
from codl.measure import HOT_C, LONGEST_S, SEED
from codl.measure.budget import Budget
from codl.measure.cool_down import CoolDown, low_battery
from codl.measure.dataset import dataset_digest
from codl.measure.timing import Effort
from codl.predict import FOLDER as PREDICTORS
from codl.records import statistic
from codl.records.results import Conditions, Digests, EvalRequest
from codl.report.comparability import SpeedupComparison, compare
from codl.report.load import eval_result, load_result
from codl.report.results import SINGLES, EvalResult
from codl.runtime.placement import limits_of, require_local
from codl.strategies import STRATEGIES, Context, Strategy, find, ideal
from codl.targets.connect import connect
from codl.targets.detect import load_local
from codl.targets.environment import environment_of, under

#: The models and the strategies that are compared by default.
USUAL_MODELS = ("yolov2",)
USUAL = ("cpu", "gpu", "mulayer", "codl-paper", "codl", ideal.NAME)
WRITTEN = "`codl eval -o FILE` of this version writes one that has it."
DESPITE = "--other-environment runs it again all the same."
NOW = "this machine now"
#: What is known before anything is measured.
SETTINGS = tuple(key for key in ALL if key != "clocks_mhz")


#: Fields that a file to run again has, and their options.
OF_THE_FILE = {
    "models": "--models",
    "strategies": "--strategies",
    "peers": "--peers",
    "seconds": "--time",
    "batch": "--batch",
    "precision": "--precision",
    "predictor": "--predictor",
    "max_kernel_ms": "--max-kernel-ms",
    "gpu_duty": "--gpu-duty",
}
SerialOption = Annotated[
    str | None,
    option(
        "--serial",
        "--on",
        help=f"The device: {opt.SERIALS}. By default {HERE}, or the device of --repro.",
        read=opt.known_serial,
    ),
]
StrategiesOption = Annotated[
    Sequence[str],
    option(
        "--strategies",
        help=f"Of {{codl.strategies:STRATEGIES}}, and {ideal.NAME}, {opt.BY_COMMAS}; by default "
        f"{','.join(USUAL)}.",
        read=opt.names_of,
        many=True,
        metavar="A,B",
    ),
]
PeersOption = Annotated[
    Sequence[str],
    option(
        "--peers",
        help=f"Other libraries, of {{codl.measure.peers:PEERS}}, {opt.BY_COMMAS}.",
        read=opt.names_of,
        many=True,
        metavar="A,B",
    ),
]
ReproOption = Annotated[
    Path | None, option("--repro", help="Run the evaluation of this file again: does it agree?")
]
OtherEnvironmentOption = Annotated[
    bool,
    option(
        "--other-environment",
        help="With --repro: go on where the environment or the dataset is another one.",
    ),
]


@dataclass(frozen=True)
class Earlier:
    """An evaluation that can be run again; `plans` are those that ran, by model and strategy."""

    path: Path
    result: EvalResult
    asked: EvalRequest
    digests: Digests
    environment: Environment
    plans: Mapping[tuple[str, str], Plan]

    @classmethod
    def read(cls, path: Path) -> Earlier:
        """Read a file of `codl eval`; raises `InvalidFileError` where it cannot be run again."""
        result = load_result(path)
        if not isinstance(result, EvalResult):
            raise InvalidFileError(path, f"holds a result of codl {result.command}.", fix=WRITTEN)
        if result.asked is None or result.digests is None or result.environment is None:
            problem = "does not say what was asked, of what, or in which environment."
            raise InvalidFileError(path, problem, fix=WRITTEN)
        for model in result.models:
            if not any(row.strategy in SINGLES and row.latency_ms for row in result.of(model)):
                problem = f"of {model} there is no processor alone, which others are held against."
                raise InvalidFileError(path, problem, fix="Evaluate with --strategies cpu,gpu,...")
        plans = {
            (row.model, row.strategy): _plan(path, result, row.plan)
            for row in result.rows
            if row.plan
        }
        return cls(path, result, result.asked, result.digests, result.environment, plans)

    def strategies(self) -> list[Strategy]:
        """Those of the file, each with the plan that ran."""
        names = [name for name in self.asked.strategies if name != ideal.NAME]
        return [self._strategy(name) for name in names]

    def _strategy(self, name: str) -> Strategy:
        def plan(network: Network, context: Context) -> Plan:
            plans = [
                candidate for (_, strategy), candidate in self.plans.items() if strategy == name
            ]
            same = [candidate for candidate in plans if candidate.digest == network.digest]
            if not same:
                raise CodlError(f"{self.path} has no plan of {name} for {network.name!r}.")
            same[0].check(network, context.soc.name)
            return replace(same[0], strategy=name)

        return Strategy(name, plan)

    def check_before(
        self, environment: Environment | None, digests: Digests, *, despite: Reporter | None
    ) -> tuple[Difference, ...]:
        """What is other than it was before anything is measured.

        Raises `MismatchError` with it, unless it goes on `despite` it and somebody hears of it.
        """
        if environment is None:
            raise MismatchError("An evaluation is run again on a machine, and this is a replay.")
        changes = differences(self.environment, environment, SETTINGS)
        changes += tuple(
            Difference(f"digest of the {key}", was, now)
            for key in ("dataset", "tuning")
            if (was := getattr(self.digests, key)) != (now := getattr(digests, key))
        )
        return self._check_alike(changes, despite)

    def check_clocks(
        self, environment: Environment, *, despite: Reporter | None
    ) -> tuple[Difference, ...]:
        """Clocks that were others meanwhile; raises as `check_before`."""
        return self._check_alike(
            differences(self.environment, environment, ("clocks_mhz",)), despite
        )

    def _check_alike(
        self, changes: tuple[Difference, ...], despite: Reporter | None
    ) -> tuple[Difference, ...]:
        try:
            check_alike(changes, self.path, NOW, fix=DESPITE)
        except MismatchError as error:
            if despite is None:
                raise
            despite.warn(str(error).removesuffix(f" {DESPITE}"))
        return changes

    def check_model(self, model: str, digest: str) -> None:
        """Raise `MismatchError` for a model that is another one now."""
        was = self.digests.models.get(model, "")
        if was != digest:
            raise MismatchError(
                f"{model} is another model than in {self.path}: its structure and weights have the "
                f"digest {digest}, there {was or 'none'}."
            )

    def check_figures(self, figures: tuple[SpeedupComparison, ...]) -> None:
        """Raise `CodlError` where one does not agree."""
        wrong = [f"{figure.strategy} on {figure.model}" for figure in figures if not figure.agrees]
        if wrong:
            raise CodlError(
                f"{len(wrong)} of {len(figures)} figures of {self.path} do not agree with this "
                f"run: {', '.join(wrong)}."
            )

    def figures(self, now: EvalResult) -> tuple[SpeedupComparison, ...]:
        return compare(self.result, now)

    def to_json(
        self, figures: tuple[SpeedupComparison, ...], changes: tuple[Difference, ...]
    ) -> dict[str, Any]:
        """What --json holds of it."""
        return {
            "file": str(self.path),
            "agrees": all(figure.agrees for figure in figures),
            "figures": [asdict(figure) for figure in figures],
            "differences": [asdict(change) for change in changes],
        }


def _plan(path: Path, result: EvalResult, fingerprint: str) -> Plan:
    """A plan of a file; raises `InvalidFileError` where it is not there, or another one."""
    where = f"plans.{fingerprint}"
    if fingerprint not in result.plans:
        raise InvalidFileError(path, "there is no such plan.", where=where, fix=WRITTEN)
    plan = read_plan(dict(result.plans[fingerprint]), path)
    if plan.fingerprint != fingerprint:
        problem = f"holds a plan of another fingerprint, {plan.fingerprint}."
        raise InvalidFileError(path, problem, where=where)
    return plan


@dataclass
class EvalRun:
    """An evaluation on the target of a context, and its rows so far.

    `differences` are between the environment and that of the evaluation that is run again;
    `despite` hears of them where it goes on all the same.
    """

    asked: EvalRequest
    strategies: Sequence[Strategy]
    context: Context
    environment: Environment | None
    digests: Digests
    sensors: tuple[str, ...]
    earlier: Earlier | None = None
    despite: Reporter | None = None
    differences: tuple[Difference, ...] = ()
    done: list[Evaluation] = field(default_factory=list)
    #: Why models could not be evaluated, by model: they have failed rows, and no digest.
    failed: dict[str, str] = field(default_factory=dict)
    figures: tuple[SpeedupComparison, ...] = ()
    budget: Budget = field(default_factory=Budget)
    #: Why it ended early, where that is the battery.
    reason: str = ""

    @classmethod
    def of(
        cls,
        asked: EvalRequest,
        context: Context,
        earlier: Earlier | None = None,
        despite: Reporter | None = None,
    ) -> EvalRun:
        """Looks at the target; raises `MismatchError` where an earlier evaluation was elsewhere."""
        target = context.device
        peers = with_opencl_all(asked.peers, context.soc)
        check_peers(peers, context.soc)
        names = [name for name in asked.strategies if name != ideal.NAME]
        effort = Effort(min_seconds=asked.seconds)
        protocol = {
            "min_rounds": effort.min_rounds,
            "min_seconds": effort.min_seconds,
            "warm": effort.warm,
            "statistic": statistic.NAME,
            "seed": SEED,
            **(asdict(asked.limits) if asked.limits else {}),
        }
        run = cls(
            asked=replace(asked, peers=tuple(peers)),
            strategies=earlier.strategies() if earlier else [find(name) for name in names],
            context=context,
            environment=environment_of(target, protocol),
            digests=Digests(
                dataset=dataset_digest(context.dataset), tuning=context.tuning.fingerprint
            ),
            sensors=tuple(sensor.name for sensor in target.describe().sensors),
            earlier=earlier,
            despite=despite,
        )
        if earlier:
            run.differences = earlier.check_before(run.environment, run.digests, despite=despite)
        return run

    def run(self, cooling: CoolDown, budget: Budget | None = None) -> None:
        """Until all models are measured, the battery is low, the time is over, or Ctrl-C ends it.

        Each model has its share of the budget. What was measured before an error is kept, whatever
        that is: a model that fails has a row with the reason for each that was asked for.
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
                    self.done.append(evaluation := self._measured(model, share))
                    if evaluation.is_cut_short:
                        self.budget.ended = "interrupted"
                        return
                except Exception as error:
                    is_known = isinstance(error, CodlError)
                    defect = "" if is_known else f"a defect of codl: {type(error).__name__}: "
                    self.failed[model] = reason = f"{defect}{error}"
                    names = [*self.asked.strategies, *self.asked.peers]
                    rows = [failed_row(model, name, reason) for name in names]
                    self.done.append(Evaluation(model, "", rows, {}, {}))

    def _measured(self, model: str, budget: Budget) -> Evaluation:
        evaluation = evaluate_model(
            model,
            self.strategies,
            self.context,
            with_ideal=ideal.NAME in self.asked.strategies,
            peers=self.asked.peers,
            effort=Effort(min_seconds=self.asked.seconds),
            batch=self.asked.batch,
            budget=budget,
        )
        if self.earlier:
            self.earlier.check_model(model, evaluation.digest)
        return evaluation

    @property
    def result(self) -> EvalResult:
        """What was measured so far, typed; `codl.results` makes frames of its files."""
        return eval_result(self.to_json())

    @property
    def incomplete(self) -> str:
        """A sentence about what was not measured; empty where everything was."""
        cut = [evaluation.model for evaluation in self.done if evaluation.is_cut_short]
        left = self.asked.models[len(self.done) :]
        parts = [
            *(f"{model} was measured for a shorter time" for model in cut),
            *([f"{', '.join(left)} not measured"] if left else []),
        ]
        return f"The evaluation was ended early: {'; '.join(parts)}." if parts else ""

    def to_json(self, *, with_timelines: bool = True) -> dict[str, Any]:
        """What `codl eval --json` holds."""
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
            "rows": to_json(rows),
            "timelines": timelines if with_timelines else [],
            "plans": {name: plan.to_json() for name, plan in plans.items()},
        }
        if self.earlier:
            self.figures = self.earlier.figures(eval_result(result))
            result["repro"] = self.earlier.to_json(self.figures, self.differences)
        return result

    def check(self) -> None:
        """Raise the `CodlError` of an end that came early, or of figures that do not agree."""
        rows = sum(len(evaluation.rows) for evaluation in self.done)
        kept = f"{rows} rows of models before that are kept."
        self.budget.check(kept)
        if self.reason:
            raise CodlError(f"{self.reason} {kept}")
        if self.failed:
            reasons = "\n".join(f"{model}: {reason}" for model, reason in self.failed.items())
            raise CodlError(f"{len(self.failed)} of {len(self.done)} models failed:\n{reasons}")
        if self.earlier and self.environment is not None:
            self.earlier.check_clocks(self.environment, despite=self.despite)
            self.earlier.check_figures(self.figures)


@dataclass(frozen=True, kw_only=True)
class Evaluate(Job):
    """Compare strategies on models, and other libraries, in turns in one run.

    `seconds` is the least time for each model, `plan_time_s` how long a strategy runs plans, and
    `budget_s` is for all together. A model that fails has rows that say why; `check` of what is
    returned raises `CodlError` for those, and for an end that came early. `repro` is the file of an
    evaluation that is run again: its models, strategies, peers, plans and protocol. Raises
    `CodlError` where a model, strategy, peer, SoC or device is not there, and `MismatchError` where
    the environment or the dataset of `repro` is another one.

    >>> rows = codl.evaluate(["yolov2"], soc="host", strategies=["cpu", "codl"]).result.rows
    """

    models: opt.ModelsOption = field(default=USUAL_MODELS, kw_only=False)
    soc: opt.SocOption = "host"
    serial: SerialOption = None
    strategies: StrategiesOption = USUAL
    peers: PeersOption = ()
    seconds: Annotated[float, opt.time_option("20s")] = 20.0
    precision: opt.PrecisionOption = None
    predictor: opt.PredictorOption = None
    max_kernel_ms: opt.LongestOption = None
    gpu_duty: opt.DutyOption = None
    plan_time_s: opt.PlanTimeOption = None
    no_profile: opt.NoProfileOption = False
    budget_s: opt.BudgetOption = None
    batch: opt.BatchOption = None
    dataset: opt.DatasetsOption = DATASETS
    predictors: opt.PredictorsOption = PREDICTORS
    governor: opt.GovernorOption = None
    cool_down_s: opt.CoolDownOption = LONGEST_S
    hot_c: opt.HotOption = HOT_C
    repro: ReproOption = None
    other_environment: OtherEnvironmentOption = False

    def __post_init__(self) -> None:
        """Raise `OptionError` for an option that the file of `repro` has, too."""
        super().__post_init__()
        for each in fields(self):
            if self.repro and each.name in OF_THE_FILE and getattr(self, each.name) != each.default:
                option = OF_THE_FILE[each.name]
                text = f"{option} is not given with it: the file says what is run."
                raise opt.OptionError(text, "--repro")

    def run(self) -> EvalRun:
        """Open the target, and measure one model after the other."""
        budget = Budget(self.budget_s)
        earlier = None if self.repro is None else Earlier.read(self.repro)
        asked = self._request() if earlier is None else earlier.asked
        serial, soc, limits = self.serial or HERE, self.soc, self._limits()
        if earlier is not None:
            serial, soc = self.serial or earlier.result.serial, self.soc or earlier.result.soc.name
            limits = RunOptions(None, None, None, None, *astuple(asked.limits))
        described = limits.applied(load_local(soc, serial, asked.precision), self.reporter)
        asked = replace(asked, limits=limits_of(described))
        context = context_of(
            described,
            self.dataset,
            self.predictors,
            self.predictor,
            plan_time_s=self.plan_time_s,
            reporter=self.reporter,
        )
        with closing(connect(serial, described)) as target:
            how = profiling(target, not self.no_profile)
            context = replace(context, target=target, profiling=how)
            despite = self.reporter if self.other_environment else None
            run = EvalRun.of(asked, context, earlier, despite)
            cooling = controlled(target, self.governor, self.cool_down_s, self.hot_c, self.reporter)
            run.run(cooling, budget)
        return run

    def _limits(self) -> RunOptions:
        return RunOptions(max_kernel_ms=self.max_kernel_ms, gpu_duty=self.gpu_duty)

    def _request(self) -> EvalRequest:
        """What is asked for; raises `CodlError` for a model or a strategy that is not there."""
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
