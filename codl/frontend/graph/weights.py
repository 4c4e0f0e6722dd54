"""ONNX models with large constants outside the protobuf, and ONNX Runtime's optimisation.

Shape inference and fusion need the structure and small constants only. Libraries read and write a
model as one byte string: for some hundred megabytes, a dozen copies.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from math import prod
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from codl.errors import UnsupportedError
from codl.ir.constants import array_digest
from codl.ir.onnx_node import FILE, graphs_of, stand_in

POOLS = ("AveragePool", "LpPool", "MaxPool")
RESIZES = ("Resize", "Upsample")
#: First format version in which initializers need not be inputs.
LEAST_IR_VERSION = 4
#: First opset with NumPy's broadcasting.
FIRST_OF_TODAY = 7
#: First format version in which models name their opset; before, it is 1.
FIRST_WITH_OPSETS = 3
#: Constants with more elements lie outside the protobuf.
LARGE = 1 << 12
#: Element types that NumPy has too, so that an array is the whole tensor.
PLAIN = frozenset(
    helper.np_dtype_to_tensor_dtype(np.dtype(name))
    for name in ("float32", "float64", "float16", "int8", "uint8", "int16", "int32", "int64")
)
#: Nodes with constant operands that ONNX Runtime's basic level does not read, with the computed
#: operand's position. If that is constant too, the node is folded.
READERS = {"MatMul": 0, "Gemm": 0, "MatMulNBits": 0, "Gather": 1, "GatherBlockQuantized": 1}
#: The type among `READERS` whose bias is read.
GEMM = "Gemm"
#: Nodes into which a batch norm behind is folded.
CONVOLUTIONS = ("Conv", "ConvTranspose")
SETTINGS = "session.optimized_model_external_initializers_"
#: Optimiser that takes each power before a mean for a square.
NORMING = "LayerNormFusionL1"
#: Optimiser that moves QuantizeLinear over a Transpose, for all the Transpose's readers. Another
#: pass may have moved it there from behind.
TRANSPOSING = "TransposeOptimizer"
#: Optimiser that rounds float weights between quantised tensors.
ROUNDING = "WeightBiasQuantization"
#: Optimiser that merges equal random nodes of types that it takes for deterministic.
MERGING = "CommonSubexpressionElimination"
#: Optimiser that reshapes a product's input to ONNX's inferred sizes, which the runtime's may not
#: match.
FLATTENING = "MatMulAddFusion"
#: Optimiser that quantises a MaxPool's input, so that equal values give other indices. ONNX
#: Runtime 1.32 crashes in it if an inner graph reads a dequantised tensor.
PROPAGATING = "QDQPropagationTransformer"
#: Random nodes.
CHANCE = (
    *("Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike"),
    *("RandomUniform", "RandomUniformLike"),
)
#: An ONNX message; its classes have no stubs.
M = TypeVar("M", onnx.ModelProto, onnx.GraphProto)


@dataclass(frozen=True)
class Model:
    """A model whose `proto` has a stand-in for each of `weights`, with external data."""

    proto: onnx.ModelProto
    weights: Mapping[str, NDArray[Any]]

    @classmethod
    def of(cls, proto: onnx.ModelProto) -> Model:
        """The model in its normal form; `proto` is not changed."""
        light = _without(proto, "graph")
        light.graph.CopyFrom(_without(proto.graph, "initializer", "sparse_initializer"))
        weights = {}
        for item in (*proto.graph.initializer, *map(dense, proto.graph.sparse_initializer)):
            is_here = item.data_location != TensorProto.EXTERNAL
            if is_here and item.data_type in PLAIN and prod(item.dims) > LARGE:
                weights[item.name] = array_of(item)
                stand_in(light.graph.initializer.add(), item.name, item.data_type, item.dims)
            else:
                light.graph.initializer.add().CopyFrom(item)
        make_plain(light)
        return cls(light, weights)

    def with_weights(self, weights: Mapping[str, NDArray[Any]]) -> Model:
        """The model with some inputs as weights; names of no input are ignored."""
        inputs = self.proto.graph.input
        added = {info.name: weights[info.name] for info in inputs if info.name in weights}
        proto = with_fields(self.proto, input=[i for i in inputs if i.name not in added])
        for info in inputs:
            if info.name in added:
                kind = info.type.tensor_type.elem_type
                stand_in(proto.graph.initializer.add(), info.name, kind, added[info.name].shape)
        return Model(proto, {**self.weights, **added})

    def whole(self) -> onnx.ModelProto:
        """The model with its constants inside."""
        proto = with_fields(self.proto)
        for item in proto.graph.initializer:
            if item.name in self.weights:
                item.CopyFrom(numpy_helper.from_array(self.weights[item.name], item.name))
        return proto

    def digest(self) -> str:
        """SHA-256 of structure and constants; reads each constant once."""
        digest = sha256(self.proto.SerializeToString(deterministic=True))
        for name, value in sorted(self.weights.items()):
            digest.update(f"\n{name} {array_digest(value)}".encode())
        return digest.hexdigest()

    def constants(self) -> dict[str, NDArray[Any]]:
        """All initializers by name."""
        return {
            item.name: self.weights[item.name] if item.name in self.weights else array_of(item)
            for item in self.proto.graph.initializer
        }

    def session(
        self, options: ort.SessionOptions, without: Sequence[str] = ()
    ) -> ort.InferenceSession:
        """An ONNX Runtime session, `without` some optimisers."""
        names = [item.name for item in self.proto.graph.initializer if item.name in self.weights]
        values = [np.ascontiguousarray(self.weights[name]) for name in names]
        options.add_external_initializers(
            names, list(map(ort.OrtValue.ortvalue_from_numpy, values))
        )
        serialised = self.proto.SerializeToString()
        providers = ["CPUExecutionProvider"]
        return ort.InferenceSession(serialised, options, providers, disabled_optimizers=without)

    def optimised(self, options: ort.SessionOptions) -> Model:
        """The model after ONNX Runtime's basic optimisations; raises ONNX Runtime's errors."""
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.add_session_config_entry("session.disable_prepacking", "1")
        options.add_session_config_entry(f"{SETTINGS}file_name", FILE)
        options.add_session_config_entry(f"{SETTINGS}min_size_in_bytes", str(LARGE))
        with tempfile.TemporaryDirectory(prefix="codl-") as folder:
            path = Path(folder) / "optimised.onnx"
            options.optimized_model_filepath = str(path)
            hidden = self._unread_weights()
            self._with_inputs(hidden).session(options, self._wrong_optimisers())
            made = _read(path)
        for graph in all_graphs(made.proto.graph):
            # ONNX Runtime 1.30 writes a tensor of an inner graph once for each input that reads it.
            items = {item.name: item for item in graph.initializer}
            if len(items) < len(graph.initializer):
                refill(graph.initializer, [*items.values()])
        self._reorder(made.proto.graph)
        return made.with_weights({name: self.weights[name] for name in hidden})

    def _wrong_optimisers(self) -> list[str]:
        """Optimisers that would change this model's results."""
        nodes = [node for graph in all_graphs(self.proto.graph) for node in graph.node]
        outputs = [info.name for info in self.proto.graph.output]
        reads = Counter([*outputs, *(name for node in nodes for name in node.input)])
        quantises = any(node.op_type == "QuantizeLinear" for node in nodes)
        moved = [node for node in nodes if node.op_type == "Transpose" and quantises]
        wrong = [ROUNDING]
        if any(reads[node.input[0]] > 1 for node in moved):
            wrong.append(TRANSPOSING)
        if any(node.op_type in CHANCE for node in nodes):
            wrong.append(MERGING)
        indexed = [n for n in nodes if n.op_type == "MaxPool" and len(n.output) > 1]
        if quantises and (indexed or any(list(graphs_of(node)) for node in nodes)):
            wrong.append(PROPAGATING)
        if any(map(is_doubtful, nodes)):
            wrong.append(FLATTENING)
        means = {node.input[0] for node in nodes if node.op_type == "ReduceMean"}
        powers = [n for n in nodes if n.op_type == "Pow" and n.output[0] in means]
        if not powers:
            return wrong
        values = self.constants()
        values |= {n.output[0]: constant_of(n) for n in nodes if n.op_type == "Constant"}
        squares = all(np.all(values.get(node.input[1], np.nan) == 2) for node in powers)
        return wrong if squares else [*wrong, NORMING]

    def _reorder(self, made: onnx.GraphProto) -> None:
        """Restore the nodes' order, which ONNX Runtime changes if constants lie outside."""
        places = {tuple(node.output): at for at, node in enumerate(self.proto.graph.node)}
        if places.keys() == {tuple(node.output) for node in made.node}:
            nodes = sorted(made.node, key=lambda node: places[tuple(node.output)])
            refill(made.node, nodes)

    def _unread_weights(self) -> list[str]:
        """Weights that no optimiser reads: matrices of products and tables, without other readers.

        Empty if a batch norm may be folded into a product, or a node contains graphs.
        """
        graph, fixed = self.proto.graph, {item.name for item in self.proto.graph.initializer}
        makers: dict[str, str] = {}
        others = {info.name for info in (*graph.input, *graph.output)}
        for node in graph.node:
            if list(graphs_of(node)):
                return []
            is_norm = node.op_type == "BatchNormalization"
            if is_norm and makers.get(node.input[0]) not in CONVOLUTIONS:
                return []
            makers |= dict.fromkeys(node.output, node.op_type)
            if fixed.issuperset(node.input):
                fixed.update(node.output)
            others.update(self._maybe_read(node, fixed))
        return [name for name in self.weights if name not in others]

    @staticmethod
    def _maybe_read(node: onnx.NodeProto, fixed: Collection[str]) -> list[str]:
        """Inputs of a node that an optimiser may read; `fixed` are constants."""
        computed = READERS.get(node.op_type)
        if computed is None or len(node.input) <= computed or node.input[computed] in fixed:
            return list(node.input)
        ends = 2 if node.op_type == GEMM else 0
        return [node.input[computed], *(node.input[ends:] if ends else ())]

    def _with_inputs(self, names: Sequence[str]) -> Model:
        items = self.proto.graph.initializer
        kinds = {item.name: item.data_type for item in items}
        kept = [item for item in items if item.name not in names]
        proto = with_fields(self.proto, initializer=kept)
        proto.graph.input.extend(
            helper.make_tensor_value_info(name, kinds[name], self.weights[name].shape)
            for name in names
        )
        return Model(proto, {k: value for k, value in self.weights.items() if k not in names})


