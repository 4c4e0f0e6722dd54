"""Which of the CPU's engines runs an op that both can: the one of the ops around it.

A shard of a chain is one ncnn net, or a few nets and sessions of ONNX Runtime in turn. Between
those every tensor is unpacked and packed again, which costs more than an op that only adds or
copies.
"""

from __future__ import annotations

from collections.abc import Mapping

from codl.ir.soc import Soc
from codl.kernels import registry
from codl.kernels.ort import CpuOrt
from codl.lower.partition import Part, Shard


def few_changes(
    shard: Shard, variants: Mapping[str, Mapping[str, str]], soc: Soc
) -> dict[str, dict[str, str]]:
    """The variants with light ops of the CPU's shard in ONNX Runtime where most neighbours are."""
    chosen = {name: dict(own) for name, own in variants.items()}
    if soc.is_replayed:
        return chosen
    around = {part.layer.name: _neighbours(part, shard) for part in shard.parts}
    changed = True
    while changed:
        changed = False
        for part in shard.parts:
            name = part.layer.name
            if chosen[name]["cpu"] == CpuOrt.name or not _able(part, soc):
                continue
            others = [chosen[other]["cpu"] == CpuOrt.name for other in around[name]]
            if 2 * sum(others) > len(others):
                chosen[name]["cpu"] = CpuOrt.name
                changed = True
    return chosen


def _able(part: Part, soc: Soc) -> bool:
    if not part.op.is_light:
        return False
    return registry.find(part.op, CpuOrt.name).refusal(part.op, soc) is None


def _neighbours(part: Part, shard: Shard) -> list[str]:
    """The layers of a shard that make what a part reads, or read what it makes."""
    layer = part.layer
    return [
        other.layer.name
        for other in shard.parts
        if other.layer.output in layer.inputs or layer.output in other.layer.inputs
    ]
