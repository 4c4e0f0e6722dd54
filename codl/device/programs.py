"""Compiled programs of one device: built once a process, and kept on disk for the next.

The driver's binaries lie in codl's cache, each under a key of all that it depends on: device,
driver, host, source and options. Drivers may crash on a binary that is damaged, so only what passes
the cache's checksum reaches them; where one refuses it all the same, the source is built anew. A
build that failed is remembered under the same key, with its log, and not tried again.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from codl.cache import Slot, digest
from codl.device.failures import code_name
from codl.device.loader import cl_module
from codl.errors import DeviceError
from codl.kernels.base import KernelPlan
from codl.kernels.source import source_text

if TYPE_CHECKING:
    import pyopencl as cl

STANDARD = "-cl-std=CL1.2"
CPUINFO = Path("/proc/cpuinfo")


class Programs:
    """The programs of a context with one device; `compiled` counts those that came from source."""

    def __init__(self, context: cl.Context) -> None:
        self.compiled = 0
        self._context = context
        self._device = context.devices[0]
        self._identity = _identity(self._device)
        self._built: dict[tuple[str, str], cl.Program] = {}
        self._keeping = True

    def build(self, plan: KernelPlan) -> cl.Program:
        """The program of a plan's source and macros.

        Raises `DeviceError` with the compiler's log and the macros where it does not build.
        """
        options = options_of(plan.defines)
        key = (plan.source, options)
        if key not in self._built:
            program = self._find(plan.source, options)
            if not self._keeping:
                return program
            self._built[key] = program
        return self._built[key]

    @contextmanager
    def trying(self) -> Iterator[None]:
        """Keep nothing that is built inside: most of what a search tries is never used again."""
        before, self._keeping = self._keeping, False
        try:
            yield
        finally:
            self._keeping = before

    def _find(self, source: str, options: str) -> cl.Program:
        key = {
            **self._identity,
            "name": source,
            "source": digest(source_text(source)),
            "options": options,
        }
        binary, failure = Slot("binaries", key), Slot("failures", key)
        return self._load(binary, options) or self._compile(source, options, binary, failure)

    def _load(self, slot: Slot, options: str) -> cl.Program | None:
        """The program of a binary on disk; None where there is none that the driver takes."""
        blob = slot.load()
        if blob is None:
            return None
        try:
            program = cl_module().Program(self._context, [self._device], [blob])
            program.build(options)
        except cl_module().Error:
            slot.drop()
            return None
        slot.touch()
        return program

    def _compile(self, source: str, options: str, binary: Slot, failure: Slot) -> cl.Program:
        log = failure.load()
        if log is not None:
            raise self._error(source, options, f"{log.decode()}\n(remembered from an earlier try)")
        program = cl_module().Program(self._context, source_text(source))
        try:
            self.compiled += 1
            program.build(options)
        except cl_module().Error as error:
            if code_name(error) == "BUILD_PROGRAM_FAILURE":
                failure.store(str(error).encode())
            raise self._error(source, options, str(error)) from error
        if self._keeping:
            (blob,) = program.get_info(cl_module().program_info.BINARIES)
            binary.store(blob)
        return program

    def _error(self, source: str, options: str, log: str) -> DeviceError:
        name = self._device.name.strip()
        return DeviceError(f"{source} does not build on {name} with {options}:\n{log}")


def options_of(defines: Mapping[str, int | float | str]) -> str:
    return " ".join([STANDARD, *(f"-D{key}={value}" for key, value in sorted(defines.items()))])


def _identity(device: cl.Device) -> dict[str, str]:
    """What a binary depends on but its source and options."""
    return {
        "device": device.name.strip(),
        "version": device.version.strip(),
        "driver": device.driver_version,
        "platform": f"{device.platform.name.strip()} {device.platform.version.strip()}",
        # Drivers for CPUs compile for this very one, which their names may leave open.
        "host": _host() if device.type & cl_module().device_type.CPU else "",
    }


@cache
def _host() -> str:
    lines = CPUINFO.read_text().splitlines() if CPUINFO.exists() else []
    telling = ("model name", "flags", "Features", "CPU part")
    found = dict.fromkeys(line for line in lines if line.startswith(telling))
    return digest("\n".join([platform.machine(), *found]))[:16]
