"""Threads at work: how many, and on which cores, while a convolution or a busy kernel runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter, sleep

import msgspec
import numpy as np

from codl.ir import parse
from codl.ir.records.soc import Soc
from codl.kernels import registry
from codl.lower import pieces
from codl.machine import threads
from codl.machine.placement import LocalSoc, Placement
from codl.runtime.handles import CpuNet
from codl.runtime.opencl import OpenClDevice
from codl.runtime.session import Session, host_session
from support.simulated import SOC

#: How long a net is watched at least; at most, while fewer threads work than the placement says,
#: since other programs may have their cores; and the seconds that a thread that counts has worked.
WATCHED_S, MOST_S, LEAST_S = 0.6, 20.0, 0.018
#: Seconds between two observations of the threads' cores.
EACH_S = 0.005


def seen_at_work(variant: str, *placements: Placement, facts: int) -> tuple[int, set[int]]:
    """How many threads work on a convolution, and the cores on which, by what Linux counts.

    In a process of its own, whose libraries have no threads yet; what is told is of the last
    placement. `facts` is `cpu.threads`.
    """
    soc = replace(SOC, cpu=replace(SOC.cpu, threads=facts))
    sides = [json.dumps(x.to_dict()) for x in (soc, *placements)]
    done = subprocess.run(
        [sys.executable, "-m", "support.threads_at_work", variant, *sides],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    count, cores = json.loads(done.stdout)
    return count, set(cores)


def watch(variant: str, soc: LocalSoc) -> tuple[int, list[int]]:
    """Threads that worked, and cores that any thread was seen on.

    Python's other threads do not count: OpenVINO's package has one that reports its use.
    """
    session = busy_net(variant, soc)
    executable = session.executable
    session.run()
    observer, before, begin = CoreObserver(), dict(used_s()), perf_counter()
    session._handles.nets = [Watched(net, observer) for net in session.nets]
    session._actions = session._binder.bind(executable.commands)
    of_python = {thread.native_id for thread in threading.enumerate()} - {os.getpid()}
    workers: list[int] = []
    while (spent_s := perf_counter() - begin) < WATCHED_S or (
        len(workers) < soc.placement.threads and spent_s < MOST_S
    ):
        session.run()
        took_s = {thread: s - before.get(thread, 0.0) for thread, s in used_s()}
        workers = [t for t, s in took_s.items() if s > LEAST_S and t not in of_python]
    return len(workers), sorted(observer.cores)


class CoreObserver:
    """Counts the cores on which threads of this process work, and records these threads.

    Each `sample` counts threads that have used processor time since the previous one.
    """

    def __init__(self, *, ignore: Iterable[int] = ()) -> None:
        self._ignore = set(ignore)
        self._ticks = {thread: ticks for thread, ticks, _ in self._look()}
        self.cores: Counter[int] = Counter()
        self.threads: set[int] = set()

    def ignore(self, thread: int) -> None:
        """Exclude a thread, such as the sampling one."""
        self._ignore.add(thread)

    def sample(self) -> None:
        for thread, ticks, core in self._look():
            if ticks > self._ticks.get(thread, 0):
                self.cores[core] += 1
                self.threads.add(thread)
            self._ticks[thread] = ticks

    def _look(self) -> Iterator[tuple[int, int, int]]:
        """Thread id, nanoseconds of processor time, and last core of each thread."""
        for thread in threads.thread_ids() - self._ignore:
            try:
                stat = (threads.TASKS / str(thread) / "stat").read_text()
                used = (threads.TASKS / str(thread) / "schedstat").read_text().split()[0]
            except (FileNotFoundError, ProcessLookupError):
                continue
            # Fields are counted after the name, which may contain spaces and brackets.
            after = stat[stat.rindex(")") + 2 :].split()
            yield thread, int(used), int(after[36])


def observed_cores(
    work: Callable[[], object], seconds: float, *, ignore: Iterable[int] = ()
) -> tuple[int, ...]:
    """Repeat `work` for `seconds`; returns the cores on which threads of this process worked."""
    is_over, observer = threading.Event(), CoreObserver(ignore=ignore)

    def watch() -> None:
        observer.ignore(threading.get_native_id())
        while not is_over.wait(EACH_S):
            observer.sample()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        begin = perf_counter()
        while perf_counter() - begin < seconds:
            work()
    finally:
        is_over.set()
        watcher.join()
    return tuple(sorted(observer.cores))


def busy_net(variant: str, soc: LocalSoc) -> Session:
    """A convolution of about a millisecond on the CPU side."""
    op = parse("conv2d in=1x64x56x56 oc=64 kernel=3 pad=1")
    weights = op.weights_of(lambda shape: np.ones(shape, np.float32))
    found = registry.find(op, variant, "cpu")
    return host_session(pieces.net_alone([op], found, [weights], soc), soc)


def observe_cores(gpu: OpenClDevice) -> dict[str, list[int]]:
    """Run each side alone; returns the cores of its threads by side."""
    with threads.pinned_to(gpu.soc.placement.cpu_cores):
        of_gpu = _observe_gpu(gpu)
        others = gpu.worker_threads | threads.others_threads() - {threading.get_native_id()}
        net = busy_net("cpu_gemm", gpu.soc)
        of_cpu = observed_cores(net.run, WATCHED_S, ignore=others)
    return {"cpu": [*of_cpu], "gpu": of_gpu}


def _observe_gpu(gpu: OpenClDevice) -> list[int]:
    """The cores of a CPU device, sampled while this thread sleeps."""
    busy = gpu.busy_kernel()
    observer = CoreObserver(ignore=threads.thread_ids() - gpu.worker_threads)
    deadline = perf_counter() + WATCHED_S
    while perf_counter() < deadline:
        busy.enqueue(gpu.queue)
        gpu.queue.flush()
        sleep(0.02)
        observer.sample()
    gpu.queue.finish()
    return sorted(observer.cores)


@dataclass(frozen=True)
class Watched:
    """A net, behind whose run threads are looked at: the calling one is still on its cores."""

    net: CpuNet
    observer: CoreObserver

    @property
    def label(self) -> str:
        return self.net.label

    def run(self) -> None:
        self.net.run()
        self.observer.sample()

    def run_layers(self) -> Mapping[str, float]:
        return self.net.run_layers()


def used_s() -> Iterator[tuple[int, float]]:
    """Seconds that every thread of this process has had a core."""
    for task in Path("/proc/self/task").iterdir():
        yield int(task.name), 1e-9 * int((task / "schedstat").read_text().split()[0])


if __name__ == "__main__":
    _, library, soc, *places = sys.argv
    facts = msgspec.json.decode(soc, type=Soc)
    for place in places:
        seen = watch(library, LocalSoc.of(facts, msgspec.json.decode(place, type=Placement)))
    print(json.dumps(seen))
