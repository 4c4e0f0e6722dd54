"""What workers are given to do in tests: functions that they can import."""

from __future__ import annotations

import gc
import os
import signal
from pathlib import Path

from codl.errors import InvalidFileError, UnknownNameError
from codl.ir import parse
from codl.ir.records.soc import Soc
from codl.kernels import registry
from codl.measure.op_runner import cpu_work
from codl.registry import Registry

#: Registries are per process: a plugin that was loaded in a worker is seen there alone.
STARS: Registry[str] = Registry("star")


def scaled(factor: int, value: int) -> tuple[int, int]:
    """The product, and the process that computed it."""
    return factor * value, os.getpid()


def refuse(names: tuple[str, ...], value: str) -> str:
    """The value; an error with other arguments than its message for one that has no such name."""
    if value not in names:
        raise UnknownNameError("star", value, names)
    return value


def misread(where: str, value: str) -> None:
    raise InvalidFileError(Path(value), "cannot be read.", where=where)


def die(_: None, value: int) -> None:
    os._exit(value)


def shine(_: None, name: str) -> str:
    """What the plugin that adds this star says of it."""
    return STARS.find(name)


def hears(_: None, value: int) -> bool:
    """Whether Ctrl-C would reach the process."""
    return signal.getsignal(signal.SIGINT) is not signal.SIG_IGN


def resident_bytes(op: str, variant: str, soc: Soc, times: int) -> list[int]:
    """Resident memory of this process in bytes after each of `times` works of the CPU."""
    own, sizes = parse(op), []
    for _ in range(times):
        cpu_work(own, registry.find(own, variant), soc)(1)
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        sizes.append(pages * os.sysconf("SC_PAGE_SIZE"))
    return sizes
