"""Milliseconds from the start of a process to a model's first output: compiled, and from a bundle.

Each time a new process: `codl.compile` of the ONNX file with an empty cache (of compiled kernels),
`codl.compile` with a full one, and `codl.load` of a bundle with an empty one. SoC files and
predictors are those of the folder it is run in. The interpreter's own start is in `process_ms` and
not in the others; `from_disk` has the bundle dropped from the system's cache of files before.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from codl.files import provenance
from codl.frontend import models
from codl.ir.records.statistic import level
from codl.machine import cache

#: The system's clock, which the parent reads too; making inputs is no part of it.
CHILD = """
import time; begin = time.perf_counter()
import json, sys
import codl
imported = time.perf_counter()
engine = {}
ready = time.perf_counter()
from codl.measure.inputs import random_inputs
inputs = random_inputs(engine.network)
fed = time.perf_counter()
engine(inputs)
done = time.perf_counter()
print(json.dumps([begin, imported, ready, fed, done]))
"""
COMPILE = CHILD.format("codl.compile(sys.argv[1], soc=sys.argv[2], strategy=sys.argv[3])")
LOAD = CHILD.format("codl.load(sys.argv[1])")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="+", help="built-in models")
    parser.add_argument("--soc", default="host")
    parser.add_argument("--strategy", default="codl")
    parser.add_argument(
        "--rounds", type=int, default=5, help="processes of each kind but the first"
    )
    parser.add_argument("--cold-rounds", type=int, default=1, help="processes with an empty cache")
    args = parser.parse_args()
    rows = []
    for model in args.models:
        with TemporaryDirectory() as folder:
            rows += measure(model, args, Path(folder))
    print(json.dumps({**provenance(), "rows": rows}, indent=1))


def measure(model: str, args: argparse.Namespace, folder: Path) -> list[dict[str, object]]:
    onnx, bundle = folder / f"{model}.onnx", folder / f"{model}.codl"
    onnx.write_bytes(models.load(model).proto.SerializeToString())
    given = [str(onnx), args.soc, args.strategy]
    full, empty = folder / "full", folder / "empty"
    cold = [timed(COMPILE, given, folder / f"cold{i}") for i in range(args.cold_rounds)]
    code = "from codl.cli import main; main()"
    package = ["package", str(onnx), "--soc", args.soc, "--strategy", args.strategy]
    made = [sys.executable, "-c", code, *package, "-o", str(bundle)]
    environment = {**os.environ, cache.VARIABLE: str(full)}
    subprocess.run(made, check=True, env=environment, stdout=subprocess.DEVNULL)
    warm, loaded, from_disk = [], [], []
    for _ in range(args.rounds):
        warm.append(timed(COMPILE, given, full))
        loaded.append(timed(LOAD, [str(bundle)], empty))
        with bundle.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        from_disk.append(timed(LOAD, [str(bundle)], empty))
    kinds = {"compile_cold": cold, "compile_warm": warm, "bundle": loaded, "from_disk": from_disk}
    sizes = {"onnx_bytes": onnx.stat().st_size, "bundle_bytes": bundle.stat().st_size}
    return [
        {"model": model, "kind": kind, "runs": len(runs), **sizes, **_levels(runs)}
        for kind, runs in kinds.items()
    ]


def timed(code: str, arguments: list[str], cached: Path) -> dict[str, float]:
    """One process with its cache in a folder."""
    command = [sys.executable, "-c", code, *arguments]
    environment = {**os.environ, cache.VARIABLE: str(cached)}
    start = perf_counter()
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    begin, imported, ready, fed, end = json.loads(done.stdout)
    between = fed - ready
    return {
        "process_ms": 1e3 * (end - start - between),
        "without_interpreter_ms": 1e3 * (end - begin - between),
        "import_ms": 1e3 * (imported - begin),
        "engine_ms": 1e3 * (ready - imported),
        "first_run_ms": 1e3 * (end - fed),
    }


def _levels(runs: list[dict[str, float]]) -> dict[str, float]:
    return {key: round(level([run[key] for run in runs]), 1) for key in runs[0]}


if __name__ == "__main__":
    main()
