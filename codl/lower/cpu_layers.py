"""What the CPU's nets are lowered from: ops in place, in groups that one library runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from codl.ir.executable import Access, NetLayer
from codl.ir.op_text import to_text
from codl.ir.ops.base import Op, Weights
from codl.ir.region import Region
from codl.kernels import registry
from codl.lower.partition import Part


@dataclass(frozen=True)
class CpuLayer:
    """One op of a net: what it reads (tensor and the region it needs of it) and writes."""

    name: str
    op: Op
    variant: Any
    inputs: tuple[tuple[str, Region], ...]
    output: str
    region: Region
    weights: Weights

    @classmethod
    def of(cls, part: Part, variant: str) -> CpuLayer:
        layer = part.layer
        return cls(
            name=layer.name,
            op=part.op,
            variant=registry.find(part.op, variant),
            inputs=tuple(zip(layer.inputs, part.needs, strict=True)),
            output=layer.output,
            region=part.region,
            weights=layer.op.restrict_weights(layer.weights, part.region),
        )

    @property
    def is_onnx(self) -> bool:
        """Whether ONNX Runtime computes it, and not ncnn."""
        return bool(self.variant.backend == "ort")

    def net_layer(self, constants: int | None) -> NetLayer:
        return NetLayer(
            name=self.name,
            op=to_text(self.op),
            variant=self.variant.name,
            inputs=self.inputs,
            output=self.output,
            region=self.region,
            constants=constants,
        )


@dataclass(frozen=True)
class Group:
    """Layers that one library runs together, and where what enters and leaves lies."""

    layers: tuple[CpuLayer, ...]
    inputs: Mapping[str, Access]
    outputs: Mapping[str, Access]

    @property
    def label(self) -> str:
        """The first and the last layer, for people."""
        first, last = self.layers[0].name, self.layers[-1].name
        return first if len(self.layers) == 1 else f"{first} ... {last}"
