"""`codl explain` and `codl trace`: where the time of a plan goes, as tables and as a timeline."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType

from codl.cli.output import JsonOption, OutputOption, emit
from codl.jobs.explain import Explain
from codl.jobs.trace import VIEWER, Trace
from codl.report.text_table import Table

#: More columns do not fit into a terminal; --json and a report have them all.
MOST_TERMS = 7
#: The ops left whole that would save most.
MOST_WHOLE = 10


def explain_model(job: Explain, json: JsonOption = False, output: OutputOption = None) -> None:
    """Terms add up: each is the difference of two totals, for the model and for every chain, and is
    negative where something is gained. docs/concepts/explain.md defines them. With --predicted no
    device is needed; without, the plan runs on --serial, and what predictions missed follows.
    Of every op that the plan keeps on one processor it says what splitting it would save.

    [dim]Examples:[/dim]
    codl explain yolov2 --soc epyc2 --predicted
    codl explain yolov2 --soc host --plan plan.json -o explain.json
    codl explain vgg16 --soc host --strategy codl-paper --json
    """
    result = job.run()

    def render() -> Group:
        from codl.report.load import explain_result
        from codl.report.waterfalls import chains_content, waterfall_content, whole_content

        checked = explain_result(result)
        tables = [waterfall_content(checked), chains_content(checked, most=MOST_TERMS)]
        if checked.whole:
            tables.append(whole_content(checked, most=MOST_WHOLE))
        return Group(*(table.to_rich() for table in tables))

    emit("explain", result, render, as_json=json, output=output)


def trace_model(job: Trace, json: JsonOption = False) -> None:
    """The plan runs on --serial. Tracks are the CPU, the GPU's queue, transfers, and waits; chains
    are around what they are made of, flows go where data is shared, and counters show temperature,
    clocks and power where the device has sensors. The predicted timeline is a second process, below
    each inference. With --predicted no device is needed.

    [dim]Examples:[/dim]
    codl trace yolov2 --soc epyc2 --predicted -o yolov2.pftrace
    codl trace yolov2 --soc host -o yolov2.pftrace
    codl trace model.onnx --soc host --plan plan.json --runs 20 --json
    """
    result = job.run()
    emit("trace", result, lambda: _trace_table(result), as_json=json)


def _trace_table(result: dict[str, Any]) -> RenderableType:
    """The tracks, by process."""
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
