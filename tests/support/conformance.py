"""ONNX's node conformance suite, and what came of every case.

Every op is forced onto the GPU side; a node without an op runs in ONNX Runtime. A case passes where
ONNX's own check does; what codl cannot run is refused, with the reason.

Where ONNX's types meet codl's one type, everything is float32 in between. Floats are rounded, to
float32 on the way in and to their own type on the way out. Integers and booleans are exact up to
2^24, and refused beyond it. On the way out an integer's fraction is cut off, which is how ONNX
divides integers, and its value wraps around at the ends of its type.

ONNX hands an op's axes, pads or weights over as inputs; codl's converters want many of those when
the model is compiled: they become constants, with the values of one run. Which ones they are is
each converter's own word (`parameters`).
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from time import perf_counter
from typing import Any, Literal, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.test.case.test_case import TestCase

from codl.engine.engine import Engine
from codl.errors import UnsupportedError
from codl.frontend.convert import convert, network_of, simplify
from codl.frontend.converters.base import CONVERTERS
from codl.frontend.graph.onnx_import import import_onnx
from codl.frontend.graph.passes import ALIASES, RESHAPES
from codl.frontend.graph.shapes import data_inputs
from codl.ir import Array
from codl.ir.network import as_float32, check_exact
from codl.ir.onnx_node import type_of
from codl.ir.ops.movement import Reshape
from codl.ir.types import Processor
from codl.plan.build_plan import preferring
from codl.targets.base import Target

Status = Literal["passed", "failed", "refused"]
#: Nodes that ONNX Runtime folds away where only shapes and constants go in.
FOLDED = ("Cast", "CastLike", "Constant", "ConstantOfShape", "Range", "Shape", "Size")
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
        made = [_check(case.test, *data, target, side) for data in case.test.data_sets or ()]
    except UnsupportedError as error:
        return CaseResult(case.name, case.op, "refused", _first_line(error))
    except Exception as error:  # whatever it is, the other cases go on
        return CaseResult(case.name, case.op, "failed", f"{type(error).__name__}: {error}")
    converted, ops = any(one.converted for one in made), max(one.ops for one in made)
    return CaseResult(case.name, case.op, "passed", converted=converted, gpu_ops=ops)


def _check(case: TestCase, inputs: Any, expected: Any, target: Target, side: Processor) -> _Run:
    """Compare as ONNX's own runner does."""
    from onnx.backend.test.runner import Runner

    made = _computed(case.model, [_array(value) for value in inputs], target, side)
    wanted = [_array(value) for value in expected]
    Runner.assert_similar_outputs(wanted, made.outputs, case.rtol, case.atol)
    return made


class _Run(NamedTuple):
    """Outputs of a model, how many ops ran, and whether tensors were not float32 in the model."""

    outputs: list[NDArray[Any]]
    ops: int
    converted: bool


def _computed(
    model: onnx.ModelProto, inputs: Sequence[NDArray[Any]], target: Target, side: Processor
) -> _Run:
    """Run a model with every op on one side; raises `UnsupportedError` for other types."""
    kinds = {info.name: checked_type(info) for info in data_inputs(model)}
    results = {info.name: checked_type(info) for info in model.graph.output}
    values = {
        name: np.asarray(value, kind)
        for (name, kind), value in zip(kinds.items(), inputs, strict=True)
    }
    data = {name: values[name] for name in kinds.keys() - parameter_inputs(model)}
    given = {name: to_float32(name, value) for name, value in data.items()}
    graph = import_onnx(specialise(model, values), "model")
    try:  # converted, also where numbers are no floats
        network = convert(simplify(graph))
    except UnsupportedError:
        network = network_of(graph)
    plan = preferring(network, target.soc, side)
    with Engine(network, plan, target, recovers=True) as engine:
        made = engine(given)
    outputs = [from_float32(name, made[name], kind) for name, kind in results.items()]
    ops = sum(not isinstance(layer.op, Reshape) for layer in network.layers)
    of_data = [*(kinds[name] for name in data), *results.values()]
    return _Run(outputs, ops, any(kind != np.float32 for kind in of_data))


