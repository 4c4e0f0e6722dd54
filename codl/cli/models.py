"""`codl models`: the built-in models and what they are made of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Annotated

import typer

from codl.cli.options import JsonOption, OutputOption
from codl.cli.output import emit
from codl.errors import UnknownNameError
from codl.frontend.models import BUILT_IN, described
from codl.frontend.models.builder import summary
from codl.report.text_table import Table


def list_models(
    names: Annotated[
        list[str] | None, typer.Argument(help="Some of the built-in models; all by default.")
    ] = None,
    json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """List the built-in models: inputs, weights, work and nodes.

    [dim]Example:[/dim] codl models retinaface posenet
    """
    for name in names or []:
        if name not in BUILT_IN:
            raise UnknownNameError("built-in model", name, BUILT_IN)
    summaries = [summary(described(name, weights=False)) for name in names or BUILT_IN]

    def render() -> Table:
        columns = ("model", "inputs", "million weights", "GFLOPs", "nodes")
        table = Table(*columns, title="Built-in models", title_justify="left")
        for model in summaries:
            nodes = ", ".join(f"{count} {kind}" for kind, count in model.nodes.items())
            numbers = (f"{model.parameters / 1e6:.2f}", f"{model.gflops:.2f}")
            table.add_row(model.name, _shapes(model.inputs.values()), *numbers, nodes)
        return table

    emit(
        "models",
        {"models": [asdict(model) for model in summaries]},
        render,
        as_json=json,
        output=output,
    )


def _shapes(shapes: Iterable[tuple[int, ...]]) -> str:
    return ", ".join("x".join(map(str, shape)) for shape in shapes)
