"""codl behind ONNX's own backend interface, with everything on one side.

>>> from support import onnx_backend as backend
>>> rep = backend.prepare(model)
>>> (y,) = rep.run([x])

What is run is the usual pipeline: import, simplification, conversion, plan and engine. The plan
puts every op on the GPU side, so that ONNX's conformance suite (`support.conformance`) tests the
OpenCL kernels alone.

Where ONNX's types meet codl's one type, everything is float32 in between. Floats are rounded, to
float32 on the way in and to their own type on the way out. Integers and booleans are exact up to
2^24, and refused beyond it. On the way out an integer's fraction is cut off, which is how ONNX
divides integers, and its value wraps around at the ends of its type.

ONNX hands an op's axes, pads or weights over as inputs; codl's converters want many of those when
the model is compiled: they become constants, with the values of one run. Which ones they are is
each converter's own word (`parameters`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.base import Backend, BackendRep, namedtupledict

from codl.engine.engine import Engine
from codl.errors import CodlError, UnsupportedError
from codl.frontend.convert import convert, simplify
from codl.frontend.converters.base import CONVERTERS
from codl.frontend.graph.onnx_import import import_onnx
from codl.ir import Array
from codl.ir.network import as_float32, check_exact
from codl.ir.onnx_node import type_of
from codl.ir.ops.movement import Reshape
from codl.ir.types import Processor
from codl.plan.build_plan import default_plan
from codl.records.soc import Soc
from codl.targets.base import Target
from codl.targets.connect import connect
from codl.targets.detect import detect

#: A quotient that is so near to an integer, relatively, is that integer, whatever the division's
#: last bits are: OpenCL lets a division be off by 2.5 units in the last place.
NEAR = 2.0**-22
FLOATS = ("FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE")
INTEGERS = ("INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64")
CONVERTED = (*FLOATS, *INTEGERS, "BOOL")


def checked_type(info: onnx.ValueInfoProto) -> np.dtype[Any]:
    """The NumPy type of a tensor; raises `UnsupportedError` where codl has no way to hold it."""
    kind = info.type.WhichOneof("value") or "untyped"
    if kind != "tensor_type":
        what = kind.removesuffix("_type").replace("_", " ")
        raise UnsupportedError(f"{info.name!r} is a value of kind {what}; codl knows tensors only.")
    element = info.type.tensor_type.elem_type
    name = TensorProto.DataType.Name(element)
    if name not in CONVERTED:
        raise UnsupportedError(
            f"{info.name!r} is of type {name.lower()}; codl converts "
            f"{', '.join(name.lower() for name in CONVERTED)}."
        )
    dtype: np.dtype[Any] = helper.tensor_dtype_to_np_dtype(element)
    return dtype


def to_float32(name: str, value: NDArray[Any]) -> Array:
    """An input as codl takes it."""
    if not value.size:
        raise UnsupportedError(f"{name!r} is empty ({value.shape}); codl has no empty tensors.")
    return as_float32(name, value)


def from_float32(name: str, value: Array, dtype: np.dtype[Any]) -> NDArray[Any]:
    """An output as the model declares it."""
    if dtype.kind == "b":
        return np.not_equal(value, 0)
    if dtype.kind not in "iu":
        return value.astype(dtype)
    check_exact(name, value)
    nearest = np.rint(value)
    whole = np.where(np.abs(value - nearest) <= NEAR * np.abs(value), nearest, np.trunc(value))
    return whole.astype(np.int64).astype(dtype)


#: What reads of its input the shape alone, which is fixed anyway.
SHAPE_ONLY = ("Shape", "Size")


def data_inputs(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    """The inputs that a caller must give; initializers may be declared as inputs too."""
    fixed = {item.name for item in graph.initializer}
    return [info for info in graph.input if info.name not in fixed]


def parameter_inputs(graph: onnx.GraphProto) -> frozenset[str]:
    """Inputs that some node takes as a parameter, or from which such a parameter is computed."""
    needed: set[str] = set()
    for node in reversed(graph.node):
        if node.op_type in SHAPE_ONLY:
            continue
        if needed.intersection(node.output):
            needed.update(node.input)
        converter = CONVERTERS.get(type_of(node))
        positions = converter.parameters if converter else ()
        needed.update(name for i, name in enumerate(node.input) if i in positions)
    return frozenset(info.name for info in data_inputs(graph) if info.name in needed)


def specialise(model: onnx.ModelProto, values: Mapping[str, NDArray[Any]]) -> onnx.ModelProto:
    """The model for inputs like `values`: parameters as initializers, and every shape fixed."""
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    graph = fixed.graph
    parameters = parameter_inputs(graph)
    kept = [info for info in graph.input if info.name not in parameters]
    for info in kept:
        if info.name in values:
            dims = [{"dim_value": size} for size in values[info.name].shape]
            info.type.tensor_type.shape.CopyFrom(onnx.TensorShapeProto(dim=dims))
    for info in (*graph.value_info, *graph.output):
        # What is open is inferred again from the shapes of these inputs.
        if any(not dim.HasField("dim_value") for dim in info.type.tensor_type.shape.dim):
            info.type.tensor_type.ClearField("shape")
    del graph.input[:]
    graph.input.extend(kept)
    graph.initializer.extend(
        numpy_helper.from_array(values[name], name) for name in sorted(parameters)
    )
    return fixed


Value = NDArray[Any]


class CodlRep(BackendRep):  # type: ignore[misc]  # onnx comes without types
    """A model with everything on one side; compiled for the inputs of a run, and kept for others.

    Raises `UnsupportedError` where an input or output is of a type that codl cannot convert.
    """

    def __init__(self, model: onnx.ModelProto, target: Target, side: Processor) -> None:
        self._model, self._target, self._side = model, target, side
        infos = data_inputs(model.graph)
        self._inputs = {info.name: checked_type(info) for info in infos}
        self._outputs = {info.name: checked_type(info) for info in model.graph.output}
        self._parameters = parameter_inputs(model.graph)
        self._engines: dict[tuple[Any, ...], Engine] = {}
        self._result = namedtupledict("Outputs", list(self._outputs))

    @property
    def data_types(self) -> tuple[np.dtype[Any], ...]:
        """The types that come in as data, not as parameters, and that go out."""
        data = [kind for name, kind in self._inputs.items() if name not in self._parameters]
        return (*data, *self._outputs.values())

    @property
    def ops(self) -> int:
        """Ops of the largest network that was compiled so far, but for those that only rename."""
        networks = [engine.network for engine in self._engines.values()]
        counts = (
            sum(not isinstance(x.op, Reshape) for x in network.layers) for network in networks
        )
        return max(counts, default=0)

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Value, ...]:
        """Run on arrays by name, or in the order of the model's inputs; outputs in order."""
        values = self._named(inputs)
        data = {n: to_float32(n, v) for n, v in values.items() if n not in self._parameters}
        results = self.engine(values)(data)
        outputs = [from_float32(n, results[n], dtype) for n, dtype in self._outputs.items()]
        return self._result(*outputs)  # type: ignore[no-any-return]

    def engine(self, values: Mapping[str, Value]) -> Engine:
        """The engine for inputs of these shapes, with these values of parameters."""
        key = tuple(
            (name, value.shape, value.tobytes() if name in self._parameters else b"")
            for name, value in values.items()
        )
        if key not in self._engines:
            model = specialise(self._model, values)
            network = convert(simplify(import_onnx(model, model.graph.name or "model")))
            plan = default_plan(network, self._target.soc, self._side)
            self._engines[key] = Engine(network, plan, self._target, recovers=True)
        return self._engines[key]

    def _named(self, inputs: Any) -> dict[str, Value]:
        if not isinstance(inputs, Mapping):
            listed = inputs if isinstance(inputs, (list, tuple)) else [inputs]
            if len(listed) != len(self._inputs):
                wanted = ", ".join(self._inputs) or "none"
                raise CodlError(f"The inputs must be {wanted}; {len(listed)} were given.")
            inputs = dict(zip(self._inputs, listed, strict=True))
        if set(inputs) != set(self._inputs):
            raise CodlError(
                f"The inputs must be {', '.join(self._inputs)}, got {', '.join(inputs)}."
            )
        return {name: np.asarray(inputs[name], kind) for name, kind in self._inputs.items()}