#: A quotient that is so near to an integer, relatively, is that integer, whatever the division's
#: last bits are: OpenCL lets a division be off by 2.5 units in the last place.
NEAR = 2.0**-22
FLOATS = ("FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE")
INTEGERS = ("INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64")
CONVERTED = (*FLOATS, *INTEGERS, "BOOL")


def checked_type(info: onnx.ValueInfoProto) -> np.dtype[Any]:
    """The NumPy type of a tensor; raises `UnsupportedError` where codl has no way to hold it."""
    kind = info.type.WhichOneof("value") or "untyped"
    if kind != "tensor_type":
        what = kind.removesuffix("_type").replace("_", " ")
        raise UnsupportedError(f"{info.name!r} is a value of kind {what}; codl knows tensors only.")
    element = info.type.tensor_type.elem_type
    name = TensorProto.DataType.Name(element)
    if name not in CONVERTED:
        raise UnsupportedError(
            f"{info.name!r} is of type {name.lower()}; codl converts "
            f"{', '.join(name.lower() for name in CONVERTED)}."
        )
    dtype: np.dtype[Any] = helper.tensor_dtype_to_np_dtype(element)
    return dtype


def to_float32(name: str, value: NDArray[Any]) -> Array:
    """An input as codl takes it."""
    if not value.size:
        raise UnsupportedError(f"{name!r} is empty ({value.shape}); codl has no empty tensors.")
    return as_float32(name, value)


def from_float32(name: str, value: Array, dtype: np.dtype[Any]) -> NDArray[Any]:
    """An output as the model declares it."""
    if dtype.kind == "b":
        return np.not_equal(value, 0)
    if dtype.kind not in "iu":
        return value.astype(dtype)
    check_exact(name, value)
    nearest = np.rint(value)
    whole = np.where(np.abs(value - nearest) <= NEAR * np.abs(value), nearest, np.trunc(value))
    return whole.astype(np.int64).astype(dtype)


#: What reads of its input the shape alone, which is fixed anyway.
SHAPE_ONLY = ("Shape", "Size")


def parameter_inputs(model: onnx.ModelProto) -> frozenset[str]:
    """Inputs that some node takes as a parameter, or from which such a parameter is computed."""
    needed: set[str] = set()
    for node in reversed(model.graph.node):
        if node.op_type in SHAPE_ONLY:
            continue
        if needed.intersection(node.output):
            needed.update(node.input)
        converter = CONVERTERS.get(type_of(node))
        positions = converter.parameters if converter else ()
        needed.update(name for i, name in enumerate(node.input) if i in positions)
    return frozenset(info.name for info in data_inputs(model) if info.name in needed)


def specialise(model: onnx.ModelProto, values: Mapping[str, NDArray[Any]]) -> onnx.ModelProto:
    """The model for inputs like `values`: parameters as initializers, and every shape fixed."""
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    graph = fixed.graph
    parameters = parameter_inputs(fixed)
    kept = [info for info in graph.input if info.name not in parameters]
    for info in kept:
        if info.name in values:
            dims = [{"dim_value": size} for size in values[info.name].shape]
            info.type.tensor_type.shape.CopyFrom(onnx.TensorShapeProto(dim=dims))
    for info in (*graph.value_info, *graph.output):
        # What is open is inferred again from the shapes of these inputs.
        if any(not dim.HasField("dim_value") for dim in info.type.tensor_type.shape.dim):
            info.type.tensor_type.ClearField("shape")
    del graph.input[:]
    graph.input.extend(kept)
    graph.initializer.extend(
        numpy_helper.from_array(values[name], name) for name in sorted(parameters)
    )
    return fixed


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
