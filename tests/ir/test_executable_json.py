"""Executables are refused with the place and the value; sound ones pass."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs
from support.executables import SOCS, encoded, executables, small_executable
from support.fuzzing import fuzz

from codl.errors import CodlError, MismatchError
from codl.frontend.convert import network_of
from codl.frontend.graph.onnx_import import import_onnx
from codl.frontend.models.builder import ModelBuilder
from codl.ir import Network
from codl.ir.executable import Buffer
from codl.ir.executable_json import check, decode
from codl.ir.records import soc as socs
from codl.lower.lowering import lower
from codl.plan.strategies import STRATEGIES, Context
from codl.runtime.numpy_interpreter import Interpreter
from codl.validate.references import parts_of, stand_ins


def test_mutated_executables_are_read_or_refused() -> None:
    read, refused = fuzz(executables(), 1000)
    assert refused > 700
    assert read > 25


def residual_blocks() -> Network:
    b = ModelBuilder("residuals")
    x = b.relu(b.conv(b.input("image", (1, 32, 28, 28)), 32, 3, pad=1))
    for kernel in (1, 3):
        x = b.relu(b.add(x, b.conv(x, 32, kernel, pad=kernel // 2)))
    b.output(b.fully_connected(b.flatten(b.max_pool(x, 2, 2)), 10))
    return network_of(import_onnx(b.build(), "residuals"))


@pytest.mark.parametrize("name", [s.name for s in STRATEGIES.values() if not s.runs_plans])
def test_what_any_strategy_makes_of_residuals_is_sound(name: str) -> None:
    """Whole, op by op, and each in every variant that could stand in, as a device is sent them."""
    network, context = residual_blocks(), Context.of(socs.load("epyc2"))
    plan, soc = STRATEGIES.find(name).plan(network, context), context.soc
    executable = lower(network, plan, soc, context.tuning)
    check(executable)
    every = parts_of(executable, network)
    assert {use.layer.op.kind for use in every} >= {"conv2d", "pooling", "fc"}
    assert any(use.result.op.kind == "eltwise" for use in every)
    if {use.processor for use in every} == {"gpu"}:
        assert any(use.add for use in every), "convolutions add their residuals"
    for use in every:
        check(use.executable(soc))
        alike = list(stand_ins(use, soc, context.tuning))
        assert alike
        for other in alike:
            check(other.executable(soc))


def first_of(kind: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """The first command of a kind."""

    def take(value: dict[str, Any]) -> dict[str, Any]:
        commands = [one for stage in value["stages"] for one in stage["commands"]]
        return next(one for one in commands if one["type"] == kind)

    return take


def first(*keys: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """The first one of a list."""

    def take(value: dict[str, Any]) -> dict[str, Any]:
        for key in keys:
            value = value[key][0]
        return value

    return take


#: The executable, what is changed, its key, the value there, and what the refusal says.
CHANGES = [
    (0, first("buffers"), "bytes", 1, r"tensors\[\d+\].* bytes in"),
    (0, first("buffers"), "bytes", 1 << 50, r"buffers, bytes of all"),
    (0, first("tensors"), "buffer", 99, r"tensors\[0\], buffer: 99"),
    (0, first("programs"), "options", "-I/etc", r"programs\[0\], options"),
    (0, first("programs"), "name", "../x.cl", r"programs\[0\], name"),
    (0, first_of("Launch"), "kernel", "main", r"kernel that .* has not: 'main'"),
    (0, first_of("Launch"), "global_size", [1 << 30] * 3, "global size"),
    (0, first_of("Launch"), "step", 400, "step: 400"),
    (0, first_of("Wait"), "event", 77, "event that nothing before signals: 77"),
    (0, first_of("Map"), "buffer", 0, "place of what is mapped"),
    (0, first_of("RunNet"), "net", -1, "net: -1"),
    (3, first_of("Raise"), "buffer", 0, "buffer that is no flag: 0"),
    (3, first_of("Raise"), "program", 99, "program: 99"),
    (3, first_of("Raise"), "kernel", "raise", "kernel that flag.cl has not: 'raise'"),
    (3, first_of("Raise"), "signals", 77, "event that nothing before signals"),
    (3, first_of("Raise"), "step", 400, "step: 400"),
]


@pytest.mark.parametrize(("number", "take", "key", "value", "message"), CHANGES)
def test_what_is_changed_is_refused_with_its_place(
    number: int,
    take: Callable[[dict[str, Any]], dict[str, Any]],
    key: str,
    value: Any,
    message: str,
) -> None:
    content, arrays = encoded(small_executable(SOCS[number]))
    changed = json.loads(content)
    take(changed)[key] = value
    with pytest.raises(CodlError, match=message):
        decode(json.dumps(changed).encode(), arrays.__getitem__)


def test_a_flag_has_its_own_size_and_holds_no_tensor() -> None:
    executable = small_executable(SOCS[3])
    flag = next(n for n, own in enumerate(executable.buffers) if own.place == "flag")
    for size, message in ((4, "bytes of a flag: 4"), (1 << 20, "bytes of a flag")):
        buffers = list(executable.buffers)
        buffers[flag] = structs.replace(buffers[flag], bytes=size)
        with pytest.raises(CodlError, match=message):
            check(structs.replace(executable, buffers=tuple(buffers)))
    first, *others = executable.tensors
    moved = structs.replace(first, buffer=flag)
    with pytest.raises(CodlError, match=r"tensors\[0\], (\d+ bytes in|place)"):
        check(structs.replace(executable, tensors=(moved, *others)))


def test_another_version_is_refused_before_all_else() -> None:
    with pytest.raises(MismatchError, match="version 99; this codl reads"):
        decode(b'{"version": 99, "anything": [1]}', {}.__getitem__)


def test_memory_that_is_not_there_is_said_to_be_missing() -> None:
    executable = small_executable()
    large = Buffer("cpu", (1 << 48) - (1 << 40))
    with pytest.raises(CodlError, match="which are not there"):
        Interpreter(structs.replace(executable, buffers=(*executable.buffers, large)))
