"""`codl eval`: strategies against each other, and other libraries beside them."""

from __future__ import annotations

from typing import Annotated, Any

from rich.console import Group, RenderableType

from codl.cli.output import JsonOption, OutputOption, emit, tell
from codl.jobs.evaluate import EvalRun, Evaluate
from codl.jobs.options import option
from codl.report.comparability import agreement_content
from codl.report.load import eval_result

TimelinesOption = Annotated[
    bool,
    option("--timelines/--no-timelines", help="Keep a profile of every strategy, for plots."),
]


def evaluate_strategies(
    job: Evaluate,
    with_timelines: TimelinesOption = True,
    json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """By default the model is yolov2, and strategies are those that the paper compares.

    A turn is several runs in a row. The first one starts with caches that others filled, and is
    shown apart; latencies are of the runs behind it.

    Peers are other libraries (the extra `peers`). Each has a process of its own and all the cores
    that both processors have together. Where the OpenCL device is a CPU, they include
    `opencl-all`: codl's own kernels on all cores.

    Rows carry temperature, clocks and battery, and which processors were throttled. A hot device is
    waited for between models; a battery below 20 % ends the evaluation, with the rows so far.
    So does Ctrl-C: -o then has what was measured, and says that it is incomplete. Plans are made,
    and run, for a GPU that keeps --max-kernel-ms and --gpu-duty; peers know of neither. With
    --budget each model has an equal share of the time that is left.

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
    run = job.run()
    result = run.to_json(with_timelines=with_timelines)
    emit("eval", result, lambda: _tables(run, result), as_json=json, output=output)
    if text := run.budget.left_out(result["left"], "models"):
        tell(text)
    run.check()


def _tables(run: EvalRun, result: dict[str, Any]) -> RenderableType:
    from codl.report.tables import eval_table

    table = eval_table(eval_result(result))
    if run.earlier is None:
        return table
    return Group(table, agreement_content(run.figures, run.earlier.result.file).to_rich())
