"""Compiled programs of one device: built once a process, and kept on disk for the next.

The driver's binaries lie in codl's cache, each under a key of all that it depends on: device,
driver, host, source and options. Drivers may crash on a binary that is damaged, so only what passes
the cache's checksum reaches them; where one refuses it all the same, the source is built anew. A
build that failed is remembered by the process alone: what it failed for may be gone in the next.
One that took processes down is not tried again until the machine starts anew. Where a platform
keeps what it compiled, its own cache is left to it.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from codl.errors import DeviceError
from codl.ir.constants import digest
from codl.ir.executable import Executable
from codl.kernels.base import KernelPlan
from codl.kernels.source import STANDARD, compile_options, source_digest, source_text
from codl.runtime.cache import Slot
from codl.runtime.drivers import TARGET, build_program, cl_module, explained

if TYPE_CHECKING:
    import pyopencl as cl

Kind: TypeAlias = Literal["binaries", "attempts"]

#: Deaths of a process while the driver compiles a program from which on the driver is blamed.
DEATHS = 2
#: Platforms that compile a kernel when it first runs, and keep that on disk themselves. To make a
#: binary they compile everything once more: MobileNetV2 took PoCL 71 s instead of 40.
KEEP_THEIR_OWN = frozenset({"Portable Computing Language"})
#: In sums of products numbers below 1e-38 are 0: one takes some CPUs a hundred times as long. Other
#: ops tell such a number from 0, as where it is divided by.
FLUSHED = " -cl-denorms-are-zero"
OF_PRODUCTS = ("conv2d/", "conv_transpose2d/", "fc/", "matmul/")
CPUINFO = Path("/proc/cpuinfo")
#: What tells the processes of this machine, since it started, from those of others and before.
BOOT, PROCESSES = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
#: Extensions that clang defines for any device; where a device lacks one, sources are told so.
CLAIMED = (
    "cl_khr_fp16",
    "cl_arm_integer_dot_product_int8",
    "cl_arm_integer_dot_product_accumulate_int8",
)


@dataclass(frozen=True)
class _Compilation:
    """Something to compile; `name` is for messages."""

    name: str
    text: str
    digest: str
    options: str

    @property
    def key(self) -> tuple[str, str, str]:
        return self.name, self.digest, self.options

    @classmethod
    def of(cls, plan: KernelPlan) -> _Compilation:
        return cls(
            plan.source, source_text(plan), source_digest(plan), compile_options(plan.defines)
        )


@dataclass(frozen=True)
class Binary:
    """A compiled program: the `.cl` file, a digest of its text, the options, the driver's bytes."""

    name: str
    source: str
    options: str
    blob: bytes = field(repr=False)

    @property
    def key(self) -> tuple[str, str, str]:
        return self.name, self.source, self.options


@dataclass(frozen=True)
class Offer:
    """Binaries, and the `Programs.identity` that they were compiled for."""

    identity: Mapping[str, str]
    binaries: tuple[Binary, ...]

    def fits(self, programs: Programs) -> bool:
        return dict(self.identity) == dict(programs.identity)


