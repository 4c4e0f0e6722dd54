"""From graph nodes to operators, with activations fused and reshapes made explicit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper

from codl.errors import UnsupportedError
from codl.frontend.converters.base import CONVERTERS, ConvertedOp, unsupported
from codl.frontend.graph.attention_patterns import fuse_attention, share_heads
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
from codl.ir.ops.base import Array, Op
from codl.ir.ops.eltwise import Eltwise
from codl.ir.ops.movement import Reshape
from codl.ir.ops.onnx_model import OnnxModel
from codl.ir.ops.reductions import Reduce
from codl.ir.region import Shape, as_nchw

if TYPE_CHECKING:
    from codl.frontend.models import ModelSource

#: Functions that some numbers have no finite value of. By name: which input must be at least zero
#: (1) or above it (2) so that the value is finite; 3 where its sign does not tell.
UNDEFINED: Mapping[str, tuple[int, int]] = {
    "div": (-1, 2),
    "mod": (-1, 2),
    "log": (0, 2),
    "log_sum": (0, 2),
    "reciprocal": (0, 2),
    "sqrt": (0, 1),
    "pow": (0, 2),
    **dict.fromkeys(("asin", "acos", "acosh", "atanh"), (0, 3)),
}
#: Ops whose output has elements of their inputs alone.
MOVING = ("reshape", "transpose", "slice", "tile", "concat", "concat_nd", "gather")


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
    fused = fuse_group_norms(fuse_norms(fuse_activations(plain)))
    folded = share_heads(fuse_attention(fold_affines(widen_products(fused))))
    return merge_reshapes(drop_reshapes(folded))


def convert(graph: Graph) -> Network:
    """Make a network of a graph; raises `UnsupportedError` with the node that has no operator."""
    builder = _Builder(graph)
    for node in graph.nodes:
        if not builder.fuse(node):
            builder.add(node)
    return builder.network()


def without_denormals(weights: NDArray[Any]) -> NDArray[Any]:
    """Weights with 0 for denormals of float32, with which CPUs multiply a hundred times slower."""
    if weights.dtype != np.float32:
        return weights
    small = np.abs(weights) < np.finfo(np.float32).tiny
    return np.where(small, np.float32(0), weights) if weights[small].any() else weights


def mark_nonfinite(layers: Iterable[Layer], constants: Mapping[str, Array]) -> tuple[Layer, ...]:
    """Layers in their order; ops behind one that may make NaN or infinities are `nonfinite`."""
    marked: list[Layer] = []
    tainted: set[str] = set()
    signs = {name: _sign_of(value) for name, value in constants.items()}
    for layer in layers:
        read = [signs.get(name, 0) for name in layer.inputs]
        is_behind = not tainted.isdisjoint(layer.inputs)
        makes = _makes_nonfinite(layer.op, read, constants.get(layer.inputs[-1]))
        if is_behind or makes:
            tainted.add(layer.output)
        if is_behind or (makes and layer.op.activation.kind != "none"):
            layer = replace(layer, op=replace(layer.op, nonfinite=True))
        signs[layer.output] = _sign(layer, read)
        marked.append(layer)
    return tuple(marked)


def _makes_nonfinite(op: Op, signs: Sequence[int], power: Array | None) -> bool:
    """Whether ordinary numbers of these signs may give NaN or infinities, as log(0) does.

    `power` is the last input where that is a constant.
    """
    if isinstance(op, OnnxModel):
        return not UNDEFINED.keys().isdisjoint(name.lower() for name in op.nodes.split("+"))
    mode = op.mode if isinstance(op, Eltwise | Reduce) else ""
    if mode == "pow" and power is not None and _sign_of(power) and (power % 1 == 0).all():
        return False
    place, least = UNDEFINED.get(mode, (0, 0))
    return signs[place] < least


def _sign_of(value: Array) -> int:
    """2 where all elements are above zero, 1 where none is below it, otherwise 0."""
    return int((value >= 0).all()) + int((value > 0).all())


def _sign(layer: Layer, signs: Sequence[int]) -> int:
    """The sign of a layer's output, as `_sign_of` has it; `signs` are of its inputs."""
    op, least = layer.op, min(signs, default=0)
    if op.activation.kind != "none":
        bound = op.activation.alpha if op.activation.kind == "clip" else 0.0
        known = op.activation.kind in ("clip", "relu", "sigmoid") and bound >= 0
        return int(known) + int(known and bound > 0)
    if isinstance(op, Reduce):
        if op.mode in ("l1", "l2", "sum_square"):
            return 1
        return 0 if op.mode.startswith("log") else least
    mode = op.mode if isinstance(op, Eltwise) else op.kind
    if mode == "max" or (mode == "add" and least):
        return max(signs)
    if mode in ("sqrt", "div", *MOVING):
        return least
    is_square = mode == "mul" and len({*layer.inputs}) == 1
    return int(bool(mode in ("abs", "exp", "softplus") or is_square or (mode == "mul" and least)))


class _Builder:
    """Collects layers, and which tensors became others."""

    def __init__(self, graph: Graph) -> None:
        self._graph, self._names = graph, graph.names
        self._layers: dict[str, Layer] = {}
        self._inputs = {name: as_nchw(graph.shapes[name]) for name in graph.inputs}
        self._constants: dict[str, Array] = {}
        self._shapes = dict(self._inputs)
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
            weights = step.weights
            if step.op.is_product:
                weights = {key: without_denormals(value) for key, value in weights.items()}
            self._append(Layer(name, step.op, inputs, step.output, weights))

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
        layers = mark_nonfinite(self._layers.values(), self._constants)
        return Network(graph.name, layers, self._inputs, outputs, self._constants)
