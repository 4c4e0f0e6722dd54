"""The programs that networks need on a GPU, with every launch of their kernels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from itertools import product
from math import prod
from typing import Any

import numpy as np

from codl.errors import CodlError
from codl.ir import Op, parse, to_text
from codl.ir.constants import digest
from codl.ir.network import Network
from codl.ir.records.soc import Soc
from codl.ir.region import Shape
from codl.ir.types import PRECISIONS, PrecisionTraits, Storage
from codl.kernels import registry
from codl.kernels.base import KernelLaunch, KernelPlan
from codl.kernels.kernel import Kernel
from codl.kernels.layout import KERNELS, transform
from codl.kernels.source import compile_options, text_of
from codl.lower.partition import residual_adds
from codl.measure.check_variants import OPS

#: Networks that were exported from PyTorch, as lines of a name, an op, and a fused op.
EXPORTED = "exported_ops.txt"
#: Of tensors that are copied between layouts.
COPIED = Shape(1, 64, 56, 56)


@dataclass(frozen=True)
class NeededOp:
    """An op of some networks; `mode` says how an element-wise op behind it is fused.

    "" where it is not fused with one.
    """

    op: Op
    mode: str = ""


@dataclass(frozen=True)
class Program:
    """What is compiled; `key` says all that its code depends on."""

    key: str
    name: str
    source: str
    options: str
    kernels: tuple[str, ...]


@dataclass(frozen=True)
class KernelUse:
    """A kernel of a program in one launch, for an op in a variant.

    `is_default` is of the untuned choice. `lanes` is the share of the lanes of all busy waves that
    have work.
    """

    program: str
    kernel: str
    variant: str
    op: str
    memory: str
    precision: str
    choice: Mapping[str, Any]
    is_default: bool
    lanes: float


@dataclass
class ProgramList:
    """Programs by their keys, and all uses of their kernels."""

    programs: dict[str, Program] = field(default_factory=dict)
    uses: list[KernelUse] = field(default_factory=list)

    def add(self, plan: KernelPlan, wave_size: int, items: float | None, **use: Any) -> None:
        """A plan, whose kernels are used so; `items` of its work-items have work, if known."""
        text, options = text_of(plan.source), compile_options(plan.defines)
        kernels = tuple(dict.fromkeys(launch.kernel for launch in plan.launches))
        key = digest({"source": text, "options": options, "kernels": " ".join(kernels)})[:16]
        self.programs.setdefault(key, Program(key, plan.source, text, options, kernels))
        shares: dict[str, float] = {}
        for launch in with_used(plan.launches, items):  # of one launched several times, the least
            share = lanes(launch, wave_size)
            shares[launch.kernel] = min(share, shares.get(launch.kernel, 1.0))
        self.uses += [
            KernelUse(program=key, kernel=kernel, lanes=share, **use)
            for kernel, share in shares.items()
        ]


def lanes(launch: KernelLaunch, wave_size: int) -> float:
    """The share of the lanes of all waves with work that have some.

    Waves are consecutive work-items of a work-group.
    """
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
    return busy / (waves * wave_size) if waves else 1.0


def with_used(launches: Sequence[KernelLaunch], items: float | None) -> Sequence[KernelLaunch]:
    """Launches with the number of work-items that have work; of a single launch it is `items`."""
    if len(launches) != 1 or launches[0].used or not items:
        return launches
    first, *others = launches[0].global_size
    used = round(items / prod(others))
    return [replace(launches[0], used=(used, *others))] if 0 < used < first else launches


def needs(network: Network) -> list[NeededOp]:
    """The ops of a network, alone and as they are fused on a GPU."""
    adds = residual_adds(network.layers, {name for name, _ in network.outputs.values()})
    needed = []
    for layer in network.layers:
        needed.append(NeededOp(layer.op))
        if add := adds.get(layer.name):
            needed.append(NeededOp(layer.op.with_activation(add.op.activation), "add"))
    return list(dict.fromkeys(needed))


def exported() -> dict[str, list[NeededOp]]:
    """The same of networks that people export, by name; their ops come with codl."""
    networks: dict[str, list[NeededOp]] = {}
    for line in resources.files(__package__).joinpath(EXPORTED).read_text().splitlines():
        if line and not line.startswith("#"):
            name, text, mode = line.split("\t")
            networks.setdefault(name, []).append(NeededOp(parse(text), mode))
    return networks


def programs_of(
    networks: Mapping[str, Sequence[NeededOp]], socs: Iterable[Soc], *, all_choices: bool = False
) -> ProgramList:
    """Every program of every variant that the ops of networks may be planned in, on SoCs.

    The SoCs are one at other precisions. Variants for GPUs that no network meets are
    met by small ops, and copies between layouts are among them. Tuning choices are those that hold
    untuned, unless `all_choices` are wanted.
    """
    listed, met = ProgramList(), set()
    wanted = dict.fromkeys(need for needed in networks.values() for need in needed)
    for soc in socs:
        for need in wanted:
            for variant in _variants(need.op, soc):
                met.add(f"{need.op.kind} {variant.name}")
                _add(listed, need, variant, soc, all_choices)
        for text in OPS:
            op = parse(text)
            for variant in _variants(op, soc):
                if f"{op.kind} {variant.name}" not in met:
                    _add(listed, NeededOp(op), variant, soc, all_choices)
        _add_copies(listed, soc)
    return listed


def _variants(op: Op, soc: Soc) -> list[Kernel]:
    every: list[Any] = registry.variants(op, "gpu", soc)
    return every


def _precision(variant: Kernel) -> str:
    traits = PrecisionTraits(variant.storage.element, variant.arithmetic)
    return next(name for name, each in PRECISIONS.items() if each == traits)


def _add(listed: ProgramList, need: NeededOp, variant: Kernel, soc: Soc, all_choices: bool) -> None:
    op = need.op
    fused = need.mode and soc.gpu.type in variant.adds_on
    if need.mode and not fused:
        return
    use = {
        "variant": f"{op.kind} {variant.name}",
        "op": to_text(op) + (f" + {need.mode}" if need.mode else ""),
        "memory": "image2d" if variant.in_images else "buffer",
        "precision": _precision(variant),
    }
    for at, choice in enumerate(variant.choices(op, soc) if all_choices else (None,)):
        try:
            plan, features = variant.plan(op, soc, choice), variant.features(op, soc, choice)
        except CodlError:  # a choice that does not fit is none
            continue
        plan = plan.adding() if fused else plan
        how = {"choice": dict(choice or {}), "is_default": at == 0, **use}
        listed.add(plan, soc.gpu.wave_size, features.get("work_items"), **how)


def _add_copies(listed: ProgramList, soc: Soc) -> None:
    for source, target in KERNELS:
        ends: list[Any] = [
            Storage(layout, element)  # type: ignore[arg-type]
            for layout in (source, target)
            for element in ["float32" if layout == "planar" else soc.gpu.element]
        ]
        listed.add(
            transform(ends[0], ends[1], COPIED, soc),
            soc.gpu.wave_size,
            None,
            variant=f"copy {source} to {target}",
            op=f"copy in={'x'.join(map(str, COPIED))}",
            memory="image2d" if "image" in (source, target) else "buffer",
            precision="half_storage" if soc.gpu.element == "float16" else "float32",
            choice={},
            is_default=True,
        )
