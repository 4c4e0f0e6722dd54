"""How well stages of small networks are predicted by what ops take alone and inside a network.

    python scripts/bench/inside.py --soc epyc2

For either processor: its costs, and what its shards took over what was predicted, by costs that
were fitted to the other stages (`--folds` of them), and by the ops alone.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from codl.ir import soc as socs
from codl.ir.types import PROCESSORS
from codl.measure import dataset as datasets
from codl.measure.dataset import Dataset
from codl.predict.inside import InsideCosts, fit, shards
from codl.predict.names import DEFAULT, FOLDER
from codl.strategies import Context

Rows = NDArray[np.float64]


def main() -> None:
    args = arguments()
    soc = socs.load(args.soc)
    context = Context.of(soc, args.dataset, predictors_folder=args.predictors)
    predictors = context.cost(args.predictor).predictors
    for side in PROCESSORS:
        amounts, taken_ms = shards(soc, Dataset.found(soc.name, args.dataset), predictors, side)
        print(f"{side}: {len(taken_ms)} shards")
        for name, value in InsideCosts(*fit(amounts, taken_ms)).state().items():
            per_byte = name not in ("alone", "call_ms")
            print(f"  {name:16} {value * (1e6 if per_byte else 1):.4f}{' a MB' * per_byte}")
        print(f"  {errors('by the law', taken_ms / held_out(amounts, taken_ms, args.folds))}")
        print(f"  {errors('by ops alone', taken_ms / amounts[:, 0])}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--soc", required=True)
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--predictor", default=DEFAULT)
    parser.add_argument("--dataset", type=Path, default=datasets.FOLDER)
    parser.add_argument("--predictors", type=Path, default=FOLDER)
    return parser.parse_args()


def held_out(amounts: Rows, taken_ms: Rows, folds: int) -> Rows:
    """Milliseconds of shards, by costs fitted to those of other folds."""
    fold = np.random.default_rng(0).permutation(len(taken_ms)) % folds
    found = np.empty(len(taken_ms))
    for own in range(folds):
        found[fold == own] = amounts[fold == own] @ fit(amounts[fold != own], taken_ms[fold != own])
    return found


def errors(by: str, ratio: Rows) -> str:
    off = np.maximum(ratio, 1 / ratio)
    within = ", ".join(f"{np.mean(off <= 1 + part):.0%} within {part:.0%}" for part in (0.1, 0.2))
    return f"{by}: {within}; measured over predicted {np.median(ratio):.2f} in the median"


if __name__ == "__main__":
    main()
