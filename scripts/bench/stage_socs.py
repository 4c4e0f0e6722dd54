"""SoCs of several sizes on one machine: some of a GPU's multiprocessors, or a CPU's cores divided.

Every one is a SoC of its own, with files, dataset and predictors, as any other device.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from codl.errors import CodlError, UnsupportedError
from codl.runtime.placement import LocalSoc, Placement, with_cores


@dataclass(frozen=True)
class Stage:
    """A SoC of one size, and the serial that it is worked on by."""

    soc: LocalSoc
    serial: str

    @property
    def name(self) -> str:
        return self.soc.name


def of_multiprocessors(whole: LocalSoc, left: int, threads: int | None = None) -> Stage:
    """The GPU with so many multiprocessors left to codl, beside all cores of the CPU.

    `threads` of the CPU side are as many as its cores, or fewer. Raises `CodlError` for a number
    that the GPU or the CPU does not have.
    """
    gpu, most = whole.gpu, whole.gpu.compute_units
    placement = with_cores(whole, None, threads).placement
    if not 1 <= left <= most:
        raise CodlError(f"{left} of {most} multiprocessors cannot be left: take 1 to {most}.")
    sized = replace(
        whole.facts,
        name=f"left{left}",
        description=f"{gpu.name}, {left} of {most} multiprocessors",
        cpu=replace(whole.cpu, threads=placement.threads),
        gpu=replace(gpu, compute_units=left),
    )
    return Stage(LocalSoc.of(sized, placement), f"stage:{left}")


def of_cores(whole: LocalSoc, cpu: int, gpu: int) -> Stage:
    """The first `cpu` cores of a machine for the CPU side, its last `gpu` cores for OpenCL.

    Cores between them stay idle. Raises `UnsupportedError` where the OpenCL device is no CPU, and
    `CodlError` where there are not so many cores.
    """
    cores = whole.placement.cores
    if not whole.gpu.is_cpu:
        raise UnsupportedError(f"{whole.gpu.name!r} is a GPU: no cores can be divided with it.")
    if cpu < 1 or gpu < 1 or cpu + gpu > len(cores):
        raise CodlError(f"{cpu}:{gpu} cannot be had of {len(cores)} cores; each side needs one.")
    sized = replace(
        whole.facts,
        name=f"cores{cpu}-{gpu}",
        description=f"{cpu} + {gpu} cores, ncnn + {whole.gpu.platform}",
        cpu=replace(whole.cpu, threads=cpu),
        gpu=replace(whole.gpu, compute_units=gpu),
    )
    placement = Placement(whole.placement.icd, cores[:cpu], cores[-gpu:])
    return Stage(LocalSoc.of(sized, placement), "local")
