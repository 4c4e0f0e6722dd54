"""What a plan costs: predicted latencies of parts, summed as the co-executor will run them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from codl.dataset import Direction
from codl.errors import UnsupportedError
from codl.execute.program import Program, Transfer
from codl.kernels import registry
from codl.kernels.base import Processor, Storage
from codl.ops import Network, Op, Shape, to_text
from codl.ops.chain import Half, Part
from codl.predict.features import sharing_target
from codl.soc import Soc


class LatencyPredictors(Protocol):
    """What the planner asks of predictors; milliseconds."""

    @property
    def name(self) -> str: ...

    @property
    def targets(self) -> tuple[str, ...]: ...

    def latency_ms(self, target: str, ops: Sequence[Op]) -> NDArray[np.float64]: ...

    def sharing_ms(self, direction: Direction, shapes: Sequence[Shape]) -> NDArray[np.float64]: ...


@dataclass(frozen=True)
class Choice:
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
    #: The fastest variant for each storage.
    _choices: dict[tuple[Op, Processor], dict[Storage | None, Choice]] = field(default_factory=dict)
    _shared: dict[tuple[Direction, Shape], float] = field(default_factory=dict)

    def prefetch(self, ops: Iterable[Op], processor: Processor) -> None:
        """Predict many ops in one batch for each kernel variant."""
        new = [op for op in dict.fromkeys(ops) if (op, processor) not in self._choices]
        asked: dict[str, list[tuple[Op, Any]]] = {}
        for op in new:
            self._choices[op, processor] = {}
            for rank, variant in enumerate(registry.variants(op, processor, self.soc)):
                name = registry.target(variant, op)
                of_kind = f"mulayer_{op.kind}_{processor}"
                if self.by_op and of_kind in self.predictors.targets:
                    if rank:
                        break
                    name = of_kind
                if name in self.predictors.targets:
                    asked.setdefault(name, []).append((op, variant))
        for name, pairs in asked.items():
            latencies = self.predictors.latency_ms(name, [op for op, _ in pairs])
            for (op, variant), latency in zip(pairs, latencies, strict=True):
                storage = variant.storage if processor == "gpu" else None
                best = self._choices[op, processor].get(storage)
                if best is None or latency < best.latency_ms:
                    choice = Choice(variant.name, float(latency), storage)
                    self._choices[op, processor][storage] = choice

    def choice(self, op: Op, processor: Processor) -> Choice | None:
        """The fastest variant of `op`; None where the processor has none."""
        found = self._options(op, processor)
        return min(found, key=lambda choice: choice.latency_ms, default=None)

    def _options(self, op: Op, processor: Processor) -> Collection[Choice]:
        self.prefetch([op], processor)
        return self._choices[op, processor].values()

    def half_ms(self, half: Half, processor: Processor) -> float:
        """A processor's half of a chain; infinite where it has no variant for a part."""
        return sum(latency for _, latency in self._chosen(half, processor))

    def _chosen(self, half: Half, processor: Processor) -> list[tuple[Choice | None, float]]:
        """For every part the variant that is fastest after the ones before, and its latency.

        That includes the copies of inputs that the half itself has computed in another storage.
        """
        stored: dict[str, Storage | None] = {}
        chosen: list[tuple[Choice | None, float]] = []
        for part in half.parts:
            latencies = {
                choice: choice.latency_ms + self._relayouts_ms(part, choice, stored)
                for choice in self._options(part.op, processor)
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

    def sharing_ms(self, direction: Direction, shape: Shape) -> float:
        key = (direction, shape)
        if key not in self._shared:
            self._shared[key] = float(self.predictors.sharing_ms(direction, [shape])[0])
        return self._shared[key]

    def transfers_ms(self, transfers: Iterable[Transfer], network: Network) -> float:
        shapes = network.shapes
        return sum(
            self.sharing_ms(t.direction, t.region.shape(shapes[t.tensor])) for t in transfers
        )

    def segment_ms(
        self,
        network: Network,
        outputs: Sequence[str],
        halves: tuple[Half, Half],
        transfers: Iterable[Transfer],
    ) -> float:
        """A chain: what is shared before it, then the slower of its two halves.

        The CPU's half begins with packing its inputs, and ends with storing its outputs where
        others can read them.
        """
        cpu, gpu = halves
        shapes = network.shapes
        loaded = sum(
            self.sharing_ms("load", region.shape(shapes[name]))
            for name, region in cpu.inputs.items()
        )
        stored = sum(
            self.sharing_ms("store", cpu.outputs[name].shape(shapes[name]))
            for name in outputs
            if name in cpu.outputs
        )
        slower = max(loaded + self.half_ms(cpu, "cpu") + stored, self.half_ms(gpu, "gpu"))
        return self.transfers_ms(transfers, network) + slower

    def program_ms(self, network: Network, program: Program) -> float:
        """A whole plan, with the transfers that the co-executor will make."""
        total = self.transfers_ms(program.final, network)
        for segment in program.segments:
            halves = (segment.cpu, segment.gpu)
            total += self.segment_ms(network, segment.outputs, halves, segment.transfers)
        return total

    def variants(self, cpu: Half, gpu: Half) -> dict[str, dict[str, str]]:
        """The chosen variant of every layer on every processor that has a part of it."""
        chosen: dict[str, dict[str, str]] = {}
        sides: tuple[tuple[Processor, Half], ...] = (("cpu", cpu), ("gpu", gpu))
        for processor, half in sides:
            choices = self._chosen(half, processor)
            for part, (choice, _) in zip(half.parts, choices, strict=True):
                if choice is None:
                    raise UnsupportedError(
                        f"The {processor} has no kernel variant with a predictor for "
                        f"{part.layer.name!r} ({to_text(part.op)})."
                    )
                chosen.setdefault(part.layer.name, {})[processor] = choice.variant
        return chosen
