"""Where an engine gets the kernels and the weights of every part from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from codl.errors import CodlError
from codl.ir import Weights
from codl.ir.soc import Soc
from codl.ir.types import Processor
from codl.kernels import registry
from codl.kernels.base import Choice, GpuVariant, KernelPlan
from codl.kernels.tuning import Tuning
from codl.lower.fusion import Work
from codl.lower.partition import Part


@dataclass(frozen=True)
class Way:
    """A way to compute a work on the GPU: a variant in a tuned choice, or untuned (None)."""

    variant: GpuVariant
    choice: Choice | None
    plan: KernelPlan

    @classmethod
    def of(cls, work: Work, variant: Any, choice: Choice | None, soc: Soc) -> Way:
        """An add that is computed too comes before the activation, which is the add's."""
        if work.add is None:
            return cls(variant, choice, variant.plan(work.part.op, soc, choice))
        op = work.part.op.with_activation(work.add.op.activation)
        return cls(variant, choice, variant.plan(op, soc, choice).adding())


class Supply(Protocol):
    """What parts are made of: kernels, and weights."""

    def ways(self, work: Work, planned: str) -> Iterator[Way]:
        """How to compute a work on the GPU, by the planned variant's name: what to try in order.

        Of a convolution with an add there may be none; then each has kernels of its own.
        """
        ...

    def weights(self, part: Part, processor: Processor) -> Weights:
        """What a part's variant takes as weights: on the GPU its plan's `pack`, on the CPU a net.

        Those of `Op.restrict_weights`, unless the supply's ways have packed theirs already.
        """
        ...


class Untouched:
    """The usual supply: a model's own weights, and kernels as they were tuned."""

    def __init__(self, soc: Soc, tuning: Tuning = Tuning()) -> None:
        self._soc, self._tuning = soc, tuning

    def ways(self, work: Work, planned: str) -> Iterator[Way]:
        """The planned variant, then, of what is not fused, every other one that accepts the op.

        Each in its tuned choice first, where it has one, and then in its default.
        """
        op, soc = work.part.op, self._soc
        first: Any = registry.find(op, planned)
        refusal = first.refusal(op, soc)
        if refusal is not None:
            raise CodlError(f"{planned} cannot run {work.part.layer.name!r}: {refusal}.")
        others: list[Any] = [v for v in registry.variants(op, "gpu", soc) if v.name != planned]
        for variant in (first, *(others if work.add is None else ())):
            # Choices are known of the op without what is fused with it.
            choice = self._tuning.choice(variant, op, soc)
            for own in (None,) if choice is None else (choice, None):
                yield Way.of(work, variant, own, soc)

    def weights(self, part: Part, processor: Processor) -> Weights:
        return part.layer.op.restrict_weights(part.layer.weights, part.region)
