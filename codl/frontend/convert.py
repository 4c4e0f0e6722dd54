"""Conversion of graphs to networks, with fused activations and explicit reshapes."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper

from codl.errors import CodlError, UnsupportedError
from codl.frontend.converters.base import CONVERTERS, ENCLOSED, ConvertedOp, unsupported
from codl.frontend.graph.graph import Graph, fuse
from codl.frontend.graph.onnx_import import import_onnx
from codl.frontend.graph.passes import (
    FLOATS,
    drop_aliases,
    drop_reshapes,
    is_alias,
    merge_reshapes,
    widen_products,
)
from codl.frontend.graph.shapes import fix_shapes
from codl.frontend.graph.weights import Model
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

#: Functions without a finite value for some numbers: the input in question, and its sign for a
#: finite result. Signs: 1 at least zero, 2 above zero, 3 no sign is enough.
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
#: Constants with more elements are replaced by zeros to test whether a node converts.
LARGE = 1 << 16
#: Inputs by node type that may be the caller's integers, stored as floats.
INDICES: Mapping[str, int] = {"Gather": 1}
#: Ops whose output consists of elements of the inputs.
MOVING = ("reshape", "transpose", "slice", "tile", "concat", "concat_nd", "gather")


def load_network(
    model: str, batch: int | None = None, shapes: Mapping[str, tuple[int, ...]] | None = None
) -> Network:
    """The network of a built-in name or `.onnx` path, for `batch` images at a time.

    `shapes` gives sizes of inputs that the model leaves open.
    """
    return load_with_source(model, batch, shapes)[0]


@dataclass(frozen=True)
class Source:
    """The file or name of a network, to read again; `digest` covers structure and weights."""

    model: str
    batch: int | None
    shapes: Mapping[str, tuple[int, ...]]
    digest: str

    def read(self) -> Model:
        """The ONNX model, with sizes of its inputs."""
        from codl.frontend import models

        return _fixed(models.load(self.model, self.batch), self.shapes)


def load_with_source(
    model: str,
    batch: int | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    *,
    drawn: bool = True,
) -> tuple[Network, Model]:
    """The network of `load_network`, and the ONNX model with sizes of its inputs.

    Large weights of a built-in model that is not `drawn` are 0.
    """
    from codl.frontend import models  # an agent converts without it

    named = models.load(model, batch, drawn=drawn)
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
    """The network of `load_network`, and with `check` its source."""
    network, source = load_with_source(model, batch, shapes)
    return network, Source(model, batch, shapes or {}, source.digest()) if check else None


def load_structure(
    model: str, batch: int | None = None, shapes: Mapping[str, tuple[int, ...]] | None = None
) -> Network:
    """The network of `load_network` without weights, which a built-in model then never draws."""
    return load_with_source(model, batch, shapes, drawn=False)[0].structure


def network_of(graph: Graph) -> Network:
    """The network of any model; unsupported nodes become layers of kind `onnx`.

    Inputs and outputs have the model's declared types. Raises `UnsupportedError` for a tensor of
    unknown size outside layers of kind `onnx`.
    """
    network = convert(simplify(enclose(graph)))
    types = {
        name: helper.tensor_dtype_to_np_dtype(graph.types.get(name, TensorProto.FLOAT)).name
        for name in (*graph.inputs, *graph.outputs)
    }
    return replace(network, types={k: v for k, v in types.items() if v != "float32"})


def enclose(graph: Graph) -> Graph:
    """The graph with one node for each group of unsupported nodes.

    Constants are folded first. Raises `UnsupportedError` as `unsupported.enclosing_node`.
    """
    graph = graph.without_unread  # unread nodes have no outputs to enclose
    if any(graph.constants.keys() >= {*node.reads} for node in graph.nodes):
        from codl.frontend.unsupported import fold_constants

        graph = fold_constants(graph)
    foreign = [at for at, node in enumerate(graph.nodes) if not _is_known(graph, node)]
    outputs = (name for node in graph.nodes for name in node.outputs if name)
    inner = [name for name in outputs if not _may_cross(graph, name)]
    if not foreign and not inner:
        return graph
    from codl.frontend.unsupported import with_groups

    return with_groups(graph, foreign, inner)


def _is_known(graph: Graph, node: Node) -> bool:
    """Whether a node converts, and its operands are floats."""
    for index, name in enumerate(node.inputs):
        is_input = name in graph.inputs and INDICES.get(node.type) == index
        is_input |= name in graph.inputs and node.type == "Cast"
        if name and name not in graph.constants and not is_input and not _may_cross(graph, name):
            return False
    if any(name and not _may_cross(graph, name) for name in node.outputs):
        return False
    if is_alias(graph, node):
        return True
    converter = CONVERTERS.get(node.type)
    if converter is None:
        return False
    try:
        made = {step.output for step in converter.convert(_zeroed(graph, node), node)}
    except Exception as error:
        # Mismatched operands, few of which ONNX checks, may fail anywhere in a converter. ONNX
        # Runtime then names the error.
        if isinstance(error, CodlError) and not isinstance(error, UnsupportedError):
            raise
        return False
    return made.issuperset(name for name in node.outputs if graph.is_read(name))


def _zeroed(graph: Graph, node: Node) -> Graph:
    """The graph with zeros for a node's large constants, whose sizes alone matter."""
    large = {
        name: np.zeros(graph.shapes[name], graph.constants[name].dtype)  # not touched, so free
        for name in node.inputs
        if name in graph.constants and graph.constants[name].size > LARGE
    }
    if not large:
        return graph
    return replace(graph, constants=ChainMap(large, cast(dict[str, NDArray[Any]], graph.constants)))


