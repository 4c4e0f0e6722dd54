"""Which kernels compute a shard of the GPU's: what is fused, and in which variant and choice.

A convolution computes the residual add behind it where both have one storage. What a device has
refused is not selected again; other variants stand in for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from codl.errors import CodlError, DeviceError
from codl.ir import Layer, Region
from codl.ir.executable import Refusal
from codl.ir.ops.base import Activation
from codl.ir.ops.eltwise import Eltwise
from codl.ir.soc import Soc
from codl.kernels import registry
from codl.kernels.base import Choice, GpuVariant, KernelPlan
from codl.kernels.tuning import Tuning
from codl.lower.partition import Part, Shard


@dataclass(frozen=True)
class Work:
    """A part of a layer, and the residual add that its kernels compute too, where there is one."""

    part: Part
    add: Part | None = None

    @property
    def parts(self) -> tuple[Part, ...]:
        return (self.part,) if self.add is None else (self.part, self.add)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(part.layer.name for part in self.parts)

    @property
    def label(self) -> str:
        return " + ".join(self.names)

    @property
    def result(self) -> Part:
        """The part whose output is stored."""
        return self.parts[-1]

    @property
    def reads(self) -> tuple[tuple[str, Region], ...]:
        """The tensors read, with the region of each; the residual is the last."""
        pairs = [
            pair for part in self.parts for pair in zip(part.layer.inputs, part.needs, strict=True)
        ]
        inside = self.part.layer.output
        return tuple(pair for pair in pairs if pair[0] != inside)


@dataclass(frozen=True)
class Selection:
    """A variant for a work, in a choice, with its kernels."""

    work: Work
    variant: GpuVariant
    choice: Choice | None
    plan: KernelPlan


@dataclass(frozen=True)
class Selector:
    """Selects kernels, `without` those that a device has refused.

    With `fuse` off every layer has kernels of its own.
    """

    soc: Soc
    tuning: Tuning
    without: Sequence[Refusal] = ()
    fuse: bool = True

    def select(
        self, shard: Shard, planned: Mapping[str, str], outputs: Collection[str]
    ) -> list[Selection]:
        """The kernels of a shard in order, with the `planned` variants, by layer, where they work.

        `outputs` are the tensors that are read outside the shard. Raises `DeviceError` where no
        kernel is left for a layer.
        """
        own = [Work(part) for part in shard.parts]
        fused = works(shard, outputs, planned, self.soc) if self.fuse else own
        return [one for work in fused for one in self._selected(work, planned)]

    def _selected(self, work: Work, planned: Mapping[str, str]) -> list[Selection]:
        """Kernels for a work; an add that fails in its convolution has kernels of its own."""
        for variant, choice in self._options(work, planned[work.part.layer.name]):
            if not any(one.is_of(work.label, variant.name, choice) for one in self.without):
                return [Selection(work, variant, choice, self._plan(work, variant, choice))]
        if work.add is None:
            own = (str(one) for one in self.without if one.label == work.label)
            reasons = "; ".join(dict.fromkeys(own))
            raise DeviceError(f"No kernel variant of {work.label!r} works here. {reasons}")
        return [one for part in work.parts for one in self._selected(Work(part), planned)]

    def _options(self, work: Work, planned: str) -> Iterator[tuple[Any, Choice | None]]:
        """The planned variant, then, of what is not fused, every other one that accepts the op.

        Each in its tuned choice first, where it has one, and then in its default; and where there
        is no other variant, the planned one in its other choices.
        """
        op = work.part.op
        first: Any = registry.find(op, planned, "gpu")
        refusal = first.refusal(op, self.soc)
        if refusal is not None:
            raise CodlError(f"{planned} cannot run {work.part.layer.name!r}: {refusal}.")
        others: list[Any] = [v for v in registry.variants(op, "gpu", self.soc) if v.name != planned]
        for variant in (first, *(others if work.add is None else ())):
            # Choices are known of the op without what is fused with it.
            choice = self.tuning.choice(variant, op, self.soc)
            for own in (None,) if choice is None else (choice, None):
                yield variant, own
        if not others:
            for own in first.choices(op, self.soc)[1:]:
                yield first, own

    def _plan(self, work: Work, variant: Any, choice: Choice | None) -> KernelPlan:
        """An add that is computed too comes before the activation, which is the add's."""
        if work.add is None:
            plan: KernelPlan = variant.plan(work.part.op, self.soc, choice)
            return plan
        op = work.part.op.with_activation(work.add.op.activation)
        plan = variant.plan(op, self.soc, choice)
        return plan.adding()


def residual_adds(layers: Sequence[Layer], outputs: Collection[str]) -> dict[str, Layer]:
    """The residual add that each convolution among layers could compute, by the convolution's name.

    `outputs` are the tensors that are read by others than these layers.
    """
    places = {layer.output: place for place, layer in enumerate(layers)}
    reads = Counter(name for layer in layers for name in layer.inputs)
    found = {}
    for add in filter(_adds_alike, layers):
        # Of the two that are added the one that is computed later has the other at hand.
        later = max(add.inputs, key=lambda name: places.get(name, -1))
        if later in places and later not in outputs and reads[later] == 1:
            own = layers[places[later]]
            # A kernel can add to what it computes before an activation, not behind one.
            if (own.op.kind, own.op.activation) == ("conv2d", Activation()):
                found[own.name] = add
    return found


def _adds_alike(layer: Layer) -> bool:
    """Whether a layer is the sum of two tensors of its own shape."""
    op = layer.op
    return isinstance(op, Eltwise) and op.mode == "add" and set(op.inputs) == {op.output}


def works(
    shard: Shard, outputs: Collection[str], variants: Mapping[str, str], soc: Soc
) -> list[Work]:
    """The shard in order, each residual add with its convolution where that is to compute it.

    So an add may come before its turn: what it reads is there by then, and what it makes is read
    later. `outputs` are the tensors that are read outside the shard; `variants` those planned, by
    layer.
    """
    parts = {part.layer.name: part for part in shard.parts}
    adds: dict[str, Part] = {}
    for name, layer in residual_adds([part.layer for part in shard.parts], outputs).items():
        own, add = parts[name], parts[layer.name]
        found = [registry.find(part.op, variants[part.layer.name]) for part in (own, add)]
        if own.region == add.region and pays(found[0], found[1], soc):
            adds[name] = add
    fused = {add.layer.name for add in adds.values()}
    return [Work(part, adds.get(name)) for name, part in parts.items() if name not in fused]


def pays(convolution: Any, add: Any, soc: Soc) -> bool:
    """Whether two variants may become one kernel on a SoC, and that is the faster way."""
    slow_on: frozenset[str] = convolution.adds_slowly_on
    return bool(convolution.storage == add.storage) and soc.gpu.type not in slow_on