class CodlBackend(Backend):  # type: ignore[misc]
    """`target` is what runs it; `side` the processor that computes.

    Without a target every model opens this machine's device anew: give many models one.
    """

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """ONNX's device is the host; which OpenCL device computes is the SoC's to say."""
        return device.split(":")[0] == "CPU"

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether codl knows the types of the model's inputs and outputs."""
        try:
            for info in (*data_inputs(model.graph), *model.graph.output):
                checked_type(info)
        except UnsupportedError:
            return False
        return cls.supports_device(device)

    @classmethod
    def prepare(
        cls,
        model: onnx.ModelProto,
        device: str = "CPU",
        *,
        target: Target | None = None,
        side: Processor = "gpu",
        **kwargs: Any,
    ) -> CodlRep:
        """A model ready to be run; it is compiled when the first inputs are there."""
        if not cls.supports_device(device):
            raise UnsupportedError(f"The device must be 'CPU', got {device!r}.")
        super().prepare(model, device)  # checks the model
        return CodlRep(model, target or connect("local", _here()), side)

    @classmethod
    def run_model(
        cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any
    ) -> tuple[Value, ...]:
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Sequence[Value],
        device: str = "CPU",
        outputs_info: Sequence[tuple[Any, tuple[int, ...]]] | None = None,
        *,
        opset_version: int | None = None,
        **kwargs: Any,
    ) -> tuple[Value, ...]:
        """Run one node on arrays for those of its inputs that it has."""
        names = [name for name in node.input if name]
        arrays = [np.asarray(value) for value in inputs]
        types = [(value.dtype, value.shape) for value in arrays]
        graph = helper.make_graph(
            [node],
            node.name or node.op_type,
            [_info(name, *info) for name, info in zip(names, types, strict=True)],
            [_info(name, *info) for name, info in zip(node.output, outputs_info, strict=True)]
            if outputs_info
            else [onnx.ValueInfoProto(name=name) for name in node.output if name],
        )
        version = opset_version or onnx.defs.onnx_opset_version()
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid(node.domain, version)])
        inferred = onnx.shape_inference.infer_shapes(model)
        return cls.run_model(inferred, arrays, device, **kwargs)


@cache
def _here() -> Soc:
    return detect(connect("local"), "here")


def _info(name: str, dtype: Any, shape: tuple[int, ...]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(
        name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape
    )


#: What ONNX's test runner wants of a backend's module.
is_compatible = CodlBackend.is_compatible
prepare = CodlBackend.prepare
run_model = CodlBackend.run_model
run_node = CodlBackend.run_node
supports_device = CodlBackend.supports_device
