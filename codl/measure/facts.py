"""Measured facts of a device: the cores of its two sides, and whether pinning threads pays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from threading import get_native_id
from time import perf_counter, sleep

import numpy as np

from codl.ir import parse
from codl.ir.records import statistic
from codl.kernels import registry
from codl.lower import pieces
from codl.machine import threads
from codl.machine.placement import LocalSoc, Placement, check_cores
from codl.runtime.opencl import OpenClDevice
from codl.runtime.session import Session, host_session

#: Seconds for which each side works under observation.
OBSERVE_S = 0.5
#: Turns of pinned and unpinned threads: their least number, the seconds in which more begin, and
#: the untimed and timed runs of each.
TURNS, TURNS_S, SETTLING, TIMED = 12, 1.0, 2, 6


def observe_cores(gpu: OpenClDevice) -> dict[str, list[int]]:
    """Run each side alone; returns the cores of its threads by side, none for a real GPU."""
    soc = gpu.soc
    with threads.pinned_to(soc.placement.cpu_cores):
        of_gpu = _observe_gpu(gpu) if soc.gpu.is_cpu else []
        others = gpu.worker_threads | threads.others_threads() - {get_native_id()}
        of_cpu = threads.observed_cores(busy_net(soc).run, OBSERVE_S, ignore=others)
    return {"cpu": [*of_cpu], "gpu": of_gpu}


def _observe_gpu(gpu: OpenClDevice) -> list[int]:
    """The cores of a CPU device, sampled while this thread sleeps."""
    busy, event = gpu.busy_kernel(), None
    observer = threads.CoreObserver(ignore=threads.thread_ids() - gpu.worker_threads)
    deadline = perf_counter() + OBSERVE_S
    while perf_counter() < deadline:
        event = busy.enqueue(gpu.queue)
        gpu.queue.flush()
        sleep(0.02)
        observer.sample()
    if event is not None:
        event.wait()
    return sorted(observer.cores)


def busy_net(soc: LocalSoc) -> Session:
    """A convolution of about a millisecond on the CPU side."""
    op = parse("conv2d in=1x64x56x56 oc=64 kernel=3 pad=1")
    weights = op.weights_of(lambda shape: np.ones(shape, np.float32))
    variant = registry.variants(op, "cpu", soc)[0]
    return host_session(pieces.net_alone([op], variant, [weights], soc), soc)


def unpinned_ratios(soc: LocalSoc, cores: Sequence[int]) -> tuple[float, ...]:
    """Ratios of CPU latency with threads on all of `cores` to latency on its own cores, by turn.

    Each placement has its own calling thread, because OpenMP threads keep the cores of their
    creation. Raises `DeviceError` for cores that this process may not use.
    """
    own = soc.placement
    wide = replace(own, cpu_cores=tuple(cores), cpu_threads=own.threads)
    check_cores(wide)
    with ExitStack() as stack:

        def turns_on(placement: Placement) -> Callable[[], float]:
            caller = stack.enter_context(ThreadPoolExecutor(1))
            net = caller.submit(busy_net, replace(soc, placement=placement)).result()
            return lambda: caller.submit(_turn_s, net).result()

        ways = {"pinned": turns_on(own), "unpinned": turns_on(wide)}
        ratios, order, begin = list[float](), list(ways), perf_counter()
        while len(ratios) < TURNS or perf_counter() - begin < TURNS_S:
            taken_s = {way: ways[way]() for way in order}
            ratios.append(taken_s["unpinned"] / taken_s["pinned"])
            order.reverse()  # neither always follows the other
    return tuple(ratios)


def _turn_s(net: Session) -> float:
    """Seconds of a run, measured once the other placement's threads are idle."""
    threads.wait_until_idle()
    taken_s = []
    for _ in range(SETTLING + TIMED):
        begin = perf_counter()
        net.run()
        taken_s.append(perf_counter() - begin)
    return statistic.level(taken_s[SETTLING:])
