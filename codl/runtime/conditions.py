"""Conditions of this machine in a measurement: temperature, clocks, battery, thermal throttling."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

from codl.ir.types import PROCESSORS, Processor
from codl.records.results import Conditions
from codl.runtime.placement import LocalSoc
from codl.runtime.sensors import NvidiaGpu, nvidia_gpus
from codl.runtime.system_files import (
    GOVERNOR,
    SYSTEM,
    SystemFiles,
    clusters,
    control_groups,
    gpu_files,
)

THERMAL = "sys/class/thermal"
#: Types of thermal zones on a processor. Qualcomm's `soc` is the battery's.
ZONES = re.compile(
    r"cpu|gpu|g3d|tsens|cluster|core|pkg|soc.?therm|^tj|^(big|mid|little)$", re.IGNORECASE
)
#: Thermal zone of machines without one on a processor.
BOARD = re.compile(r"acpitz", re.IGNORECASE)
#: Types of cooling devices that lower a processor's clocks, or stop some of its cores.
COOLING: dict[Processor, re.Pattern[str]] = {
    "cpu": re.compile(r"cpu|cluster|^processor$|powerclamp", re.IGNORECASE),
    "gpu": re.compile(r"gpu|kgsl|mali|g3d|devfreq", re.IGNORECASE),
}
#: The most characters of a sensor's name.
MOST_NAME = 64


class ConditionReader:
    """Reads the conditions of this machine for a SoC.

    Files are found once, and read every time. The highest seen limit of a clock is the limit
    without heat, so a limit that a user has set counts as normal.
    """

    def __init__(
        self,
        soc: LocalSoc | None = None,
        files: SystemFiles = SYSTEM,
        *,
        gpus: Callable[[], list[NvidiaGpu]] = nvidia_gpus,
    ) -> None:
        self._files, self._clusters = files, clusters(files)
        self._cpu_cores: Collection[int] = soc.placement.cpu_cores if soc else ()
        self._gpu_cores: Collection[int] = soc.placement.gpu_cores if soc else ()
        self._is_one_cpu = soc is not None and soc.gpu.is_cpu
        self._gpu = None if self._is_one_cpu else gpu_files(files)
        self._card = _card(soc, gpus)
        self._zones = _zones(files)
        if self._gpu and self._gpu.temperature:
            self._zones.append(self._gpu.temperature)
        devices = files.find(f"{THERMAL}/cooling_device*")
        kinds = {device: files.text(f"{device}/type") for device in devices}
        self._cooling = {
            side: [device for device, kind in kinds.items() if pattern.search(kind)]
            for side, pattern in COOLING.items()
        }
        self._limits: dict[str, float] = {}
        self._groups = [folder for folder, _ in control_groups(files, "cpu")]
        self._stopped = self._quota_periods()

    def read(self) -> Conditions:
        """The conditions now."""
        batteries = list(self._files.batteries())
        fullest = max(batteries, key=lambda battery: battery.percent or 0, default=None)
        degrees = [self._files.celsius(path) for path in self._zones]
        degrees.append(_reading(self._card.celsius) if self._card else None)
        throttled = self._throttled()
        return Conditions(
            temperature_c=max((c for c in degrees if c is not None), default=None),
            cpu_mhz=self._cores_mhz(self._cpu_cores),
            gpu_mhz=self._gpu_mhz(),
            battery_percent=fullest.percent if fullest else None,
            is_charging=fullest.is_charging if fullest else None,
            throttled=tuple(side for side in PROCESSORS if side in throttled),
            governors=self._governors(),
            quota_periods=max(0, self._quota_periods() - self._stopped) if self._groups else None,
        )

    def _quota_periods(self) -> int:
        """Number of periods in which a quota has stopped this process's groups."""
        found = []
        for folder in self._groups:
            lines = map(str.split, self._files.text(f"{folder}/cpu.stat").splitlines())
            counts = dict(words for words in lines if len(words) == 2)
            if counts.get("nr_throttled", "").isdigit():
                found.append(int(counts["nr_throttled"]))
        return max(found, default=0)

    def _folders(self, cores: Collection[int]) -> list[str]:
        """Folders of the clusters of some cores; of all where no core is given."""
        clusters = self._clusters
        return [cluster.folder for cluster in clusters if not cores or {*cluster.cores} & {*cores}]

    def _cores_mhz(self, cores: Collection[int]) -> float | None:
        """The highest clock of these cores: idle clusters are slow."""
        clocks = [self._files.mhz(f"{folder}/scaling_cur_freq") for folder in self._folders(cores)]
        return max((mhz for mhz in clocks if mhz is not None), default=None)

    def _gpu_mhz(self) -> float | None:
        if self._is_one_cpu:
            return self._cores_mhz(self._gpu_cores)
        if self._card:
            return _reading(self._card.mhz)
        clocks = map(self._files.mhz, self._gpu.clocks if self._gpu else ())
        return next((mhz for mhz in clocks if mhz is not None), None)

    def _throttled(self) -> set[Processor]:
        held: set[Processor] = set()
        for side in PROCESSORS:
            if any((self._files.number(f"{x}/cur_state") or 0) > 0 for x in self._cooling[side]):
                held.add(side)
        folders = self._folders({*self._cpu_cores, *self._gpu_cores})
        # All are read: the highest seen limit of each is kept.
        lowered = [self._is_lowered(f"{folder}/scaling_max_freq") for folder in folders]
        if any(lowered):
            held.add("cpu")
        if self._gpu:
            level = self._files.number(self._gpu.level) if self._gpu.level else None
            if self._is_lowered(f"{self._gpu.devfreq}/max_freq") or (level or 0) > 0:
                held.add("gpu")
        if self._card and _reading(self._card.is_held_down):
            held.add("gpu")
        if self._is_one_cpu:
            return {*PROCESSORS} if "cpu" in held else set()
        return held

    def _is_lowered(self, path: str) -> bool:
        """Whether a limit is lower than before."""
        limit = self._files.mhz(path)
        if limit is None:
            return False
        most = self._limits[path] = max(limit, self._limits.get(path, 0.0))
        return limit < most

    def _governors(self) -> dict[str, str]:
        paths = {cluster.name: f"{cluster.folder}/scaling_governor" for cluster in self._clusters}
        if self._gpu:
            paths["gpu"] = f"{self._gpu.devfreq}/governor"
        names = {name: self._files.text(path) for name, path in paths.items()}
        return {name: governor for name, governor in names.items() if GOVERNOR.fullmatch(governor)}


