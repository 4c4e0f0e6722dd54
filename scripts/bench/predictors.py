"""How well predictors do with whole shapes held out: on phones, or from what `codl train` printed.

    python scripts/bench/predictors.py --trained train.json
    python scripts/bench/predictors.py --phones DIR [--seeds 3] [--jobs 2] [--json FILE]

The first is of one SoC: what `codl train --json` printed. The second is of latencies that other
people measured on phones.

DIR holds conv_cpu_gpu.csv and gpu_ops_tflite.csv (contrib/codl_published/mappings says where they
are from). Each is imported as `codl dataset import` does, and every figure comes from the
features and estimators that `codl train` uses: nothing here knows which phone it is. Figures are
percentages of rows within 10 % (five folds of whole shapes, medians over the seeds), the regret
of the split that predicted latencies choose, and the accuracy of a few shapes of a new phone.
Each stands twice: with the term of the measurement run, learned from the run's other rows, and
without any label of runs."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codl.measure.dataset import Dataset
from codl.predict import ESTIMATORS, features
from codl.predict import training_set as samples
from codl.predict.training_set import Samples
from codl.records import soc as socs
from codl.records.soc import Soc
from codl_published.importer import import_tables

PHONES = ("lenovo_k5", "redmi", "vivo_z3", "oneplus5t", "huawei_mate_20")
#: Its GPU's repeated measurements agree within 10 % in 72 % of rows only: told apart.
NOISY = "huawei_mate_20"
ADRENO = "pixel4"
MAPPINGS = Path(__file__).resolve().parents[2] / "contrib/codl_published/mappings"
FOLDS, WITHIN, FEW = 5, 0.10, 100
RATIOS = np.linspace(0, 1, 11)

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Part:
    """One target of one phone: `shapes` are the items' texts, `runs` the networks they stood in."""

    soc: Soc
    samples: Samples
    shapes: NDArray[Any]
    runs: NDArray[Any]
    latency_ms: Vector

    @classmethod
    def of(cls, soc: Soc, own: Samples) -> Part:
        # The import's own number would keep the same network of two phones apart.
        runs = [run.split("/")[-1] for run in own.runs]
        rows = tuple(replace(s, run=run) for s, run in zip(own.samples, runs, strict=True))
        shapes = np.array([features.write(item) for item in own.items])
        kept = replace(own, samples=rows, files=())  # they are gone by then
        return cls(soc, kept, shapes, np.array(runs), own.latency_ms)

    def values(self, name: str) -> Vector:
        feature_set = ESTIMATORS[name].feature_set
        target = self.samples.target
        if feature_set == "flops":
            target = features.mulayer_target("conv2d", self.samples.processor or "cpu")
        return features.table(feature_set, target, self.samples.items, self.soc).values


