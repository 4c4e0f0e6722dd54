"""`codl eval`: strategies against each other, and other libraries beside them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from codl.cli.output import JsonOutput, Output, finite, tell
from codl.errors import CodlError
from codl.jobs.evaluate import Evaluate
from codl.jobs.explain import VIEWER, Explain, Trace
from codl.jobs.options import option
from codl.jobs.validate import Validate
from codl.report.results import EvalResult, ExplainResult, ValidateResult, parse_as
from codl.report.tables import validation_content, validation_findings
from codl.validate.remedy import Remedy


def evaluate_strategies(
    job: Evaluate,
    out: Output,
    with_timelines: Annotated[
        bool, option("--timelines/--no-timelines", help="Keep a profile of every strategy.")
    ] = True,
    snippet: Annotated[
        bool,
        option("--snippet", help="Print the lines of Python that run what each verdict names."),
    ] = False,
) -> None:
    """Without options it compares the paper's strategies on yolov2. A turn is several consecutive
    runs. Its first run, with caches that others filled, is reported separately.

    Peers are other libraries (the extra `peers`), each in its own process, on the cores of both
    processors. Where the OpenCL device is a CPU, they include `opencl-all`: codl's kernels on all
    cores.

    Rows have temperature, clocks, battery and throttling. Hot devices get pauses between models.
    Ctrl-C or a battery below 20 % end the run; rows so far are kept. --budget is shared equally
    among the models.

    It ends with what to use for each model, be it codl or another library; `codl models` shows
    that, too.

    [dim]Examples:[/dim]
    codl eval --soc host --serial local --models yolov2,vgg16
    codl eval --soc host --models yolov2 --strategies cpu,gpu --peers ort,ncnn,openvino,mnn
    codl eval --soc host --models yolov2 --peers ort,openvino --snippet
    codl eval --soc host --models yolov2,vgg16,bert --budget 10m
    """
    run = job.run()
    result = run.to_json(with_timelines=with_timelines)
    out.emit("eval", result, lambda: _tables(result, snippet))
    if text := run.budget.left_out(result["left"], "models"):
        tell(text)
    run.check()


def _tables(result: dict[str, Any], with_snippet: bool) -> RenderableType:
    """The table, and the verdicts."""
    from codl.report.tables import eval_content

    parts: list[RenderableType] = [eval_content(parse_as(EvalResult, result))]
    for verdict in result["verdicts"]:
        parts.append(Text(verdict["sentence"], "bold"))
        if with_snippet and verdict["snippet"]:
            parts.append(Text(f"\n{verdict['snippet']}"))
    return Group(*parts)


def validate_plan(job: Validate, out: Output) -> None:
    """Each part of an op runs alone in its planned kernel variant, on the reference's inputs, so
    errors do not add up. Then the whole plan runs, and accumulated errors are shown layer by layer.
    Without predictors and --plan all ops are checked on the GPU, or with --strategy cpu on the CPU.

    If something is wrong, codl searches the smallest change that corrects it (`fallback`): another
    variant, float32, or the other processor. --write-plan saves it. The exit code is
    1 if there is none, if --strict forbids it, or if --budget ended before all checks. Without a
    budget the search takes at most two minutes.

    [dim]Examples:[/dim]
    codl validate yolov2 --soc host
    codl validate deploy.yaml --soc host --inputs arrays --budget 10m
    codl validate yolov2 --soc host --precision half --write-plan half.json
    codl validate model.onnx --soc host --plan plan.json --inputs in.npz --json
    """
    result, validation, remedy = job.run()

    def render() -> Group:
        checked = parse_as(ValidateResult, finite(result))
        lines = (*validation_findings(checked), *_sample_lines(result), *_remedy_lines(remedy))
        return Group(validation_content(checked), *lines)

    out.emit("validate", result, render)
    if job.strict and validation.whole.refused:
        raise CodlError(f"--strict: {'; '.join(map(str, validation.whole.refused))}")
    if validation.left or (validation.is_wrong and not (remedy and remedy.ok)):
        raise typer.Exit(1)


def _sample_lines(result: Mapping[str, Any]) -> list[str]:
    """Lines on how often the largest outputs of the samples agree with the reference's."""
    classes, lowest = result["agreement"], result["lowest"]
    if classes is None:
        return []
    return [
        f"Of {classes['samples']} samples the largest value is the reference's in "
        f"{classes['top1']:.1%}, and the reference's is among the five largest in "
        f"{classes['top5']:.1%}; the lowest cosine is {lowest['cosine']:.7f}, of {lowest['file']}."
    ]


def _remedy_lines(remedy: Remedy | None) -> list[str]:
    """What stays wrong with the fallbacks, and the outputs with them."""
    if remedy is None:
        return []
    lines = [
        f"Nothing was found that stands in for {check.part.label}."
        if check.is_reached
        else f"{check.part.label} with the fallbacks was not reached in time."
        for check in remedy.unmet
    ]
    if remedy.whole is None:
        return [*lines, "The plan does not run with it."]
    right = "right" if remedy.is_right else "still wrong"
    return [
        *lines,
        f"With that the outputs are {right}: cosine {remedy.whole.cosine:.7f}, max_rel_err "
        f"{remedy.whole.max_rel_err:.2e}, the best of {remedy.tried} plans that ran.",
    ]


#: The ops left whole that would save most.
MOST_WHOLE = 10


def explain_model(job: Explain, out: Output) -> None:
    """Terms add up: each is the difference of two totals, for the model and for every chain; a
    negative term is a saving. docs/concepts/explain.md defines them. --predicted needs no device;
    otherwise the plan runs on --serial. For every op on one processor it shows what splitting would
    save.

    [dim]Examples:[/dim]
    codl explain yolov2 --soc epyc2 --predicted
    codl explain yolov2 --soc host --plan plan.json -o explain.json
    codl explain vgg16 --soc host --strategy codl-paper --json
    """
    result = job.run()

    def render() -> Group:
        from codl.report.waterfalls import contents

        checked = parse_as(ExplainResult, result)
        return Group(*contents(checked, ops=MOST_WHOLE))

    out.emit("explain", result, render)


def trace_model(job: Trace, out: JsonOutput) -> None:
    """Tracks are the CPU, the GPU's queue, transfers and waits; counters show temperature, clocks
    and power. The predicted timeline is a second process. --predicted needs no device.

    [dim]Examples:[/dim]
    codl trace yolov2 --soc epyc2 --predicted -o yolov2.pftrace
    codl trace yolov2 --soc host -o yolov2.pftrace
    codl trace model.onnx --soc host --plan plan.json --runs 20 --json
    """
    result = job.run()
    text = (
        f"{result['model']} by {result['strategy']} on {result['soc']}, {result['runs']} "
        f"inferences: {result['bytes'] / 1e3:.0f} kB in {result['file']}, for {VIEWER}"
    )
    out.emit("trace", result, lambda: text)