def with_fields(proto: onnx.ModelProto, **fields: Sequence[Any]) -> onnx.ModelProto:
    """A copy of a model with replaced lists of its graph, by field name."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    for name, entries in fields.items():
        refill(getattr(copy.graph, name), entries)
    return copy


def refill(field: Any, entries: Sequence[Any]) -> None:
    """Replace the entries of a message's list."""
    del field[:]
    field.extend(entries)


def constant_of(node: onnx.NodeProto) -> NDArray[Any]:
    (attribute,) = node.attribute
    value = helper.get_attribute_value(attribute)
    if isinstance(value, onnx.TensorProto):
        return array_of(value)
    if attribute.name.startswith("value_string"):
        return np.asarray(value, object)
    return np.asarray(value, np.float32 if "float" in attribute.name else np.int64)


def _read(path: Path) -> Model:
    """A model from a file, with the constants that ONNX Runtime wrote beside it."""
    proto = onnx.load(path, load_external_data=False)
    file = path.parent / FILE
    # Mapped, as they may never be read; the mapping outlives the file.
    data = np.memmap(file, np.uint8, "c") if file.exists() else np.empty(0, np.uint8)
    weights = {}
    outermost, *inner = all_graphs(proto.graph)
    for item in tensors_of(inner):
        _load_elements(item, data)
    for item in outermost.initializer:
        if item.data_location != TensorProto.EXTERNAL:
            continue
        if item.data_type in PLAIN:
            kind = helper.tensor_dtype_to_np_dtype(item.data_type)
            content = np.asarray(_content(item, data))
            weights[item.name] = content.view(kind).reshape(tuple(item.dims))
        else:
            _load_elements(item, data)
    make_plain(proto)
    return Model(proto, weights)