def load(folder: Path) -> dict[tuple[str, str], Part]:
    """Convolutions of every phone by (phone, processor)."""
    parts = {}
    tables = [("conv_cpu_gpu", phone) for phone in PHONES] + [("gpu_ops_tflite", ADRENO)]
    for table, phone in tables:
        path = (folder / f"{table}.csv").resolve()
        with tempfile.TemporaryDirectory() as scratch, _inside(Path(scratch)):
            root = Path("lat_datasets")
            mapping = MAPPINGS / f"{table}.yaml"
            import_tables([path], phone, mapping_file=mapping, root=root, write_soc=True)
            soc = socs.load(phone)
            found, _ = samples.read(Dataset.of(phone, root))
        for own in found:
            if own.target in ("conv2d_cpu_replayed", "conv2d_gpu_replayed"):
                parts[phone, str(own.processor)] = Part.of(soc, own)
    return parts


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    """SoC files are written into the folder that a command is run in."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@dataclass(frozen=True)
class Job:
    """What one process computes: a predictor on one part, with run terms or without."""

    part: Part
    name: str
    with_runs: bool
    seed: int


def held_out(job: Job) -> Vector:
    """Predictions of every row from a fit without its shape."""
    part, X = job.part, job.part.values(job.name)
    shapes, inverse = np.unique(part.shapes, return_inverse=True)
    fold = (np.random.default_rng(job.seed).permutation(len(shapes)) % FOLDS)[inverse]
    predicted = np.empty(len(X))
    for at in range(FOLDS):
        predicted[fold == at] = _predict(job, X, fold != at)
    return predicted


def few_shot(job: Job) -> float:
    """Accuracy on the shapes beyond `FEW` that a new phone was measured at, in percent."""
    part = job.part
    shapes, inverse = np.unique(part.shapes, return_inverse=True)
    chosen = np.random.default_rng(100 + job.seed).permutation(len(shapes))[:FEW]
    train = np.isin(inverse, chosen)
    X = part.values(job.name)
    return accuracy(_predict(job, X, train), part.latency_ms[~train])


def _predict(job: Job, X: Vector, train: NDArray[np.bool_]) -> Vector:
    part = job.part
    runs = [part.runs[train], part.runs[~train]] if job.with_runs else [None, None]
    fitted = ESTIMATORS[job.name].fit(
        X[train], part.latency_ms[train], groups=part.shapes[train], runs=runs[0]
    )
    return fitted.predict(X[~train], runs=runs[1])


def accuracy(predicted: Vector, latency_ms: Vector) -> float:
    return 100 * float(np.mean(np.abs(predicted / latency_ms - 1) <= WITHIN))


def regret(cpu: Part, gpu: Part, predicted: Sequence[Vector]) -> tuple[float, float]:
    """Of an ideal linear split, in percent: the mean over rows, and over shapes."""
    share = RATIOS[None]

    def split(on_cpu: Vector, on_gpu: Vector) -> Vector:
        return np.maximum(share * on_gpu[:, None], (1 - share) * on_cpu[:, None])

    chosen = split(*predicted).argmin(1)
    took = split(cpu.latency_ms, gpu.latency_ms)
    lost = 100 * (took[np.arange(len(took)), chosen] / took.min(1) - 1)
    shape = np.unique(cpu.shapes, return_inverse=True)[1]
    by_shape = np.bincount(shape, lost) / np.bincount(shape)
    return float(lost.mean()), float(by_shape.mean())


def _row(
    parts: dict[tuple[str, str], Part],
    results: dict[tuple[str, str, int], Vector],
    seeds: Sequence[int],
) -> dict[str, Any]:
    def median(phone: str, side: str) -> float:
        part = parts[phone, side]
        return float(np.median([accuracy(results[phone, side, s], part.latency_ms) for s in seeds]))

    by_phone = {
        side: {phone: round(median(phone, side), 1) for phone in PHONES} for side in ("cpu", "gpu")
    }
    regrets = [
        regret(
            parts[phone, "cpu"],
            parts[phone, "gpu"],
            [results[phone, side, seed] for side in ("cpu", "gpu")],
        )
        for phone in PHONES
        for seed in seeds
    ]
    adreno = parts[ADRENO, "gpu"]
    dense = np.array(["groups=" not in shape for shape in adreno.shapes])
    dense_accuracy = [
        accuracy(results[ADRENO, "gpu", seed][dense], adreno.latency_ms[dense]) for seed in seeds
    ]
    return {
        "cpu10": float(np.mean(list(by_phone["cpu"].values()))),
        "gpu10": float(np.mean([v for k, v in by_phone["gpu"].items() if k != NOISY])),
        "adreno10": float(np.median(dense_accuracy)),
        "regret_rows": float(np.mean([rows for rows, _ in regrets])),
        "regret_shapes": float(np.mean([shapes for _, shapes in regrets])),
        "by_phone": by_phone,
    }


def accuracy_table(
    parts: dict[tuple[str, str], Part], names: Sequence[str], seeds: Sequence[int], pool: Any
) -> Iterator[dict[str, Any]]:
    for name in names:
        for with_runs in (True, False):
            keys = [(*key, seed) for key in parts for seed in seeds]
            jobs = [Job(parts[phone, side], name, with_runs, s) for phone, side, s in keys]
            results = dict(zip(keys, pool.map(held_out, jobs), strict=True))
            yield {"predictor": name, "run_term": with_runs, **_row(parts, results, seeds)}


def few_shot_table(
    parts: dict[tuple[str, str], Part], seeds: Sequence[int], pool: Any
) -> Iterator[dict[str, Any]]:
    """`codl` on a few shapes of a new phone."""
    for with_runs in (True, False):
        row: dict[str, Any] = {"run_term": with_runs}
        for side in ("cpu", "gpu"):
            phones = [phone for phone in PHONES if phone != NOISY]
            jobs = [Job(parts[p, side], "codl", with_runs, s) for p in phones for s in seeds]
            found = np.array(list(pool.map(few_shot, jobs))).reshape(len(phones), len(seeds))
            medians = np.median(found, axis=1)
            row[f"{side}10"] = float(medians.mean())
            row[side] = dict(zip(phones, medians.round(1).tolist(), strict=True))
        yield row


def print_trained(result: Mapping[str, Any]) -> None:
    """The table of one SoC from what `codl train --json` printed."""
    names = list(ESTIMATORS)
    rows = [row for row in result["predictors"] if row["split"] == "shape"]
    found = {(row["target"], row["name"]): row for row in rows}
    print("| target | rows | " + " | ".join(f"`{name}`" for name in names[:-1]), end="")
    print(" | `codl` 10 % | 5 % | MAPE | in the 90 % interval |")
    print("| --- " * (len(names) + 5) + "|")
    for target in dict.fromkeys(row["target"] for row in rows if row["name"] in names[1:]):
        rows_of = next(row["n_train"] for row in rows if row["target"] == target)
        others = [_text(found.get((target, name)), "acc10") for name in names[:-1]]
        own = found.get((target, names[-1]))
        mine = [_text(own, key) for key in ("acc10", "acc5", "mape", "coverage90")]
        print(f"| `{target}` | {rows_of:,} | {' | '.join([*others, *mine])} |")
    print(f"\nTraining {result['train_s']:.1f} s, evaluating {result['evaluate_s']:.0f} s. Bytes:")
    print(json.dumps({**result["bytes"], "all": sum(result["bytes"].values())}))
    for name in names:
        each = [row["us_per_prediction"] for row in rows if row["name"] == name]
        if each:
            print(f"{name}: {np.median(each):.1f} us a prediction, {max(each):.1f} at most")


def _text(row: Mapping[str, Any] | None, key: str) -> str:
    value = None if row is None else row.get(key)
    return "" if value is None else f"{value:.0f}" if key != "mape" else f"{value:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--phones", type=Path, metavar="DIR")
    source.add_argument("--trained", type=Path, metavar="FILE")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--predictor", action="append", choices=list(ESTIMATORS))
    parser.add_argument("--no-few-shot", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    if options.trained:
        print_trained(json.loads(options.trained.read_text()))
        return
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    warnings.filterwarnings("ignore")
    parts, seeds = load(options.phones), range(options.seeds)
    report: dict[str, Any] = {"seeds": options.seeds, "accuracy": [], "few_shot": []}
    with ProcessPoolExecutor(options.jobs) as pool:
        print("predictor      run term  CPU 10 %  GPU 10 %  Adreno 640  regret rows  shapes, %")
        for row in accuracy_table(parts, options.predictor or list(ESTIMATORS), seeds, pool):
            report["accuracy"].append(row)
            print(
                f"{row['predictor']:14s} {'yes' if row['run_term'] else 'no':8s} "
                f"{row['cpu10']:9.1f} {row['gpu10']:9.1f} {row['adreno10']:11.1f} "
                f"{row['regret_rows']:12.2f} {row['regret_shapes']:9.2f}",
                flush=True,
            )
        if not options.no_few_shot:
            print(f"\n{FEW} shapes of a new phone: run term  CPU 10 %  GPU 10 %")
            for row in few_shot_table(parts, seeds, pool):
                report["few_shot"].append(row)
                print(
                    f"{'yes' if row['run_term'] else 'no':8s} "
                    f"{row['cpu10']:9.1f} {row['gpu10']:9.1f}",
                    flush=True,
                )
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
