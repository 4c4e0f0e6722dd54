"""`codl eval`: strategies against each other, and other libraries beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType

from codl.api.evaluate import USUAL, Earlier, EvalRun, evaluate, evaluate_again
from codl.cli import options as opt
from codl.cli.base_options import positive
from codl.cli.output import TERMINAL, emit, note
from codl.measure import dataset as datasets
from codl.measure.cool_down import HOT_C
from codl.measure.peers import PEERS
from codl.predict import FOLDER
from codl.strategies import STRATEGIES, ideal

USUAL_NAMES = ",".join(USUAL)
#: Options that are not given with --repro.
OF_THE_FILE = ("models", "strategies", "peers", "seconds", "batch", "precision", "predictor",
               "max_kernel_ms", "gpu_duty")  # fmt: skip
SocOrReproOption = Annotated[
    str | None,
    typer.Option("--soc", help=f"{opt.SOCS}; --repro has its own.", show_default=False),
]
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
ModelsOption = Annotated[
    str, typer.Option("--models", help="Built-in models or .onnx files, separated by commas.")
]
StrategiesOption = Annotated[
    str, typer.Option("--strategies", help=f"Of {', '.join([*STRATEGIES, ideal.NAME])}, by commas.")
]
PeersOption = Annotated[
    str,
    typer.Option(
        "--peers",
        help=f"Other libraries, of {', '.join(PEERS)}, by commas.",
    ),
]
SecondsOption = Annotated[
    float,
    typer.Option("--seconds", callback=positive, help="Measure each model at least this long."),
]
TimelinesOption = Annotated[
    bool,
    typer.Option("--timelines/--no-timelines", help="Keep a profile of every strategy, for plots."),
]


def evaluate_strategies(
    context: typer.Context,
    soc: SocOrReproOption = None,
    serial: opt.SerialOption = "local",
    models: ModelsOption = "yolov2",
    strategies: StrategiesOption = USUAL_NAMES,
    peers: PeersOption = "",
    seconds: SecondsOption = 20,
    precision: opt.PrecisionOption = None,
    predictor: opt.PredictorOption = None,
    max_kernel_ms: opt.LongestOption = None,
    gpu_duty: opt.DutyOption = None,
    budget: opt.RefineOption = opt.REFINE,
    no_profile: opt.NoProfileOption = False,
    within: opt.WithinOption = None,
    batch: opt.BatchOption = None,
    dataset: opt.DatasetsOption = datasets.FOLDER,
    predictors: opt.PredictorsOption = FOLDER,
    with_timelines: TimelinesOption = True,
    governor: opt.GovernorOption = None,
    cool_down: opt.CoolDownOption = opt.COOL_DOWN,
    hot: opt.HotOption = HOT_C,
    repro: ReproOption = None,
    other_environment: OtherEnvironmentOption = False,
    json: opt.JsonOption = False,
    output: opt.OutputOption = None,
) -> None:
    """Compare strategies on models: measured in turns in one run, with outputs checked.

    A turn is several runs in a row. Latencies are of the runs behind its first, which find the
    caches as they left them; the first one finds what others left there, and is shown apart.

    Peers are other libraries (the extra `peers`). Each has a process of its own and all the cores
    that both processors have together. Where the OpenCL device is a CPU, they include
    `opencl-all`: codl's own kernels on all cores.

    Rows carry temperature, clocks and battery, and which processors were throttled. A hot device is
    waited for between models; a battery below 20 % ends the evaluation, with the rows so far;
    so does Ctrl-C. Plans are made, and run, for a GPU that keeps --max-kernel-ms and --gpu-duty;
    peers know of neither. With --within each model has an equal share of the time that is left.

    --repro FILE runs the evaluation of a file of -o again: its models, strategies, peers, plans and
    protocol. It says of each speedup whether it agrees within what both runs have spread, and the
    exit code is 1 where one does not. Where driver, device, clocks, cores, libraries or dataset are
    others, or the model is, nothing is compared; --other-environment goes on with the former.

    [dim]Examples:[/dim]
    codl eval --soc host --serial local --models yolov2,vgg16
    codl eval --soc host --models yolov2 --strategies cpu,gpu --peers ort,ncnn,openvino,mnn
    codl eval --soc host --models yolov2 -o eval.json
    codl eval --soc host --models yolov2,vgg16,bert --within 10m
    codl eval --soc host --models yolov2 --max-kernel-ms 1 --gpu-duty 0.7
    codl eval --repro eval.json
    """
    limit = opt.budget_of(within, "--within")
    how: dict[str, Any] = {
        "budget_s": opt.read_budget(budget),
        "profile": not no_profile,
        "within": limit,
        "governor": governor,
        "cool_down_s": opt.read_seconds(cool_down),
        "hot_c": hot,
        "dataset": dataset,
        "predictors": predictors,
        "reporter": TERMINAL,
    }
    if repro is not None:
        run = evaluate_again(
            _earlier(context, repro),
            soc=soc,
            serial=None if _is_default(context, "serial") else serial,
            other_environment=other_environment,
            **how,
        )
    elif soc is None:
        raise typer.BadParameter("an evaluation wants a SoC.", param_hint="--soc")
    else:
        run = evaluate(
            opt.read_models(models),
            soc=soc,
            serial=serial,
            strategies=_names(strategies),
            peers=_names(peers),
            seconds=seconds,
            batch=batch,
            precision=precision,
            predictor=predictor,
            max_kernel_ms=max_kernel_ms,
            gpu_duty=gpu_duty,
            **how,
        )
    result = run.to_json(with_timelines=with_timelines)
    emit("eval", result, lambda: _tables(run, result), as_json=json, output=output)
    if text := limit.left_out(result["left"], "models"):
        note(text)
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


def _names(text: str) -> tuple[str, ...]:
    """Each once."""
    return tuple(dict.fromkeys(name for name in text.split(",") if name))
