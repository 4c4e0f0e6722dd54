"""`codl eval`: strategies against each other, and other libraries beside them."""

from __future__ import annotations

from contextlib import closing
from dataclasses import astuple, replace
from pathlib import Path
from typing import Annotated

import typer

from codl.cli.base_options import positive
from codl.cli.conditions import COOL_DOWN, CoolDownOption, GovernorOption, HotOption, control
from codl.cli.deployed import RunOptions, context_of
from codl.cli.eval_course import Course, Earlier
from codl.cli.options import (
    REFINE,
    SOCS,
    BatchOption,
    DatasetsOption,
    DutyOption,
    JsonOption,
    LongestOption,
    OutputOption,
    PredictorOption,
    PredictorsOption,
    RefineOption,
    SerialOption,
    WithinOption,
    budget_of,
    read_models,
)
from codl.cli.output import emit, note
from codl.errors import CodlError
from codl.frontend.models import check_is_there
from codl.measure import dataset as datasets
from codl.measure.cool_down import HOT_C
from codl.measure.peers import PEERS
from codl.predict import FOLDER
from codl.records.results import EvalRequest
from codl.runtime.placement import limits_of
from codl.strategies import STRATEGIES, find, ideal
from codl.targets.connect import connect
from codl.targets.detect import load_local

#: Options that are not given with --repro.
OF_THE_FILE = ("models", "strategies", "peers", "seconds", "batch", "predictor", "max_kernel_ms",
               "gpu_duty")  # fmt: skip
SocOrReproOption = Annotated[
    str | None,
    typer.Option("--soc", help=f"{SOCS}; --repro has its own.", show_default=False),
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
    serial: SerialOption = "local",
    models: ModelsOption = "yolov2",
    strategies: StrategiesOption = "cpu,gpu,mulayer,codl-paper,codl,ideal",
    peers: PeersOption = "",
    seconds: SecondsOption = 20,
    predictor: PredictorOption = None,
    max_kernel_ms: LongestOption = None,
    gpu_duty: DutyOption = None,
    budget: RefineOption = REFINE,
    within: WithinOption = None,
    batch: BatchOption = None,
    dataset: DatasetsOption = datasets.FOLDER,
    predictors: PredictorsOption = FOLDER,
    with_timelines: TimelinesOption = True,
    governor: GovernorOption = None,
    cool_down: CoolDownOption = COOL_DOWN,
    hot: HotOption = HOT_C,
    repro: ReproOption = None,
    other_environment: OtherEnvironmentOption = False,
    json: JsonOption = False,
    output: OutputOption = None,
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
    earlier = None if repro is None else _earlier(context, repro)
    wanted = RunOptions(max_kernel_ms=max_kernel_ms, gpu_duty=gpu_duty)
    asked = earlier.asked if earlier else _asked(models, strategies, peers, batch, seconds)
    at = earlier.result.serial if earlier and _is_default(context, "serial") else serial
    described, limit = load_local(_soc_of(soc, earlier), at), budget_of(within, "--within")
    if earlier:
        wanted = RunOptions(None, None, None, None, *astuple(asked.limits))
    described = wanted.applied(described)
    asked = replace(asked, limits=limits_of(described))
    planning = context_of(described, dataset, predictors, predictor, budget=budget)
    with closing(connect(at, described)) as target:
        course = Course.of(
            asked, replace(planning, target=target), earlier, despite=other_environment
        )
        course.run(control(target, governor, cool_down, hot), limit)
    result = course.result(with_timelines=with_timelines)
    emit("eval", result, lambda: course.tables(result), as_json=json, output=output)
    if text := limit.left_out(result["left"], "models"):
        note(text)
    course.check()


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


def _soc_of(soc: str | None, earlier: Earlier | None) -> str:
    if soc is None and earlier is None:
        raise typer.BadParameter("an evaluation wants a SoC.", param_hint="--soc")
    return soc or (earlier.result.soc.name if earlier else "")


def _asked(
    models: str, strategies: str, peers: str, batch: int | None, seconds: float
) -> EvalRequest:
    """What is asked for; raises where a model, a strategy or a peer is not there."""
    asked_models, asked_strategies = read_models(models), _names(strategies)
    for model in asked_models:
        check_is_there(model)
    if not any(name != ideal.NAME for name in asked_strategies):
        raise CodlError(f"Name at least one of {', '.join(STRATEGIES)}; got {strategies!r}.")
    for name in asked_strategies:
        if name != ideal.NAME:
            find(name)
    return EvalRequest(
        models=tuple(asked_models),
        strategies=asked_strategies,
        peers=_names(peers),
        batch=batch,
        seconds=seconds,
    )


def _names(text: str) -> tuple[str, ...]:
    """Each once."""
    return tuple(dict.fromkeys(name for name in text.split(",") if name))
