"""References of tensors and outputs, by ops and by ONNX Runtime; samples are read one by one."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from codl.errors import CodlError
from codl.frontend.convert import load_with_source
from codl.frontend.graph import weights
from codl.frontend.graph.integer_products import reference_session
from codl.frontend.graph.onnx_import import generations, said_by_onnx_runtime
from codl.frontend.graph.shapes import data_inputs, sizes_of
from codl.frontend.graph.weights import opset_of
from codl.ir import Array, Layer, Network, Op
from codl.ir.executable import Executable, GpuOp
from codl.ir.ops.reductions import Reduce
from codl.ir.ops.window import Pool2d
from codl.ir.records.soc import Soc
from codl.ir.region import Region
from codl.ir.types import PLANAR, Processor, Storage
from codl.kernels import registry
from codl.kernels.base import Choice
from codl.kernels.tuning import Tuning
from codl.lower import pieces
from codl.measure.closeness import OF_HALVES, Closeness, closeness, tolerance
from codl.runtime.loaded import RefusedError
from codl.targets.base import Target

Values: TypeAlias = Mapping[str, NDArray[Any]]
Exact: TypeAlias = NDArray[np.float64]
#: Names of references: ONNX Runtime, and codl's own ops where ONNX Runtime runs no opset of a
#: model.
BY_ONNX_RUNTIME, BY_OPS = "ONNX Runtime", "references of ops"


@dataclass
class ModelAndSource:
    """A network and, where it came from ONNX, its source model with the declared input sizes."""

    network: Network
    source: weights.Model | None = None
    #: ONNX Runtime's errors from loading or running the model.
    _problems: list[str] = field(default_factory=list, init=False, repr=False, compare=False)
    _has_run: bool = field(default=False, init=False, repr=False, compare=False)

    @classmethod
    def load(
        cls,
        model: str,
        batch: int | None = None,
        shapes: Mapping[str, tuple[int, ...]] | None = None,
    ) -> ModelAndSource:
        """Load a model like `codl.frontend.convert.load_network`, and keep its source."""
        return cls(*load_with_source(model, batch, shapes))

    @cached_property
    def _shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Sizes of the inputs as the model declares them, by name."""
        if self.source is None:
            return {}
        return {info.name: sizes_of(info) for info in data_inputs(self.source.proto)}

    def shaped(self, inputs: Values) -> dict[str, NDArray[Any]]:
        """Convert inputs to the types and sizes that the model declares, by name.

        Raises `CodlError` for a missing or unknown input, or a wrong number of elements.
        """
        wanted, shaped = self.network.inputs, {}
        if set(inputs) != set(wanted):
            raise CodlError(
                f"The inputs must be {', '.join(wanted)}, got {', '.join(inputs) or 'none'}."
            )
        for name, nchw in wanted.items():
            value, shape = np.asarray(inputs[name]), self._shapes.get(name, nchw)
            if value.size != nchw.elements:
                raise CodlError(f"The input {name!r} must be {tuple(shape)}, got {value.shape}.")
            type_ = self.network.types.get(name, "float32")
            shaped[name] = value.astype(type_).reshape(shape)
        return shaped

    def outputs(self, inputs: Values, *, optimised: bool = False) -> dict[str, NDArray[Any]] | None:
        """ONNX Runtime's outputs by name, computed node by node or by the `optimised` graph.

        None where ONNX Runtime cannot run the model, or where the network has no source model.
        """
        if self._loaded is None:
            return None
        model, session = self._loaded
        names = list(self.network.outputs)
        try:
            if optimised:
                session = reference_session(model, optimised=True)
            made = dict(zip(names, session.run(names, dict(inputs)), strict=True))
        except Exception as error:  # ONNX Runtime's exceptions share no base class
            self._problems.append(said_by_onnx_runtime(error))
            return None
        self._has_run = True
        return made

    @property
    def reference(self) -> str:
        """Name of the reference that ran: ONNX Runtime, with its opset if converted, or the ops."""
        if self._loaded is None or not self._has_run:
            return BY_OPS
        loaded, _ = self._loaded
        opset = "" if loaded is self.source else f" in opset {opset_of(loaded.proto)}"
        return f"{BY_ONNX_RUNTIME}{opset}"

    @property
    def doubt(self) -> str:
        """ONNX Runtime's complaint about the model if it is not the reference; else empty."""
        is_usual = self.reference == BY_ONNX_RUNTIME
        said = "" if is_usual else next(iter(self._problems), "").rstrip(".")
        return said and f"{BY_ONNX_RUNTIME} does not run the model as it is: {said}"

    @cached_property
    def _loaded(self) -> tuple[weights.Model, Any] | None:
        """The model in the first opset that ONNX Runtime loads, and its session.

        The session runs without graph optimisations, unless the model loads only with them.
        """
        for model in () if self.source is None else generations(self.source):
            for optimised in (False, True):
                try:
                    session = reference_session(model, optimised=optimised)
                except Exception as error:  # ONNX Runtime's exceptions share no base class
                    self._problems.append(said_by_onnx_runtime(error))
                    continue
                if model is self.source:
                    self._problems.clear()
                return model, session
        return None


