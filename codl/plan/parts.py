"""The parts of a network's layers that chains are made of, by number: each made and predicted once.

Layers with equal ops share their parts, and a chain is rows of numbers. What chains take is then
sums over columns, instead of a walk over ops for each of thousands of chains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from codl.execute.fusing import pays
from codl.kernels import registry
from codl.kernels.base import PROCESSORS, Variant
from codl.kernels.tensor_columns import amounts
from codl.ops import Dim, Layer, Op, Region
from codl.ops.base import split
from codl.ops.region import Span
from codl.plan.cost import CostModel

#: Ratios that are tried, in steps of one twentieth, or one image where a batch has more images; the
#: ends are one processor alone.
STEPS = 20
#: The number of a part of nothing.
NONE = 0
NOWHERE = Region(Span(0, 0), Span(0, 0), Span(0, 0))
#: What the CPU and the GPU get of an op; None where that is nothing.
Shares = tuple[Region | None, Region | None]


class Parts:
    """Parts of layers by number.

    `ops` are the network's ops, each once, and `op_of` says which is whose layer's. `needs` are the
    regions of its inputs that each part needs, None where that is nothing; `regions` its own, of
    so many `elements`. Ops are cut in so many `steps`.
    """

    def __init__(self, layers: Sequence[Layer], cost: CostModel) -> None:
        numbers: dict[Op, int] = {}
        self.op_of = [numbers.setdefault(layer.op, len(numbers)) for layer in layers]
        self.ops = list(numbers)
        self._cost, self._block = cost, cost.soc.gpu.vector_width
        self._dims = [frozenset(op.dims) for op in self.ops]
        self._outputs = [op.output for op in self.ops]
        self.steps = max(STEPS, *(shape.n for shape in self._outputs))
        self._whole = [Region.whole(shape) for shape in self._outputs]
        self._shares: dict[tuple[int, Dim, int], Shares] = {}
        self._numbers: dict[tuple[int, Region], int] = {}
        self._made: list[Op] = []
        self.regions: list[Region] = [NOWHERE]
        self.elements: list[int] = [0]
        self.needs: list[tuple[Region | None, ...]] = [()]
        self._variants: dict[tuple[str, str], Variant] = {}
        self._latency_ms: tuple[dict[int, float], dict[int, float]] = ({NONE: 0.0}, {NONE: 0.0})

    def shares(self, op: int, dim: Dim, step: int) -> Shares:
        """What either processor gets of an op that is cut so many steps from its start."""
        asked = (op, dim, step)
        if asked not in self._shares:
            cpu, gpu = split(self.ops[op], dim, step / self.steps, align=self._block)
            self._shares[asked] = (
                None if cpu.is_empty else cpu,
                None if gpu.is_empty else gpu,
            )
        return self._shares[asked]

    def of(self, op: int, region: Region | None, dim: Dim) -> int:
        """The part of an op in a chain that is cut at `dim`, as `codl.ops.chain.Part` has it.

        Whoever reads a part of what cannot be cut there gets the whole.
        """
        if region is None:
            return NONE
        if dim not in self._dims[op]:
            region = self._whole[op]
        number = self._numbers.get((op, region))
        if number is None:
            number = self._numbers[op, region] = len(self.regions)
            own = self.ops[op]
            self._made.append(own.restrict(region))
            self.regions.append(region)
            self.elements.append(region.shape(self._outputs[op]).elements)
            needs = (own.needs(region, index) for index in range(len(own.inputs)))
            self.needs.append(tuple(None if need.is_empty else need for need in needs))
        return number

    def latency_ms(self, numbers: Sequence[int], side: int) -> NDArray[np.float64]:
        """Milliseconds of parts in their fastest variants on a processor; infinite without one.

        What is new is predicted in one batch.
        """
        known = self._latency_ms[side]
        new = [number for number in dict.fromkeys(numbers) if number not in known]
        if new:
            ops = [self._made[number - 1] for number in new]
            known.update(zip(new, self._cost.fastest_ms(ops, PROCESSORS[side]), strict=True))
        return np.array([known[number] for number in numbers], np.float64)

    def are_fused(self, convolution: int, add: int) -> bool:
        """Whether the GPU computes a part of an add together with that of a convolution."""
        if self.regions[convolution] != self.regions[add]:
            return False
        variants = []
        for number in (convolution, add):
            op = self._made[number - 1]
            choice = self._cost.choice(op, "gpu")
            if choice is None:
                return False
            key = (op.kind, choice.variant)
            if key not in self._variants:
                self._variants[key] = registry.find(op, choice.variant)
            variants.append(self._variants[key])
        return pays(variants[0], variants[1], self._cost.soc)

    def amounts(self) -> Mapping[str, NDArray[np.float64]]:
        """Of every part the bytes in all, FLOPs, and bytes of weights; its images and launches."""
        inputs, weights, outputs, flops = amounts(self._made)
        images = np.array([op.images for op in self._made], np.float64)
        found = {
            "bytes": 4 * (inputs + weights + outputs),
            "flops": flops,
            "weights": 4 * weights,
            "images": images,
            "launches": images if self._cost.soc.gpu.is_cpu else np.ones_like(images),
        }
        return {name: np.concatenate([[0.0], values]) for name, values in found.items()}
