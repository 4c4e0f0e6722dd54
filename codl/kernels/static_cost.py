"""What kernels cost on a GPU that nobody measured, to order its variants by: slots of its waves.

Facts alone count: a kernel's instructions, the issue slots of its hot loop for a multiply-add, its
private memory and its waves in flight, as phones' compilers give them (`static_costs.json`, by
`scripts/static_costs.py`); and its launches: waves with work, and how many of their lanes have any.
Costs of one op can be compared with each other; they are no milliseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from itertools import product
from math import inf, prod
from typing import Any

import numpy as np

from codl.ir.ops.base import Op
from codl.kernels.base import Choice, KernelLaunch
from codl.kernels.kernel import Kernel
from codl.records.soc import GpuSide, Soc

FILE = "static_costs.json"
#: Parameters of a choice that change launches, and not what is compiled.
OF_LAUNCHES = frozenset({"local_x", "local_y", "strip", "splits", "most"})
#: Waves that hide the latencies of one another on a compute unit.
HIDING = 8
#: Slots that a load of four floats, or an access to private memory, keeps a wave's lanes from: an
#: Adreno 640 fetches 28 billion texels a second and makes 477 billion multiply-adds.
LOAD_SLOTS = 16
#: Slots of a launch, on all compute units.
LAUNCH_SLOTS = 4000
#: Bytes that a compute unit reads or writes while a wave issues a slot.
SLOT_BYTES = 16


@dataclass(frozen=True)
class CodeCost:
    """Of a kernel in a choice: its instructions, and of its hot loop, for a multiply-add, the issue
    slots (0 where it makes next to none), loads, and accesses of private memory; waves in flight.
    """

    instructions: float
    slots: float
    loads: float
    private: float
    waves: float


@dataclass(frozen=True)
class LaunchWaves:
    """Waves of a launch that have work, and the share of their lanes that have some."""

    waves: int
    lanes: float

    @classmethod
    def of(cls, launch: KernelLaunch, wave_size: int) -> LaunchWaves:
        """Waves are consecutive work-items of a work-group; those without any work end at once."""
        local = launch.local_size or (1,) * len(launch.global_size)
        used = launch.used or launch.global_size
        kinds = []
        for size, most, group in zip(used, launch.global_size, local, strict=True):
            full, rest = divmod(min(size, most), group)
            kinds.append([(group, full)] * bool(full) + [(rest, 1)] * bool(rest))
        busy = waves = 0
        for corner in product(*kinds):
            groups = prod(count for _, count in corner)
            works = np.zeros(local[::-1], bool)
            works[tuple(slice(0, size) for size, _ in reversed(corner))] = True
            items = works.reshape(-1)
            padded = np.pad(items, (0, -items.size % wave_size)).reshape(-1, wave_size)
            busy += groups * int(items.sum())
            waves += groups * int(padded.any(axis=1).sum())
        return cls(waves, busy / (waves * wave_size) if waves else 1.0)


def with_used(launches: Sequence[KernelLaunch], items: float | None) -> Sequence[KernelLaunch]:
    """Launches that say how many work-items have work: of one alone `items`, those in front."""
    if len(launches) != 1 or launches[0].used or not items:
        return launches
    first, *others = launches[0].global_size
    used = round(items / prod(others))
    return [replace(launches[0], used=(used, *others))] if 0 < used < first else launches


def code_name(choice: Mapping[str, Any]) -> str:
    """What of a choice changes the code, as the file calls it."""
    return ",".join(f"{k}={v}" for k, v in sorted(choice.items()) if k not in OF_LAUNCHES)


def family_of(gpu: GpuSide) -> str:
    """Whose compiler tells most about a GPU: Mali's of those with small waves."""
    return "mali" if "mali" in gpu.name.lower() or gpu.wave_size < 32 else "adreno"


@cache
def code_costs(family: str) -> dict[tuple[str, str], CodeCost]:
    """By variant and kernel ("conv2d gpu_direct conv2d_direct") and choice, "" for any choice."""
    read = json.loads(resources.files(__package__).joinpath(FILE).read_text())[family]
    return {
        (name, choice): CodeCost(*numbers)
        for name, choices in read.items()
        for choice, numbers in choices.items()
    }


def code_cost(gpu: GpuSide, variant: Kernel, kernel: str, choice: Choice) -> CodeCost | None:
    """That of a kernel in a choice, else in any, else over floats; None where nothing is told."""
    costs, floats = code_costs(family_of(gpu)), variant.name.removesuffix("_fp16")
    for name in dict.fromkeys((variant.name, floats)):
        for code in (code_name(choice), ""):
            if found := costs.get((f"{variant.op_kind} {name} {kernel}", code)):
                return found
    return None


def static_cost(variant: Kernel, op: Op, soc: Soc, choice: Choice | None = None) -> float | None:
    """Slots of all compute units for an op in a variant; None where too little is told.

    Of multiply-adds those are counted that tiles make, with padding; bytes are those of the op's
    tensors and weights, each once.
    """
    gpu = soc.gpu
    chosen = variant.choices(op, soc)[0] if choice is None else choice
    plan, features = variant.plan(op, soc, chosen), variant.features(op, soc, chosen)
    launches = with_used(plan.launches, features.get("work_items"))
    codes = [code_cost(gpu, variant, launch.kernel, chosen) for launch in launches]
    macs = features.get("padded_macs")
    if macs is None or None in codes:
        return None
    every = [code for code in codes if code is not None]
    # The multiply-adds are those of the kernel that makes them with the least around them.
    products = min((code for code in every if code.slots), key=lambda c: c.slots, default=None)
    total = 0.0
    for launch, code in zip(launches, every, strict=True):
        run = LaunchWaves.of(launch, gpu.wave_size)
        slots = run.waves * code.instructions
        if code is products:
            per_mac = code.slots + LOAD_SLOTS * (code.loads + code.private)
            slots += macs / (gpu.wave_size * run.lanes) * per_mac
        in_flight = min(code.waves, run.waves / gpu.compute_units)
        total += slots / gpu.compute_units / min(1.0, in_flight / HIDING)
    moved = sum(v for k, v in features.items() if k.endswith("_bytes"))
    return max(total, moved / SLOT_BYTES / gpu.compute_units) + LAUNCH_SLOTS * len(launches)


def by_cost(variants: Iterable[Kernel], op: Op, soc: Soc) -> list[Kernel]:
    """Variants of an op on a GPU, the cheapest first; those of no cost behind, in their order."""

    def cost(variant: Kernel) -> float:
        found = static_cost(variant, op, soc)
        return inf if found is None else found

    return sorted(variants, key=cost)