def leaves_nan_open(op: Op) -> bool:
    """True for an op whose result for NaN ONNX does not define, such as a maximum."""
    is_extreme = isinstance(op, Reduce) and op.mode in ("max", "min")
    is_pool = isinstance(op, Pool2d) and op.mode == "max"
    return is_extreme or is_pool


def computed(
    network: Network,
    inputs: Values,
    kept: Mapping[str, int] | None = None,
    *,
    drops_nan: bool = False,
) -> Iterator[tuple[Layer, dict[str, Array], Exact]]:
    """Compute the layers in order by their references.

    Yields each layer, the float32 tensors alive before it, and its output in float64. A layer reads
    earlier outputs rounded to float32. A tensor lives until its last reader, or until the layer
    number that `kept` names for it. With `drops_nan`, NaN in the output of a maximum becomes 0.
    """
    last = dict(kept or {})
    for number, layer in enumerate(network.layers):
        for name in layer.inputs:
            last[name] = max(number, last.get(name, 0))
    tensors: dict[str, Array] = dict(network.constants)
    for name, shape in network.inputs.items():
        tensors[name] = np.asarray(inputs[name], np.float32).reshape(shape)
    for number, layer in enumerate(network.layers):
        given = [np.asarray(tensors[name], np.float64) for name in layer.inputs]
        with np.errstate(all="ignore"):
            exact = layer.op.reference(given, layer.weights)
        if drops_nan and leaves_nan_open(layer.op):
            exact = np.where(np.isnan(exact), 0.0, exact)
        yield layer, tensors, exact
        tensors[layer.output] = exact.astype(np.float32)
        for name in [name for name in tensors if last.get(name, -1) <= number]:
            del tensors[name]


def outputs_of(
    network: Network, tensors: Mapping[str, NDArray[Any]], inputs: Values
) -> dict[str, NDArray[Any]]:
    """The model's outputs in declared sizes, from `tensors`, inputs and constants."""
    every = {**network.constants, **inputs, **tensors}
    return {
        name: np.asarray(every[holder]).reshape(sizes)
        for name, (holder, sizes) in network.outputs.items()
    }


def outputs_by_ops(
    network: Network, inputs: Values, *, drops_nan: bool = False
) -> dict[str, NDArray[Any]]:
    """The model's outputs by name, computed by the references of its ops."""
    holders = {holder for holder, _ in network.outputs.values()}
    layers = computed(network, inputs, drops_nan=drops_nan)
    made = {layer.output: exact for layer, _, exact in layers if layer.output in holders}
    return outputs_of(network, made, inputs)


Reader: TypeAlias = Callable[[], Values]


class InputSamples(Sequence[Values]):
    """Input samples that are read on each access, so that a folder may exceed memory."""

    def __init__(self, readers: Sequence[Reader]) -> None:
        self._readers = list(readers)

    def __len__(self) -> int:
        return len(self._readers)

    def __getitem__(self, place: Any) -> Any:
        return self._readers[place]()


