"""`codl eval`: strategies against each other, and other libraries beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from typing import Annotated, Any

import typer
from rich.console import RenderableType

from codl.cli.conditions import COOL_DOWN, CoolDownOption, GovernorOption, HotOption, control
from codl.cli.options import (
    REFINE,
    BatchOption,
    DatasetsOption,
    JsonOption,
    OutputOption,
    PredictorOption,
    PredictorsOption,
    RefineOption,
    SerialOption,
    SocOption,
    read_budget,
    read_models,
)
from codl.cli.output import emit, note
from codl.errors import CodlError, InterruptedCommandError
from codl.ir.results import TimeSpan
from codl.measure import dataset as datasets
from codl.measure.cool_down import HOT_C, low_battery
from codl.measure.interleave import Effort
from codl.measure.peers import PEERS
from codl.predict.names import FOLDER
from codl.strategies import STRATEGIES, Context, Strategy, find, ideal
from codl.strategies.evaluation import evaluate, to_json
from codl.strategies.peers import check as check_peers
from codl.strategies.peers import with_opencl_all
from codl.targets.connect import connect
from codl.targets.detect import load_local

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
    float, typer.Option("--seconds", help="Measure each model at least this long.")
]
TimelinesOption = Annotated[
    bool,
    typer.Option("--timelines/--no-timelines", help="Keep a profile of every strategy, for plots."),
]


def evaluate_strategies(
    soc: SocOption,
    serial: SerialOption = "local",
    models: ModelsOption = "yolov2",
    strategies: StrategiesOption = "cpu,gpu,mulayer,codl-paper,codl,ideal",
    peers: PeersOption = "",
    seconds: SecondsOption = 20,
    predictor: PredictorOption = None,
    budget: RefineOption = REFINE,
    batch: BatchOption = None,
    dataset: DatasetsOption = datasets.FOLDER,
    predictors: PredictorsOption = FOLDER,
    with_timelines: TimelinesOption = True,
    governor: GovernorOption = None,
    cool_down: CoolDownOption = COOL_DOWN,
    hot: HotOption = HOT_C,
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
    so does Ctrl-C.

    [dim]Examples:[/dim]
    codl eval --soc host --serial local --models yolov2,vgg16
    codl eval --soc host --models yolov2 --strategies cpu,gpu --peers ort,ncnn,openvino,mnn
    """
    described = load_local(soc, serial)
    context = Context.of(
        described,
        dataset,
        predictors_folder=predictors,
        predictor=predictor,
        budget_s=read_budget(budget),
        note=note,
    )
    names = _names(strategies)
    known = _strategies(names, strategies)
    others = with_opencl_all(_names(peers), context.soc)
    check_peers(others, context.soc)
    is_interrupted, reason = False, ""
    rows: list[dict[str, Any]] = []
    timelines: list[dict[str, Any]] = []
    with closing(connect(serial, described)) as target:
        sensors = [sensor.name for sensor in target.describe().sensors]
        cooling = control(target, governor, cool_down, hot)
        for model in read_models(models):
            now = target.conditions()
            if reason := low_battery(now):
                break
            cooling.wait(now)
            try:
                results, spans = evaluate(
                    model,
                    known,
                    replace(context, target=target),
                    with_ideal=ideal.NAME in names,
                    peers=others,
                    effort=Effort(min_seconds=seconds),
                    batch=batch,
                )
            except KeyboardInterrupt:
                if not rows:
                    raise
                is_interrupted = True
                break
            rows += to_json(results)
            timelines += _timelines(model, spans) if with_timelines else []
    result: dict[str, Any] = {
        "soc": described.to_json(),
        "serial": serial,
        "batch": batch,
        "energy_sensors": sensors,
        "rows": rows,
        "timelines": timelines,
    }

    def render() -> RenderableType:
        from codl.report.load import eval_result
        from codl.report.tables import eval_table

        return eval_table(eval_result(result))

    emit("eval", result, render, as_json=json, output=output)
    kept = f"{len(rows)} rows of models before that are kept."
    if is_interrupted:
        raise InterruptedCommandError(kept)
    if reason:
        raise CodlError(f"{reason} {kept}")


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _strategies(names: Sequence[str], given: str) -> list[Strategy]:
    """Those that plan: all but the bound."""
    strategies = [find(name) for name in names if name != ideal.NAME]
    if not strategies:
        raise CodlError(f"Name at least one of {', '.join(STRATEGIES)}; got {given!r}.")
    return strategies


def _timelines(model: str, spans: Mapping[str, Sequence[TimeSpan]]) -> list[dict[str, Any]]:
    return [
        {"model": model, "strategy": name, "spans": [asdict(span) for span in own]}
        for name, own in spans.items()
    ]
