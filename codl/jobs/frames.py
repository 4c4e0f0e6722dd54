"""Datasets, predictions and results as pandas data frames, for notebooks and tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from codl.errors import CodlError, check_argument, check_path
from codl.ir.records import soc as socs
from codl.ir.records.waterfall import BOUND, WaterfallTerm
from codl.measure import dataset as datasets
from codl.measure import tuning_file
from codl.measure.dataset import Dataset
from codl.predict import DEFAULT, features, model_set, training_set
from codl.predict import FOLDER as PREDICTORS
from codl.predict.model_set import Predictors
from codl.predict.training_set import Samples
from codl.report.results import EvalResult, ExplainResult, SearchesResult, TrainResult, load_result

#: Keys of a result that rows omit: provenance, SoC, and times of its parts.
LEFT_OUT = frozenset({"origin", "soc", "timeline"})
#: Mappings of a row that may be absent.
NESTED = frozenset({"latency_ms", "peer", "conditions"})


def dataset(soc: str = "host", folder: str | Path = datasets.FOLDER) -> pd.DataFrame:
    """All rows of all tables of the dataset `<folder>/<soc>`, including failed ones.

    Columns are `soc`, `table` (a category that includes tables without rows), and the columns of
    all tables, empty where a table has no such column. Latencies are in milliseconds. Raises
    `InvalidFileError` for a missing dataset, or with the wrong line.

    >>> codl.dataset("host").query("status == 'ok'").groupby("table").latency_ms.describe()
    """
    check_argument("soc", soc, "the name of a SoC", str)
    check_path("folder", folder)
    data = Dataset.found(soc, Path(folder))
    data.manifest()  # explains a missing dataset
    tables = data.tables()
    rows = [{"table": name, **vars(row)} for name, table in tables.items() for row in table.read()]
    columns = dict.fromkeys(column for table in tables.values() for column in table.columns)
    frame: pd.DataFrame = pd.DataFrame(rows, columns=["table", *columns])
    frame["table"] = pd.Categorical(frame["table"], categories=list(tables))
    frame.insert(0, "soc", data.folder.name)
    return frame


def predictions(
    soc: str | Path = "host",
    predictor: str = DEFAULT,
    *,
    folder: str | Path = PREDICTORS,
    data: str | Path = datasets.FOLDER,
) -> pd.DataFrame:
    """Predictions for a dataset's ok rows in a typical run, in milliseconds.

    Columns are `soc`, `predictor`, `target`, `processor`, `item`, `latency_ms` (calibrated to the
    first run), `predicted_ms`, `error` (predicted over measured, minus 1), `source` and `run`.
    Predictors were fitted to these rows; `codl train` measures accuracy on held-out shapes. Raises
    `InvalidFileError` and `MismatchError` as planning does.
    """
    check_path("soc", soc)
    check_argument("predictor", predictor, "the name of a predictor", str)
    described = socs.load(soc)
    dataset = Dataset.found(described.name, Path(data))
    tuning = tuning_file.read(dataset, described)
    models = model_set.load(described, predictor, Path(folder), tuning)
    targets, _ = training_set.read(dataset)
    learned = [
        samples for samples in targets if samples.samples and samples.target in models.targets
    ]
    frame: pd.DataFrame = pd.concat(
        [_predicted(models, samples) for samples in learned], ignore_index=True
    )
    frame.insert(0, "soc", described.name)
    frame.insert(1, "predictor", predictor)
    return frame


def _predicted(models: Predictors, samples: Samples) -> pd.DataFrame:
    predicted: Any = models.latency_ms(samples.target, samples.items)
    frame: pd.DataFrame = pd.DataFrame(
        {
            "target": samples.target,
            "processor": samples.processor or "",
            "item": [features.write(item) for item in samples.items],
            "latency_ms": samples.latency_ms,
            "predicted_ms": predicted,
            "error": predicted / np.asarray(samples.latency_ms) - 1,
            "source": [sample.source for sample in samples.samples],
            "run": samples.runs,
        }
    )
    return frame


def results(*files: str | Path) -> pd.DataFrame:
    """Result files (`codl ... -o FILE`) as rows.

    A row is a strategy on a model (`codl eval`), a predictor's target under a hold-out (`codl
    train`), a model (`codl search` of several), a term (`codl explain`), or else a whole file.
    Columns are `file`, `command`, `soc` and the keys of the JSON, nested ones as `latency_ms.p20`.
    Timelines, chains and other lists are left out. Raises `InvalidFileError` with the wrong key and
    value.

    >>> rows = codl.results("eval.json")
    >>> rows.pivot(index="model", columns="strategy", values="latency_ms.p20")
    """
    if not files:
        raise CodlError("Name at least one result file, such as codl.results('eval.json').")
    for file in files:
        check_path("a result file", file)
    rows: pd.DataFrame = pd.DataFrame([row for file in files for row in _result_rows(Path(file))])
    return rows


def _result_rows(path: Path) -> Iterator[dict[str, Any]]:
    result = load_result(path)
    soc = getattr(result, "soc", None)
    head = {
        "file": str(path),
        "command": result.command,
        "soc": soc if isinstance(soc, str) else getattr(soc, "name", None),
    }
    rows: Iterable[Any] = (result,)
    if isinstance(result, EvalResult):
        rows = result.rows
    elif isinstance(result, TrainResult):
        rows = result.predictors
    elif isinstance(result, SearchesResult):
        rows = (*result.plans, *result.failed)
    elif isinstance(result, ExplainResult):
        about = {"model": result.model, "strategy": result.strategy, "source": result.source}
        steps = (WaterfallTerm(BOUND, result.bound_ms), *result.terms)
        rows = [{**about, "name": step.name, "ms": step.ms} for step in steps]
    for row in rows:
        values = row if isinstance(row, dict) else asdict(row)
        yield head | {name: value for name, value in _cells(values) if name not in head}


def _cells(values: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, Any]]:
    """Names and values of nested mappings as flat cells, without sequences and absent mappings."""
    for name, value in values.items():
        if name in LEFT_OUT or (value is None and name in NESTED):
            continue
        if isinstance(value, Mapping):
            yield from _cells(value, f"{within}{name}.")
        elif not isinstance(value, list | tuple):
            yield f"{within}{name}", value
