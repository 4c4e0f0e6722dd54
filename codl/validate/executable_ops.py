"""Ops of an executable, by processor and kernel variant, and checks of each alone on the
reference's inputs.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import nan
from typing import Any, Literal, TypeAlias

import numpy as np

from codl.errors import CodlError
from codl.evaluation.closeness import Closeness, closeness
from codl.ir import Array
from codl.ir.executable import Executable, GpuOp
from codl.ir.network import Layer, Network
from codl.ir.ops.base import Op
from codl.ir.region import Region
from codl.ir.types import PLANAR, Element, Layout, Processor
from codl.kernels import registry
from codl.kernels.base import Choice
from codl.kernels.tuning import Tuning
from codl.lower import pieces
from codl.lower.rules import active, mode_of
from codl.measure.check_variants import OF_HALVES, tolerance
from codl.records.soc import Soc
from codl.runtime.loaded import RefusedError
from codl.targets.base import Target
from codl.validate.references import Exact, leaves_nan_open


@dataclass(frozen=True, eq=False)
class OpPart:
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
            op = active(op, add)
        plan = self.kernel.plan(op, soc, self.choice)
        plan = plan if add is None else plan.adding(mode_of(add))
        return pieces.kernels_alone(
            layer.op, plan, weights, soc, part=self.region, choice=self.choice, add=add
        )


def parts_of(executable: Executable, network: Network) -> list[OpPart]:
    """What an executable of a network computes, in the order of the network's layers."""
    layers = {layer.name: layer for layer in network.layers}
    parts = [
        OpPart(layers[layer.name], "cpu", layer.variant, layer.region)
        for net in executable.nets
        for layer in net.layers
    ]
    for step in executable.steps:
        if isinstance(step, GpuOp):
            first, *others = (layers[name] for name in step.layers)
            add = others[0] if others else None
            parts.append(OpPart(first, "gpu", step.variant, step.writes.region, step.choice, add))
    places = {name: place for place, name in enumerate(layers)}
    return sorted(parts, key=lambda part: places[part.result.name])


def stand_ins(part: OpPart, soc: Soc, tuning: Tuning) -> Iterator[OpPart]:
    """What else could compute a part, the smallest change first.

    That is another variant on the same processor; then one that stores float32, where it stored
    halves; then the whole op on the other processor. An add is computed apart.
    """

    def choice(variant: Any, op: Op) -> Choice | None:
        return tuning.choice(variant, op, soc) if variant.processor == "gpu" else None

    op, layer, on_cpu = part.op, part.layer, part.processor == "cpu"
    usual: list[Any] = registry.variants(op, part.processor, soc)
    unfit: list[Any] = registry.variants(op, part.processor, soc, include_unfit=True)
    others = {v.name: v for v in (*usual, *unfit) if v.name != part.variant and _fits(v, soc)}
    for stored in ("float32",) if on_cpu else dict.fromkeys((part.stored, "float32")):
        for variant in others.values():
            if on_cpu or variant.storage.element == stored:
                yield replace(part, variant=variant.name, choice=choice(variant, op), add=None)
    other: Processor = "gpu" if on_cpu else "cpu"
    whole = Region.whole(layer.op.output)
    for variant in registry.variants(layer.op, other, soc):
        yield OpPart(layer, other, variant.name, whole, choice(variant, layer.op))


def _fits(variant: Any, soc: Soc) -> bool:
    """Whether a variant is for a SoC but for what it stores elements as."""
    if variant.processor == "cpu":
        return True
    layouts = {PLANAR.layout, *(storage.layout for storage in registry.storages(soc))}
    is_exact = variant.arithmetic == "float32"  # whatever is wrong, fewer digits mend it not
    return is_exact and soc.gpu.type in variant.meant_for and variant.storage.layout in layouts


#: `imprecise` is beyond rounding, and `wrong` beyond what halves would cost; `overflow` is what is
#: not finite since the type of the output is too narrow, `not a number` all else that is not;
#: `failed` is what did not run, `not reached` what there was no time for.
Verdict: TypeAlias = Literal[
    "ok", "imprecise", "wrong", "overflow", "not a number", "failed", "not reached"
]


@dataclass(frozen=True)
class OpCheck:
    """What came of one part of an op; `reason` says why it failed.

    `limit` is the largest `max_rel_err` that is rounding in its variant.
    """

    part: OpPart
    verdict: Verdict
    closeness: Closeness
    limit: float
    reason: str = ""

    @property
    def ok(self) -> bool:
        return self.verdict == "ok"

    @property
    def is_reached(self) -> bool:
        return self.verdict != "not reached"

    @property
    def is_bad(self) -> bool:
        """Whether it was found not to be ok."""
        return self.is_reached and not self.ok


def check(part: OpPart, tensors: Mapping[str, Array], expected: Exact, target: Target) -> OpCheck:
    """Run a part alone on a target; `tensors` has what it reads, `expected` is the whole output.

    Whatever cannot be run is a verdict.
    """
    limit = tolerance(part.kernel)
    wanted = expected[part.region.slices]
    if leaves_nan_open(part.layer.op):
        wanted = np.ma.array(wanted, mask=np.isnan(wanted))
    try:
        got = _run(part, [tensors[name] for name in part.reads], target)
    except (CodlError, ValueError) as error:  # one that fails is a result, not the end
        refusals = error.refusals if isinstance(error, RefusedError) else (error,)
        reason = " ".join("; ".join(map(str, refusals)).split())
        return OpCheck(part, "failed", closeness(np.zeros_like(wanted), wanted), limit, reason)
    close = closeness(got, wanted, stored=part.stored)
    verdict: Verdict = "imprecise" if close.max_rel_err > limit else "ok"
    if not close.has_same_kinds:
        verdict = "overflow" if close.overflow else "not a number"
    elif close.max_rel_err > OF_HALVES:
        verdict = "wrong"
    return OpCheck(part, verdict, close, limit)


def not_reached(part: OpPart) -> OpCheck:
    """A part that there was no time for: nothing is known of it."""
    return OpCheck(part, "not reached", Closeness(nan, nan), tolerance(part.kernel))


def _run(part: OpPart, inputs: Sequence[Array], target: Target) -> Array:
    """The part of the output; what nothing writes is left as not-a-numbers."""
    loaded = target.load(part.executable(target.soc))
    try:
        for arrays in (loaded.outputs, loaded.inputs):
            for array in arrays.values():
                array.fill(np.nan)
        for name, value in zip(pieces.input_names(len(inputs)), inputs, strict=True):
            np.copyto(loaded.inputs[name], value.reshape(loaded.inputs[name].shape))
        loaded.run()
        output: Array = loaded.outputs[pieces.OUTPUT][part.region.slices].copy()
        return output
    finally:
        loaded.close()
