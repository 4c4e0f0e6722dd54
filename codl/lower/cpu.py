"""The CPU's shard of a chain: its ops in place, and which of them one library runs together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from codl.errors import CodlError
from codl.ir.executable import Access, NetLayer
from codl.ir.op_text import to_text
from codl.ir.ops.base import Op, Weights
from codl.ir.ops.onnx_model import OnnxModel
from codl.ir.region import Region
from codl.ir.soc import Soc
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
    def of(cls, part: Part, planned: str, soc: Soc) -> CpuLayer:
        layer = part.layer
        return cls(
            name=layer.name,
            op=part.op,
            variant=_variant(part, planned, soc),
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


def _moves_images(part: Part) -> bool:
    """Whether an image of the output is not made of the same image of every input.

    ncnn's nets take one image at a time. An input with a single image is read for each.
    """
    shapes = zip(part.needs, part.layer.op.inputs, strict=True)
    return any(need.images != part.region.images and shape.n > 1 for need, shape in shapes)


def _variant(part: Part, planned: str, soc: Soc) -> Any:
    """The planned variant, or the default of what is only too small a part of the op for it.

    Raises `CodlError` where it refuses the op, or none is left.
    """
    variant: Any = registry.find(part.op, planned, "cpu")
    refusal = _refusal(variant, part, soc)
    if refusal is None:
        return variant
    if variant.refusal(part.layer.op, soc) is None:
        for other in registry.variants(part.op, "cpu", soc, include_unfit=True):
            if _refusal(other, part, soc) is None:
                return other
    raise CodlError(f"{planned} cannot run {part.layer.name!r}: {refusal}.")


def _refusal(variant: Any, part: Part, soc: Soc) -> str | None:
    if variant.backend == "ncnn" and _moves_images(part):
        return f"images {part.needs[0].images} become {part.region.images}, one at a time"
    refusal: str | None = variant.refusal(part.op, soc)
    return refusal


@dataclass(frozen=True)
class Group:
    """Layers that one library runs together, and where what enters and leaves lies."""

    layers: tuple[CpuLayer, ...]
    inputs: Mapping[str, Access]
    outputs: Mapping[str, Access]

    @classmethod
    def of(cls, layers: tuple[CpuLayer, ...], places: Mapping[str, Access]) -> Group:
        """Layers of a shard whose tensors lie in these `places`, as far as others see them."""
        made = {layer.output for layer in layers}
        read = dict.fromkeys(name for layer in layers for name, _ in layer.inputs)
        return cls(
            layers,
            inputs={name: places[name] for name in read if name not in made},
            outputs={x.output: places[x.output] for x in layers if x.output in places},
        )

    @property
    def label(self) -> str:
        """The first and the last layer, for people."""
        first, last = self.layers[0].name, self.layers[-1].name
        return first if len(self.layers) == 1 else f"{first} ... {last}"


def grouped(layers: Sequence[CpuLayer]) -> list[tuple[CpuLayer, ...]]:
    """Layers by net, first to last; a model of its own is alone in one."""
    nets: dict[tuple[int, str], list[CpuLayer]] = {}
    for layer, level in zip(layers, net_levels(layers), strict=True):
        own = layer.name if layer.op.kind == OnnxModel.kind else ""
        nets.setdefault((-level, own), []).append(layer)
    return [tuple(nets[key]) for key in sorted(nets)]


def net_levels(layers: Sequence[CpuLayer]) -> list[int]:
    """The level of each layer's net: nets run from the highest level to the lowest.

    ncnn's levels are even and ONNX Runtime's odd, and each layer has the lowest that its readers
    allow, which have the same or a lower one; a model of its own has a higher one than its readers,
    and a lower one than what it reads. So libraries change seldom, and which net a layer is in is
    known from the layers behind it: planning counts nets by the same rule (`codl.plan.cpu_shards`).
    """
    levels: list[int] = []
    least: dict[str, int] = {}
    for layer in reversed(layers):
        is_model = layer.op.kind == OnnxModel.kind
        level = least.get(layer.output, 0) + (is_model and layer.output in least)
        level += level % 2 != layer.is_onnx
        levels.append(level)
        for name, _ in layer.inputs:
            least[name] = max(least.get(name, 0), level + is_model)
    return levels[::-1]