def thermometers(files: SystemFiles = SYSTEM) -> tuple[str, ...]:
    """Names of the readable temperature sensors of processors."""
    zones = [path for path in _zones(files) if files.celsius(path) is not None]
    names = [files.text(f"{path.rpartition('/')[0]}/type") for path in zones]
    gpu = gpu_files(files)
    if gpu and gpu.temperature and files.celsius(gpu.temperature) is not None:
        names.append(gpu.temperature)
    return tuple(name[:MOST_NAME] for name in dict.fromkeys(names))


def _card(soc: LocalSoc | None, gpus: Callable[[], list[NvidiaGpu]]) -> NvidiaGpu | None:
    """The SoC's GPU where it is NVIDIA's; None where several GPUs have its name."""
    if soc is None or soc.gpu.is_cpu:
        return None
    alike = [gpu for gpu in gpus() if gpu.model == soc.gpu.name]
    return alike[0] if len(alike) == 1 else None


def _reading(read: Callable[[], float]) -> float | None:
    try:
        return float(read())
    except OSError:
        return None


def _zones(files: SystemFiles) -> list[str]:
    """Temperature files of processors, or of the board where there are none."""
    kinds = {zone: files.text(f"{zone}/type") for zone in files.find(f"{THERMAL}/thermal_zone*")}
    for pattern in (ZONES, BOARD):
        zones = [f"{zone}/temp" for zone, kind in kinds.items() if pattern.search(kind)]
        if zones:
            return zones
    return []
