"""What an executable computes, part by part: every op on every processor, in its kernel variant."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from codl.ir.executable import Executable, GpuOp
from codl.ir.network import Layer, Network
from codl.ir.ops.base import Op
from codl.ir.region import Region
from codl.ir.types import PLANAR, Element, Layout, Processor
from codl.kernels import registry
from codl.kernels.base import Choice
from codl.kernels.tuning import Tuning
from codl.lower import pieces
from codl.records.soc import Soc


@dataclass(frozen=True, eq=False)
class OpUse:
    """A part of a layer's output that one processor computes in a variant.

    `add` is the residual add that the same kernels compute. Equal ones have an equal `key`.
    """

    layer: Layer
    processor: Processor
    variant: str
    region: Region
    choice: Choice | None = None
    add: Layer | None = None

    @property
    def label(self) -> str:
        return self.layer.name if self.add is None else f"{self.layer.name} + {self.add.name}"

    @property
    def key(self) -> tuple[Hashable, ...]:
        choice = None if self.choice is None else tuple(sorted(self.choice.items()))
        return self.label, self.processor, self.variant, self.region, choice

    @property
    def op(self) -> Op:
        """The op that computes the part."""
        return self.layer.op.restrict(self.region)

    @property
    def kernel(self) -> Any:
        """The variant itself."""
        return registry.find(self.op, self.variant)

    @property
    def result(self) -> Layer:
        """The layer whose output is computed."""
        return self.add or self.layer

    @property
    def reads(self) -> tuple[str, ...]:
        """The tensors that are read, the residual last."""
        if self.add is None:
            return self.layer.inputs
        return (*self.layer.inputs, *(n for n in self.add.inputs if n != self.layer.output))

    @property
    def stored(self) -> Element:
        """The type of the elements of its output."""
        return self.kernel.storage.element if self.processor == "gpu" else "float32"

    @property
    def layout(self) -> Layout:
        """How its output lies; the CPU's are `planar` between nets."""
        return self.kernel.storage.layout if self.processor == "gpu" else "planar"

    def executable(self, soc: Soc) -> Executable:
        """The part alone, from inputs of the whole op to the whole output, of which it is a part.

        Inputs are named as `codl.lower.pieces` has it. Raises `CodlError` where the variant refuses
        the op.
        """
        layer = self.layer
        if self.processor == "cpu":
            whole = [layer.op], self.kernel, [layer.weights]
            return pieces.net_alone(*whole, soc, part=self.region)
        op, weights = self.op, layer.op.restrict_weights(layer.weights, self.region)
        add = None if self.add is None else self.add.op
        if add is not None:
            op = op.with_activation(add.activation)
        plan = self.kernel.plan(op, soc, self.choice)
        plan = plan if add is None else plan.adding()
        return pieces.kernels_alone(
            layer.op, plan, weights, soc, part=self.region, choice=self.choice, add=add
        )


def uses(executable: Executable, network: Network) -> list[OpUse]:
    """What an executable of a network computes, in the order of the network's layers."""
    layers = {layer.name: layer for layer in network.layers}
    places = {name: place for place, name in enumerate(layers)}
    found = [*_on_cpu(executable, layers), *_on_gpu(executable, layers)]
    return sorted(found, key=lambda use: places[use.result.name])


def _on_cpu(executable: Executable, layers: Mapping[str, Layer]) -> Iterator[OpUse]:
    for net in executable.nets:
        for own in net.layers:
            yield OpUse(layers[own.name], "cpu", own.variant, own.region)


def _on_gpu(executable: Executable, layers: Mapping[str, Layer]) -> Iterator[OpUse]:
    for step in executable.steps:
        if isinstance(step, GpuOp):
            first, *others = (layers[name] for name in step.layers)
            add = others[0] if others else None
            region = step.writes.region
            yield OpUse(first, "gpu", step.variant, region, step.choice, add)


def stand_ins(use: OpUse, soc: Soc, tuning: Tuning) -> Iterator[OpUse]:
    """What else could compute a part, the smallest change first.

    That is another variant on the same processor; then one that stores float32, where it stored
    halves; then the whole op on the other processor. An add is computed apart.
    """
    op, layer = use.op, use.layer
    usual: list[Any] = registry.variants(op, use.processor, soc)
    unfit: list[Any] = registry.variants(op, use.processor, soc, include_unfit=True)
    own = {v.name: v for v in (*usual, *unfit) if v.name != use.variant and _fits(v, soc)}
    for stored in dict.fromkeys((use.stored, "float32")):
        for variant in own.values():
            if use.processor == "cpu" or variant.storage.element == stored:
                choice = _choice(variant, op, soc, tuning)
                yield replace(use, variant=variant.name, choice=choice, add=None)
        if use.processor == "cpu":
            break
    other: Processor = "gpu" if use.processor == "cpu" else "cpu"
    for variant in registry.variants(layer.op, other, soc):
        choice = _choice(variant, layer.op, soc, tuning)
        yield OpUse(layer, other, variant.name, Region.whole(layer.op.output), choice)


def _fits(variant: Any, soc: Soc) -> bool:
    """Whether a variant is for a SoC but for what it stores elements as."""
    if variant.processor == "cpu":
        return True
    layouts = {PLANAR.layout, *(storage.layout for storage in registry.storages(soc))}
    return soc.gpu.type in variant.meant_for and variant.storage.layout in layouts


def _choice(variant: Any, op: Op, soc: Soc, tuning: Tuning) -> Choice | None:
    return tuning.choice(variant, op, soc) if variant.processor == "gpu" else None
