"""What the parts of a plan cost: predicted latencies of ops, of sharing, and of both at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from codl.errors import UnsupportedError
from codl.ir import Network, Region, Shape, to_text
from codl.ir.types import Direction, Processor, Storage
from codl.kernels import registry
from codl.lower.fusion import residual_adds, works
from codl.lower.partition import Part, Shard
from codl.lower.program import Transfer
from codl.plan.op_costs import Choice, Corrections, OpCosts
from codl.plan.switches import crossings
from codl.predict.context_terms import Besides, Launches, Load
from codl.predict.features import sharing_target

#: The names of variants by layer and processor, as plans have them.
Variants: TypeAlias = Mapping[str, Mapping[str, str]]
#: A tensor's region on its way from one place to another.
Moved: TypeAlias = tuple[Direction, Shape]
#: What is saved by running ops in one net leaves at least this share of their latencies.
LEAST_SHARE = 0.1
#: Of what a residual add takes on the GPU, the part that is left where a convolution does it: it
#: reads one tensor, instead of two, and writes none. 0.2 was measured (docs/experiments).
ADDED_INSIDE = 1 / 3
#: No load was seen to slow another down by more.
MOST_SLOWDOWN = 3.0
#: What packs and unpacks for the CPU's nets.
PACKING = ("data_sharing_load", "data_sharing_store")
#: Numbers of launches up to about this are predicted in one batch.
MANY_LAUNCHES = 128


@dataclass
class CostModel(OpCosts):
    """Predicted latencies of ops, of shards of chains, and of data sharing on one SoC."""

    _parts: dict[Moved, Mapping[str, float]] = field(default_factory=dict)
    _dispatched: dict[Processor, NDArray[np.float64]] = field(default_factory=dict)

    def corrected(self, corrections: Corrections) -> CostModel:
        """The same predictors, with what measured plans say about them."""
        return CostModel(self.soc, self.predictors, self.by_op, corrections, self.tuning)

    def shard_ms(
        self, shard: Shard, processor: Processor, variants: Variants | None = None
    ) -> float:
        """A processor's shard of a chain; infinite where it has no variant for a part.

        In the fastest variants, or in `variants` where they name one. Every op of the CPU was
        measured as a net of its own, but a shard is one net.
        """
        chosen = self._chosen(shard, processor, variants or {})
        total = sum(latency for _, latency in chosen)
        runs = float(self.turns(np.float64(shard.runs)))
        together_ms = self.in_one_ms(total, len(shard.parts), processor, runs=runs)
        return together_ms if processor == "gpu" else together_ms + self._crossing_ms(shard, chosen)

    def _crossing_ms(self, shard: Shard, chosen: Sequence[tuple[Choice | None, float]]) -> float:
        """What the CPU's nets take longer because they are of two engines: packing, and calls."""
        names = ["" if choice is None else choice.variant for choice, _ in chosen]
        moves = crossings(shard.parts, names)
        if not moves or not self._known_targets.issuperset(PACKING):
            return 0.0
        self.prefetch_sharing(moves)
        call_ms = self._dispatch_ms("cpu", 1) if "dispatch_cpu" in self._known_targets else 0.0
        return sum(self.sharing_ms(*move) + call_ms for move in moves)

    def turns(self, images: NDArray[np.float64]) -> NDArray[np.float64]:
        """How often a net runs for so many images, one after the other.

        What batches were measured to take is of one call.
        """
        if "batch_cpu" in self._known_targets:
            return np.ones_like(images)
        return np.maximum(1.0, images / self.soc.cpu.threads)

    def launches(self, shard: Shard) -> int:
        """How many ops of the GPU's shard are launched: a GPU's kernels take a batch as a whole."""
        return shard.launches if self.soc.gpu.is_cpu else len(shard.parts)

    def in_one_ms(
        self, total: float, count: int, processor: Processor, *, runs: float = 1
    ) -> float:
        """So many parts in one net or queue, of which each was measured by itself.

        A net runs once for each image, for as many side by side as the CPU has threads.
        """
        if processor == "gpu" or count < 2:
            return total
        return max(total - runs * float(self.saved_ms(count)[count]), LEAST_SHARE * total)

    def saved_ms(self, most: int) -> NDArray[np.float64]:
        """What the CPU saves by so many ops in one net: of 0, 1 ... `most` at least."""
        if "dispatch_cpu" not in self._known_targets:
            return np.zeros(most + 1)
        single = self._dispatches_ms("cpu", most)
        return np.concatenate([[0.0], np.arange(1, len(single) + 1) * single[0] - single])

    def _chosen(
        self, shard: Shard, processor: Processor, variants: Variants
    ) -> list[tuple[Choice | None, float]]:
        """For every part the variant that is fastest after the ones before, and its latency.

        That includes the copies of inputs that the shard itself has computed in another storage.
        """
        stored: dict[str, Storage | None] = {}
        chosen: list[tuple[Choice | None, float]] = []
        for part in shard.parts:
            latencies = {
                choice: choice.latency_ms + self._relayouts_ms(part, choice, stored)
                for choice in self._options(
                    part.op, processor, variants.get(part.layer.name, {}).get(processor, "")
                )
            }
            best = min(latencies, key=lambda choice: latencies[choice], default=None)
            chosen.append((best, float("inf") if best is None else latencies[best]))
            stored[part.layer.output] = None if best is None else best.storage
        return chosen

    def _relayouts_ms(
        self, part: Part, choice: Choice, stored: Mapping[str, Storage | None]
    ) -> float:
        """Copies of the inputs that lie otherwise; between the SoC's storages, as measured."""
        if choice.storage not in self._storages:
            return 0.0
        return sum(
            self.sharing_ms("relayout", need.shape(shape))
            for name, need, shape in zip(
                part.layer.inputs, part.needs, part.layer.op.inputs, strict=True
            )
            if stored.get(name, choice.storage) != choice.storage and stored[name] in self._storages
        )

    @cached_property
    def _storages(self) -> tuple[Storage, ...]:
        """The SoC's storages, where it is known what a copy from one to another costs."""
        found = registry.storages(self.soc)
        known = sharing_target("relayout", found[-1]) in self.predictors.targets
        return found if known else ()

    def prefetch_sharing(self, moved: Iterable[Moved]) -> None:
        """Predict data sharing in one batch for each direction and part."""
        new: dict[Direction, list[Shape]] = {}
        for direction, shape in dict.fromkeys(moved):
            if (direction, shape) not in self._parts:
                new.setdefault(direction, []).append(shape)
        for direction, shapes in new.items():
            by_part = self._sharing(direction, shapes)
            rows = zip(*(all_ms.tolist() for all_ms in by_part.values()), strict=True)
            for shape, row in zip(shapes, rows, strict=True):
                self._parts[direction, shape] = dict(zip(by_part, row, strict=True))

    def _sharing(
        self, direction: Direction, shapes: Sequence[Shape]
    ) -> Mapping[str, NDArray[np.float64]]:
        """Milliseconds by part, shaped (shapes).

        Only tensors of one image were measured. Nets take others image by image; what is moved
        from one processor to the other may as well be one image with the channels of all.
        """
        joined = [shape._replace(n=1, c=shape.n * shape.c) for shape in shapes]
        found = self.predictors.sharing_ms(direction, joined)
        if joined == shapes:
            return found
        images = np.array([shape.n for shape in shapes], np.float64)
        single = self.predictors.sharing_ms(direction, [shape._replace(n=1) for shape in shapes])
        mapped = direction in ("to_gpu", "to_cpu")
        return {
            part: joined_ms if mapped else images * single[part]
            for part, joined_ms in found.items()
        }

    def sharing_parts(self, direction: Direction, shape: Shape) -> Mapping[str, float]:
        """Milliseconds of a transfer's parts by name."""
        if (direction, shape) not in self._parts:
            self.prefetch_sharing([(direction, shape)])
        return self._parts[direction, shape]

    def sharing_ms(self, direction: Direction, shape: Shape) -> float:
        return sum(self.sharing_parts(direction, shape).values())

    def loads(
        self,
        network: Network,
        outputs: Sequence[str],
        shards: tuple[Shard, Shard],
        variants: Variants | None = None,
    ) -> tuple[Load, Load]:
        """What each processor does of a chain, were it alone; in given variants, or the fastest.

        The CPU's shard begins with packing its inputs, and ends with storing its outputs where
        others can read them.
        """
        cpu, gpu = shards
        packing = self.packing(packed(network.shapes, cpu.inputs, cpu.left(outputs)))
        load = self.load(gpu, "gpu", variants)
        saved_ms = self.saved_by_fusing_ms(gpu, outputs, variants or {})
        load = replace(load, latency_ms=load.latency_ms - saved_ms)
        return self.load(cpu, "cpu", variants) + packing, load

    def saved_by_fusing_ms(self, gpu: Shard, outputs: Sequence[str], variants: Variants) -> float:
        """What residual adds take less on the GPU where convolutions do them."""
        if not residual_adds([part.layer for part in gpu.parts], outputs):
            return 0.0
        found = zip(gpu.parts, self._chosen(gpu, "gpu", variants), strict=True)
        chosen = {part.layer.name: choice for part, (choice, _) in found if choice is not None}
        if len(chosen) < len(gpu.parts):
            return 0.0
        names = {name: choice.variant for name, choice in chosen.items()}
        adds = [work.add for work in works(gpu, outputs, names, self.soc) if work.add]
        return (1 - ADDED_INSIDE) * sum(chosen[add.layer.name].latency_ms for add in adds)

    def packing(self, moves: Sequence[Moved]) -> Load:
        """What the CPU packs before its shard of a chain, and unpacks after it."""
        return Load(
            bytes=float(sum(2 * shape.bytes for _, shape in moves)),
            flops=0.0,
            latency_ms=sum(self.sharing_ms(way, shape) for way, shape in moves),
        )

    def load(self, shard: Shard, processor: Processor, variants: Variants | None = None) -> Load:
        """A processor's shard of a chain, by itself."""
        return Load(
            bytes=float(sum(part.op.bytes for part in shard.parts)),
            flops=float(sum(part.op.flops for part in shard.parts)),
            latency_ms=self.shard_ms(shard, processor, variants),
        )

    def slowdowns(self, loads: NDArray[np.float64]) -> NDArray[np.float64]:
        """How many times longer each of two loads takes while the other is under way; at least 1.

        `loads` are bytes, FLOPs and milliseconds, shaped (pairs, 2, 3); what is found is shaped
        (pairs, 2). Where contention was not measured, both are 1.
        """
        found = np.ones((len(loads), 2))
        sides = ("contention_cpu", "contention_gpu")
        if not len(loads) or not self._known_targets.issuperset(sides):
            return found
        latencies = loads[:, :, 2]
        both = ((latencies > 0) & np.isfinite(latencies)).all(axis=1)
        for side, target in enumerate(sides) if both.any() else ():
            own, other = loads[both, side], loads[both, 1 - side]
            items = Besides(np.concatenate([own, other], axis=1).T)
            slower = self.predictors.latency_ms(target, items) / own[:, 2]
            found[both, side] = np.clip(slower, 1.0, MOST_SLOWDOWN)
        return found

    def launches_ms(self, count: int) -> float:
        """What enqueueing so many kernels takes the CPU, before it gets to its own shard."""
        if not count or "dispatch_gpu" not in self.predictors.targets:
            return 0.0
        return max(0.0, self._dispatch_ms("gpu", count + 1) - self._dispatch_ms("gpu", 1))

    def _dispatch_ms(self, processor: Processor, count: int) -> float:
        return float(self._dispatches_ms(processor, count)[count - 1])

    def _dispatches_ms(self, processor: Processor, most: int) -> NDArray[np.float64]:
        """Of 1, 2, ... launches, `most` at least: all at once, as a search asks for them all."""
        known = self._dispatched.get(processor, np.empty(0))
        if len(known) < most:
            counts = range(1, 2 * most + MANY_LAUNCHES)
            items = [Launches(count) for count in counts]
            known = self.predictors.latency_ms(f"dispatch_{processor}", items)
            self._dispatched[processor] = known
        return known

    def variants(self, cpu: Shard, gpu: Shard) -> dict[str, dict[str, str]]:
        """The chosen variant of every layer on every processor that has a part of it."""
        chosen: dict[str, dict[str, str]] = {}
        sides: tuple[tuple[Processor, Shard], ...] = (("cpu", cpu), ("gpu", gpu))
        for processor, shard in sides:
            choices = self._chosen(shard, processor, {})
            for part, (choice, _) in zip(shard.parts, choices, strict=True):
                if choice is None:
                    raise UnsupportedError(
                        f"The {processor} has no kernel variant with a predictor for "
                        f"{part.layer.name!r} ({to_text(part.op)})."
                    )
                chosen.setdefault(part.layer.name, {})[processor] = choice.variant
        return chosen


def packed(
    shapes: Mapping[str, Shape], inputs: Mapping[str, Region], outputs: Mapping[str, Region]
) -> list[Moved]:
    """What the CPU packs before its shard of a chain, and unpacks after it for others to read."""
    return [
        *(("load", region.shape(shapes[name])) for name, region in inputs.items()),
        *(("store", region.shape(shapes[name])) for name, region in outputs.items()),
    ]


def moved(network: Network, transfers: Iterable[Transfer]) -> list[Moved]:
    """What transfers move."""
    return [(t.direction, t.region.shape(network.shapes[t.tensor])) for t in transfers]
