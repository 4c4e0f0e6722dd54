"""Reference tensors and outputs of a model: by its ops' references, and by ONNX Runtime.

Samples of inputs are read one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias, overload

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from codl.errors import CodlError, UnsupportedError
from codl.frontend.convert import Source, load_with_source
from codl.frontend.graph import weights
from codl.frontend.graph.integer_products import reference_session, session_options
from codl.frontend.graph.old_opsets import opset_of
from codl.frontend.graph.onnx_import import generations, said_by_onnx_runtime
from codl.frontend.graph.shapes import data_inputs, sizes_of
from codl.ir import Array, Layer, Network, Op
from codl.ir.ops.onnx_model import INPUT, OUTPUT, OnnxModel
from codl.ir.ops.pooling import MaxIndices, Pool2d
from codl.ir.ops.reductions import Reduce

Values: TypeAlias = Mapping[str, NDArray[Any]]
Exact: TypeAlias = NDArray[np.float64]
#: References: of models as they are, and of those that ONNX Runtime runs in no opset.
BY_ONNX_RUNTIME, BY_OPS = "ONNX Runtime", "references of ops"


@dataclass(frozen=True)
class ModelAndSource:
    """A network, and the ONNX model that it was made of with the sizes of its inputs, if any."""

    network: Network
    source: weights.Model | None = None
    #: What ONNX Runtime said where it could not load the model, or run it.
    _problems: list[str] = field(default_factory=list, init=False, repr=False, compare=False)

    @classmethod
    def load(
        cls,
        model: str,
        batch: int | None = None,
        shapes: Mapping[str, tuple[int, ...]] | None = None,
    ) -> ModelAndSource:
        """As `codl.frontend.convert.load_network` loads it."""
        return cls(*load_with_source(model, batch, shapes))

    @classmethod
    def again(cls, source: Source, network: Network) -> ModelAndSource:
        """The model that a network was read from, read once more."""
        return cls(network, source.read())

    @cached_property
    def _shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The sizes of inputs as the model declares them."""
        if self.source is None:
            return {}
        return {info.name: sizes_of(info) for info in data_inputs(self.source.proto)}

    def shaped(self, inputs: Values) -> dict[str, NDArray[Any]]:
        """Inputs by name in the types and sizes that the model declares.

        Raises `CodlError` for one that is missing, unknown, or of another number of elements.
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
        """What ONNX Runtime computes, node by node or `optimised`.

        None where it cannot run the model, or there is none.
        """
        session = self._optimised if optimised else self._loaded and self._loaded[1]
        if session is None:
            return None
        names = list(self.network.outputs)
        try:
            return dict(zip(names, session.run(names, dict(inputs)), strict=True))
        except Exception as error:  # ONNX Runtime's exceptions share no base class
            self._problems.append(said_by_onnx_runtime(error))
            return None

    @property
    def reference(self) -> str:
        """What computes the right outputs."""
        if self._loaded is None:
            return BY_OPS
        loaded, _ = self._loaded
        opset = "" if loaded is self.source else f" in opset {opset_of(loaded.proto)}"
        return f"{BY_ONNX_RUNTIME}{opset}"

    def doubt(self, reference: str) -> str:
        """ONNX Runtime's complaint about the model if it is not the reference; else empty."""
        said = "" if reference == BY_ONNX_RUNTIME else next(iter(self._problems), "").rstrip(".")
        return said and f"{BY_ONNX_RUNTIME} does not run the model as it is: {said}"

    @cached_property
    def _loaded(self) -> tuple[weights.Model, Any] | None:
        """The model in the first opset in which ONNX Runtime loads it, and a session.

        Nothing is fused or rearranged in it, unless it loads only so: what is compared with it was,
        by ONNX Runtime too.
        """
        try:
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
        except UnsupportedError:  # no other opset has a node of it
            pass
        return None

    @cached_property
    def _optimised(self) -> Any:
        if self._loaded is None:
            return None
        try:
            return reference_session(self._loaded[0], optimised=True)
        except Exception:  # as above
            return None


