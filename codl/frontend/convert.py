"""From graph nodes to operators, with activations fused and reshapes made explicit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

import numpy as np
from onnx import TensorProto, helper

from codl.errors import UnsupportedError
from codl.frontend.converters.base import CONVERTERS, ConvertedOp, unsupported
from codl.frontend.graph.attention_patterns import fuse_attention, fuse_rotaries, share_heads
from codl.frontend.graph.folding import fold_affines
from codl.frontend.graph.graph import Graph
from codl.frontend.graph.onnx_import import import_onnx
from codl.frontend.graph.parallel_convolutions import merge_parallel_convolutions
from codl.frontend.graph.passes import drop_aliases, drop_reshapes, merge_reshapes, widen_products
from codl.frontend.graph.patterns import fuse_activations, fuse_group_norms, fuse_norms
from codl.frontend.graph.shapes import fix_shapes
from codl.frontend.graph.weights import Model
from codl.frontend.unsupported import ENCLOSED, enclose, enclosed
from codl.ir.network import Layer, Network, as_float32
from codl.ir.onnx_node import Node
from codl.ir.ops.base import Array
from codl.ir.ops.movement import Reshape
from codl.ir.region import Shape, as_nchw

if TYPE_CHECKING:
    from codl.frontend.models import ModelSource


def load_network(
    model: str, batch: int | None = None, shapes: Mapping[str, tuple[int, ...]] | None = None
) -> Network:
    """A model by built-in name or `.onnx` path, for `batch` images at a time, to be planned.

    `shapes` are those of inputs whose sizes the model leaves open.
    """
    return load_with_source(model, batch, shapes)[0]


@dataclass(frozen=True)
class Source:
    """The file or name that a network was read from, to be read again for a reference.

    `digest` is of structure and weights as the file has them.
    """

    model: str
    batch: int | None
    shapes: Mapping[str, tuple[int, ...]]
    digest: str

    def read(self) -> Model:
        """The ONNX model with the sizes of its inputs."""
        from codl.frontend import models

        return _fixed(models.load(self.model, self.batch), self.shapes)


def load_with_source(
    model: str, batch: int | None = None, shapes: Mapping[str, tuple[int, ...]] | None = None
) -> tuple[Network, Model]:
    """The network of `load_network`, and the ONNX model with the sizes of its inputs."""
    from codl.frontend import models  # an agent converts without it

    named = models.load(model, batch)
    source = _fixed(named, shapes or {})
    return network_of(import_onnx(source, named.name)), source


def _fixed(source: ModelSource, shapes: Mapping[str, tuple[int, ...]]) -> Model:
    return replace(source.model, proto=fix_shapes(source.model.proto, shapes))


def read_network(
    model: str,
    batch: int | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    *,
    check: bool = True,
) -> tuple[Network, Source | None]:
    """The network of `load_network`, and to `check` it its source."""
    network, source = load_with_source(model, batch, shapes)
    return network, Source(model, batch, shapes or {}, source.digest()) if check else None


def load_structure(
    model: str, batch: int | None = None, shapes: Mapping[str, tuple[int, ...]] | None = None
) -> Network:
    """The same without weights, which for a built-in model are not even made."""
    from codl.frontend import models

    source = models.load(model, batch, drawn=False)
    return network_of(import_onnx(source.model, source.name, shapes)).structure


def network_of(graph: Graph) -> Network:
    """The network of any model: what codl has no operator for becomes layers of kind `onnx`.

    Its inputs and outputs are of the types that the model declares. Raises `UnsupportedError` where
    a tensor outside those layers has no size that is known.
    """
    network = convert(simplify(enclose(graph)))
    types = {
        name: helper.tensor_dtype_to_np_dtype(graph.types.get(name, TensorProto.FLOAT)).name
        for name in (*graph.inputs, *graph.outputs)
    }
    return replace(network, types={k: v for k, v in types.items() if v != "float32"})


def simplify(graph: Graph) -> Graph:
    """Drop what computes nothing, and copies that a transpose can do with; fuse and fold.

    Each pass finds what those before it leave.
    """
    plain = merge_parallel_convolutions(drop_aliases(graph))
    fused = fuse_group_norms(fuse_rotaries(fuse_norms(fuse_activations(plain))))
    folded = share_heads(fuse_attention(fold_affines(widen_products(fused))))
    return merge_reshapes(drop_reshapes(folded))


def convert(graph: Graph) -> Network:
    """Make a network of a graph; raises `UnsupportedError` with the node that has no operator."""
    builder = _Builder(graph)
    for node in graph.nodes:
        if not builder.fuse(node):
            builder.add(node)
    return builder.network()


class _Builder:
    """Collects layers, and which tensors became others."""

    def __init__(self, graph: Graph) -> None:
        self._graph, self._names = graph, graph.names
        self._layers: dict[str, Layer] = {}
        self._inputs = {name: as_nchw(graph.shapes[name]) for name in graph.inputs}
        self._constants: dict[str, Array] = {}
        self._states = {name: as_nchw(sizes) for name, sizes in graph.states.items()}
        self._shapes = {**self._inputs, **self._states}
        #: Outputs of fused activations, by name, and the layer output that holds them.
        self._fused: dict[str, str] = {}
        #: What layers read, also those that one node became.
        self._read: set[str] = set()

    def fuse(self, node: Node) -> bool:
        """Let the op before an activation compute it, where nothing else reads its output."""
        converter = CONVERTERS.get(node.type)
        if converter is None or converter.activation is None:
            return False
        graph, before = self._graph, node.inputs[0]
        producer = self._layers.get(self._fused.get(before, before))
        if producer is None or producer.op.activation.kind != "none":
            return False
        if graph.reader_of(before) is not node or producer.output in self._read:
            return False
        if not producer.op.fuses_activations:
            return False
        op = producer.op.with_activation(converter.activation(graph, node))
        self._layers[producer.output] = replace(producer, op=op)
        self._fused[node.outputs[0]] = producer.output
        return True

    def add(self, node: Node) -> None:
        """Add the layers that a node becomes."""
        for tensor in (*node.inputs, *node.outputs):
            self._check_known(tensor)
        if node.type not in CONVERTERS and node.type != ENCLOSED:
            names = ", ".join(sorted(CONVERTERS))
            raise unsupported(node, f"codl has no operator for it (known: {names}).")
        convert = enclosed if node.type == ENCLOSED else CONVERTERS[node.type].convert
        steps = convert(self._graph, node)
        made = {step.output for step in steps}
        for name in node.outputs:
            if name not in made and self._graph.is_read(name):
                raise unsupported(node, f"codl does not compute its output {name!r}.")
        for index, step in enumerate(steps):
            if step.output in self._layers:  # several nodes make it of the same tensor
                continue
            is_last = index == len(steps) - 1
            name = node.name if is_last else self._names.node(node.name, str(index))
            self._keep_constants(step)
            inputs = tuple(
                self._shaped(self._fused.get(tensor, tensor), shape)
                for tensor, shape in zip(step.inputs, step.op.inputs, strict=True)
            )
            self._append(Layer(name, step.op, inputs, step.output, step.weights))

    def _check_known(self, tensor: str) -> None:
        if tensor in self._graph.unknown:
            raise UnsupportedError(self._graph.unknown[tensor])

    def _append(self, layer: Layer) -> None:
        """Raises `UnsupportedError` for an op of an empty constant, and for one of other sizes than
        the graph has, as ONNX Runtime may infer them for operators of its own.
        """
        op = layer.op
        if empty := next((size for size in (*op.inputs, op.output) if 0 in size), None):
            raise UnsupportedError(
                f"The node {layer.name!r} has an empty tensor ({empty}); codl has no empty tensors."
            )
        sizes = self._graph.shapes.get(layer.output)
        if sizes is not None and prod(sizes) != op.output.elements:
            raise UnsupportedError(
                f"The node {layer.name!r} makes {op.output.elements} values, and its output "
                f"{layer.output!r} is said to be {'x'.join(map(str, sizes))}."
            )
        self._layers[layer.output] = layer
        self._read.update(layer.inputs)
        self._shapes[layer.output] = layer.op.output

    def _keep_constants(self, step: ConvertedOp) -> None:
        for tensor, shape in zip(step.inputs, step.op.inputs, strict=True):
            if tensor in step.constants:
                self._constants[tensor] = step.constants[tensor].reshape(shape)
            elif tensor in self._graph.constants and tensor not in self._constants:
                value = as_float32(tensor, self._graph.constants[tensor])
                self._constants[tensor] = np.ascontiguousarray(value).reshape(shape)
            if tensor in self._constants:
                self._shapes[tensor] = Shape(*self._constants[tensor].shape)

    def _shaped(self, tensor: str, shape: Shape) -> str:
        """The tensor under the shape that an op takes; a reshape where it has another."""
        if self._shapes[tensor] == shape:
            return tensor
        name = self._names.tensor(tensor, str(shape))
        if name not in self._layers:
            op = Reshape(shapes=(tuple(self._shapes[tensor]),), to=tuple(shape))
            self._append(Layer(self._names.node(tensor, str(shape)), op, (tensor,), name, {}))
        return name

    def _constant_output(self, tensor: str) -> str:
        """A constant that is handed out; a layer may read it under other sizes."""
        value = as_float32(tensor, self._graph.constants[tensor])
        name = self._names.tensor(tensor, "output")
        self._constants[name] = value.reshape(as_nchw(self._graph.shapes[tensor]))
        self._shapes[name] = Shape(*self._constants[name].shape)
        return name

    def network(self) -> Network:
        graph = self._graph
        outputs = {}
        for name in graph.outputs:
            self._check_known(name)
            held = graph.aliases.get(name, name)
            if held in graph.constants:
                held = self._constant_output(held)
            outputs[name] = (self._fused.get(held, held), graph.shapes[name])
        if not self._layers:  # a network computes something, if only copies of what it is given
            for name, (held, to) in outputs.items():
                op = Reshape(shapes=(tuple(self._shapes[held]),), to=tuple(self._shapes[held]))
                layer, copy = self._names.node(held, "copy"), self._names.tensor(held, "copy")
                self._append(Layer(layer, op, (held,), copy, {}))
                outputs[name] = (copy, to)
        layers = tuple(self._layers.values())
        return Network(
            graph.name, layers, self._inputs, outputs, self._constants, states=self._states
        )
