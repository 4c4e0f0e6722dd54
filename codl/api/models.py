"""What is known of models: what they are made of, and what was measured of them here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

from codl.api.home import best_gains, result_files
from codl.errors import CodlError
from codl.files import read_json
from codl.frontend import models
from codl.frontend.models import BUILT_IN, described
from codl.frontend.models.summary import Summary, summary
from codl.ir import Network, to_text
from codl.measure import dataset as datasets
from codl.measure import tuning_file
from codl.measure.dataset import Dataset, OpRow
from codl.records.soc import Soc


@dataclass(frozen=True, kw_only=True)
class ModelFacts(Summary):
    """A summary, and what was found out of it here.

    `ops` are the distinct ones that codl makes of it, `kinds` all of them by kind; `measured` are
    the ops with a latency on either processor in the SoC's dataset, `tuned` those with a tuned
    kernel. `gain` is the largest speedup over the better processor alone, in the evaluation
    `evaluated`. None where nobody looked, or there is nothing.
    """

    ops: int | None = None
    kinds: Mapping[str, int] | None = None
    measured: int | None = None
    tuned: int | None = None
    gain: float | None = None
    evaluated: str = ""


def evaluations(folder: Path | None = None) -> dict[str, tuple[float, str]]:
    """By model the largest speedup in the evaluations of a folder, and their file."""
    best: dict[str, tuple[float, str]] = {}
    for path in result_files(folder, "eval"):
        for model, gain in best_gains(read_json(Path(path))).items():
            best[model] = max((gain, path), best.get(model, (0.0, "")))
    return best


def builtin_facts(evaluated: Mapping[str, tuple[float, str]]) -> tuple[ModelFacts, ...]:
    """Of every built-in model, without a look at its ops."""
    return tuple(_described(name, evaluated) for name in BUILT_IN)


def _described(name: str, evaluated: Mapping[str, tuple[float, str]]) -> ModelFacts:
    gain, file = evaluated.get(name, (None, ""))
    return ModelFacts(**vars(summary(described(name, weights=False))), gain=gain, evaluated=file)


def model_facts(
    model: str,
    soc: Soc | None,
    evaluated: Mapping[str, tuple[float, str]],
    dataset: Path = datasets.FOLDER,
) -> ModelFacts:
    """All of a built-in model or a file; raises `CodlError` for one that cannot be read."""
    from codl.frontend.convert import load_structure

    network = load_structure(model)
    texts = {to_text(layer.op) for layer in network.layers}
    measured, tuned = (None, None) if soc is None else _looked_up(texts, soc, dataset)
    gain, file = evaluated.get(network.name, (None, ""))
    about = _described(model, {}) if model in BUILT_IN else _of_file(model, network)
    return replace(
        about,
        ops=len(texts),
        kinds=dict(Counter(layer.op.kind for layer in network.layers).most_common()),
        measured=measured,
        tuned=tuned,
        gain=gain,
        evaluated=file,
    )


def _of_file(model: str, network: Network) -> ModelFacts:
    graph = models.load(model, drawn=False).proto.graph
    return ModelFacts(
        name=network.name,
        inputs=dict(network.inputs),
        outputs={name: shape for name, (_, shape) in network.outputs.items()},
        parameters=sum(prod(weight.dims) for weight in graph.initializer),
        gflops=sum(layer.op.flops for layer in network.layers) / 1e9,
        nodes=dict(Counter(node.op_type for node in graph.node).most_common()),
    )


def _looked_up(texts: set[str], soc: Soc, folder: Path) -> tuple[int | None, int | None]:
    """How many of some ops were measured, and tuned; None without a dataset."""
    dataset = Dataset.found(soc.name, folder)
    if not dataset.manifest_path.is_file():
        return None, None
    rows = {
        row.op
        for table in dataset.tables().values()
        for row in table.read()
        if isinstance(row, OpRow) and row.status == "ok"
    }
    try:
        tuned = {op for op, _ in tuning_file.read(dataset, soc).results}
    except CodlError:  # of another device, or of another version
        tuned = set()
    return len(texts & rows), len(texts & tuned)
