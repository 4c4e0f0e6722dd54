"""`codl trace`: what both processors do when, as a file for Perfetto."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import RenderableType

from codl.cli import options as opt
from codl.cli.job_options import JobOptions, with_options
from codl.cli.output import emit
from codl.errors import UnsupportedError
from codl.files import check_writable
from codl.report.text_table import Table

#: What traces are called: a file of another name that is there is not replaced.
SUFFIX = ".pftrace"


def trace_file(path: Path | None) -> Path | None:
    """Refuses a file that cannot be written before it is worked for, and to replace another's."""
    if path is None:
        return None
    if path.suffix != SUFFIX and path.exists():
        raise UnsupportedError(f"{path} is there, and no {SUFFIX} file: name another one.")
    check_writable(path)
    return path


TraceFileOption = Annotated[
    Path, typer.Option("-o", "--output", help="The trace.", callback=trace_file)
]
PredictedOption = Annotated[
    bool, typer.Option("--predicted", help="Run nothing: the predicted timeline alone.")
]
RunsOption = Annotated[
    int, typer.Option("--runs", min=1, max=opt.MOST_ROUNDS, help="Profiled inferences.")
]
LayersOption = Annotated[
    bool,
    typer.Option("--layers", help="Show the layers in nets of the CPU, which then run one by one."),
]


@with_options
def trace_model(
    asked: JobOptions,
    output: TraceFileOption = Path(f"trace{SUFFIX}"),
    predicted: PredictedOption = False,
    runs: RunsOption = 5,
    layers: LayersOption = False,
    json: opt.JsonOption = False,
) -> None:
    """Write what both processors do when, as a trace for Perfetto: open it in ui.perfetto.dev.

    The plan runs on --serial. Tracks are the CPU, the GPU's queue, transfers, and waits; chains are
    around what they are made of, flows go where data is shared, and counters show temperature,
    clocks and power where the device has sensors. The predicted timeline is a second process, below
    each inference. With --predicted no device is needed.

    [dim]Examples:[/dim]
    codl trace yolov2 --soc epyc2 --predicted -o yolov2.pftrace
    codl trace yolov2 --soc host -o yolov2.pftrace
    codl trace model.onnx --soc host --plan plan.json --runs 20 --json
    """
    from codl.api.trace import trace

    result = trace(asked.job(device=not predicted), output, runs=runs, layers=layers)
    emit("trace", result, lambda: _table(result), as_json=json)


def _table(result: dict[str, Any]) -> RenderableType:
    """The tracks, by process."""
    from codl.api.trace import VIEWER

    table = Table("process", "track", "slices", "ms", title="Trace", title_justify="left")
    for track in result["tracks"]:
        count, ms = str(track["slices"]), f"{track['ms']:.2f}"
        table.add_row(track["process"].partition(":")[0], track["track"], count, ms)
    counters = ", ".join(result["counters"]) or "none"
    table.caption = (
        f"{result['model']} by {result['strategy']} on {result['soc']}, {result['runs']} "
        f"inferences, {result['flows']} flows; counters: {counters}. {result['bytes'] / 1e3:.0f} "
        f"kB in {result['file']}, for {VIEWER}"
    )
    return table
