"""Lowers layers of the CPU to one ONNX model, for ONNX Runtime and OpenVINO."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from codl.ir.executable import Constant, OnnxBinding, OnnxNet, OpenVinoNet, Sizes
from codl.ir.onnx_node import Node, stand_in
from codl.ir.op_text import to_text
from codl.ir.ops.onnx_model import INPUT, OUTPUT
from codl.ir.region import Region
from codl.kernels.cpu import OPSET, OrtPlan, activation_nodes
from codl.lower.assembly import Assembly
from codl.lower.nets import CpuLayer, Group, TensorRegion

#: By tensor, its name and its sizes in an ONNX model.
Named: TypeAlias = dict[str, tuple[str, Sizes]]
#: The name of the model's bytes among its constants.
MODEL = "model"
#: Constants with more elements than this are stored beside the model, by their names in it.
LARGE = 1 << 12


def lower_onnx(group: Group, assembly: Assembly) -> OnnxNet:
    """Lower a group to one ONNX model; an ONNX subgraph is a group of its own."""
    layer = group.layers[0]
    plan: OrtPlan = layer.plan
    if not plan.model:
        return _written(group, assembly)
    model = assembly.add_constants(_signature(group.layers), {MODEL: _as_array(plan.model)})
    inputs = {
        name: (f"{INPUT}{index}", sizes)
        for index, ((name, _), sizes) in enumerate(zip(layer.inputs, plan.inputs, strict=True))
    }
    return _net(group, model, inputs, {layer.output: (OUTPUT, plan.output)}, [model])


def _written(group: Group, assembly: Assembly) -> OnnxNet:
    shapes = {
        name: tuple(access.region.shape(assembly.tensors[access.tensor].shape))
        for name, access in (*group.inputs.items(), *group.outputs.items())
    }
    graph = OnnxGraph({n: access.region for n, access in group.inputs.items()},
                      {n: shapes[n] for n in group.inputs})  # fmt: skip
    for layer in group.layers:
        graph.add(layer)
    inputs, outputs = graph.bind({n: (a.region, shapes[n]) for n, a in group.outputs.items()})
    weights = {f"{x.name}/{key}": value for x in group.layers for key, value in x.weights.items()}
    model = assembly.add_constants(
        _signature(group.layers),
        weights,
        lambda: {MODEL: graph.serialized(inputs, outputs), **graph.large},
    )
    # The model contains the packed weights of the layers.
    constants = [
        assembly.add_constants(to_text(x.op), x.weights, dict) if x.weights else None
        for x in group.layers
    ]
    return _net(group, model, inputs, outputs, constants)


def _net(
    group: Group, model: int, inputs: Named, outputs: Named, constants: Sequence[int | None]
) -> OnnxNet:
    places = {**group.inputs, **group.outputs}
    kind = OpenVinoNet if group.layers[0].variant.backend == "openvino" else OnnxNet
    return kind(
        label=group.label,
        layers=tuple(
            x.net_layer(constant) for x, constant in zip(group.layers, constants, strict=True)
        ),
        model=Constant(model, MODEL),
        inputs=tuple(OnnxBinding(*named, group.inputs[n]) for n, named in inputs.items()),
        outputs=tuple(OnnxBinding(*named, places[n]) for n, named in outputs.items()),
    )


def _signature(layers: Sequence[CpuLayer]) -> str:
    """Text that identifies a model apart from its weights."""
    return json.dumps([[x.name, to_text(x.op), x.inputs, x.output, x.region] for x in layers])


def _as_array(content: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(content, np.uint8)


@dataclass
class OnnxGraph:
    """Collects the nodes of a model.

    Nodes may read a tensor region under several sizes. The first reader of a region or of a size
    adds the Slice or Reshape node that makes it.
    """

    regions: dict[str, Region]
    shapes: dict[str, Sizes]
    nodes: list[Node] = field(default_factory=list)
    constants: dict[str, NDArray[Any]] = field(default_factory=dict)
    #: The declared sizes of each input, by tensor.
    declared: dict[str, Sizes] = field(default_factory=dict)
    values: dict[TensorRegion, dict[Sizes, str]] = field(default_factory=dict)
    opset: int = OPSET

    def add(self, layer: CpuLayer) -> None:
        plan: OrtPlan = layer.plan
        self.opset = max(self.opset, plan.opset)
        names = {
            f"x{index}": self._value(TensorRegion(name, region), sizes)
            for index, ((name, region), sizes) in enumerate(
                zip(layer.inputs, plan.inputs, strict=True)
            )
        }
        prefix = f"l{len(self.nodes)}"
        # A network without weights is priced and never run; zeros stand for its weights.
        weights = layer.weights or layer.op.weights_of(partial(np.broadcast_to, np.float32(0)))
        for name, value in {**plan.constants, **plan.pack(weights)}.items():
            names[name] = self._constant(f"{prefix}.{name}", value)
        result = self._write(plan.nodes, names, prefix)["y"]
        after, constants = activation_nodes(layer.op.activation)
        if after:
            names = {"x0": result}
            for name, value in constants.items():
                names[name] = self._constant(f"{prefix}.after.{name}", value)
            result = self._write(after, names, f"{prefix}.after")["y"]
        self.regions[layer.output] = layer.region
        self.shapes[layer.output] = tuple(layer.op.output)
        self.values[TensorRegion(layer.output, layer.region)] = {plan.output: result}

    def bind(self, outputs: Mapping[str, tuple[Region, Sizes]]) -> tuple[Named, Named]:
        """The model's inputs and outputs by tensor: the name and sizes of each."""
        results: Named = {}
        for name, (region, shape) in outputs.items():
            piece = TensorRegion(name, region)
            is_whole = region == self.regions[name]
            sizes = next(iter(self.values[piece])) if is_whole else shape
            results[name] = (self._value(piece, sizes), sizes)
        inputs = {
            name: (next(iter(self.values[TensorRegion(name, self.regions[name])].values())), sizes)
            for name, sizes in self.declared.items()
        }
        return inputs, results

    @property
    def large(self) -> dict[str, NDArray[Any]]:
        """The constants that are stored beside the model."""
        return {
            name: np.ascontiguousarray(value)
            for name, value in self.constants.items()
            if value.size > LARGE
        }

    def serialized(self, inputs: Named, outputs: Named) -> NDArray[np.uint8]:
        """The bytes of the ONNX model, without its large constants."""
        from onnx import TensorProto, helper, numpy_helper

        def proto(node: Node) -> Any:
            """The ONNX node; a type may begin with a domain and a dot."""
            domain, _, kind = node.type.rpartition(".")
            ends = node.inputs, node.outputs
            return helper.make_node(kind, *ends, name=node.name, domain=domain, **node.attributes)

        def initializer(name: str, value: NDArray[Any]) -> Any:
            if value.size <= LARGE:
                dense = np.ascontiguousarray(value).reshape(np.shape(value))
                return numpy_helper.from_array(dense, name)
            made = TensorProto()
            stand_in(made, name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
            return made

        def declared(ends: Named) -> list[Any]:
            make = helper.make_tensor_value_info
            return [make(name, TensorProto.FLOAT, list(sizes)) for name, sizes in ends.values()]

        graph = helper.make_graph(
            list(map(proto, self.nodes)),
            "shard",
            declared(inputs),
            declared(outputs),
            [initializer(*item) for item in self.constants.items()],
        )
        opsets = [helper.make_opsetid("", self.opset)]
        version = helper.find_min_ir_version_for(opsets)
        domains = sorted({node.domain for node in graph.node if node.domain})
        opsets += [helper.make_opsetid(domain, 1) for domain in domains]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=version)
        return _as_array(model.SerializeToString(deterministic=True))

    def _write(
        self, nodes: Sequence[Node], names: Mapping[str, str], prefix: str
    ) -> Mapping[str, str]:
        """Add nodes under unique names; returns the unique names by the nodes' own."""
        values = {"": "", **names}  # an input left out is called ""
        for node in nodes:
            values |= {name: f"{prefix}.{name}" for name in node.outputs}
            inputs, outputs = (
                [values[name] for name in words] for words in (node.inputs, node.outputs)
            )
            self._node(node.type, inputs, outputs, **node.attributes)
        return values

    def _node(
        self, kind: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any
    ) -> None:
        name = f"{kind}_{len(self.nodes)}"
        self.nodes.append(Node(name, kind, tuple(inputs), tuple(outputs), attributes))

    def _constant(self, name: str, value: NDArray[Any]) -> str:
        self.constants[name] = value
        return name

    def _value(self, piece: TensorRegion, sizes: Sizes) -> str:
        """The name of a value that has a tensor region under some sizes."""
        whole = TensorRegion(piece.tensor, self.regions[piece.tensor])
        if whole not in self.values:  # the first read of an input
            whole_sizes = sizes if piece == whole else self.shapes[piece.tensor]
            self.declared[piece.tensor] = whole_sizes
            self.values[whole] = {whole_sizes: f"in.{len(self.declared)}"}
        if piece not in self.values:
            shape = self.shapes[piece.tensor]
            self.values[piece] = self._slice(whole, piece.region, shape)
        views = self.values[piece]
        if sizes not in views:
            source, name = next(iter(views.values())), f"view.{len(self.nodes)}"
            to = self._constant(f"{name}.to", np.array(sizes, np.int64))
            self._node("Reshape", (source, to), (name,))
            views[sizes] = name
        return views[sizes]

    def _slice(self, whole: TensorRegion, region: Region, shape: Sizes) -> dict[Sizes, str]:
        source = self._value(whole, shape)
        part, name = region.within(whole.region), f"part.{len(self.nodes)}"
        bounds = zip(*part, strict=True)
        ends = [
            self._constant(f"{name}.{key}", np.array(value, np.int64))
            for key, value in zip(("starts", "ends", "axes"), (*bounds, (0, 1, 2)), strict=True)
        ]
        self._node("Slice", (source, *ends), (name,))
        return {(*(span.size for span in part), shape[3]): name}
