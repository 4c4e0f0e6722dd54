"""The CPU's shard of a chain: nets of ncnn and models of ONNX Runtime, one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from codl.ir.executable import Access, Net, RunNet
from codl.ir.ops.onnx_model import OnnxModel
from codl.ir.plan import Chain
from codl.ir.soc import Soc
from codl.ir.tensor import Tensor
from codl.ir.types import PLANAR
from codl.lower.assembly import Assembly
from codl.lower.cpu_layers import CpuLayer, Group
from codl.lower.ncnn import lower_ncnn
from codl.lower.onnx import lower_onnx
from codl.lower.partition import Part, Shard


def lower_cpu(
    shard: Shard,
    chain: Chain,
    tensors: Mapping[str, Tensor],
    outputs: Sequence[str],
    assembly: Assembly,
    soc: Soc,
) -> None:
    """Emit a shard's nets over `tensors`, in as few as libraries and order allow.

    `outputs` are the tensors that are read by others. What one net leaves to another has memory of
    its own.
    """
    layers = [CpuLayer.of(p, chain.variants[p.layer.name]["cpu"]) for p in shard.parts]
    places = {n: assembly.access(tensors[n], region) for n, region in shard.inputs.items()}
    places |= {name: assembly.access(tensors[name], shard.outputs[name]) for name in outputs}
    groups = grouped(layers)
    for part in shard.parts:
        name = part.layer.output
        if name not in places and _is_read_elsewhere(name, groups):
            places[name] = _own_memory(part, assembly)
    for members in groups:
        net = net_of(_group(members, places), assembly, soc)
        assembly.emit(RunNet(assembly.net(net)))


def net_of(group: Group, assembly: Assembly, soc: Soc) -> Net:
    """A group of layers as a net of the library that runs them."""
    is_onnx = group.layers[0].is_onnx
    return (lower_onnx if is_onnx else lower_ncnn)(group, assembly, soc)


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


def _is_read_elsewhere(tensor: str, groups: Sequence[tuple[CpuLayer, ...]]) -> bool:
    """Whether a group reads a tensor that another one computes."""
    return any(
        any(tensor == name for layer in group for name, _ in layer.inputs)
        and all(layer.output != tensor for layer in group)
        for group in groups
    )


def _own_memory(part: Part, assembly: Assembly) -> Access:
    name, shape, region = part.layer.output, part.layer.op.output, part.region
    buffer = assembly.buffer("cpu", region.shape(shape).bytes)
    return assembly.access(Tensor(name, buffer, shape, region, PLANAR, 1), region)


def _group(layers: tuple[CpuLayer, ...], places: Mapping[str, Access]) -> Group:
    made = {layer.output for layer in layers}
    read = dict.fromkeys(name for layer in layers for name, _ in layer.inputs)
    return Group(
        layers,
        inputs={name: places[name] for name in read if name not in made},
        outputs={layer.output: places[layer.output] for layer in layers if layer.output in places},
    )