def leaves_nan_open(op: Op) -> bool:
    """Whether ONNX leaves open what an op makes of NaN: a maximum may drop it."""
    is_extreme = isinstance(op, Reduce) and op.mode in ("max", "min")
    is_pool = isinstance(op, Pool2d) and op.mode == "max"
    return is_extreme or is_pool or isinstance(op, MaxIndices)


def computed(
    network: Network,
    inputs: Values,
    kept: Mapping[str, int] | None = None,
    *,
    drops_nan: bool = False,
) -> Iterator[tuple[Layer, dict[str, Array], Exact]]:
    """Every layer in order, with all tensors that are there before it, and its output in float64.

    Each layer reads what the references of those before it compute, stored as float32. A tensor is
    there until its last reader is done, or longer: up to the layer of the number that `kept` names.
    Where it `drops_nan`, NaN behind a maximum is a number.
    """
    last = dict(kept or {})
    for number, layer in enumerate(network.layers):
        for name in layer.inputs:
            last[name] = max(number, last.get(name, 0))
    tensors: dict[str, Array] = dict(network.constants)
    for name, shape in network.inputs.items():
        tensors[name] = np.asarray(inputs[name], np.float32).reshape(shape)
    for number, layer in enumerate(network.layers):
        exact = output_of(layer, [tensors[name] for name in layer.inputs])
        if drops_nan and leaves_nan_open(layer.op):
            exact = np.where(np.isnan(exact), 0.0, exact)
        yield layer, tensors, exact
        tensors[layer.output] = exact.astype(np.float32)
        for name in [name for name in tensors if last.get(name, -1) <= number]:
            del tensors[name]


def output_of(layer: Layer, inputs: Sequence[Array]) -> Exact:
    """What a layer computes; a part of a model that codl has no operators for by ONNX Runtime."""
    op = layer.op
    if not isinstance(op, OnnxModel):
        with np.errstate(all="ignore"):
            return op.reference([np.asarray(x, np.float64) for x in inputs], layer.weights)
    feeds = {
        f"{INPUT}{index}": value.reshape(sizes)
        for index, (value, sizes) in enumerate(zip(inputs, op.shapes, strict=True))
    }
    session = ort.InferenceSession(op.model, session_options(), ["CPUExecutionProvider"])
    (value,) = session.run([OUTPUT], feeds)
    return np.asarray(value, np.float64).reshape(op.output)


def outputs_of(
    network: Network, tensors: Mapping[str, NDArray[Any]], inputs: Values
) -> dict[str, NDArray[Any]]:
    """The model's outputs from the tensors that hold them; some are an input, or a constant."""
    every = {**network.constants, **inputs, **tensors}
    return {
        name: np.asarray(every[holder]).reshape(sizes)
        for name, (holder, sizes) in network.outputs.items()
    }


def outputs_by_ops(
    network: Network, inputs: Values, *, drops_nan: bool = False
) -> dict[str, NDArray[Any]]:
    """The model's outputs by the references of its ops."""
    holders = {holder for holder, _ in network.outputs.values()}
    layers = computed(network, inputs, drops_nan=drops_nan)
    made = {layer.output: exact for layer, _, exact in layers if layer.output in holders}
    return outputs_of(network, made, inputs)


Reader: TypeAlias = Callable[[], Values]


class InputSamples(Sequence[Values]):
    """Inputs that are read whenever one is asked for: a folder may hold more than memory does."""

    def __init__(self, readers: Sequence[Reader]) -> None:
        self._readers = list(readers)

    def __len__(self) -> int:
        return len(self._readers)

    @overload
    def __getitem__(self, place: int) -> Values: ...
    @overload
    def __getitem__(self, place: slice) -> InputSamples: ...
    def __getitem__(self, place: int | slice) -> Values | InputSamples:
        if isinstance(place, slice):
            return InputSamples(self._readers[place])
        return self._readers[place]()
