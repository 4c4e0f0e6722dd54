"""Where an engine gets the kernels and the weights of every part from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from codl.errors import CodlError
from codl.kernels import registry, tuned
from codl.kernels.base import Choice, GpuVariant, KernelPlan, Processor
from codl.ops import Weights
from codl.ops.chain import Part
from codl.soc import Soc


@dataclass(frozen=True)
class Way:
    """A way to compute a part on the GPU: a variant in a tuned choice, or untuned (None)."""

    variant: GpuVariant
    choice: Choice | None
    plan: KernelPlan


class Supply(Protocol):
    """What parts are made of; a part is known by its layer, and its processor."""

    def ways(self, part: Part, planned: str) -> Iterator[Way]:
        """How to compute a part on the GPU, by the planned variant's name: what to try in order."""
        ...

    def weights(self, part: Part, processor: Processor) -> Weights:
        """What a part's variant takes as weights: on the GPU its plan's `pack`, on the CPU a net.

        Those of `Op.restrict_weights`, unless the supply's ways have packed theirs already.
        """
        ...


class Untouched:
    """The usual supply: a model's own weights, and kernels as the device's tuning has them."""

    def __init__(self, soc: Soc) -> None:
        self._soc = soc

    def ways(self, part: Part, planned: str) -> Iterator[Way]:
        """The planned variant, then every other one that accepts the op.

        Each in its tuned choice first, where it has one, and then in its default.
        """
        op, soc = part.op, self._soc
        first: Any = registry.find(op, planned)
        refusal = first.refusal(op, soc)
        if refusal is not None:
            raise CodlError(f"{planned} cannot run {part.layer.name!r}: {refusal}.")
        others: list[Any] = [v for v in registry.variants(op, "gpu", soc) if v.name != planned]
        for variant in (first, *others):
            choice = tuned.choice(variant, op, soc)
            if choice is not None:
                yield Way(variant, choice, variant.plan(op, soc, choice))
            yield Way(variant, None, variant.plan(op, soc))

    def weights(self, part: Part, processor: Processor) -> Weights:
        return part.layer.op.restrict_weights(part.layer.weights, part.region)
