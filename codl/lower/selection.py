"""Which kernels compute what: the planned variant in its tuned choice, or what stands in for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from codl.errors import CodlError
from codl.ir.executable import Refusal
from codl.ir.soc import Soc
from codl.kernels import registry
from codl.kernels.base import Choice, GpuVariant, KernelPlan
from codl.kernels.tuning import Tuning
from codl.lower.fusion import Work


@dataclass(frozen=True)
class Selection:
    """A variant for a work, in a choice, with its kernels."""

    variant: GpuVariant
    choice: Choice | None
    plan: KernelPlan


@dataclass(frozen=True)
class Selector:
    """Selects kernels for works, `without` those that a device has refused."""

    soc: Soc
    tuning: Tuning
    without: Sequence[Refusal] = ()

    def first(self, work: Work, planned: str) -> Selection | None:
        """What to try next; None where the device refused everything."""
        for variant, choice in self._options(work, planned):
            if not any(one.is_of(work.label, variant.name, choice) for one in self.without):
                return Selection(variant, choice, self._plan(work, variant, choice))
        return None

    def reasons(self, work: Work) -> str:
        """Why the device refused what was tried for a work."""
        return "; ".join(str(one) for one in self.without if one.label == work.label)

    def _options(self, work: Work, planned: str) -> Iterator[tuple[Any, Choice | None]]:
        """The planned variant, then, of what is not fused, every other one that accepts the op.

        Each in its tuned choice first, where it has one, and then in its default.
        """
        op = work.part.op
        first: Any = registry.find(op, planned)
        refusal = first.refusal(op, self.soc)
        if refusal is not None:
            raise CodlError(f"{planned} cannot run {work.part.layer.name!r}: {refusal}.")
        others: list[Any] = [v for v in registry.variants(op, "gpu", self.soc) if v.name != planned]
        for variant in (first, *(others if work.add is None else ())):
            # Choices are known of the op without what is fused with it.
            choice = self.tuning.choice(variant, op, self.soc)
            for own in (None,) if choice is None else (choice, None):
                yield variant, own

    def _plan(self, work: Work, variant: Any, choice: Choice | None) -> KernelPlan:
        """An add that is computed too comes before the activation, which is the add's."""
        if work.add is None:
            plan: KernelPlan = variant.plan(work.part.op, self.soc, choice)
            return plan
        op = work.part.op.with_activation(work.add.op.activation)
        plan = variant.plan(op, self.soc, choice)
        return plan.adding()
