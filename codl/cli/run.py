"""`codl run`: a model, or a bundle, by one plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group

from codl import files
from codl.cli import options as opt
from codl.cli.job_options import JobOptions, with_options
from codl.cli.output import emit, note, warn
from codl.cli.trace import trace_file

if TYPE_CHECKING:
    from codl.api.job import Job

NPZ = ".npz"
#: A run that takes twice its prediction is worth a word.
FAR_OFF = 2.0
ModelOrBundle = Annotated[str, typer.Argument(help=f"{opt.MODELS}, or a bundle (.codl).")]
InputsOption = Annotated[
    Path | None, typer.Option("--inputs", help="Inputs by name; seeded random ones by default.")
]


def _arrays_file(path: Path | None) -> Path | None:
    if path is not None and path.suffix != NPZ:
        raise typer.BadParameter(f"outputs go to an {NPZ} file, got {path}", param_hint="--outputs")
    return opt.writable(path)


OutputsOption = Annotated[
    Path | None,
    typer.Option("--outputs", help="Where outputs go, an .npz file.", callback=_arrays_file),
]
AdaptOption = Annotated[
    bool,
    typer.Option(
        "--adapt/--no-adapt",
        help="Change to a balanced plan where one processor becomes slower or faster. Both plans "
        "are in memory while they are compared. As many inferences as --rounds come before those "
        "that are timed.",
    ),
]
TrustOption = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Load a bundle though it was not written by this user on this machine: it may do "
        "anything.",
    ),
]
StrictOption = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="Fall back on nothing: a kernel or a GPU that fails is an error.",
    ),
]
RoundsOption = Annotated[
    int, typer.Option("--rounds", min=1, max=opt.MOST_ROUNDS, help="Timed runs, in a row.")
]


TraceOption = Annotated[
    Path | None,
    typer.Option(
        "--trace",
        metavar="FILE",
        help="Profile it some times more, and write a trace for Perfetto, as `codl trace` does.",
        callback=trace_file,
    ),
]


@dataclass(frozen=True, kw_only=True)
class RunJobOptions(JobOptions):
    """Of a bundle too, and with what holds for this run alone."""

    model: ModelOrBundle
    threads: opt.ThreadsOption = None
    cpu_affinity: opt.AffinityOption = None
    gpu_performance: opt.PerformanceOption = None
    gpu_priority: opt.PriorityOption = None
    max_kernel_ms: opt.LongestOption = None
    gpu_duty: opt.DutyOption = None

    def job(self, **more: Any) -> Job:
        from codl.api.job import RunOptions

        options = {name: getattr(self, name) for name in RunOptions.__dataclass_fields__}
        return super().job(options=RunOptions(**options), **more)


@with_options
def run_model(
    asked: RunJobOptions,
    inputs: InputsOption = None,
    outputs: OutputsOption = None,
    rounds: RoundsOption = 20,
    adapt: AdaptOption = False,
    every: opt.PlacementOption = False,
    trust: TrustOption = False,
    check: opt.CheckOption = True,
    strict: StrictOption = False,
    trace: TraceOption = None,
    json: opt.JsonOption = False,
    output: opt.OutputOption = None,
) -> None:
    """Run a model by a plan or a strategy, or a bundle, and print its latency.

    Latency is over back-to-back runs after two warm-ups.

    --plan and --strategy override what a deployment file says. --threads, --cpu-affinity,
    --gpu-performance and --gpu-priority hold for this run alone; write them to the SoC file to
    measure and plan with them too. --max-kernel-ms and --gpu-duty leave the GPU to the interface in
    between, and hold for the plan that is made here too.

    First, its outputs are compared with ONNX Runtime's, once for each model, plan and driver. Where
    they are wrong, the op at fault runs in another kernel; where nothing helps, it is an error.
    `codl validate` tells more; --no-check leaves it out.

    Where a kernel does not build or run, another one stands in. Where the GPU fails later, the CPU
    does the inference again, and the rest. Both are told; --strict makes them errors. With --serial
    process that holds of drivers that crash or hang, too.

    [dim]Examples:[/dim]
    codl run yolov2 --soc host --inputs in.npz --outputs out.npz
    codl run yolov2.codl --inputs in.npz --outputs out.npz
    codl run yolov2 --soc host --adapt --rounds 500 --json
    codl run yolov2 --soc host --serial process --strict
    codl run deploy.yaml#detector --soc host --threads 2 --cpu-affinity big --gpu-priority low
    codl run yolov2 --soc host --max-kernel-ms 1 --gpu-duty 0.7
    codl run yolov2 --soc host --trace yolov2.pftrace
    """
    from codl.api.run import RunHow, run
    from codl.cli.plan_tables import op_placement_table

    how = RunHow(
        rounds=rounds,
        inputs=inputs,
        adapts=adapt,
        trusted=trust,
        check=check,
        strict=strict,
        trace=trace,
    )
    result, done = run(asked.job(), how)
    if outputs is not None:
        _write(outputs, done.outputs)

    def render() -> Group:
        return Group(op_placement_table(done.placed, "measured", every=every), _summary(result))

    emit("run", result, render, as_json=json, output=output)
    _warn_of_doubts(result)
    _warn_of_prediction(result)
    _warn_of_no_numbers(done.outputs)


def _write(file: Path, outputs: Mapping[str, Any]) -> None:
    import numpy as np

    with files.writing(file) as partial, partial.open("wb") as opened:
        np.savez(opened, **outputs)
    note(f"Wrote {file}")


def _summary(result: Mapping[str, Any]) -> str:
    latency_ms = "{p20:.2f} ms (20th percentile; median {median:.2f}, p80 {p80:.2f}, {runs} runs)"
    predicted_ms = result["predicted_ms"]
    predicted = "nothing" if predicted_ms is None else f"{predicted_ms:.2f} ms"
    return (
        f"{result['model']} by {result['strategy']} on {result['soc']}: "
        f"{latency_ms.format(**result['latency_ms'])}, {predicted} predicted, "
        f"data sharing {result['data_sharing_ms']:.2f} ms, measured{_changed(result['adaptation'])}"
        f"{_limited(result['limited'])}"
    )


def _warn_of_doubts(result: Mapping[str, Any]) -> None:
    """Where the 20th percentile hides what most runs took."""
    if result["doubts"]:
        warn(
            f"Doubtful: {'; '.join(result['doubts'])}. `codl doctor` looks at the machine; "
            "measure again when nothing else runs."
        )


def _warn_of_prediction(result: Mapping[str, Any]) -> None:
    """Where predictions are far off, so may the plan be."""
    predicted_ms, found_ms = result["predicted_ms"], result["latency_ms"]["p20"]
    if predicted_ms and found_ms > FAR_OFF * predicted_ms:
        warn(
            f"It takes {found_ms / predicted_ms:.1f} times what was predicted, so another plan may "
            "be faster: `codl explain` says where the time goes."
        )


def _warn_of_no_numbers(outputs: Mapping[str, Any]) -> None:
    """Where a weight or an input is NaN or too large, so may everything behind it be."""
    import numpy as np

    for name, values in outputs.items():
        if values.size and not np.isfinite(values).any():
            warn(
                f"The output {name!r} has no number: all {values.size:,} values are NaN or "
                "infinite. Look at the weights and the inputs of the model."
            )


def _limited(limited: Mapping[str, Any] | None) -> str:
    """How the GPU's limits were kept, for people."""
    if limited is None:
        return ""
    text = (
        f"; {limited['launches']} kernels in {limited['enqueued']} launches, the longest "
        f"{limited['longest_ms']:.2f} ms ({limited['longest_kernel']})"
    )
    if too_long := limited["too_long"]:
        text += f", {len(too_long)} above the limit: {too_long[0]['reason']}"
    return text


def _changed(adaptation: Mapping[str, Any] | None) -> str:
    """How the plan changed, for people."""
    if adaptation is None:
        return ""
    if not (changes := adaptation["changes"]):
        return f"; the plan did not change in {adaptation['runs']} runs"
    last = changes[-1]
    return (
        f"; the plan changed {len(changes)} times in {adaptation['runs']} runs, the last time from "
        f"{last['before_ms']:.2f} to {last['after_ms']:.2f} ms"
    )
