"""Chains cut in two: which part of every op each processor computes, and what it needs for that.

Inside a chain nothing is shared. So a side computes its share of the chain's outputs, and of every
tensor before them whatever that share needs: the halo rows are computed twice.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

from codl.ir.network import Layer
from codl.ir.ops.base import Dim, Op, split
from codl.ir.region import Region


@dataclass(frozen=True)
class Part:
    """A region of a layer's output, as an ordinary op, and the input regions that it needs."""

    layer: Layer
    region: Region
    op: Op
    needs: tuple[Region, ...]

    @classmethod
    def of(cls, layer: Layer, region: Region, dim: Dim) -> Part | None:
        """A region of a layer in a chain that is cut at `dim`; None of nothing.

        Whoever reads a part of what cannot be cut there gets the whole, and of channels that belong
        together all.
        """
        if region.is_empty:
            return None
        if dim not in layer.op.dims:
            region = Region.whole(layer.op.output)
        region = region._replace(channels=region.channels.in_steps(layer.op.channel_step))
        needs = tuple(layer.op.needs(region, index) for index in range(len(layer.inputs)))
        return cls(layer, region, layer.op.restrict(region), needs)

    def add_needs(self, needed: dict[str, Region]) -> None:
        """Join what this part reads to what others need of the same tensors."""
        for name, need in zip(self.layer.inputs, self.needs, strict=True):
            if not need.is_empty:
                needed[name] = need.join(needed[name]) if name in needed else need


@dataclass(frozen=True)
class Shard:
    """What one processor computes of a chain, in order; without parts it has nothing to do."""

    parts: tuple[Part, ...]

    @cached_property
    def launches(self) -> int:
        """How many ops are launched one by one: each as often as it has images."""
        return sum(part.op.images for part in self.parts)

    @property
    def runs(self) -> int:
        """How often a net of these ops runs: once for each image."""
        return max((part.op.images for part in self.parts), default=1)

    @cached_property
    def outputs(self) -> dict[str, Region]:
        """The region of every tensor that this side computes."""
        return {part.layer.output: part.region for part in self.parts}

    def left(self, outputs: Collection[str]) -> dict[str, Region]:
        """Those of `outputs` that this side computes."""
        return {name: self.outputs[name] for name in outputs if name in self.outputs}

    @cached_property
    def inputs(self) -> dict[str, Region]:
        """The region of every tensor from outside that this side needs."""
        needed: dict[str, Region] = {}
        for part in self.parts:
            part.add_needs(needed)
        for name in self.outputs:
            needed.pop(name, None)
        return needed


def cut(
    layers: Sequence[Layer],
    outputs: Collection[str],
    dim: Dim,
    gpu_ratio: float,
    *,
    block: int,
) -> tuple[Shard, Shard]:
    """The CPU's and the GPU's shard of a chain.

    `layers` in topological order; `outputs` names the tensors that are read outside the chain;
    `block` is the number of channels that the GPU's layout keeps together.
    """
    wanted: tuple[dict[str, Region], dict[str, Region]] = ({}, {})
    for layer in layers:
        if layer.output in outputs:
            shares = split(layer.op, dim, gpu_ratio, align=block)
            for regions, share in zip(wanted, shares, strict=True):
                regions[layer.output] = share
    cpu, gpu = (_shard(layers, regions, dim) for regions in wanted)
    return cpu, gpu


def _shard(layers: Sequence[Layer], wanted: dict[str, Region], dim: Dim) -> Shard:
    """Walk backwards: what is wanted of a tensor decides what is needed of those before it."""
    parts: list[Part] = []
    for layer in reversed(layers):
        region = wanted.get(layer.output)
        part = None if region is None else Part.of(layer, region, dim)
        if part is not None:
            part.add_needs(wanted)
            parts.append(part)
    return Shard(tuple(reversed(parts)))
