"""`codl eval`: strategies against each other, and other libraries beside them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group, RenderableType

from codl.cli import options as opt
from codl.cli.job_options import with_options
from codl.cli.output import TERMINAL, emit, tell
from codl.measure import FOLDER as DATASETS
from codl.measure import HOT_C
from codl.measure.budget import Budget
from codl.predict import FOLDER as PREDICTORS

if TYPE_CHECKING:
    from codl.api.evaluate import Earlier, EvalRun

USUAL_MODELS = ("yolov2",)
#: Options that are not given with --repro.
OF_THE_FILE = ("models", "strategies", "peers", "time", "batch", "precision", "predictor",
               "max_kernel_ms", "gpu_duty")  # fmt: skip
ReproOption = Annotated[
    Path | None,
    typer.Option("--repro", help="Run the evaluation of this file again: does it agree?"),
]
OtherEnvironmentOption = Annotated[
    bool,
    typer.Option(
        "--other-environment",
        help="With --repro: go on where the environment or the dataset is another one.",
    ),
]
PeersOption = Annotated[
    list[str] | None,
    typer.Option(
        "--peers",
        help=f"Other libraries, of {{codl.measure.peers:PEERS}}, {opt.BY_COMMAS}.",
        metavar="A,B",
    ),
]
TimelinesOption = Annotated[
    bool,
    typer.Option("--timelines/--no-timelines", help="Keep a profile of every strategy, for plots."),
]


@dataclass(frozen=True, kw_only=True)
class EvalOptions:
    """What is compared, on which device, and how; or an evaluation to run again."""

    soc: opt.SocOption = ""
    serial: opt.SerialOption = "local"
    models: opt.ModelsOption = None
    strategies: opt.StrategiesOption = None
    peers: PeersOption = None
    time: opt.TimeOption = "20s"
    precision: opt.PrecisionOption = None
    predictor: opt.PredictorOption = None
    max_kernel_ms: opt.LongestOption = None
    gpu_duty: opt.DutyOption = None
    plan_time: opt.PlanTimeOption = None
    no_profile: opt.NoProfileOption = False
    budget: opt.BudgetOption = None
    batch: opt.BatchOption = None
    dataset: opt.DatasetsOption = DATASETS
    predictors: opt.PredictorsOption = PREDICTORS
    governor: opt.GovernorOption = None
    cool_down: opt.CoolDownOption = opt.COOL_DOWN
    hot: opt.HotOption = HOT_C
    repro: ReproOption = None
    other_environment: OtherEnvironmentOption = False

    def run(self, context: typer.Context, limit: Budget) -> EvalRun:
        """Measure; the `context` tells which options were given, as --repro goes with few."""
        from codl.api.evaluate import USUAL, evaluate, evaluate_again

        how: dict[str, Any] = {
            "plan_time_s": opt.read_plan_time(self.plan_time),
            "profile": not self.no_profile,
            "within": limit,
            "governor": self.governor,
            "cool_down_s": opt.read_seconds(self.cool_down),
            "hot_c": self.hot,
            "dataset": self.dataset,
            "predictors": self.predictors,
            "reporter": TERMINAL,
        }
        if self.repro is not None:
            return evaluate_again(
                _earlier(context, self.repro),
                soc=self.soc or None,
                serial=None if _is_default(context, "serial") else self.serial,
                other_environment=self.other_environment,
                **how,
            )
        return evaluate(
            opt.read_models(*(self.models or USUAL_MODELS)),
            soc=self.soc,
            serial=self.serial,
            strategies=opt.names_of(self.strategies) or USUAL,
            peers=opt.names_of(self.peers),
            seconds=opt.read_budget(self.time, "--time"),
            batch=self.batch,
            precision=self.precision,
            predictor=self.predictor,
            max_kernel_ms=self.max_kernel_ms,
            gpu_duty=self.gpu_duty,
            **how,
        )


@with_options
def evaluate_strategies(
    context: typer.Context,
    asked: EvalOptions,
    with_timelines: TimelinesOption = True,
    json: opt.JsonOption = False,
    output: opt.OutputOption = None,
) -> None:
    """Compare strategies on models: measured in turns in one run, with outputs checked.

    By default the model is yolov2, and strategies are those that the paper compares.

    A turn is several runs in a row. The first one starts with caches that others filled, and is
    shown apart; latencies are of the runs behind it.

    Peers are other libraries (the extra `peers`). Each has a process of its own and all the cores
    that both processors have together. Where the OpenCL device is a CPU, they include
    `opencl-all`: codl's own kernels on all cores.

    Rows carry temperature, clocks and battery, and which processors were throttled. A hot device is
    waited for between models; a battery below 20 % ends the evaluation, with the rows so far;
    so does Ctrl-C. Plans are made, and run, for a GPU that keeps --max-kernel-ms and --gpu-duty;
    peers know of neither. With --budget each model has an equal share of the time that is left.

    --repro FILE runs the evaluation of a file of -o again: its models, strategies, peers, plans and
    protocol. It says of each speedup whether it agrees within what both runs have spread, and the
    exit code is 1 where one does not. It refuses if the environment, the dataset or a model
    changed; --other-environment allows all but a changed model.

    [dim]Examples:[/dim]
    codl eval --soc host --serial local --models yolov2,vgg16
    codl eval --soc host --models yolov2 --strategies cpu,gpu --peers ort,ncnn,openvino,mnn
    codl eval --soc host --models yolov2 -o eval.json
    codl eval --soc host --models yolov2,vgg16,bert --budget 10m
    codl eval --soc host --models yolov2 --max-kernel-ms 1 --gpu-duty 0.7
    codl eval --repro eval.json
    """
    limit = opt.budget_of(asked.budget)
    run = asked.run(context, limit)
    result = run.to_json(with_timelines=with_timelines)
    emit("eval", result, lambda: _tables(run, result), as_json=json, output=output)
    if text := limit.left_out(result["left"], "models"):
        tell(text)
    run.check()


def _tables(run: EvalRun, result: dict[str, Any]) -> RenderableType:
    from codl.report.comparability import agreement_content
    from codl.report.load import eval_result
    from codl.report.tables import eval_table

    table = eval_table(eval_result(result))
    if run.earlier is None:
        return table
    return Group(table, agreement_content(run.figures, run.earlier.result.file).to_rich())


def _earlier(context: typer.Context, path: Path) -> Earlier:
    """The evaluation to run again, which says itself what is run."""
    from codl.api.evaluate import Earlier

    for name in OF_THE_FILE:
        if not _is_default(context, name):
            option = name.replace("_", "-")
            raise typer.BadParameter(
                f"--{option} is not given with it: the file says what is run.", param_hint="--repro"
            )
    return Earlier.read(path)


def _is_default(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is None or source.name.startswith("DEFAULT")