@dataclass(frozen=True, eq=False)
class OpPart:
    """A part of a layer's output that one processor computes in one kernel variant.

    `add` is the residual add that the same kernels compute. Equal parts have an equal `key`.
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
        return self.layer.op.restrict(self.region)

    @property
    def kernel(self) -> Any:
        return registry.find(self.op, self.variant)

    @property
    def result(self) -> Layer:
        """The layer whose output the part computes."""
        return self.add or self.layer

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the tensors that the part reads; a residual comes last."""
        if self.add is None:
            return self.layer.inputs
        return (*self.layer.inputs, *(n for n in self.add.inputs if n != self.layer.output))

    @property
    def storage(self) -> Storage:
        """The storage of the part's output; planar float32 on the CPU, as between its nets."""
        return self.kernel.storage if self.processor == "gpu" else PLANAR

    def executable(self, soc: Soc) -> Executable:
        """Lower the part alone: its inputs and its output are whole tensors of the op.

        Inputs are named as in `codl.lower.pieces`. Raises `CodlError` where the variant refuses the
        op.
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


def parts_of(executable: Executable, network: Network) -> list[OpPart]:
    """The parts that an executable of a network computes, in the order of the network's layers."""
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
    """Alternative computations of a part, the smallest change first.

    First come other variants on the same processor with the same element type. Variants that store
    float32 follow, and then the whole op on the other processor. A fused add is computed
    separately.
    """

    def choice(variant: Any, op: Op) -> Choice | None:
        return tuning.choice(variant, op, soc) if variant.processor == "gpu" else None

    op, layer, on_cpu = part.op, part.layer, part.processor == "cpu"
    usual: list[Any] = registry.variants(op, part.processor, soc)
    unfit: list[Any] = registry.variants(op, part.processor, soc, include_unfit=True)
    others = {v.name: v for v in (*usual, *unfit) if v.name != part.variant and _fits(v, soc)}
    for stored in ("float32",) if on_cpu else dict.fromkeys((part.storage.element, "float32")):
        for variant in others.values():
            if on_cpu or variant.storage.element == stored:
                yield replace(part, variant=variant.name, choice=choice(variant, op), add=None)
    other: Processor = "gpu" if on_cpu else "cpu"
    whole = Region.whole(layer.op.output)
    for variant in registry.variants(layer.op, other, soc):
        yield OpPart(layer, other, variant.name, whole, choice(variant, layer.op))


def _fits(variant: Any, soc: Soc) -> bool:
    """True where a variant fits the SoC, whatever element type it stores."""
    if variant.processor == "cpu":
        return True
    layouts = {PLANAR.layout, *(storage.layout for storage in registry.storages(soc))}
    is_exact = variant.arithmetic == "float32"  # lower precision never repairs a wrong result
    return is_exact and soc.gpu.type in variant.meant_for and variant.storage.layout in layouts


#: `imprecise` is an error beyond rounding, and `wrong` one beyond the rounding of float16.
#: `overflow` is a non-finite element because the output type is too narrow, `not a number` any
#: other non-finite element. `failed` is a part that did not run, `not reached` a part without time
#: left.
Verdict: TypeAlias = Literal[
    "ok", "imprecise", "wrong", "overflow", "not a number", "failed", "not reached"
]


@dataclass(frozen=True)
class OpCheck:
    """The verdict on a part; `limit` is the rounding of its variant, `reason` its failure."""

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
        """True where the part ran or failed, and its verdict is not `ok`."""
        return self.is_reached and not self.ok


def check(part: OpPart, tensors: Mapping[str, Array], expected: Exact, target: Target) -> OpCheck:
    """Run a part alone on a target and compare its output with the reference.

    `tensors` has the part's inputs by name, and `expected` the whole output of the layer in
    float64. A part that cannot run has the verdict `failed`.
    """
    limit = tolerance(part.kernel)
    wanted = expected[part.region.slices]
    if leaves_nan_open(part.layer.op):
        wanted = np.ma.array(wanted, mask=np.isnan(wanted))
    try:
        got = _run(part, [tensors[name] for name in part.reads], target)
    except (CodlError, ValueError) as error:  # a failure is a verdict, too
        refusals = error.refusals if isinstance(error, RefusedError) else (error,)
        reason = " ".join("; ".join(map(str, refusals)).split())
        return OpCheck(part, "failed", closeness(np.zeros_like(wanted), wanted), limit, reason)
    close = closeness(got, wanted, stored=part.storage.element)
    verdict: Verdict = "imprecise" if close.max_rel_err > limit else "ok"
    if not close.has_same_kinds:
        verdict = "overflow" if close.overflow else "not a number"
    elif close.max_rel_err > OF_HALVES:
        verdict = "wrong"
    return OpCheck(part, verdict, close, limit)


def _run(part: OpPart, inputs: Sequence[Array], target: Target) -> Array:
    """Compute the part; elements that no kernel writes stay NaN."""
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
