"""What the parts of a plan cost: predicted latencies of ops, of sharing, and of both at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from operator import attrgetter
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from codl.dataset import Direction
from codl.errors import UnsupportedError
from codl.execute.fusing import residual_adds, works
from codl.execute.program import Transfer
from codl.kernels import registry
from codl.kernels.base import PROCESSORS, Processor, Storage, Variant
from codl.kernels.columns import beyond, gpu_cache_bytes
from codl.kernels.tensor_columns import elements
from codl.ops import Network, Op, Region, Shape, to_text
from codl.ops.chain import Half, Part
from codl.plan.batches import together_ms
from codl.plan.corrections import Corrections
from codl.plan.switches import crossings
from codl.predict.features import Item, sharing_target
from codl.predict.surroundings import Besides, Cold, Launches, Load
from codl.soc import Soc

#: The names of variants by layer and processor, as plans have them.
Variants: TypeAlias = Mapping[str, Mapping[str, str]]
#: A tensor's region on its way from one place to another.
Moved: TypeAlias = tuple[Direction, Shape]
#: What is saved by running ops in one net leaves at least this share of their latencies.
LEAST_SHARE = 0.1
#: Of what an op takes longer with nothing in the caches, the part that it does inside a network.
#: From AlexNet, MobileNetV1 and ResNet-50 v2 on one processor of a host, none of which is in the
#: tables (docs/predictors.md). On the CPU more than all: a net also takes memory for what it makes.
COLD_INSIDE: Mapping[Processor, float] = {"cpu": 1.4, "gpu": 0.6}
#: Of what a residual add takes on the GPU, the part that is left where a convolution does it: it
#: reads one tensor, instead of two, and writes none. 0.2 was measured (docs/measurements.md).
ADDED_INSIDE = 1 / 3
#: No load was seen to slow another down by more.
MOST_SLOWDOWN = 3.0
#: What packs and unpacks for the CPU's nets.
PACKING = ("data_sharing_load", "data_sharing_store")
#: Numbers of launches up to about this are predicted in one batch.
MANY_LAUNCHES = 128
_columns = attrgetter("bytes", "flops", "latency_ms")


class LatencyPredictors(Protocol):
    """What the planner asks of predictors; milliseconds."""

    @property
    def name(self) -> str: ...

    @property
    def targets(self) -> tuple[str, ...]: ...

    @property
    def few(self) -> Mapping[str, frozenset[str]]:
        """The items, as text, of `targets` of which too few were measured to tell of others."""
        ...

    def latency_ms(self, target: str, items: Sequence[Item]) -> NDArray[np.float64]: ...

    def sharing_ms(
        self, direction: Direction, shapes: Sequence[Shape]
    ) -> Mapping[str, NDArray[np.float64]]:
        """By the part of sharing; all of it a `copy` where parts are not known apart."""
        ...


class Choice(NamedTuple):
    """The fastest variant of an op on a processor, and its latency in milliseconds.

    `storage` is how its tensors lie; None on the CPU.
    """

    variant: str
    latency_ms: float
    storage: Storage | None = None


@dataclass
class CostModel:
    """Predicted latencies on one SoC; every op is predicted once."""

    soc: Soc
    predictors: LatencyPredictors
    #: Predict an op's latency by muLayer's targets, which do not tell variants apart.
    by_op: bool = False
    #: What plans that ran say about these predictions.
    corrections: Corrections | None = None
    #: Every variant with a predictor, by name.
    _choices: dict[Processor, dict[Op, dict[str, Choice]]] = field(
        default_factory=lambda: {processor: {} for processor in PROCESSORS}
    )
    _parts: dict[Moved, Mapping[str, float]] = field(default_factory=dict)
    _dispatched: dict[Processor, NDArray[np.float64]] = field(default_factory=dict)
    _candidates: dict[tuple[str, Processor], list[list[Variant]]] = field(default_factory=dict)

    def prefetch(self, ops: Iterable[Op], processor: Processor) -> list[dict[str, Choice]]:
        """Predict many ops in one batch for each kernel variant: their choices by name."""
        known = self._choices[processor]
        found = []
        asked: dict[str, list[tuple[Op, Any, dict[str, Choice]]]] = {}
        for op in ops:
            own = known.get(op)
            if own is None:
                own = known[op] = {}
                for name, variant in self._targets(op, processor):
                    asked.setdefault(name, []).append((op, variant, own))
            found.append(own)
        for name, new in asked.items():
            together = [registry.takes_batch(variant) for _, variant, _ in new]
            latencies = self._latency_ms(name, [op for op, *_ in new], processor, together)
            for (_, variant, own), latency in zip(new, latencies.tolist(), strict=True):
                storage = variant.storage if processor == "gpu" else None
                own[variant.name] = Choice(variant.name, latency, storage)
        return found

    def _targets(self, op: Op, processor: Processor) -> Iterator[tuple[str, Variant]]:
        """The variants that accept an op, with the targets that predict them."""
        kind = (op.kind, processor)
        if kind not in self._candidates:
            self._candidates[kind] = registry.candidates(op.kind, processor, self.soc)
        of_kind = f"mulayer_{op.kind}_{processor}"
        by_op = self.by_op and of_kind in self._known_targets
        for variant in registry.accepting(op, self._candidates[kind], self.soc):
            name = of_kind if by_op else registry.target(variant, op)
            if name in self._known_targets:
                yield name, variant
            if by_op:
                return

    @cached_property
    def _known_targets(self) -> frozenset[str]:
        return frozenset(self.predictors.targets)

    def fastest_ms(self, ops: Iterable[Op], processor: Processor) -> list[float]:
        """Milliseconds of ops in their fastest variants; infinite where there is none."""
        return [
            min((choice.latency_ms for choice in own.values()), default=inf)
            for own in self.prefetch(ops, processor)
        ]

    def _latency_ms(
        self, target: str, ops: Sequence[Op], processor: Processor, together: Sequence[bool]
    ) -> NDArray[np.float64]:
        """What ops take inside a network, with what measured plans have said about that."""
        found = self._inside_ms(target, ops, processor, together)
        return found if self.corrections is None else found * self.corrections.factors(target, ops)

    def _inside_ms(
        self, target: str, ops: Sequence[Op], processor: Processor, together: Sequence[bool]
    ) -> NDArray[np.float64]:
        """What ops take where others have run since their weights were read.

        Of a batch only the first image finds the weights far away. `together` says of which ops
        all images are computed at once.
        """
        images = np.array([op.images for op in ops], np.float64)
        single = ops if (images == 1).all() else [op.one_image for op in ops]
        warm_ms = self.predictors.latency_ms(target, single)
        at_once = np.where(together, images, 1.0)
        all_ms = together_ms(self.predictors, single, warm_ms, at_once, processor)
        all_ms *= images / at_once
        cold = f"cold_{processor}"
        if cold not in self.predictors.targets:
            return all_ms
        items = [Cold(op, float(ms)) for op, ms in zip(single, warm_ms, strict=True)]
        more_ms = np.maximum(self.predictors.latency_ms(cold, items) - warm_ms, 0.0)
        more_ms *= self._far_share(single, processor)
        return np.asarray(all_ms + COLD_INSIDE[processor] * more_ms, np.float64)

    def corrected(self, corrections: Corrections) -> CostModel:
        """The same predictors, with what measured plans say about them."""
        return CostModel(self.soc, self.predictors, self.by_op, corrections)

    def _far_share(self, ops: Sequence[Op], processor: Processor) -> NDArray[np.float64]:
        """Of what ops read and write, the part that is in no cache of the processor's own.

        That is weights, and tensors that do not fit there: small ones were written just before.
        """
        cache = self.soc.cpu.l2_cache_bytes if processor == "cpu" else gpu_cache_bytes(self.soc)
        inputs, weights, outputs = elements(ops)
        tensors = 4 * (inputs + outputs)
        return np.asarray((4 * weights + beyond(tensors, cache)) / (4 * weights + tensors))

    def choice(self, op: Op, processor: Processor) -> Choice | None:
        """The fastest variant of `op`; None where the processor has none."""
        found = self._options(op, processor)
        return min(found, key=lambda choice: choice.latency_ms, default=None)

    def _options(self, op: Op, processor: Processor, name: str = "") -> list[Choice]:
        """The fastest variant for each storage; the one called `name` where that is known."""
        (known,) = self.prefetch([op], processor)
        if name in known:
            return [known[name]]
        fastest: dict[Storage | None, Choice] = {}
        for choice in sorted(known.values(), key=lambda choice: choice.latency_ms):
            fastest.setdefault(choice.storage, choice)
        return list(fastest.values())

    def half_ms(self, half: Half, processor: Processor, variants: Variants | None = None) -> float:
        """A processor's half of a chain; infinite where it has no variant for a part.

        In the fastest variants, or in `variants` where they name one. Every op of the CPU was
        measured as a net of its own, but a half is one net.
        """
        chosen = self._chosen(half, processor, variants or {})
        total = sum(latency for _, latency in chosen)
        runs = float(self.turns(np.float64(half.runs)))
        together_ms = self.in_one_ms(total, len(half.parts), processor, runs=runs)
        return together_ms if processor == "gpu" else together_ms + self._crossing_ms(half, chosen)

    def _crossing_ms(self, half: Half, chosen: Sequence[tuple[Choice | None, float]]) -> float:
        """What the CPU's nets take longer because they are of two engines: packing, and calls."""
        names = ["" if choice is None else choice.variant for choice, _ in chosen]
        moves = crossings(half.parts, names)
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

    def launches(self, half: Half) -> int:
        """How many ops of the GPU's half are launched: a GPU's kernels take a batch as a whole."""
        return half.launches if self.soc.gpu.is_cpu else len(half.parts)

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
        self, half: Half, processor: Processor, variants: Variants
    ) -> list[tuple[Choice | None, float]]:
        """For every part the variant that is fastest after the ones before, and its latency.

        That includes the copies of inputs that the half itself has computed in another storage.
        """
        stored: dict[str, Storage | None] = {}
        chosen: list[tuple[Choice | None, float]] = []
        for part in half.parts:
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
            for i, shape in enumerate(shapes):
                self._parts[direction, shape] = {
                    part: float(all_ms[i]) for part, all_ms in by_part.items()
                }

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
        self.prefetch_sharing([(direction, shape)])
        return self._parts[direction, shape]

    def sharing_ms(self, direction: Direction, shape: Shape) -> float:
        return sum(self.sharing_parts(direction, shape).values())

    def loads(
        self,
        network: Network,
        outputs: Sequence[str],
        halves: tuple[Half, Half],
        variants: Variants | None = None,
    ) -> tuple[Load, Load]:
        """What each processor does of a chain, were it alone; in given variants, or the fastest.

        The CPU's half begins with packing its inputs, and ends with storing its outputs where
        others can read them.
        """
        cpu, gpu = halves
        packing = self.packing(packed(network.shapes, cpu.inputs, cpu.left(outputs)))
        load = self.load(gpu, "gpu", variants)
        saved_ms = self.saved_by_fusing_ms(gpu, outputs, variants or {})
        load = replace(load, latency_ms=load.latency_ms - saved_ms)
        return self.load(cpu, "cpu", variants) + packing, load

    def saved_by_fusing_ms(self, gpu: Half, outputs: Sequence[str], variants: Variants) -> float:
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
        """What the CPU packs before its half of a chain, and unpacks after it."""
        return Load(
            bytes=float(sum(2 * shape.bytes for _, shape in moves)),
            flops=0.0,
            latency_ms=sum(self.sharing_ms(way, shape) for way, shape in moves),
        )

    def load(self, half: Half, processor: Processor, variants: Variants | None = None) -> Load:
        """A processor's half of a chain, by itself."""
        return Load(
            bytes=float(sum(part.op.bytes for part in half.parts)),
            flops=float(sum(part.op.flops for part in half.parts)),
            latency_ms=self.half_ms(half, processor, variants),
        )

    def slowdowns(self, pairs: Sequence[tuple[Load, Load]]) -> list[tuple[float, float]]:
        """How many times longer each of two loads takes while the other is under way; at least 1.

        Where contention was not measured, both are 1.
        """
        found = self.slowdowns_of(np.array([[_columns(x) for x in loads] for loads in pairs]))
        return [(cpu, gpu) for cpu, gpu in found.tolist()]

    def slowdowns_of(self, loads: NDArray[np.float64]) -> NDArray[np.float64]:
        """The same as columns, shaped (pairs, 2).

        `loads` are bytes, FLOPs and milliseconds, shaped (pairs, 2, 3).
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
        """What enqueueing so many kernels takes the CPU, before it gets to its own half."""
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

    def variants(self, cpu: Half, gpu: Half) -> dict[str, dict[str, str]]:
        """The chosen variant of every layer on every processor that has a part of it."""
        chosen: dict[str, dict[str, str]] = {}
        sides: tuple[tuple[Processor, Half], ...] = (("cpu", cpu), ("gpu", gpu))
        for processor, half in sides:
            choices = self._chosen(half, processor, {})
            for part, (choice, _) in zip(half.parts, choices, strict=True):
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
    """What the CPU packs before its half of a chain, and unpacks after it for others to read."""
    return [
        *(("load", region.shape(shapes[name])) for name, region in inputs.items()),
        *(("store", region.shape(shapes[name])) for name, region in outputs.items()),
    ]


def moved(network: Network, transfers: Iterable[Transfer]) -> list[Moved]:
    """What transfers move."""
    return [(t.direction, t.region.shape(network.shapes[t.tensor])) for t in transfers]
