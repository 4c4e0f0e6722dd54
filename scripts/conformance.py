"""ONNX's node conformance suite on the GPU: what came of every case, as a file.

python scripts/conformance.py --soc host -o docs/results/conformance-host.json
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import onnx

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from support.conformance import CaseResult, Status, run, select

from codl.cli.output import document
from codl.targets.connect import connect
from codl.targets.placed import load_local

#: What is left out of a reason to count it together with others.
GENERAL = (
    (r"The node '[^']*' \((\w+)\)", r"\1"),
    (r" \(known: [^)]*\)", ""),
    (r"'[^']*'", "'...'"),
    (r" has the shape \S+;", ";"),
    (r" is empty \(+[^;]*;", " is empty;"),
)


@dataclass(frozen=True)
class ConformanceSummary:
    """Outcomes counted."""

    outcomes: tuple[CaseResult, ...]

    def count(self, status: Status) -> int:
        return sum(outcome.status == status for outcome in self.outcomes)

    @property
    def converted(self) -> int:
        """Passed cases with tensors of other types than float32."""
        return sum(o.converted for o in self.outcomes)

    @property
    def renamings(self) -> int:
        """Passed cases that left nothing to compute."""
        return sum(o.status == "passed" and not o.gpu_ops for o in self.outcomes)

    def reasons(self, status: Status) -> Counter[str]:
        """Why cases have this status, without the names of single nodes and tensors."""
        return Counter(_general(each.reason) for each in self.outcomes if each.status == status)

    def to_json(self) -> dict[str, Any]:
        return {
            "cases": len(self.outcomes),
            "passed": self.count("passed"),
            "failed": self.count("failed"),
            "refused": self.count("refused"),
            "converted": self.converted,
            "renamings": self.renamings,
            "onnx": onnx.__version__,
            "refusals": dict(self.reasons("refused").most_common()),
            "outcomes": [vars(outcome) for outcome in self.outcomes],
        }


def _general(reason: str) -> str:
    first = (reason.strip().splitlines() or [""])[0]
    for pattern, text in GENERAL:
        first = re.sub(pattern, text, first)
    return first


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Run ONNX's node conformance suite on the GPU.")
    parser.add_argument("--soc", default="host")
    parser.add_argument("--serial", default="local")
    parser.add_argument("--only", default="", metavar="REGEX", help="cases whose name matches")
    parser.add_argument("--all", action="store_true", help="cases of ops that codl has not, too")
    parser.add_argument("-o", dest="output", type=Path, required=True, metavar="FILE")
    asked = parser.parse_args(arguments)
    soc, start = load_local(asked.soc, asked.serial), perf_counter()
    with closing(connect(asked.serial, soc)) as target:
        outcomes = tuple(run(select(everything=asked.all, only=asked.only), target))
    where = {"gpu": soc.gpu.name, "driver": soc.gpu.driver, "icd": soc.placement.icd}
    counts = ConformanceSummary(outcomes).to_json()
    content = {**where, "seconds": round(perf_counter() - start, 1), **counts}
    asked.output.write_text(document("conformance", content))
    print(*(f"{counts[name]} {name}" for name in ("cases", "passed", "failed", "refused")))


if __name__ == "__main__":
    main()
