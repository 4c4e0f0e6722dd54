"""The wave size: how many work-items of a GPU run in lockstep, by a staircase of latencies.

No API tells it (OpenCL's preferred multiple is a hint), so it is measured by what a wave is: one
program counter for many work-items. In the kernel below the work-items of one work-group take
turns; a turn is a chain of dependent loads. Items of one wave cannot be at different places of the
program at once, so each of them adds a turn to the latency; items of different waves can, so a
second wave takes its turns while the first one does. The latency over the number of work-items
climbs a step an item, and is flat from the wave size on.

Why not the usual way, to add work-items that all do the same and see when it takes longer? Because
what is seen then is how much arithmetic a compute unit does at once. An NVIDIA unit has four
schedulers with 32 lanes each: up to 128 items take as long as one, and the step is at 128. Others
need several waves for all of their pipelines, or have them wait for memory at the same time.

Turns depend on none of that. One item at a time loads one word at a time, so nothing but latency
fills a turn, on any number of schedulers and lanes; and to work on while another wave waits for
memory is what a GPU's waves are for. On a unit that cannot even do that, the latency climbs to the
end, which is seen and told. Nor can a compiler undo it: who has which turn is read from memory, and
where the chain leads too. What it found is checked.

The width may depend on the kernel (Intel's compiler chooses it, Adreno's too); it is that of a
kernel with few registers. A CPU's device runs work-items one after another: its wave is 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from codl.errors import DeviceError
from codl.measure.budget import Budget
from codl.measure.facts.fact import Fact, Point
from codl.measure.facts.staircase import Staircase, find_wave
from codl.records.results import Latency
from codl.runtime.drivers import cl_module
from codl.runtime.probe import BareDevice

KEY = "gpu.wave_size"
SOURCE = """
kernel void turns(global const int *turn, global const int *next, int links, global int *out) {
    const int me = get_local_id(0), items = get_local_size(0);
    int at = me;
    for (int now = 0; now < items; now++)
        if (turn[now] == me)
            for (int i = 0; i < links; i++) at = next[at];
    out[me] = at;
}
"""
#: The largest work-group of the staircase: twice the largest wave that is known, 128.
MOST_ITEMS = 256
#: So many rounds, or as many as begin in the time, but the least.
ROUNDS, LEAST_ROUNDS, BUDGET_S = 9, 3, 60.0
#: A turn lasts so long, or so many steps of the device's clock: far more than what disturbs it.
TURN_MS, CLOCK_STEPS = 0.03, 30
#: The least and the most links of a turn's chain; waves that have no turn pay for one.
LEAST_LINKS, MOST_LINKS = 128, 1 << 14
#: Before anything counts, the device works so long, as its clocks rise.
WARM_UP_MS = 50.0


def measure_wave_size(device: BareDevice) -> Fact:
    """The wave size of a GPU and its staircase; None where that shows no step.

    Raises `DeviceError` where the kernel computes something else than it should.
    """
    if device.is_cpu:
        return Fact(KEY, 1, "on a CPU work-items run one after another", origin="driver")
    staircase = climb(Turns.on(device))
    found = find_wave(staircase)
    return Fact(KEY, found.size, found.reason, as_points(staircase))


@dataclass(frozen=True)
class Turns:
    """The kernel on a device, with its tables: whose turn it is, and where a link leads to."""

    device: BareDevice
    kernel: Any
    most_items: int
    next: np.ndarray[Any, np.dtype[np.int32]]
    out: Any
    #: A kernel does not keep its arguments alive.
    held: tuple[Any, ...]

    @classmethod
    def on(cls, device: BareDevice) -> Turns:
        cl, kernel = cl_module(), device.kernel(SOURCE, "turns")
        info = cl.kernel_work_group_info.WORK_GROUP_SIZE
        most = min(MOST_ITEMS, int(kernel.get_work_group_info(info, device.device)))
        flags, random = cl.mem_flags, np.random.default_rng(0)
        one_cycle = random.permutation(MOST_ITEMS).astype(np.int32)
        leads_to = np.empty_like(one_cycle)
        leads_to[one_cycle] = np.roll(one_cycle, -1)
        tables = (np.arange(MOST_ITEMS, dtype=np.int32), leads_to)
        constant = flags.READ_ONLY | flags.COPY_HOST_PTR
        held = tuple(cl.Buffer(device.context, constant, hostbuf=table) for table in tables)
        out = cl.Buffer(device.context, flags.WRITE_ONLY, leads_to.nbytes)
        kernel.set_args(*held, np.int32(0), out)
        return cls(device, kernel, most, leads_to, out, held)

    def latency_ms(self, items: int, links: int) -> float:
        """Of one work-group of `items`, each with a turn of `links`."""
        self.kernel.set_arg(2, np.int32(links))
        return self.device.run(self.kernel, items, items)

    def check(self, links: int) -> None:
        """Run all items, and raise `DeviceError` where they did not end where the links lead."""
        self.latency_ms(self.most_items, links)
        found, expected = np.empty_like(self.next), np.arange(MOST_ITEMS, dtype=np.int32)
        cl_module().enqueue_copy(self.device.queue, found, self.out)
        for _ in range(links):
            expected = self.next[expected]
        if not np.array_equal(found[: self.most_items], expected[: self.most_items]):
            raise DeviceError(
                f"{self.device.device.name.strip()} computes the turns of the staircase wrongly."
            )


def climb(turns: Turns) -> Staircase:
    """The staircase, in rounds that each go over all numbers of items in an order of its own."""
    turns.check(LEAST_LINKS)
    links, budget, random = _links(turns), Budget(BUDGET_S), np.random.default_rng(0)
    items = np.arange(1, turns.most_items + 1)
    rounds: list[tuple[float, ...]] = []
    while len(rounds) < ROUNDS:
        if len(rounds) >= LEAST_ROUNDS and budget.is_over():
            break
        round_ms = np.empty(len(items))
        for index in random.permutation(len(items)):
            round_ms[index] = turns.latency_ms(int(items[index]), links)
        rounds.append(tuple(round_ms.tolist()))
    return Staircase(tuple(items.tolist()), tuple(rounds))


def _links(turns: Turns) -> int:
    """So many that a turn stands out of the noise, after warming up.

    Raises `DeviceError` where the device's clock sees no turn: some drivers record nothing.
    """
    worked = 0.0
    for _ in range(1000):  # also where the clock tells nothing
        worked += turns.latency_ms(turns.most_items, LEAST_LINKS)
        if worked > WARM_UP_MS:
            break
    step_ms = 1e-6 * turns.device.device.profiling_timer_resolution
    wanted, links = max(TURN_MS, CLOCK_STEPS * step_ms), LEAST_LINKS
    while (found := _chain_ms(turns, links)) < wanted:
        links *= 2
        if links > MOST_LINKS:
            name = turns.device.device.name.strip()
            raise DeviceError(
                f"By the clock of {name}, {MOST_LINKS} dependent loads take {found:.6f} ms: that "
                f"is less than the {wanted:.6f} ms that tell a turn from noise."
            )
    return links


def _chain_ms(turns: Turns, links: int) -> float:
    """What a turn takes without what any kernel does."""
    return min(turns.latency_ms(1, links) - turns.latency_ms(1, 1) for _ in range(3))


def as_points(staircase: Staircase) -> tuple[Point, ...]:
    """The staircase as data: sizes are work-items."""
    rounds = np.array(staircase.rounds_ms)
    samples = zip(staircase.items, rounds.T, strict=True)
    return tuple(
        Point("one work-group", items, Latency.of([1e-3 * ms for ms in own]))
        for items, own in samples
    )
