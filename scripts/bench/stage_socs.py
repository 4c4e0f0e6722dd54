"""SoCs of several sizes on one machine: some of a GPU's multiprocessors, or a CPU's cores divided.

Every one is a SoC of its own, with files, dataset and predictors, as any other device. The CPU
beside a GPU in part is the same whatever is left of that; so is the OpenCL side of divided cores
that has the same ones. So a stage begins with the rows of a stage with a side in common, whose runs
and anchors stay beside them: what is measured later is brought to the same speed.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from codl.errors import CodlError, UnsupportedError
from codl.ir.types import Processor
from codl.machine.placement import LocalSoc, Placement
from codl.measure import tuning_file
from codl.measure.dataset import Dataset

#: Of a run: what it says of each processor.
BY_PROCESSOR = ("anchors_ms", "reference_ms", "calibration")


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
    placement = whole.placement
    if threads is not None:
        placement = placement.with_threads(threads)
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


def take_rows(stage: Stage, others: Iterable[Stage]) -> int:
    """Begin a dataset with the first one that has a side in common; returns the number of tables.

    Where there is a dataset already, it stays as it is.
    """
    own = Dataset.of(stage.name)
    if own.manifest_path.exists():
        return 0
    for other in others:
        side, known = common_side(stage, other), Dataset.of(other.name)
        if side is not None and known.manifest_path.exists():
            return _copy(known, own, stage, side)
    return 0


def common_side(stage: Stage, other: Stage) -> Processor | None:
    """The side whose kernels take equally long on both: the same hardware, settings and place."""
    one, two = stage.soc, other.soc
    places = one.placement, two.placement
    if one.gpu.is_cpu:
        is_same = one.gpu == two.gpu and places[0].gpu_cores == places[1].gpu_cores
        return "gpu" if is_same else None
    is_same = one.cpu == two.cpu and places[0].cpu_cores == places[1].cpu_cores
    return "cpu" if is_same else None


def _copy(known: Dataset, own: Dataset, stage: Stage, side: Processor) -> int:
    """The manifest comes last: without it there is no dataset yet."""
    manifest = known.manifest()
    paths = [t.path for t in known.tables().values() if re.search(f"_{side}(_|$)", t.path.stem)]
    if side == "gpu":
        paths += [path for path in [tuning_file.path_of(known)] if path.is_file()]
    own.folder.mkdir(parents=True, exist_ok=True)
    for path in paths:
        shutil.copy(path, own.folder)
    runs = {name: _of_side(run, side) for name, run in manifest["runs"].items()}
    own.write_manifest({**manifest, "soc": stage.soc.to_dict(), "runs": runs})
    return len(paths)


def _of_side(run: Mapping[str, Any], side: Processor) -> dict[str, Any]:
    """A run with what it knows of one processor."""
    of_side = {
        key: {name: value for name, value in run[key].items() if name == side}
        for key in BY_PROCESSOR
        if key in run
    }
    return {**run, **of_side}
