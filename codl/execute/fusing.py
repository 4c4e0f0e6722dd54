"""What of the GPU's half runs in one kernel: a convolution, and the residual add behind it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from codl.kernels import registry
from codl.ops import Region
from codl.ops.base import Activation
from codl.ops.chain import Half, Part
from codl.ops.eltwise import Eltwise
from codl.soc import Soc


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


def works(
    half: Half, outputs: Collection[str], variants: Mapping[str, str], soc: Soc
) -> list[Work]:
    """The half in order, each residual add with its convolution where that can compute it.

    So an add may come before its turn: what it reads is there by then, and what it makes is read
    later. `outputs` are the tensors that are read outside the half; `variants` those planned, by
    layer: they must have their tensors in one storage, and it must pay.
    """
    places = {part.layer.output: place for place, part in enumerate(half.parts)}
    reads = Counter(name for part in half.parts for name in part.layer.inputs)
    adds: dict[str, Part] = {}
    for add in filter(_adds_alike, half.parts):
        # Of the two that are added the one that is computed later has the other at hand.
        later = max(add.layer.inputs, key=lambda name: places.get(name, -1))
        if later in places and later not in outputs and reads[later] == 1:
            own = half.parts[places[later]]
            own_variant, add_variant = (_variant(part, variants) for part in (own, add))
            alike = own_variant.storage == add_variant.storage
            if _can_add(own, add) and alike and soc.gpu.type not in _slow_on(own_variant):
                adds[own.layer.name] = add
    fused = {add.layer.name for add in adds.values()}
    left = [part for part in half.parts if part.layer.name not in fused]
    return [Work(part, adds.get(part.layer.name)) for part in left]


def _adds_alike(part: Part) -> bool:
    """Whether a part is the sum of two tensors of its own shape."""
    op = part.op
    return isinstance(op, Eltwise) and op.mode == "add" and set(op.inputs) == {op.output}


def _can_add(part: Part, add: Part) -> bool:
    """Whether a part's kernels can add to what they compute: before an activation, not behind."""
    is_plain = part.op.kind == "conv2d" and part.op.activation == Activation()
    return is_plain and part.region == add.region


def _variant(part: Part, variants: Mapping[str, str]) -> Any:
    return registry.find(part.op, variants[part.layer.name])


def _slow_on(variant: Any) -> frozenset[str]:
    """The types of device where a variant adds a residual more slowly than a kernel of its own."""
    found: frozenset[str] = getattr(variant, "adds_slowly_on", frozenset())
    return found
