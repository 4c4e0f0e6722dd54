"""ONNX's backend interface over codl's pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper
from onnx.backend.base import Backend, BackendRep, namedtupledict

from codl.backend.borders import checked_type, from_float32, to_float32
from codl.backend.specialise import data_inputs, parameter_inputs, specialise
from codl.errors import CodlError, UnsupportedError
from codl.frontend.convert import convert
from codl.frontend.graph.onnx_import import import_onnx
from codl.frontend.graph.simplify_pipeline import simplify
from codl.ir.ops.reshape import Reshape
from codl.ir.soc import Soc
from codl.ir.types import Processor
from codl.plan.build_plan import default_plan
from codl.runtime.engine import Engine
from codl.targets.base import Target
from codl.targets.connect import connect
from codl.targets.detect import detect

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
        counts = (sum(not isinstance(x.op, Reshape) for x in own.layers) for own in networks)
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
            [_info(name, *given) for name, given in zip(names, types, strict=True)],
            [_info(name, *given) for name, given in zip(node.output, outputs_info, strict=True)]
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
