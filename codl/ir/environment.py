"""The environment of a measurement, and the comparison of two environments."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from codl.errors import MismatchError

#: Libraries that compute or time; others, such as table libraries, change no latency.
COMPUTING = ("ncnn", "numpy", "onnxruntime", "pyopencl", "codl.runtime.cl_ctypes")
#: Relative difference below which two median clocks count as equal: governors move clocks.
CLOCKS_ALIKE = 0.1
#: Stands for a value that only the other environment has.
NONE = "none"
CLOCK = "clock in MHz of"


@dataclass(frozen=True, kw_only=True)
class Environment:
    """A machine: its OpenCL device and driver, cores, clocks, libraries, and the protocol.

    `cpu_cores` and `gpu_cores` are host cores, `threads` the CPU side's. `clocks` are clock
    settings by cluster of cores and for the GPU. `clocks_mhz` are clocks during the measurement by
    processor. Both have readable clocks only. `libraries` are versions by name; `protocol` are the
    measurement's settings.
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
    """A field in which two environments differ, with both values."""

    what: str
    first: Any
    second: Any


def differences(
    first: Environment, second: Environment, keys: Collection[str] = ALL
) -> tuple[Difference, ...]:
    """The differences in `keys` that forbid comparing results of two environments."""
    ours, others = _labelled(first, keys), _labelled(second, keys)
    pairs = ((what, ours.get(what, NONE), others.get(what, NONE)) for what in {**ours, **others})
    return tuple(Difference(*pair) for pair in pairs if not _is_alike(*pair))


def _labelled(environment: Environment, keys: Collection[str]) -> dict[str, Any]:
    """Values of the fields and of their entries, by what they are."""
    names = {"clocks_mhz": CLOCK, "clocks": "setting of the clock of"}
    values: dict[str, Any] = {}
    for key in keys:
        value = getattr(environment, key)
        if not isinstance(value, Mapping):
            values[key.replace("_", " ")] = value
            continue
        for name, entry in value.items():
            if key != "libraries" or name in COMPUTING:
                values[f"{names.get(key, key)} {name}"] = entry
    return values


def _is_alike(what: str, first: Any, second: Any) -> bool:
    """Whether two values are equal; clocks may also be unknown, or within `CLOCKS_ALIKE`."""
    if not what.startswith(CLOCK) or first == second:
        return bool(first == second)
    return NONE in (first, second) or abs(first - second) <= CLOCKS_ALIKE * max(first, second)


def check_alike(
    differing: tuple[Difference, ...], first: object, second: object, *, fix: str = ""
) -> None:
    """Raise `MismatchError` for results `first` and `second` of `differing` environments."""
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
