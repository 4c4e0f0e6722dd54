"""ONNX's node conformance suite through the backend, and what came of every case.

    PYTHONPATH=tests python -m support.conformance --soc host -o docs/results/conformance-host.json

Every op is forced onto the GPU side. A case passes where ONNX's own check does; what codl cannot
run is refused, with the reason.
"""

from __future__ import annotations

import argparse
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.case.test_case import TestCase

from codl.cli.output import document
from codl.errors import UnsupportedError
from codl.frontend.converters.base import CONVERTERS
from codl.frontend.graph.passes import ALIASES, RESHAPES
from codl.ir.types import Processor
from codl.targets.base import Target
from codl.targets.connect import connect
from codl.targets.detect import load_local
from support.onnx_backend import CodlRep

Status = Literal["passed", "failed", "refused"]
#: Nodes that ONNX Runtime folds away where only shapes and constants go in.
FOLDED = ("Cast", "CastLike", "Constant", "ConstantOfShape", "Range", "Shape", "Size")
#: What is left out of a reason to count it together with others.
GENERAL = (
    (r"The node '[^']*' \((\w+)\)", r"\1"),
    (r" \(known: [^)]*\)", ""),
    (r"'[^']*'", "'...'"),
    (r" has the shape \S+;", ";"),
    (r" is empty \(+[^;]*;", " is empty;"),
)
EXPANDED = re.compile(r"_expanded(_ver\d+)?$")


@dataclass(frozen=True)
class CaseResult:
    """What came of one case.

    `op` is the type of the node under test, also where the case is that node's expansion into
    others. `converted` says that tensors were not float32 in the model, `gpu_ops` how many ops ran
    on the GPU (none where a model only renames a tensor).
    """

    case: str
    op: str
    status: Status
    reason: str = ""
    converted: bool = False
    gpu_ops: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Case:
    """One case of the suite and the type of the node that it tests."""

    op: str
    test: TestCase

    @property
    def name(self) -> str:
        return str(self.test.name)


@cache
def suite() -> tuple[Case, ...]:
    """Every case of the node suite, by name."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some cases overflow on purpose while they are made
        tests = {test.name: test for test in collect_testcases(None)}
    return tuple(Case(_op(name, tests), tests[name]) for name in sorted(tests))


def known_ops() -> frozenset[str]:
    """The node types that codl runs, or should run."""
    ops = {*CONVERTERS, *ALIASES, *RESHAPES}
    return frozenset(ops.difference(FOLDED))


def select(*, everything: bool = False, only: str = "") -> list[Case]:
    """The cases of known ops, or all; `only` is searched in their names.

    The expansion of an op, known or not, is taken where it is made of known ones alone.
    """
    ops = known_ops()
    foldable = ops.union(FOLDED)

    def wanted(case: Case) -> bool:
        nodes = {node.op_type for node in case.test.model.graph.node}
        if EXPANDED.search(case.name):
            return everything or (nodes <= foldable and case.op not in FOLDED)
        return everything or case.op in ops

    return [case for case in suite() if re.search(only, case.name) and wanted(case)]


def run(cases: Iterable[Case], target: Target, side: Processor = "gpu") -> Iterator[CaseResult]:
    """Run cases on one side of a target, one after the other."""
    for case in cases:
        start = perf_counter()
        outcome = run_case(case, target, side)
        yield replace(outcome, seconds=round(perf_counter() - start, 3))


def run_case(case: Case, target: Target, side: Processor = "gpu") -> CaseResult:
    """Run a case on one side; whatever it raises is its outcome."""
    try:
        rep = CodlRep(case.test.model, target, side)
        ops = max(_check(rep, case.test, *data) for data in case.test.data_sets or ())
    except UnsupportedError as error:
        return CaseResult(case.name, case.op, "refused", _first_line(error))
    except Exception as error:  # whatever it is, the other cases go on
        return CaseResult(case.name, case.op, "failed", f"{type(error).__name__}: {error}")
    converted = any(kind != np.float32 for kind in rep.data_types)
    return CaseResult(case.name, case.op, "passed", converted=converted, gpu_ops=ops)


def _check(rep: CodlRep, test: TestCase, inputs: Sequence[Any], expected: Sequence[Any]) -> int:
    """Compare as ONNX's own runner does; the number of ops that ran."""
    from onnx.backend.test.runner import Runner

    outputs = rep.run([_array(value) for value in inputs])
    wanted = [_array(value) for value in expected]
    Runner.assert_similar_outputs(wanted, outputs, test.rtol, test.atol)
    return rep.ops


def _array(value: Any) -> Any:
    """Some cases hold their tensors as ONNX writes them."""
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def _op(name: str, tests: dict[str, TestCase]) -> str:
    """The type of the node under test, of the case that an expansion stands for."""
    test = tests.get(EXPANDED.sub("", name), tests[name])
    kinds = list(dict.fromkeys(node.op_type for node in test.model.graph.node))
    return kinds[-1] if kinds else "none"


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


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
