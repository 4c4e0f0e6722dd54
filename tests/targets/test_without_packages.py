"""An agent on a device that lacks packages, and what stands in for msgspec there."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.command_line import hiding
from support.executables import small_network, small_plan
from support.whole_way import QUICK

from codl.engine.engine import Engine
from codl.errors import CodlError
from codl.ir import parse
from codl.ir.executable import Executable
from codl.ir.records.soc import Soc
from codl.kernels import registry
from codl.kernels.tuning import Tuning
from codl.lower import pieces
from codl.measure.inputs import random_inputs
from codl.measure.op_runner import filler
from codl.measure.tasks import MeasureBatch, OpTask, make_tasks
from codl.runtime.drivers import BINDING
from codl.targets import agent_archive
from codl.targets.client import COMMAND
from codl.targets.connect import connect
from codl.targets.pure import msgspec as pure
from codl.targets.remote import RemoteTarget

OP = parse("fc in=1x40x1x1 oc=5")
Without = Callable[[str], RemoteTarget]


@pytest.fixture
def without(first_soc: Soc, tmp_path: Path) -> Iterator[Without]:
    """The target whose agents lack a package."""
    with ExitStack() as stack:

        def lacking(package: str) -> RemoteTarget:
            # Python reads it when it starts, in the agent and in the processes that that starts.
            (tmp_path / "sitecustomize.py").write_text(hiding([package]))
            paths = ":".join([str(tmp_path), *filter(None, sys.path)])
            command = ("env", f"PYTHONPATH={paths}", *COMMAND)
            return stack.enter_context(closing(RemoteTarget("bare", command, first_soc)))

        yield lacking


def outcomes(target: RemoteTarget, processor: str) -> set[tuple[str, str]]:
    """Status and reason of the rows of a small op on one processor."""
    tasks = make_tasks([OP], target.soc, [1.0])
    own = tuple(t for t in tasks if isinstance(t, OpTask) and t.processor == processor)
    done = target.measure(MeasureBatch(own, "run", QUICK, Tuning(), 60.0, {}, {}))
    return {(one.row.status, one.row.reason) for one in done.measurements}


def net_alone(soc: Soc, variant: str) -> Executable:
    """An executable of one net of the CPU."""
    return pieces.net_alone([OP], registry.find(OP, variant), [filler(OP)], soc)


def test_the_gpu_is_measured_without_ncnn(without: Without) -> None:
    target = without("ncnn")
    assert outcomes(target, "gpu") == {("ok", "")}
    # The CPU has other libraries.
    (reason,) = {reason for status, reason in outcomes(target, "cpu") if status == "failed"}
    assert reason.startswith("ncnn is not installed; it is needed for the CPU: ")


def test_both_are_measured_without_pyopencl(without: Without) -> None:
    target = without("pyopencl")
    assert outcomes(target, "gpu") == outcomes(target, "cpu") == {("ok", "")}


@pytest.mark.parametrize("package", ["ncnn", "pyopencl", "onnxruntime"])
def test_the_machine_is_described(package: str, without: Without) -> None:
    with closing(connect("local")) as here:
        assert without(package).describe() == here.describe()


def test_pyopencl_that_is_asked_for_is_missed(
    without: Without, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(BINDING, "pyopencl")
    target = without("pyopencl")
    results = target.probe()
    assert results
    for result in results:
        assert "pyopencl is not installed; it is needed for the GPU" in result.error
    with pytest.raises(CodlError, match="pyopencl is not installed"):
        target.open()


def test_a_net_names_the_library_that_it_needs(without: Without) -> None:
    target = without("ncnn")
    with pytest.raises(CodlError, match="ncnn is not installed; it is needed for the CPU"):
        target.load(net_alone(target.soc, "cpu_gemv"))


ROOT = Path(__file__).parents[2]


class Place(NamedTuple):
    row: int
    column: float = 0.5


@dataclass(frozen=True)
class Inner:
    size: int
    names: list[str] = field(default_factory=list)
    inner: Inner | None = None

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ValueError("the size must not be negative")


def structs(library: Any) -> SimpleNamespace:
    """The same records by either library."""

    class Base(library.Struct, frozen=True, forbid_unknown_fields=True, tag_field="is", tag=True):  # type: ignore[misc,name-defined]
        pass

    class Left(Base, frozen=True):
        number: int
        near: float = 1.0

    class Right(Base, frozen=True):
        table: dict[str, tuple[int, ...]] = {}  # noqa: RUF012

    class Open(library.Struct):  # type: ignore[misc,name-defined]
        x: int

    at_least = Annotated[int, library.Meta(ge=7, le=99)]
    types = {
        "int": int,
        "float": float,
        "bool": bool,
        "text": str,
        "maybe": int | None,
        "list": list[int],
        "sequence": Sequence[str],
        "tuple": tuple[int, str],
        "mapping": Mapping[str, float],
        "by number": dict[int, str],
        "literal": Literal["a", "b"],
        "literals": dict[Literal["a"], int],
        "bounded": at_least,
        "some": Annotated[tuple[int, ...], library.Meta(min_length=1)],
        "place": Place,
        "inner": Inner,
        "tagged": Left | Right,
        "open": Open,
        "either": str | list[int] | Inner | None,
        "any": Any,
    }
    return SimpleNamespace(Left=Left, Right=Right, Open=Open, types=types)


REAL, PURE = structs(msgspec), structs(pure)
TEXTS = (
    *("1", "7", "100", "1.0", "1.5", "true", "null", '"a"', '"c"', "[]", "[1]", "[1,2]", '[1,"x"]'),
    *('["a"]', "{}", '{"a":1}', '{"b":2}', '{"1":"x"}', '{"x":3}', '{"x":"y","z":1}', "[3,1]"),
    *('{"is":"Left","number":1}', '{"is":"Left"}', '{"is":"Right","table":{"a":[1,2]}}', "[1,2,3]"),
    *('{"is":"Right","table":{"a":[1,"b"]}}', '{"is":"Middle"}', '{"is":"Left","number":1,"z":1}'),
    *('{"size":1,"names":["x"],"inner":{"size":2}}', '{"size":1,"inner":{"size":-2}}', "1e400"),
    *('{"size":1,"names":[2]}', '{"size":"1"}', '"\\u00e9"'),
)


@pytest.mark.parametrize("kind", REAL.types)
def test_what_msgspec_reads_is_read_alike(kind: str) -> None:
    read = {}
    for text in TEXTS:
        with suppress(msgspec.ValidationError):
            read[text] = repr(msgspec.json.decode(text.encode(), type=REAL.types[kind]))
    assert read
    assert read == {t: repr(pure.json.decode(t.encode(), type=PURE.types[kind])) for t in read}


def test_what_cannot_become_a_value_is_refused() -> None:
    for kind, text in (("place", "3"), ("tagged", '{"is":"Middle"}'), ("open", "{}"), ("int", "[")):
        with pytest.raises(pure.MsgspecError):
            pure.json.decode(text, type=PURE.types[kind])
    with pytest.raises(pure.ValidationError, match="must not be negative"):
        pure.json.decode('{"size":-1}', type=Inner)


@pytest.mark.parametrize("text", ["", "{", "[1 2]", "NaN", "1 2", '{"a":}', "\x00"])
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(pure.DecodeError, match="JSON is malformed"):
        pure.json.decode(text)


SCALARS = (
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.floats() | st.text()
)


@given(
    st.recursive(
        SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8
    )
)
def test_the_same_is_written(value: Any) -> None:
    numbered: Any = {7: value}
    written = msgspec.json.decode(pure.json.encode(numbered))
    assert written == msgspec.json.decode(msgspec.json.encode(numbered))
    keys = {"b": 1, "a": value}
    assert pure.json.Encoder(order="deterministic").encode(keys).startswith(b'{"a":')


def test_records_are_written_and_copied_alike() -> None:
    def texts(library: Any, made: SimpleNamespace) -> list[Any]:
        record = made.Left(3, near=2.0)
        other = library.structs.replace(record, number=4)
        values = [record, other, made.Right(), Inner(1, ["x"]), {"raw": library.Raw(b"[1]")}]
        return [*map(library.json.encode, values), record == other, repr(other)]

    assert texts(pure, PURE) == texts(msgspec, REAL)
    with pytest.raises(AttributeError):
        PURE.Left(1).number = 2
    with pytest.raises(TypeError):
        PURE.Left()


def test_an_engine_runs_behind_an_agent_without_msgspec_and_pyopencl(first_soc: Soc) -> None:
    network = small_network()
    paths = os.pathsep.join([str(ROOT / agent_archive.PURE), *filter(None, sys.path)])
    command = ("env", f"PYTHONPATH={paths}", "CODL_OPENCL=ctypes", *COMMAND)
    x = random_inputs(network)
    results = []
    for start in (command, COMMAND):
        with closing(RemoteTarget("bare", start, first_soc)) as target:
            engine = Engine(network, small_plan(network, first_soc), target)
            results.append(engine(x))
            engine.close()
    for name in results[0]:
        assert np.array_equal(results[0][name], results[1][name])