def _may_cross(graph: Graph, tensor: str) -> bool:
    """Whether a tensor may pass between a group and other nodes: float, of known shape."""
    has_shape = tensor in graph.shapes and tensor not in graph.unknown
    return has_shape and graph.types.get(tensor, TensorProto.FLOAT) in FLOATS


def simplify(graph: Graph) -> Graph:
    """Drop nodes without effect and redundant copies; fuse and fold nodes.

    Each pass works on the result of the passes before it. A pass is imported if the graph has its
    node types.
    """

    def has(*types: str) -> bool:
        return any(node.type in types for node in graph.nodes)

    graph = drop_aliases(graph)
    if has("Add", "Sum"):
        from codl.frontend.graph.folding import merge_parallel_convolutions

        graph = merge_parallel_convolutions(graph)
    if has("Sigmoid", "HardSigmoid", "Erf", "Tanh", "Sqrt", "InstanceNormalization"):
        from codl.frontend.graph import patterns

        for pattern in (patterns.activation, patterns.norm, patterns.group_norm):
            graph = fuse(graph, pattern)
    graph = widen_products(graph)
    if has("Gemm", "MatMul"):
        from codl.frontend.graph.folding import fold_affines

        graph = fold_affines(graph)
    if has("Softmax"):
        from codl.frontend.graph.patterns import attention

        graph = fuse(graph, attention)
    return merge_reshapes(drop_reshapes(graph))


def convert(graph: Graph) -> Network:
    """The network of a graph; raises `UnsupportedError` with the first unsupported node."""
    builder = _Builder(graph)
    for node in graph.nodes:
        if not builder.fuse(node):
            builder.add(node)
    return builder.network()


def without_denormals(weights: NDArray[Any]) -> NDArray[Any]:
    """Weights with 0 for float32 denormals, which slow multiplication a hundredfold."""
    if weights.dtype != np.float32:
        return weights
    small = np.abs(weights) < np.finfo(np.float32).tiny
    return np.where(small, np.float32(0), weights) if weights[small].any() else weights


def mark_nonfinite(layers: Iterable[Layer], constants: Mapping[str, Array]) -> tuple[Layer, ...]:
    """The layers, with `nonfinite` ops behind a possible source of NaN or infinities."""
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
    """Whether inputs of these signs may give NaN or infinity; `power` is a constant last input."""
    if isinstance(op, OnnxModel):
        return not UNDEFINED.keys().isdisjoint(name.lower() for name in op.nodes.split("+"))
    mode = op.mode if isinstance(op, Eltwise | Reduce) else ""
    if mode == "pow" and power is not None and _sign_of(power) and (power % 1 == 0).all():
        return False
    place, least = UNDEFINED.get(mode, (0, 0))
    return signs[place] < least


def _sign_of(value: Array) -> int:
    """2 if all elements are above zero, 1 if none is below zero, else 0."""
    return int((value >= 0).all()) + int((value > 0).all())


def _sign(layer: Layer, signs: Sequence[int]) -> int:
    """The sign of a layer's output as of `_sign_of`, from `signs` of its inputs."""
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
    """Builds a network: layers, constants, and renamed tensors."""

    def __init__(self, graph: Graph) -> None:
        self._graph, self._names = graph, graph.names
        self._layers: dict[str, Layer] = {}
        self._inputs = {name: as_nchw(graph.shapes[name]) for name in graph.inputs}
        self._constants: dict[str, Array] = {}
        self._shapes = dict(self._inputs)
        #: Output of each fused activation, and the layer output in its place.
        self._fused: dict[str, str] = {}
        #: Inputs of all layers so far, including inner ones of a single node.
        self._read: set[str] = set()

    def fuse(self, node: Node) -> bool:
        """Fuse an activation into the op before it, if it is the output's only reader."""
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
        """Add the layers of a node."""
        for tensor in (*node.inputs, *node.outputs):
            self._check_known(tensor)
        if node.type not in CONVERTERS and node.type != ENCLOSED:
            names = ", ".join(sorted(CONVERTERS))
            raise unsupported(node, f"codl has no operator for it (known: {names}).")
        if node.type == ENCLOSED:
            from codl.frontend.unsupported import enclosed

            steps: Sequence[ConvertedOp] = enclosed(self._graph, node)
        else:
            steps = CONVERTERS[node.type].convert(self._graph, node)
        made = {step.output for step in steps}
        for name in node.outputs:
            if name not in made and self._graph.is_read(name):
                raise unsupported(node, f"codl does not compute its output {name!r}.")
        for index, step in enumerate(steps):
            if step.output in self._layers:  # made by an earlier node
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
        """Add a layer; raises `UnsupportedError` for empty tensors or mismatched sizes.

        Sizes may differ from the graph's, as ONNX Runtime infers some for its own operators.
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
        """The tensor under an op's shape, with a reshape if it has another."""
        if self._shapes[tensor] == shape:
            return tensor
        name = self._names.tensor(tensor, str(shape))
        if name not in self._layers:
            op = Reshape(shapes=(tuple(self._shapes[tensor]),), to=tuple(shape))
            self._append(Layer(self._names.node(tensor, str(shape)), op, (tensor,), name, {}))
        return name

    def _constant_output(self, tensor: str) -> str:
        """A copy of a constant as an output, as layers may read it under other sizes."""
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
        if not self._layers:  # a network needs a layer: copy each output
            for name, (held, to) in outputs.items():
                op = Reshape(shapes=(tuple(self._shapes[held]),), to=tuple(self._shapes[held]))
                layer, copy = self._names.node(held, "copy"), self._names.tensor(held, "copy")
                self._append(Layer(layer, op, (held,), copy, {}))
                outputs[name] = (copy, to)
        layers = mark_nonfinite(self._layers.values(), self._constants)
        return Network(graph.name, layers, self._inputs, outputs, self._constants)
