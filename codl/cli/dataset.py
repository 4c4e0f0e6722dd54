"""`codl dataset`: what a dataset holds."""

from __future__ import annotations

from typing import Any

import typer

from codl.cli.options import DatasetsOption, JsonOption, OutputOption, PlannedSocOption
from codl.cli.output import emit
from codl.measure import FOLDER as DATASETS
from codl.report.text_table import Table

dataset_app = typer.Typer(
    help="""Datasets of measured latencies.

[dim]Examples:[/dim]
codl dataset info --soc host
codl dataset import t_*.csv --soc redmi""",
    no_args_is_help=True,
)


@dataset_app.command("info")
def dataset_info(
    soc: PlannedSocOption = "",
    dataset: DatasetsOption = DATASETS,
    json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """Say what a dataset holds: rows and failures of every file, its SoC and its source.

    [dim]Example:[/dim] codl dataset info --soc epyc2
    """
    from codl.frames import dataset_frame
    from codl.measure.dataset import Dataset

    data = Dataset.found(soc, dataset)
    manifest, frame = data.manifest(), dataset_frame(data)
    data.anchors().read()  # raises for rows that are none
    by_table = frame["status"].eq("failed").groupby(frame["table"], observed=False)
    files = {
        f"t_{name}.csv": {"rows": int(rows), "failed": int(failed)}
        for name, rows, failed in by_table.agg(["size", "sum"]).itertuples()
    }
    result: dict[str, Any] = {
        "rows": len(frame),
        "soc": soc,
        "source": manifest["source"],
        "files": files,
        "runs": manifest["runs"],
    }

    def render() -> Table:
        table = Table("file", "rows", "failed", title=f"Dataset of {soc}", title_justify="left")
        for name, counts in files.items():
            table.add_row(name, str(counts["rows"]), str(counts["failed"]))
        table.caption = f"source: {manifest['source']}, runs: {len(manifest['runs'])}"
        return table

    emit("dataset info", result, render, as_json=json, output=output)
