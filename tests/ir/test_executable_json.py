"""Executables are refused with the place and the value; sound ones pass."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from support.executables import SOCS, encoded, executables, small_executable
from support.fuzzing import fuzz

from codl.errors import CodlError, MismatchError
from codl.ir.executable_json import decode


def test_mutated_executables_are_read_or_refused() -> None:
    read, refused = fuzz(executables(), 1000)
    assert refused > 700
    assert read > 25


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
    (0, first_of("Wait"), "event", 77, "event that nothing before signals: 77"),
    (0, first_of("Map"), "buffer", 0, "place of what is mapped"),
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


def test_another_version_is_refused_before_all_else() -> None:
    with pytest.raises(MismatchError, match="version 99; this codl reads"):
        decode(b'{"version": 99, "anything": [1]}', {}.__getitem__)