def _content(item: TensorProto, data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The bytes of a tensor whose elements lie in `data`."""
    place = {entry.key: entry.value for entry in item.external_data}
    first = int(place.get("offset", 0))
    return data[first : first + int(place["length"])]


def _load_elements(item: TensorProto, data: NDArray[np.uint8]) -> None:
    """Move a tensor's elements from `data` into the tensor."""
    if item.data_location == TensorProto.EXTERNAL:
        item.raw_data = _content(item, data).tobytes()
        item.data_location = TensorProto.DEFAULT
        del item.external_data[:]


def _without(message: M, *left_out: str) -> M:
    """A copy of a message that skips some fields without reading them."""
    copy = type(message)()
    for field, value in message.ListFields():
        if field.name in left_out:
            continue
        target = getattr(copy, field.name)
        if hasattr(target, "extend"):
            target.extend(value)
        elif hasattr(target, "CopyFrom"):
            target.CopyFrom(value)
        else:
            setattr(copy, field.name, value)
    return copy


# The normal form: constants are dense and no inputs, open sizes have no number, and the version of
# the format permits both. Graphs inside nodes have the same form.


def make_plain(proto: onnx.ModelProto) -> None:
    """Normalize a model in place; raises `UnsupportedError` for an inconsistent sparse tensor."""
    if proto.ir_version < FIRST_WITH_OPSETS and not proto.opset_import:
        proto.opset_import.append(helper.make_opsetid("", 1))
    proto.ir_version = max(proto.ir_version, LEAST_IR_VERSION)
    for graph in all_graphs(proto.graph):
        graph.initializer.extend(map(dense, graph.sparse_initializer))
        del graph.sparse_initializer[:]
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.HasField("sparse_tensor"):
                    value = dense(attribute.sparse_tensor)
                    attribute.CopyFrom(helper.make_attribute("value", value))
        fixed = {item.name for item in graph.initializer}
        if not fixed.isdisjoint(info.name for info in graph.input):
            inputs = [info for info in graph.input if info.name not in fixed]
            del graph.input[:]
            graph.input.extend(inputs)
        for info in (*graph.input, *graph.output, *graph.value_info):
            for dim in info.type.tensor_type.shape.dim:
                if dim.dim_value < 0:
                    dim.ClearField("dim_value")


def all_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """A graph, then all graphs inside its nodes."""
    left = [graph]
    while left:
        yield (one := left.pop())
        left += [inner for node in one.node for inner in graphs_of(node)]


def tensors_of(graphs: Iterable[onnx.GraphProto]) -> Iterator[TensorProto]:
    """All tensors of graphs and their nodes, parts of sparse tensors included."""
    for graph in graphs:
        attributes = [item for node in graph.node for item in node.attribute]
        yield from graph.initializer
        for item in attributes:
            yield from (*([item.t] if item.HasField("t") else []), *item.tensors)
        alone = [item.sparse_tensor for item in attributes if item.HasField("sparse_tensor")]
        for sparse in (*graph.sparse_initializer, *alone):
            yield from (sparse.values, sparse.indices)


def array_of(item: TensorProto) -> NDArray[Any]:
    """The values of a tensor; raises `UnsupportedError` where data and declaration differ."""
    try:
        return np.asarray(numpy_helper.to_array(item))
    except Exception as error:  # errors have many unrelated types
        raise _unreadable("tensor", item.name, item.dims, error) from error


def dense(item: onnx.SparseTensorProto) -> TensorProto:
    """A sparse tensor made dense; indices count elements, or are a row of coordinates each."""
    values, indices, dims = array_of(item.values), array_of(item.indices), tuple(item.dims)
    name = item.values.name
    try:
        flat = np.ravel_multi_index(tuple(indices.T), dims) if indices.ndim == 2 else indices
        whole = np.zeros(dims, values.dtype)
        whole[np.unravel_index(flat, dims)] = values
    except (ValueError, TypeError, MemoryError) as error:
        raise _unreadable("sparse tensor", name, dims, error) from error
    return numpy_helper.from_array(whole, name)


def _unreadable(
    what: str, name: str, dims: tuple[int, ...], error: BaseException
) -> UnsupportedError:
    sizes = " x ".join(map(str, dims))
    return UnsupportedError(
        f"The model's {what} {name!r} ({sizes}) cannot be read: {error}. Export it again."
    )


def opset_of(proto: onnx.ModelProto) -> int:
    """The version of standard operators that a model declares."""
    versions = [item.version for item in proto.opset_import if item.domain in ("", "ai.onnx")]
    return max(versions, default=1)


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    return {item.name: helper.get_attribute_value(item) for item in node.attribute}


def is_doubtful(node: onnx.NodeProto) -> bool:
    """Whether ONNX may infer other output sizes for a node than ONNX Runtime gives."""
    if node.domain not in ("", "ai.onnx"):
        return False
    given = attributes_of(node)
    if node.op_type in POOLS:
        return bool(given.get("ceil_mode"))
    if node.op_type == "ConvTranspose":
        return not given.keys().isdisjoint(("auto_pad", "output_padding", "output_shape"))
    return node.op_type in RESIZES
