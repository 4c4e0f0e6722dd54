"""Compares models under strategies with ONNX Runtime, output by output.

    python scripts/export_models.py exports --small --both
    python scripts/compare_models.py exports --soc host -o compared.json

Every `.onnx` file of a folder runs twice under each strategy, and on the CPU in each library that
`--strategies` names (ncnn, ort, openvino), without the check that `codl.compile`
does by itself, on seeded inputs. An output is right in shape and type, has its not-a-numbers and
infinities where ONNX Runtime without optimisations has them, and is off by a thousandth of the
largest value at most. The file has a row for each model and strategy; rows that are there are not
made again.
"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent.parent / "tests")]

import numpy as np  # noqa: E402
import onnx  # noqa: E402
from support.libraries import INSTALLED, preferred  # noqa: E402

import codl  # noqa: E402
from codl import files  # noqa: E402
from codl.engine.engine import Engine  # noqa: E402
from codl.errors import CodlError  # noqa: E402
from codl.frontend.convert import load_network  # noqa: E402
from codl.frontend.graph.integer_products import reference_session  # noqa: E402
from codl.frontend.graph.weights import Model  # noqa: E402
from codl.plan.build_plan import preferring  # noqa: E402
from codl.targets.connect import connect  # noqa: E402
from codl.targets.placed import load_local  # noqa: E402

LIMIT = 1e-3
#: NumPy's types by what ONNX Runtime calls them.
TYPES = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(int64)": np.int64,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--soc", default="host")
    parser.add_argument("--strategies", default="cpu,gpu,mulayer,codl,ncnn,ort,openvino")
    parser.add_argument("--jobs", type=int, default=1, help="models at a time")
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    wanted = args.strategies.split(",")
    rows = json.loads(args.output.read_text()) if args.output.exists() else []
    done = {(row["model"], row["strategy"]) for row in rows}
    left = {
        path: [name for name in wanted if (path.stem, name) not in done]
        for path in sorted(args.folder.glob("*.onnx"))
    }
    left = {path: names for path, names in left.items() if names}
    # A model has a process of its own: one that crashes is a row.
    with ProcessPoolExecutor(args.jobs, get_context("spawn"), max_tasks_per_child=1) as pool:
        running = {pool.submit(compare, p, args.soc, names): p for p, names in left.items()}
        for future in as_completed(running):
            path = running[future]
            try:
                made = future.result()
            except BrokenProcessPool as error:
                made = [row_of(path, name, "crashed", str(error)) for name in left[path]]
            rows += made
            files.write(args.output, json.dumps(rows, indent=1) + "\n")
            for row in made:
                print(
                    f"{row['model']} {row['strategy']}: {row['status']} {row['detail']}", flush=True
                )
    counts = Counter(row["status"] for row in rows)
    models = {row["model"].removesuffix("_traced") for row in rows}
    print(f"{len(models)} models, {len(rows)} runs: {dict(counts)}")
    sys.exit(any(row["status"] not in ("right", "refused") for row in rows))


def compare(path: Path, soc: str, strategies: list[str]) -> list[dict[str, Any]]:
    """Rows of a model, one for each strategy."""
    warnings.simplefilter("ignore")
    session = reference_session(Model.of(onnx.load(path)), 1)
    dice = np.random.default_rng(0)
    feeds = {
        item.name: dice.random([n if isinstance(n, int) else 1 for n in item.shape]).astype(
            TYPES[item.type]
        )
        for item in session.get_inputs()
    }
    names = [item.name for item in session.get_outputs()]
    expected = dict(zip(names, session.run(names, feeds), strict=True))
    return [compared(path, soc, strategy, feeds, expected) for strategy in strategies]


def compared(
    path: Path, soc: str, strategy: str, feeds: Mapping[str, Any], expected: Mapping[str, Any]
) -> dict[str, Any]:
    try:
        with engine_of(path, soc, strategy) as engine:
            results = [engine(dict(feeds)) for _ in range(2)]
    except CodlError as error:
        return row_of(path, strategy, "refused", str(error)[:300])
    except Exception:  # what is no error of codl's is a defect, and is told whole
        return row_of(path, strategy, "traceback", traceback.format_exc()[-900:])
    worst = 0.0
    for result in results:
        for name, value in expected.items():
            problem, error = difference(result[name], value)
            worst = max(worst, error)
            if problem:
                return row_of(path, strategy, "wrong", f"{name}: {problem}", error)
    return row_of(path, strategy, "right", "", worst)


def engine_of(path: Path, soc: str, strategy: str) -> Engine:
    """By a strategy, or on the CPU in the library of that name as far as it takes the ops."""
    if strategy not in INSTALLED:
        return codl.compile(path, soc=soc, strategy=strategy, check=False)
    network, here = load_network(str(path)), load_local(soc)
    with preferred(strategy):
        return Engine(network, preferring(network, here, "cpu"), connect("local", here))


def difference(got: Any, expected: Any) -> tuple[str, float]:
    """What is wrong with an output, and its largest error over the largest value."""
    if (got.shape, got.dtype) != (expected.shape, expected.dtype):
        return f"{got.dtype}{got.shape}, not {expected.dtype}{expected.shape}", 0.0
    x, y = got.astype(np.float64), expected.astype(np.float64)
    for kind in (np.isnan, np.isposinf, np.isneginf):
        if (kind(x) != kind(y)).any():
            return f"{kind.__name__} in other places", 0.0
    finite = np.isfinite(y)
    largest = np.abs(y[finite]).max(initial=0.0) or 1.0
    error = float(np.abs(x[finite] - y[finite]).max(initial=0.0) / largest)
    return (f"off by {error:.2g} of the largest value" if error > LIMIT else ""), error


def row_of(
    path: Path, strategy: str, status: str, detail: str, error: float | None = None
) -> dict[str, Any]:
    return {"model": path.stem, "strategy": strategy, "status": status, "detail": detail,
            "max_rel_err": error}  # fmt: skip


if __name__ == "__main__":
    main()
