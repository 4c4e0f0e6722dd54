"""Validate many models on a SoC, op by op, and keep a line of each: docs/howto/validate.md.

    codl soc detect --serial local --name host
    python scripts/validate_models.py --soc host --exports FOLDER -o docs/results/validate-host.json

Every built-in model, and every `.onnx` file of FOLDER (scripts/export_models.py writes some), is
validated three times: everything on the CPU, on the GPU that has kernels for it, and there in
halves. What the file has already is not validated again, so the script may be interrupted. What
`codl validate` wrote of each lies in the folder beside it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from summaries import ValidatedModel, ValidationsResult

from codl import files
from codl.files import provenance
from codl.frontend.models import BUILT_IN
from codl.report.results import VERSION, parse_result

#: What a row is of: its processor, the type that is stored, and the options that make it so.
WAYS: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("gpu", "float32"): ("--strategy", "gpu"),
    ("cpu", "float32"): ("--strategy", "cpu"),
    ("gpu", "float16"): ("--strategy", "gpu", "--precision", "half_storage"),
}
CODL = (sys.executable, "-c", "from codl.cli import main; main()")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--soc", required=True)
    parser.add_argument("--serial", default="local")
    parser.add_argument("--models", help="these alone, with commas between them")
    parser.add_argument("--exports", type=Path, help="a folder of .onnx files")
    parser.add_argument("--ways", default="gpu,cpu,half", help="some of gpu, cpu and half")
    parser.add_argument("--budget", default="15m", help="for each")
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    exports = sorted(args.exports.glob("*.onnx")) if args.exports else []
    every = {
        **{name: name for name in BUILT_IN},
        **{f"{one.stem} (ONNX)": str(one) for one in exports},
    }
    wanted = args.models.split(",") if args.models else every
    known = dict(zip(("gpu", "cpu", "half"), WAYS, strict=True))
    for way in [known[name] for name in args.ways.split(",")]:
        for name in wanted:
            if (name, *way) not in {
                (r["model"], r["processor"], r["stored"]) for r in rows(args.output)
            }:
                add(args, name, every[name], way)


def rows(path: Path) -> list[dict[str, Any]]:
    """Those that are there already."""
    return list(json.loads(path.read_text())["rows"]) if path.is_file() else []


def add(args: argparse.Namespace, name: str, model: str, way: tuple[str, str]) -> None:
    """Validate a model in one way, and write the file with its row."""
    folder = args.output.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / f"{Path(model).stem}-{'-'.join(way)}.json"
    kept.unlink(missing_ok=True)
    options = ["--soc", args.soc, "--serial", args.serial, "--budget", args.budget, "-o", str(kept)]
    done = subprocess.run(
        [*CODL, "validate", model, *options, *WAYS[way]], capture_output=True, text=True
    )
    if not kept.is_file():
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        print(f"{name} {way}: {reason}", flush=True)
        return
    result = json.loads(kept.read_text())
    row = row_of(name, way, result)
    print(f"{name} {way}: {'ok' if row.ok else result['diagnosis']}", flush=True)
    write(args.output, result, [*rows(args.output), asdict(row)])


def row_of(name: str, way: tuple[str, str], result: Mapping[str, Any]) -> ValidatedModel:
    """A result of `codl validate` in a line."""
    ops: Sequence[Mapping[str, Any]] = result["ops"]
    reached = [one for one in ops if one["ok"] is not None]
    processor, stored = way
    return ValidatedModel(
        model=name,
        processor="cpu" if processor == "cpu" else "gpu",
        stored=stored,
        parts=len(ops),
        variants=len({(one["kind"], one["variant"]) for one in ops}),
        wrong=tuple(one["op"] for one in reached if not one["ok"]),
        left=len(ops) - len(reached),
        op_cosine=min((one["cosine"] for one in reached), default=None),
        op_err=max((one["max_rel_err"] / one["limit"] for one in reached), default=None),
        cosine=result["cosine"],
        max_rel_err=result["max_rel_err"],
        ok=result["ok"],
    )


def write(path: Path, result: Mapping[str, Any], found: Sequence[Mapping[str, Any]]) -> None:
    """The rows so far, of the device of a result."""
    environment = result["environment"]
    content = {
        "command": ValidationsResult.command,
        "version": VERSION,
        **provenance(),
        "soc": result["soc"],
        "gpu": environment["device"],
        "driver": environment["driver"],
        "environment": environment,
        "rows": list(found),
    }
    parse_result(content, path)
    files.write(path, json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
