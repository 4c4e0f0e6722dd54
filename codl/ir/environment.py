"""Where and how something was measured: what two results must share to be compared."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from codl.errors import MismatchError

#: Libraries that compute or time; others, such as those of tables, change no latency.
COMPUTING = ("ncnn", "numpy", "onnxruntime", "pyopencl", "codl.runtime.cl_ctypes")
#: Clocks in the median of a run that differ by less than this part are alike: governors move them.
CLOCKS_ALIKE = 0.1
#: What stands for a value that one of two does not have.
NONE = "none"


@dataclass(frozen=True, kw_only=True)
class Environment:
    """A machine, its OpenCL device and driver, its cores and clocks, the libraries, the protocol.

    `cpu_cores` and `gpu_cores` are host cores, `threads` those of the CPU side. `clocks` are the
    clock settings by cluster of cores and for the GPU, `clocks_mhz` the clocks during the
    measurement by processor, both where readable. `libraries` are versions by name, and `protocol`
    has the settings of the measurement.
    """

    machine: str
    system: str
    platform: str = ""
    device: str = ""
    driver: str = ""
    cpu_cores: tuple[int, ...] = ()
    gpu_cores: tuple[int, ...] = ()
    threads: int = 0
    clocks: Mapping[str, str] = field(default_factory=dict)
    clocks_mhz: Mapping[str, float] = field(default_factory=dict)
    libraries: Mapping[str, str] = field(default_factory=dict)
    protocol: Mapping[str, Any] = field(default_factory=dict)


ALL = tuple(field.name for field in fields(Environment))


@dataclass(frozen=True)
class Difference:
    """Something in which two environments differ, and both values."""

    what: str
    first: Any
    second: Any


def differences(
    first: Environment, second: Environment, keys: Collection[str] = ALL
) -> tuple[Difference, ...]:
    """All that keeps two results from being compared, of these keys."""
    differing: list[Difference] = []
    for key in keys:
        value, other = getattr(first, key), getattr(second, key)
        if key == "clocks_mhz":
            differing += [d for d in _each(key, value, other) if _are_apart(d)]
        elif key == "libraries":
            differing += [d for d in _each(key, value, other) if d.what.split()[-1] in COMPUTING]
        elif isinstance(value, Mapping):
            differing += _each(key, value, other)
        elif value != other:
            differing.append(Difference(key.replace("_", " "), value, other))
    return tuple(differing)


def _each(key: str, first: Mapping[str, Any], second: Mapping[str, Any]) -> list[Difference]:
    """The entries in which two mappings differ."""
    names = {"clocks_mhz": "clock in MHz of", "clocks": "setting of the clock of"}
    return [
        Difference(f"{names.get(key, key)} {name}", first.get(name, NONE), second.get(name, NONE))
        for name in dict.fromkeys((*first, *second))
        if first.get(name) != second.get(name)
    ]


def _are_apart(clocks: Difference) -> bool:
    """Whether both are known, and far from each other."""
    if NONE in (clocks.first, clocks.second):
        return False
    slower, faster = sorted((clocks.first, clocks.second))
    return bool(faster - slower > CLOCKS_ALIKE * faster)


def check_alike(
    differing: tuple[Difference, ...], first: object, second: object, *, fix: str = ""
) -> None:
    """Raise `MismatchError` where there are differences between what two names stand for."""
    if not differing:
        return
    each = "; ".join(f"{d.what}: {_shown(d.first)} and {_shown(d.second)}" for d in differing)
    raise MismatchError(
        f"{first} and {second} were not measured alike, and cannot be compared. {each}."
        f"{' ' if fix else ''}{fix}"
    )


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or NONE
    return f"{value:.0f}" if isinstance(value, float) and value >= 100 else str(value) or NONE
