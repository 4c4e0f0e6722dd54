"""`codl models`: models, what they are made of, and what is known of them here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from codl.cli import options as opt
from codl.cli.output import emit, stage
from codl.measure import FOLDER as DATASETS
from codl.report.text_table import Table

if TYPE_CHECKING:
    from codl.api.models import ModelFacts

NamesArgument = Annotated[
    list[str] | None,
    typer.Argument(help="Built-in models and files; by default all built-in ones, in short."),
]


def list_models(
    names: NamesArgument = None,
    soc: opt.PlannedSocOption = "",
    dataset: opt.DatasetsOption = DATASETS,
    json: opt.JsonOption = False,
    output: opt.OutputOption = None,
) -> None:
    """List models: inputs, weights, work, and the largest speedup in an evaluation that lies here.

    Of models that are named, .onnx files too, it also says what ops they come to, how many of those
    were measured and tuned on the SoC, and which kinds only ONNX Runtime runs (`onnx`).

    [dim]Examples:[/dim]
    codl models
    codl models retinaface posenet --soc epyc2
    codl models model.onnx --json
    """
    from codl.api.models import builtin_facts, evaluations, model_facts
    from codl.records import soc as socs

    evaluated = evaluations()
    if names:
        facts = []
        for model in opt.read_models(*names):
            stage(f"Reading {model}")
            facts.append(model_facts(model, socs.load(soc), evaluated, dataset))
    else:
        facts = [*builtin_facts(evaluated)]
    result: dict[str, Any] = {"soc": soc, "models": [asdict(model) for model in facts]}
    emit("models", result, lambda: _table(facts, soc), as_json=json, output=output)


def _table(facts: Sequence[ModelFacts], soc: str) -> Table:
    looked = facts[0].ops is not None
    of_ops = ("ops", "measured", "tuned") if looked else ()
    last = "kinds of ops" if looked else "nodes"
    columns = ("model", "inputs", "million weights", "GFLOPs", *of_ops, "speedup here", last)
    spare = ("nodes", "kinds of ops", "inputs")
    table = Table(*columns, spare=spare, title="Models", title_justify="left")
    for model in facts:
        numbers = [f"{model.parameters / 1e6:.2f}", f"{model.gflops:.2f}"]
        if looked:
            numbers += [_told(model.ops), _told(model.measured), _told(model.tuned)]
        gain = "-" if model.gain is None else f"{model.gain:.2f}"
        kinds = model.kinds if model.kinds is not None else model.nodes
        table.add_row(model.name, _shapes(model.inputs.values()), *numbers, gain, _counts(kinds))
    table.caption = (
        f"ops: distinct ones; measured and tuned: those of them on {soc}"
        if looked
        else "`codl models NAME` says which ops were measured and tuned"
    )
    return table


def _told(value: int | None) -> str:
    return "-" if value is None else str(value)


def _counts(kinds: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in kinds.items())


def _shapes(shapes: Iterable[tuple[int, ...]]) -> str:
    return ", ".join("x".join(map(str, shape)) for shape in shapes)
