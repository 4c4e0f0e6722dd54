"""What single ops cost inside a network, in each kernel variant: every op is predicted once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from codl.ir import Op, Shape
from codl.ir.soc import Soc
from codl.ir.types import PROCESSORS, Direction, Processor, Storage
from codl.kernels import registry
from codl.kernels.base import Variant
from codl.kernels.tuning import Tuning
from codl.plan.inside import Asked, inside_ms
from codl.predict.features import Item


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


class Corrections(Protocol):
    """What plans that ran say about predictions."""

    def factors(self, target: str, ops: Sequence[Op]) -> NDArray[np.float64]:
        """What to multiply predictions with, shaped (ops)."""
        ...


class Choice(NamedTuple):
    """The fastest variant of an op on a processor, and its latency in milliseconds.

    `storage` is how its tensors lie; None on the CPU.
    """

    variant: str
    latency_ms: float
    storage: Storage | None = None


@dataclass
class OpCosts:
    """Predicted latencies of ops on one SoC."""

    soc: Soc
    predictors: LatencyPredictors
    #: Predict an op's latency by muLayer's targets, which do not tell variants apart.
    by_op: bool = False
    #: What plans that ran say about these predictions.
    corrections: Corrections | None = None
    #: How the kernels were tuned that the predictions are of.
    tuning: Tuning = Tuning()
    #: Every variant with a predictor, by name.
    _choices: dict[Processor, dict[Op, dict[str, Choice]]] = field(
        default_factory=lambda: {processor: {} for processor in PROCESSORS}
    )
    _candidates: dict[tuple[str, Processor], list[list[Variant]]] = field(default_factory=dict)

    def prefetch(self, ops: Iterable[Op], processor: Processor) -> list[dict[str, Choice]]:
        """Predict many ops in one batch for each kernel variant: their choices by name."""
        known = self._choices[processor]
        found = []
        new: list[Op] = []
        asked: dict[str, Asked] = {}
        named: dict[str, list[tuple[Any, dict[str, Choice]]]] = {}
        for op in ops:
            own = known.get(op)
            if own is None:
                own = known[op] = {}
                for name, variant in self._targets(op, processor):
                    of_target = asked.setdefault(name, Asked([], []))
                    of_target.places.append(len(new))
                    of_target.together.append(variant.takes_batch)
                    named.setdefault(name, []).append((variant, own))
                new.append(op)
            found.append(own)
        latencies = inside_ms(self.predictors, self.soc, processor, new, asked, self.corrections)
        for name, rows in named.items():
            for (variant, own), latency_ms in zip(rows, latencies[name], strict=True):
                storage = variant.storage if processor == "gpu" else None
                own[variant.name] = Choice(variant.name, latency_ms, storage)
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
