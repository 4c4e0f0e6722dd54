"""What is told of a CPU's vectors: how wide they are, and in how many registers; no device."""

from __future__ import annotations

import pytest

from codl.runtime.drivers import TARGET
from codl.runtime.probe import compiled_width, vector_registers
from codl.targets.child import inherited


@pytest.mark.parametrize(
    ("native", "held_to", "compiled", "width"),
    [
        (16, None, 0, 16),
        (1, None, 0, 4),
        (16, "core-avx2", 0, 8),
        (8, "skx", 0, 8),
        (8, "corei7", 0, 4),
        (16, None, 8, 8),
        (8, None, 16, 8),
    ],
)
def test_vectors_are_those_that_kernels_are_compiled_for(
    native: int, held_to: str | None, compiled: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No wider than the processor's, the compiler's, or than the user says."""
    monkeypatch.delenv(TARGET, raising=False)
    if held_to is not None:
        monkeypatch.setenv(TARGET, held_to)
        assert inherited()[TARGET] == held_to, "children probe and compile as this process does"
    assert compiled_width(native, compiled) == width


def test_registers_are_those_of_the_instruction_set() -> None:
    assert vector_registers(16, "x86_64") == vector_registers(4, "aarch64") == 32
    assert vector_registers(4, "AMD64") == vector_registers(4, "armv7l") == 16
    assert vector_registers(4, "riscv64") == 0
