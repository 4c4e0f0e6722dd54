"""Ops of the CPU side in ONNX Runtime: one session over arrays that live as long as it does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from codl.errors import DeviceError
from codl.ir import Array, Region
from codl.ir.onnx_node import Node
from codl.ir.ops.nd import Sizes
from codl.ir.ops.onnx_model import INPUT, OUTPUT
from codl.ir.soc import Soc
from codl.kernels.ort import OPSET, OrtPlan, activation_nodes
from codl.runtime.ncnn_net import CpuLayer, Home, Piece, aligned_zeros


class OrtNet:
    """Layers in one session; takes what `CpuNet` takes, of layers whose variants are ORT's.

    Inputs and outputs are bound to the home arrays where their regions lie densely, and to arrays
    beside them otherwise, which every run copies from or to.
    """

    def __init__(
        self,
        layers: Sequence[CpuLayer],
        inputs: Mapping[str, Home],
        outputs: Mapping[str, Home],
        soc: Soc,
    ) -> None:
        # The session counts no references to NumPy's memory.
        self._homes = (*inputs.values(), *outputs.values())
        model = write_model(layers, inputs, outputs, soc)
        self._session = make_session(model.proto, soc)
        self._binding = self._session.io_binding()
        self._copies_in: list[tuple[Array, Array]] = []
        self._copies_out: list[tuple[Array, Array]] = []
        for name, home in inputs.items():
            if name in model.inputs:
                blob, sizes = model.inputs[name]
                array = self._dense(home, self._copies_in)
                self._bind(self._binding.bind_input, blob, array, sizes)
        for name, home in outputs.items():
            blob, sizes = model.outputs[name]
            array = self._dense(home, self._copies_out)
            self._bind(self._binding.bind_output, blob, array, sizes)

    def run(self) -> None:
        """Compute the outputs from what the input arrays hold now."""
        for view, dense in self._copies_in:
            np.copyto(dense, view)
        try:
            self._session.run_with_iobinding(self._binding)
        except Exception as error:  # ONNX Runtime's exceptions share no base class
            raise DeviceError(f"ONNX Runtime failed: {error}") from error
        for view, dense in self._copies_out:
            np.copyto(view, dense)

    @staticmethod
    def _dense(home: Home, copies: list[tuple[Array, Array]]) -> Array:
        """The home's used part, or an array beside it that is to be copied."""
        view = home.view()
        if view.flags.c_contiguous:
            return view
        dense = aligned_zeros(view.shape)
        copies.append((view, dense))
        return dense

    @staticmethod
    def _bind(bind: Any, blob: str, array: Array, sizes: Sizes) -> None:
        bind(blob, "cpu", 0, np.float32, list(sizes), array.ctypes.data)


