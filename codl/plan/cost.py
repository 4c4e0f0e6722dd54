"""What a plan costs: predicted latencies of parts, summed as the co-executor will run them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from codl.dataset import Direction
from codl.errors import UnsupportedError
from codl.execute.program import Program, Transfer
from codl.kernels import registry
from codl.kernels.base import Processor
from codl.ops import Network, Op, Shape, to_text
from codl.ops.chain import Half
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
    """The fastest variant of an op on a processor, and its latency in milliseconds."""

    variant: str
    latency_ms: float


@dataclass
class CostModel:
    """Predicted latencies on one SoC; every op is predicted once."""

    soc: Soc
    predictors: LatencyPredictors
    #: Predict an op's latency by muLayer's targets, which do not tell variants apart.
    by_op: bool = False
    _choices: dict[tuple[Op, Processor], Choice | None] = field(default_factory=dict)
    _shared: dict[tuple[Direction, Shape], float] = field(default_factory=dict)

    def prefetch(self, ops: Iterable[Op], processor: Processor) -> None:
        """Predict many ops in one batch for each kernel variant."""
        new = [op for op in dict.fromkeys(ops) if (op, processor) not in self._choices]
        asked: dict[str, list[tuple[Op, str]]] = {}
        for op in new:
            self._choices[op, processor] = None
            for rank, variant in enumerate(registry.variants(op, processor, self.soc)):
                name = registry.target(variant, op)
                of_kind = f"mulayer_{op.kind}_{processor}"
                if self.by_op and of_kind in self.predictors.targets:
                    if rank:
                        break
                    name = of_kind
                if name in self.predictors.targets:
                    asked.setdefault(name, []).append((op, variant.name))
        for name, pairs in asked.items():
            latencies = self.predictors.latency_ms(name, [op for op, _ in pairs])
            for (op, variant_name), latency in zip(pairs, latencies, strict=True):
                best = self._choices[op, processor]
                if best is None or latency < best.latency_ms:
                    self._choices[op, processor] = Choice(variant_name, float(latency))

    def choice(self, op: Op, processor: Processor) -> Choice | None:
        """The fastest variant of `op`; None where the processor has none."""
        self.prefetch([op], processor)
        return self._choices[op, processor]

    def half_ms(self, half: Half, processor: Processor) -> float:
        """A processor's half of a chain; infinite where it has no variant for a part."""
        total = 0.0
        for part in half.parts:
            choice = self.choice(part.op, processor)
            if choice is None:
                return float("inf")
            total += choice.latency_ms
        return total

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

        The CPU's half ends with storing its outputs where others can read them.
        """
        cpu, gpu = halves
        shapes = network.shapes
        stored = sum(
            self.sharing_ms("store", cpu.outputs[name].shape(shapes[name]))
            for name in outputs
            if name in cpu.outputs
        )
        slower = max(self.half_ms(cpu, "cpu") + stored, self.half_ms(gpu, "gpu"))
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
            for part in half.parts:
                choice = self.choice(part.op, processor)
                if choice is None:
                    raise UnsupportedError(
                        f"The {processor} has no kernel variant with a predictor for "
                        f"{part.layer.name!r} ({to_text(part.op)})."
                    )
                chosen.setdefault(part.layer.name, {})[processor] = choice.variant
        return chosen
