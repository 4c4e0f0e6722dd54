"""Compiled programs of one device, built once per process and cached on disk.

Binaries are stored in codl's cache by device, driver, host, source and options. A driver may crash
on a damaged binary, so it only gets binaries with a valid checksum; if it refuses one, the source
is built. Failed builds are remembered within the process. Platforms with their own cache keep it.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from codl.errors import DeviceError
from codl.ir.constants import digest
from codl.ir.executable import Executable
from codl.kernels.source import STANDARD
from codl.machine.cache import Slot
from codl.runtime.drivers import TARGET, as_device_error, build_program, cl_module
from codl.runtime.loaded import Binary, Offer

if TYPE_CHECKING:
    import pyopencl as cl

#: Platforms that compile a kernel at its first run and cache it themselves. A binary would cost
#: another full compilation: MobileNetV2 took PoCL 71 s instead of 40.
KEEP_THEIR_OWN = frozenset({"Portable Computing Language"})
#: Option of ops that sum products: flushes numbers below 1e-38 to 0, which slow some CPUs by a
#: factor of a hundred. Other ops keep such numbers, as they may divide by one.
FLUSHED = " -cl-denorms-are-zero"
OF_PRODUCTS = ("conv2d/", "conv_transpose2d/", "fc/", "matmul/")
CPUINFO = Path("/proc/cpuinfo")
#: Extensions that clang defines for any device; sources get a macro for each missing one.
CLAIMED = (
    "cl_khr_fp16",
    "cl_arm_integer_dot_product_int8",
    "cl_arm_integer_dot_product_accumulate_int8",
)


@dataclass(frozen=True)
class Compilation:
    """A program to compile; `name` names it in messages."""

    name: str
    text: str
    digest: str
    options: str

    @property
    def key(self) -> tuple[str, str, str]:
        return self.name, self.digest, self.options


class Programs:
    """The programs of a context with one device; `compiled` counts builds from source."""

    def __init__(self, context: cl.Context) -> None:
        self.compiled = 0
        self._context = context
        self._device = context.devices[0]
        #: Facts that binaries depend on, besides source and options.
        self.identity: Mapping[str, str] = _identity(self._device)
        self._offered: dict[tuple[str, str, str], bytes] = {}
        self._built: dict[Compilation, cl.Program] = {}
        #: Logs of failed builds.
        self._failed: dict[Compilation, str] = {}
        self._keeping = True
        self._device_options = _device_options(self._device)
        self._storing = self._device.platform.name.strip() not in KEEP_THEIR_OWN

    def _build(self, job: Compilation) -> cl.Program:
        if job not in self._built:
            program = self._load(job) or self._compile(job)
            if not self._keeping:
                return program
            self._built[job] = program
        return self._built[job]

    def build_text(self, name: str, text: str, options: str = STANDARD) -> cl.Program:
        """The program of a source text; raises `DeviceError` with the compiler's log and macros."""
        return self._build(Compilation(name, text, digest(text)[:16], options))

    def offer(self, offer: Offer) -> None:
        """Prefer these binaries to cached ones, if they fit this device and driver."""
        if dict(offer.identity) == dict(self.identity):
            self._offered |= {binary.key: binary.blob for binary in offer.binaries}

    def binaries(self, executable: Executable) -> list[Binary]:
        """The compiled programs of a loaded executable."""
        return [
            self.binary(program.name, executable.texts[program.text], program.options)
            for program in executable.programs
        ]

    def binary(self, name: str, text: str, options: str = STANDARD) -> Binary:
        """A compiled program; some drivers extend it when its kernels first run."""
        job = Compilation(name, text, digest(text)[:16], options)
        return Binary(*job.key, _binary(self._build(job)))

    @contextmanager
    def trying(self) -> Iterator[None]:
        """Keep no program built inside, such as in a search."""
        before, self._keeping = self._keeping, False
        try:
            yield
        finally:
            self._keeping = before

    def _options(self, job: Compilation) -> str:
        flushed = FLUSHED if job.name.startswith(OF_PRODUCTS) else ""
        return f"{job.options}{flushed}{self._device_options}"

    def slot(self, job: Compilation) -> Slot:
        """The cache slot of a program's binary."""
        made_from = {"name": job.name, "source": job.digest, "options": self._options(job)}
        return Slot("binaries", {**self.identity, **made_from})

    def _load(self, job: Compilation) -> cl.Program | None:
        """The program of an offered or cached binary; None if the driver accepts neither."""
        offered = self._offered.pop(job.key, None)
        if offered is not None and (program := self._take(job, offered)) is not None:
            return program
        slot = self.slot(job)
        if (blob := slot.load()) is None:
            return None
        program = self._take(job, blob)
        if program is None:
            slot.drop()
        else:
            slot.touch()
        return program

    def _take(self, job: Compilation, blob: bytes) -> cl.Program | None:
        """The program of a binary; None if the driver refuses it."""
        try:
            program = cl_module().Program(self._context, [self._device], [blob])
            build_program(program, self._options(job))
        except cl_module().Error:
            return None
        return program

    def _compile(self, job: Compilation) -> cl.Program:
        if job in self._failed:
            raise self._error(job, self._failed[job])
        with as_device_error(f"Compiling {job.name}"):
            program = cl_module().Program(self._context, job.text)
        try:
            self.compiled += 1
            build_program(program, self._options(job))
        except cl_module().Error as error:
            if error.code == cl_module().status_code.BUILD_PROGRAM_FAILURE:
                self._failed[job] = str(error)
            raise self._error(job, str(error)) from error
        if self._keeping and self._storing:
            self.slot(job).store(_binary(program))
        return program

    def _error(self, job: Compilation, log: str) -> DeviceError:
        name = self._device.name.strip()
        return DeviceError(f"{job.name} does not build on {name} with {job.options}:\n{log}")


def _binary(program: cl.Program) -> bytes:
    (blob,) = program.get_info(cl_module().program_info.BINARIES)
    return bytes(blob)


def _device_options(device: cl.Device) -> str:
    """Options of every program of a device: missing extensions, and NVIDIA's compute capability.

    Compilers define some extensions that a device does not have, and do not define the capability.
    """
    extensions = device.extensions.split()
    missing = "".join(f" -DWITHOUT_{name}" for name in CLAIMED if name not in extensions)
    if "cl_nv_device_attribute_query" not in extensions:
        return missing
    major, minor = device.compute_capability_major_nv, device.compute_capability_minor_nv
    return f"{missing} -DCOMPUTE_CAPABILITY={major}{minor}"


def _identity(device: cl.Device) -> dict[str, str]:
    """Facts that binaries depend on, besides source and options."""
    return {
        "device": device.name.strip(),
        "version": device.version.strip(),
        "driver": device.driver_version,
        "platform": f"{device.platform.name.strip()} {device.platform.version.strip()}",
        # Drivers for CPUs compile for this CPU, which their names may not identify.
        "host": _host() if device.type & cl_module().device_type.CPU else "",
        # A runtime may be set to compile for another CPU.
        **({TARGET: os.environ[TARGET]} if TARGET in os.environ else {}),
    }


@cache
def _host() -> str:
    lines = CPUINFO.read_text().splitlines() if CPUINFO.exists() else []
    keys = ("model name", "flags", "Features", "CPU part")
    facts = dict.fromkeys(line for line in lines if line.startswith(keys))
    return digest("\n".join([platform.machine(), *facts]))[:16]
