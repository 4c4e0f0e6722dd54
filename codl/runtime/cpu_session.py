"""The CPU's shard of a chain: nets of ncnn and sessions of ONNX Runtime, one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from codl.ir.ops.onnx_model import OnnxModel
from codl.ir.soc import Soc
from codl.runtime.ncnn_net import CpuLayer, CpuNet, Home

if TYPE_CHECKING:
    from codl.runtime.ort_net import OrtNet


@dataclass(frozen=True)
class Group:
    """Layers that run together in one engine."""

    layers: tuple[CpuLayer, ...]
    is_ort: bool

    @property
    def label(self) -> str:
        """The first and the last layer, for people."""
        first, last = self.layers[0].name, self.layers[-1].name
        return first if len(self.layers) == 1 else f"{first} ... {last}"


@dataclass(frozen=True)
class Step:
    """A group, ready to run."""

    group: Group
    net: CpuNet | OrtNet


class CpuShard:
    """Layers over home arrays, in as few nets as the layers' engines and their order allow.

    Takes what `CpuNet` takes, and layers of any variant. What one net leaves to another has a home
    array of its own.
    """

    def __init__(
        self,
        layers: Sequence[CpuLayer],
        inputs: Mapping[str, Home],
        outputs: Mapping[str, Home],
        soc: Soc,
    ) -> None:
        homes = {**inputs, **outputs}
        groups = grouped(layers)
        for layer in layers:
            if layer.output not in homes and _read_elsewhere(layer.output, groups):
                homes[layer.output] = Home.allocate(layer.op.output, layer.region)
        self.steps = tuple(Step(group, _net(group, homes, soc)) for group in groups)

    def run(self) -> None:
        """Compute the outputs from what the input arrays hold now."""
        for step in self.steps:
            step.net.run()


def grouped(layers: Sequence[CpuLayer]) -> list[Group]:
    """Layers by engine, in an order that changes engines seldom.

    A group takes every layer of its engine whose inputs no later group computes; a model of its own
    is alone in one.
    """
    left, groups = list(layers), []
    while left:
        if left[0].op.kind == OnnxModel.kind:
            groups.append(Group((left[0],), True))
            del left[0]
            continue
        is_ort = left[0].variant.backend == "ort"
        taken: list[CpuLayer] = []
        later: list[CpuLayer] = []
        missing: set[str] = set()
        for layer in left:
            ready = not missing.intersection(name for name, _ in layer.inputs)
            alike = (layer.variant.backend == "ort") == is_ort
            if ready and alike and layer.op.kind != OnnxModel.kind:
                taken.append(layer)
            else:
                later.append(layer)
                missing.add(layer.output)
        groups.append(Group(tuple(taken), is_ort))
        left = later
    return groups


def _read_elsewhere(tensor: str, groups: Sequence[Group]) -> bool:
    """Whether a group reads a tensor that another one computes."""
    return any(
        any(tensor == name for layer in group.layers for name, _ in layer.inputs)
        and all(layer.output != tensor for layer in group.layers)
        for group in groups
    )


def _net(group: Group, homes: Mapping[str, Home], soc: Soc) -> CpuNet | OrtNet:
    made = {layer.output for layer in group.layers}
    read = dict.fromkeys(name for layer in group.layers for name, _ in layer.inputs)
    inputs = {name: homes[name] for name in read if name not in made}
    outputs = {name: homes[name] for name in dict.fromkeys(x.output for x in group.layers)
               if name in homes}  # fmt: skip
    if not group.is_ort:
        return CpuNet(group.layers, inputs, outputs, soc)
    from codl.runtime.ort_net import OrtNet  # which takes a while; most shards have none

    return OrtNet(group.layers, inputs, outputs, soc)