def make_session(proto: onnx.ModelProto, soc: Soc) -> ort.InferenceSession:
    """A session on the CPU side's threads, which do not spin while they have nothing to do."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = soc.cpu.threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return ort.InferenceSession(proto.SerializeToString(), options, ["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime's exceptions share no base class
        nodes = ", ".join(dict.fromkeys(node.op_type for node in proto.graph.node))
        raise DeviceError(f"ONNX Runtime cannot load a model of {nodes}: {error}") from error


@dataclass(frozen=True)
class OrtModel:
    """An ONNX model, and what its inputs and outputs are called and shaped, by tensor."""

    proto: onnx.ModelProto
    inputs: Mapping[str, tuple[str, Sizes]]
    outputs: Mapping[str, tuple[str, Sizes]]


def write_model(
    layers: Sequence[CpuLayer], inputs: Mapping[str, Home], outputs: Mapping[str, Home], soc: Soc
) -> OrtModel:
    """Layers as one ONNX model; a layer that is a model itself is alone."""
    plan: Any = layers[0].variant.plan(layers[0].op, soc)
    if plan.model:
        return _own_model(layers[0], plan)
    writer = _Writer({name: home.used for name, home in inputs.items()},
                     {name: tuple(home.view().shape) for name, home in inputs.items()})  # fmt: skip
    for layer in layers:
        writer.add(layer, soc)
    return writer.model(outputs)


def _own_model(layer: CpuLayer, plan: OrtPlan) -> OrtModel:
    names = [name for name, _ in layer.inputs]
    given = {
        name: (f"{INPUT}{index}", sizes)
        for index, (name, sizes) in enumerate(zip(names, plan.inputs, strict=True))
    }
    proto = onnx.load_from_string(plan.model)
    return OrtModel(proto, given, {layer.output: (OUTPUT, plan.output)})


@dataclass
class _Writer:
    """Collects the nodes of a model.

    Every piece of a tensor may be seen under several sizes; a value is made when it is first asked
    for, by a slice or a reshape of one that is there.
    """

    regions: dict[str, Region]
    shapes: dict[str, tuple[int, ...]]
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    #: The sizes under which inputs are declared, by tensor.
    declared: dict[str, Sizes] = field(default_factory=dict)
    values: dict[Piece, dict[Sizes, str]] = field(default_factory=dict)

    def add(self, layer: CpuLayer, soc: Soc) -> None:
        plan: OrtPlan = layer.variant.plan(layer.op, soc)  # type: ignore[assignment]
        names = {
            f"x{index}": self._value(Piece(name, region), sizes)
            for index, ((name, region), sizes) in enumerate(
                zip(layer.inputs, plan.inputs, strict=True)
            )
        }
        prefix = f"l{len(self.nodes)}"
        for name, value in {**plan.constants, **plan.pack(layer.weights)}.items():
            names[name] = self._constant(f"{prefix}.{name}", value)
        result = self._write(plan.nodes, names, prefix)
        after, constants = activation_nodes(layer.op.activation)
        if after:
            names = {"x0": result}
            for name, value in constants.items():
                names[name] = self._constant(f"{prefix}.after.{name}", value)
            result = self._write(after, names, f"{prefix}.after")
        piece = Piece(layer.output, layer.region)
        self.regions[layer.output] = layer.region
        self.shapes[layer.output] = tuple(layer.op.output)
        self.values[piece] = {plan.output: result}

    def _write(self, nodes: Sequence[Node], names: dict[str, str], prefix: str) -> str:
        """Write nodes with names of their own; returns that of `y`."""
        known = dict(names)
        for node in nodes:
            known |= {name: f"{prefix}.{name}" for name in node.outputs}
            renamed = replace(
                node,
                inputs=tuple(known[name] for name in node.inputs),
                outputs=tuple(known[name] for name in node.outputs),
            )
            self._node(renamed.type, renamed.inputs, renamed.outputs, **renamed.attributes)
        return known["y"]

    def _node(
        self, kind: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any
    ) -> None:
        name = f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, outputs, name=name, **attributes))

    def _constant(self, name: str, value: NDArray[Any]) -> str:
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def _value(self, piece: Piece, sizes: Sizes) -> str:
        """The name of a piece of a tensor under some sizes."""
        whole = Piece(piece.tensor, self.regions[piece.tensor])
        if whole not in self.values:  # an input that is read for the first time
            own = sizes if piece == whole else self.shapes[piece.tensor]
            self.declared[piece.tensor] = own
            self.values[whole] = {own: f"in.{len(self.declared)}"}
        if piece not in self.values:
            shape = self.shapes[piece.tensor]
            self.values[piece] = self._slice(whole, piece.region, shape)
        known = self.values[piece]
        if sizes not in known:
            source, name = next(iter(known.values())), f"view.{len(self.nodes)}"
            to = self._constant(f"{name}.to", np.array(sizes, np.int64))
            self._node("Reshape", (source, to), (name,))
            known[sizes] = name
        return known[sizes]

    def _slice(self, whole: Piece, region: Region, shape: Sizes) -> dict[Sizes, str]:
        source = self._value(whole, shape)
        part, name = region.within(whole.region), f"part.{len(self.nodes)}"
        bounds = zip(*part, strict=True)
        given = [
            self._constant(f"{name}.{key}", np.array(value, np.int64))
            for key, value in zip(("starts", "ends", "axes"), (*bounds, (0, 1, 2)), strict=True)
        ]
        self._node("Slice", (source, *given), (name,))
        return {(*(span.size for span in part), shape[3]): name}

    def model(self, outputs: Mapping[str, Home]) -> OrtModel:
        results: dict[str, tuple[str, Sizes]] = {}
        for name, home in outputs.items():
            piece = Piece(name, home.used)
            whole = piece.region == self.regions[name]
            sizes = next(iter(self.values[piece])) if whole else tuple(home.view().shape)
            results[name] = (self._value(piece, sizes), sizes)
        inputs = {
            name: (next(iter(self.values[Piece(name, self.regions[name])].values())), sizes)
            for name, sizes in self.declared.items()
        }
        graph = helper.make_graph(
            self.nodes,
            "half",
            [_info(*given) for given in inputs.values()],
            [_info(*given) for given in results.values()],
            self.constants,
        )
        opsets = [helper.make_opsetid("", OPSET)]
        version = helper.find_min_ir_version_for(opsets)
        return OrtModel(
            helper.make_model(graph, opset_imports=opsets, ir_version=version), inputs, results
        )


def _info(name: str, sizes: Sizes) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, list(sizes))
