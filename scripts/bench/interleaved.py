"""Compares latencies on one core of a machine that others use too: in turns, round after round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter, process_time

from codl.records.statistic import level
from codl.runtime import threads
from codl.runtime.opencl import OpenClDevice
from codl.runtime.placement import LocalSoc
from codl.targets.connect import connect
from codl.targets.detect import detect

#: A sample repeats its work until it lasts so long: less than a time slice of the system.
SAMPLE_S = 0.002
#: After so many rounds, those that are so many times slower than their group's best leave.
TRIAL_ROUNDS, HOPELESS = 4, 1.4
#: Undisturbed samples that everybody should have, and how often the time is exceeded for them.
FEWEST_SAMPLES, PATIENCE = 5, 4
#: A sample counts as disturbed where its threads were kept off the core for such a share of it;
#: their time on the core stands for it where nobody has an undisturbed one.
DISTURBED = 0.1


@dataclass
class Contender:
    """Something that is timed: `work(n)` does it n times.

    It is called on one of `cores`; `busy_s` is the time that its threads have had on a core so far.
    Contenders of a `group` compete: all but the best of each may leave a comparison early.
    """

    group: str
    name: str
    work: Callable[[int], None]
    cores: tuple[int, ...]
    busy_s: Callable[[], float]
    repeats: int = 0
    samples_s: list[float] = field(default_factory=list)
    disturbed_s: list[float] = field(default_factory=list)

    @property
    def ms(self) -> float:
        return 1e3 * level(self.samples_s or self.disturbed_s)

    def sample(self) -> None:
        threads.pin([0], self.cores)
        start = perf_counter()
        self.work(1)  # brings its data back into the caches
        once = perf_counter() - start
        if not self.repeats:
            self.work(1)  # the first one may have compiled or allocated something
            self.repeats = max(1, round(SAMPLE_S / max(once, 1e-6)))
        busy, start = self.busy_s(), perf_counter()
        self.work(self.repeats)
        seconds, busy = perf_counter() - start, self.busy_s() - busy
        if seconds - busy > DISTURBED * seconds:
            self.disturbed_s.append(busy / self.repeats)
        else:
            self.samples_s.append(seconds / self.repeats)


def compare(contenders: Sequence[Contender], seconds: float) -> dict[str, Contender]:
    """Sample all in turns for `seconds`; returns the best of each group."""
    left, rounds, begin = list(contenders), 0, perf_counter()
    while not _is_enough(left, perf_counter() - begin, seconds):
        for contender in left:
            contender.sample()
        rounds += 1
        if rounds == TRIAL_ROUNDS:
            left = [c for c in left if c.ms <= HOPELESS * _best(left)[c.group].ms]
    return _best(left)


def _is_enough(contenders: Sequence[Contender], elapsed: float, seconds: float) -> bool:
    fewest = min(len(contender.samples_s) for contender in contenders)
    return elapsed >= seconds and (fewest >= FEWEST_SAMPLES or elapsed >= PATIENCE * seconds)


def _best(contenders: Sequence[Contender]) -> dict[str, Contender]:
    return {c.group: c for c in sorted(contenders, key=lambda c: -c.ms)}


def one_core_soc(device: str | None = None) -> LocalSoc:
    """This machine with its last core as both sides: ncnn and OpenCL on the very same one.

    An OpenCL device that is a GPU stays whole, and ncnn still gets one core.
    """
    soc = detect(connect("local"), "bench", device=device)
    own = soc.placement
    core = (own.gpu_cores or own.cpu_cores)[-1:]
    place = replace(own, cpu_cores=core, gpu_cores=core if soc.gpu.is_cpu else ())
    gpu = replace(soc.gpu, compute_units=1) if soc.gpu.is_cpu else soc.gpu
    return replace(soc, cpu=replace(soc.cpu, threads=1), gpu=gpu, placement=place)


def waiting_cores(soc: LocalSoc) -> tuple[int, ...]:
    """Where to wait for the OpenCL device: any core but its own."""
    everywhere = threads.available_cores()
    return tuple(core for core in everywhere if core not in soc.placement.gpu_cores) or everywhere


def busy_s(gpu: OpenClDevice) -> float:
    """Seconds that this process has worked where the device is a CPU; the clock for a GPU.

    Where the device's threads wait for a core, the thread that waits for them does their work.
    """
    return process_time() if gpu.soc.gpu.is_cpu else perf_counter()