class Programs:
    """The programs of a context with one device; `compiled` counts those that came from source."""

    def __init__(self, context: cl.Context) -> None:
        self.compiled = 0
        self._context = context
        self._device = context.devices[0]
        #: What a binary depends on but its source and options.
        self.identity: Mapping[str, str] = _identity(self._device)
        self._offered: dict[tuple[str, str, str], bytes] = {}
        self._built: dict[_Compilation, cl.Program] = {}
        #: The logs of builds that failed.
        self._failed: dict[_Compilation, str] = {}
        self._keeping = True
        self._told = _told(self._device)
        self._storing = self._device.platform.name.strip() not in KEEP_THEIR_OWN

    def build(self, plan: KernelPlan) -> cl.Program:
        """The program of a plan's source and macros.

        Raises `DeviceError` with the compiler's log and the macros where it does not build.
        """
        return self._build(_Compilation.of(plan))

    def _build(self, job: _Compilation) -> cl.Program:
        if job not in self._built:
            program = self._load(job) or self._compile(job)
            if not self._keeping:
                return program
            self._built[job] = program
        return self._built[job]

    def build_text(self, name: str, text: str, options: str = STANDARD) -> cl.Program:
        """The program of a text; raises `DeviceError` as `build` does."""
        return self._build(_Compilation(name, text, digest(text)[:16], options))

    def offer(self, offer: Offer) -> None:
        """Take these binaries before those of the cache, if they are for this device and driver."""
        if offer.fits(self):
            self._offered |= {binary.key: binary.blob for binary in offer.binaries}

    def binaries(self, executable: Executable) -> list[Binary]:
        """The compiled programs of an executable that has been loaded."""
        return [
            self.binary(program.name, executable.texts[program.text], program.options)
            for program in executable.programs
        ]

    def binary(self, name: str, text: str, options: str = STANDARD) -> Binary:
        """A compiled program; some drivers add to it when its kernels first run."""
        job = _Compilation(name, text, digest(text)[:16], options)
        return Binary(*job.key, _binary(self._build(job)))

    @contextmanager
    def trying(self) -> Iterator[None]:
        """Keep nothing that is built inside: most of what a search tries is never used again."""
        before, self._keeping = self._keeping, False
        try:
            yield
        finally:
            self._keeping = before

    def slot(self, kind: Kind, plan: KernelPlan) -> Slot:
        """Where the cache has a plan's binary, or who tries to build one."""
        return self._slot(kind, _Compilation.of(plan))

    def _options(self, job: _Compilation) -> str:
        """All that the driver's compiler is told."""
        flushed = FLUSHED if job.name.startswith(OF_PRODUCTS) else ""
        return f"{job.options}{flushed}{self._told}"

    def _slot(self, kind: Kind, job: _Compilation) -> Slot:
        made_from = {"name": job.name, "source": job.digest, "options": self._options(job)}
        of_processes = {"where": _where()} if kind == "attempts" else {}
        return Slot(kind, {**self.identity, **made_from, **of_processes})

    def _load(self, job: _Compilation) -> cl.Program | None:
        """The program of a binary, offered or on disk; None where the driver takes none."""
        offered = self._offered.pop(job.key, None)
        program = self._take(job, offered) if offered is not None else None
        if program is not None:
            return program
        slot = self._slot("binaries", job)
        blob = slot.load()
        if blob is None:
            return None
        program = self._take(job, blob)
        if program is None:
            slot.drop()
        else:
            slot.touch()
        return program

    def _take(self, job: _Compilation, blob: bytes) -> cl.Program | None:
        """The program of a binary; None where the driver does not take it."""
        try:
            program = cl_module().Program(self._context, [self._device], [blob])
            build_program(program, self._options(job))
        except cl_module().Error:
            return None
        return program

    def _compile(self, job: _Compilation) -> cl.Program:
        if job in self._failed:
            raise self._error(job, self._failed[job])
        with explained(f"Compiling {job.name}"):
            program = cl_module().Program(self._context, job.text)
        with self._survived(job):
            try:
                self.compiled += 1
                build_program(program, self._options(job))
            except cl_module().Error as error:
                if error.code == cl_module().status_code.BUILD_PROGRAM_FAILURE:
                    self._failed[job] = str(error)
                raise self._error(job, str(error)) from error
            if self._keeping and self._storing:
                self._slot("binaries", job).store(_binary(program))
        return program

    @contextmanager
    def _survived(self, job: _Compilation) -> Iterator[None]:
        """Leave a trace while the driver compiles, which a process that it takes down cannot drop.

        One death may have been a kill from outside; after a second one the driver is not asked.
        """
        trace, own = self._slot("attempts", job), str(os.getpid())
        tried = _processes(trace)
        died = [pid for pid in tried if not _is_alive(int(pid))]
        if len(died) >= DEATHS:
            raise self._error(job, f"{len(died)} processes died while the driver compiled this.")
        trace.store(" ".join([*tried, own]).encode())
        try:
            yield
        finally:
            others = [pid for pid in _processes(trace) if pid not in (own, *died)]
            if others:
                trace.store(" ".join(others).encode())
            else:
                trace.drop()

    def _error(self, job: _Compilation, log: str) -> DeviceError:
        name = self._device.name.strip()
        return DeviceError(f"{job.name} does not build on {name} with {job.options}:\n{log}")


def _binary(program: cl.Program) -> bytes:
    (blob,) = program.get_info(cl_module().program_info.BINARIES)
    return bytes(blob)


def _told(device: cl.Device) -> str:
    """Options for every program of a device: what its compiler tells no source.

    Which extensions it lacks, whatever the compiler defines. Of NVIDIA's, the compute capability:
    which instructions of its own it takes.
    """
    extensions = device.extensions.split()
    told = "".join(f" -DWITHOUT_{name}" for name in CLAIMED if name not in extensions)
    if "cl_nv_device_attribute_query" not in extensions:
        return told
    major, minor = device.compute_capability_major_nv, device.compute_capability_minor_nv
    return f"{told} -DCOMPUTE_CAPABILITY={major}{minor}"


def _identity(device: cl.Device) -> dict[str, str]:
    """What a binary depends on but its source and options."""
    return {
        "device": device.name.strip(),
        "version": device.version.strip(),
        "driver": device.driver_version,
        "platform": f"{device.platform.name.strip()} {device.platform.version.strip()}",
        # Drivers for CPUs compile for this very one, which their names may leave open.
        "host": _host() if device.type & cl_module().device_type.CPU else "",
        # A runtime may be told to compile for another one.
        **({TARGET: os.environ[TARGET]} if TARGET in os.environ else {}),
    }


def _processes(trace: Slot) -> list[str]:
    return (trace.load() or b"").decode().split()


@cache
def _where() -> str:
    """Where and since when the numbers of processes mean these: a machine, and a container."""
    boot = BOOT.read_text().strip() if BOOT.exists() else ""
    space = os.readlink(PROCESSES) if PROCESSES.is_symlink() else ""
    return f"{platform.node()} {boot} {space}"


def _is_alive(pid: int) -> bool:
    with suppress(PermissionError):  # somebody else's
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
    return True


@cache
def _host() -> str:
    lines = CPUINFO.read_text().splitlines() if CPUINFO.exists() else []
    telling = ("model name", "flags", "Features", "CPU part")
    told = dict.fromkeys(line for line in lines if line.startswith(telling))
    return digest("\n".join([platform.machine(), *told]))[:16]
