"""A process that runs a convolution by one library, and prints how many threads worked, where."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter

import msgspec
import numpy as np

from codl.ir import parse
from codl.ir.records.soc import Soc
from codl.kernels import registry
from codl.lower import pieces
from codl.machine.placement import LocalSoc, Placement
from codl.machine.threads import CoreObserver
from codl.runtime.handles import CpuNet
from codl.runtime.session import host_session
from support.simulated import SOC

#: How long a net is watched at least; at most, while fewer threads work than the placement says,
#: since other programs may have their cores; and the seconds that a thread that counts has worked.
WATCHED_S, MOST_S, LEAST_S = 0.6, 20.0, 0.018


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
    threads, cores = json.loads(done.stdout)
    return threads, set(cores)


def watch(variant: str, soc: LocalSoc) -> tuple[int, list[int]]:
    """Threads that worked, and cores that any thread was seen on.

    Python's other threads do not count: OpenVINO's package has one that reports its use.
    """
    op = parse("conv2d in=1x64x56x56 oc=64 kernel=3 pad=1")
    weights = op.weights_of(lambda shape: np.ones(shape, np.float32))
    found = registry.find(op, variant, "cpu")
    executable = pieces.net_alone([op], found, [weights], soc)
    session = host_session(executable, soc)
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
