"""An ONNX model with its large constants beside it.

Shapes are inferred, and ops fused, from the structure of a model and its small constants. Libraries
that do so read a model as one string of bytes and write another: of a model of some hundred
megabytes that would be a dozen copies.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
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

from codl.frontend.graph.plain_form import all_graphs, array_of, dense, make_plain, tensors_of
from codl.ir.constants import array_digest
from codl.ir.onnx_wire import FILE, stand_in

#: Constants of more elements than this stand beside the model.
LARGE = 1 << 12
#: Elements' types that NumPy has, so that an array is all of a tensor.
PLAIN = frozenset(
    helper.np_dtype_to_tensor_dtype(np.dtype(name))
    for name in ("float32", "float64", "float16", "int8", "uint8", "int16", "int32", "int64")
)
#: Nodes that ONNX Runtime's basic level leaves or rewrites without a look at some constant
#: operands, by the operand that is computed: others stay constants, to be folded.
READERS = {"MatMul": 0, "Gemm": 0, "MatMulNBits": 0, "Gather": 1, "GatherBlockQuantized": 1}
#: Of these the bias is looked at.
GEMM = "Gemm"
#: Nodes that take in a batch norm behind them.
CONVOLUTIONS = ("Conv", "ConvTranspose")
SETTINGS = "session.optimized_model_external_initializers_"
#: ONNX Runtime takes any power for a square, where a mean follows.
NORMING = "LayerNormFusionL1"
#: It moves QuantizeLinear over a Transpose, for all readers of what is transposed. Another one of
#: its passes may have brought it there from behind.
TRANSPOSING = "TransposeOptimizer"
#: It rounds weights that a model has as floats, between quantised tensors.
ROUNDING = "WeightBiasQuantization"
#: It makes one node of two that draw numbers, of types that it does not know as such.
MERGING = "CommonSubexpressionElimination"
#: Types of nodes that draw numbers.
CHANCE = (
    *("Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike"),
    *("RandomUniform", "RandomUniformLike"),
)
#: A message of ONNX, whose classes have no stubs.
M = TypeVar("M", onnx.ModelProto, onnx.GraphProto)


@dataclass(frozen=True)
class Model:
    """`proto` has a stand-in for each of `weights`: an initializer whose data lies elsewhere."""

    proto: onnx.ModelProto
    weights: Mapping[str, NDArray[Any]]

    @classmethod
    def of(cls, proto: onnx.ModelProto) -> Model:
        """The model in its plain form; `proto` is not changed."""
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
        """The model with some of its inputs as weights; those that are no inputs are left out."""
        inputs = self.proto.graph.input
        added = {info.name: weights[info.name] for info in inputs if info.name in weights}
        proto = with_fields(self.proto, input=[i for i in inputs if i.name not in added])
        for info in inputs:
            if info.name in added:
                kind = info.type.tensor_type.elem_type
                stand_in(proto.graph.initializer.add(), info.name, kind, added[info.name].shape)
        return Model(proto, {**self.weights, **added})

    def whole(self) -> onnx.ModelProto:
        """The model with its constants in it."""
        proto = with_fields(self.proto)
        for item in proto.graph.initializer:
            if item.name in self.weights:
                item.CopyFrom(numpy_helper.from_array(self.weights[item.name], item.name))
        return proto

    def digest(self) -> str:
        """SHA-256 of structure and constants; reads every constant once."""
        digest = sha256(self.proto.SerializeToString(deterministic=True))
        for name, value in sorted(self.weights.items()):
            digest.update(f"\n{name} {array_digest(value)}".encode())
        return digest.hexdigest()

    def constants(self) -> dict[str, NDArray[Any]]:
        """All initializers."""
        return {
            item.name: self.weights[item.name] if item.name in self.weights else array_of(item)
            for item in self.proto.graph.initializer
        }

    def session(
        self, options: ort.SessionOptions, without: Sequence[str] = ()
    ) -> ort.InferenceSession:
        """ONNX Runtime with this model, `without` some of its optimisations."""
        names = [item.name for item in self.proto.graph.initializer if item.name in self.weights]
        values = [np.ascontiguousarray(self.weights[name]) for name in names]
        options.add_external_initializers(
            names, list(map(ort.OrtValue.ortvalue_from_numpy, values))
        )
        serialised = self.proto.SerializeToString()
        providers = ["CPUExecutionProvider"]
        return ort.InferenceSession(serialised, options, providers, disabled_optimizers=without)

    def optimised(self, options: ort.SessionOptions) -> Model:
        """What ONNX Runtime's basic level makes of the model; raises what that raises."""
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.add_session_config_entry("session.disable_prepacking", "1")
        options.add_session_config_entry(f"{SETTINGS}file_name", FILE)
        options.add_session_config_entry(f"{SETTINGS}min_size_in_bytes", str(LARGE))
        with tempfile.TemporaryDirectory(prefix="codl-") as folder:
            path = Path(folder) / "optimised.onnx"
            options.optimized_model_filepath = str(path)
            hidden = self._untouched()
            self._with_inputs(hidden).session(options, self._wrongly_optimised())
            made = _read(path)
        self._reorder(made.proto.graph)
        return made.with_weights({name: self.weights[name] for name in hidden})

    def _wrongly_optimised(self) -> list[str]:
        """The optimisations that would change what the model computes."""
        nodes, outputs = self.proto.graph.node, [info.name for info in self.proto.graph.output]
        reads = Counter([*outputs, *(name for node in nodes for name in node.input)])
        quantises = any(node.op_type == "QuantizeLinear" for node in nodes)
        moved = [node for node in nodes if node.op_type == "Transpose" and quantises]
        wrong = [ROUNDING]
        if any(reads[node.input[0]] > 1 for node in moved):
            wrong.append(TRANSPOSING)
        if any(node.op_type in CHANCE for node in nodes):
            wrong.append(MERGING)
        means = {node.input[0] for node in nodes if node.op_type == "ReduceMean"}
        powers = [n for n in nodes if n.op_type == "Pow" and n.output[0] in means]
        if not powers:
            return wrong
        values = self.constants()
        values |= {n.output[0]: constant_of(n) for n in nodes if n.op_type == "Constant"}
        squares = all(np.all(values.get(node.input[1], np.nan) == 2) for node in powers)
        return wrong if squares else [*wrong, NORMING]

    def _reorder(self, made: onnx.GraphProto) -> None:
        """Put nodes in their old order where they are the same as before.

        Beside its constants ONNX Runtime writes a model in an order of its own.
        """
        places = {tuple(node.output): at for at, node in enumerate(self.proto.graph.node)}
        if places.keys() == {tuple(node.output) for node in made.node}:
            nodes = sorted(made.node, key=lambda node: places[tuple(node.output)])
            refill(made.node, nodes)

    def _untouched(self) -> list[str]:
        """Weights that no rewriting looks into: matrices of products, and tables, alone.

        A batch norm behind a product would be taken into its weights.
        """
        graph, fixed = self.proto.graph, {item.name for item in self.proto.graph.initializer}
        makers: dict[str, str] = {}
        others = {info.name for info in (*graph.input, *graph.output)}
        for node in graph.node:
            if any(item.type in (item.GRAPH, item.GRAPHS) for item in node.attribute):
                return []
            is_norm = node.op_type == "BatchNormalization"
            if is_norm and makers.get(node.input[0]) not in CONVOLUTIONS:
                return []
            makers |= dict.fromkeys(node.output, node.op_type)
            if fixed.issuperset(node.input):
                fixed.update(node.output)
            others.update(self._looked_at(node, fixed))
        return [name for name in self.weights if name not in others]

    @staticmethod
    def _looked_at(node: onnx.NodeProto, fixed: Collection[str]) -> list[str]:
        """The inputs of a node that a rewriting may look into; `fixed` are constants."""
        computed = READERS.get(node.op_type)
        if computed is None or len(node.input) <= computed or node.input[computed] in fixed:
            return list(node.input)
        ends = 2 if node.op_type == GEMM else 0
        return [node.input[computed], *(node.input[ends:] if ends else ())]

    def _with_inputs(self, names: Sequence[str]) -> Model:
        """The model with some weights as inputs."""
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
    """A copy of a model with other entries in some lists of its graph, by their names."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    for name, entries in fields.items():
        refill(getattr(copy.graph, name), entries)
    return copy


def graphs_of(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs in a node's attributes."""
    for attribute in node.attribute:
        yield from attribute.graphs
        if attribute.HasField("g"):
            yield attribute.g


def refill(field: Any, entries: Sequence[Any]) -> None:
    """Put other entries into a list of a message."""
    del field[:]
    field.extend(entries)


def constant_of(node: onnx.NodeProto) -> NDArray[Any]:
    """What a Constant node holds."""
    (attribute,) = node.attribute
    value = helper.get_attribute_value(attribute)
    if isinstance(value, onnx.TensorProto):
        return array_of(value)
    if attribute.name.startswith("value_string"):
        return np.asarray(value, object)
    return np.asarray(value, np.float32 if "float" in attribute.name else np.int64)


def _read(path: Path) -> Model:
    """A model in a file, with what ONNX Runtime has written beside it."""
    proto = onnx.load(path, load_external_data=False)
    file = path.parent / FILE
    # Read where they are used, if at all; the file may be deleted before that.
    data = np.memmap(file, np.uint8, "c") if file.exists() else np.empty(0, np.uint8)
    weights = {}
    outermost, *inner = all_graphs(proto.graph)
    for item in tensors_of(inner):
        _bring_back(item, data)
    for item in outermost.initializer:
        if item.data_location != TensorProto.EXTERNAL:
            continue
        if item.data_type in PLAIN:
            kind = helper.tensor_dtype_to_np_dtype(item.data_type)
            content = np.asarray(_content(item, data))
            weights[item.name] = content.view(kind).reshape(tuple(item.dims))
        else:
            _bring_back(item, data)
    make_plain(proto)
    return Model(proto, weights)


def _content(item: TensorProto, data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The bytes of a tensor whose elements lie in `data`."""
    place = {entry.key: entry.value for entry in item.external_data}
    first = int(place.get("offset", 0))
    return data[first : first + int(place["length"])]


def _bring_back(item: TensorProto, data: NDArray[np.uint8]) -> None:
    """Put what of a tensor lies in `data` into it."""
    if item.data_location == TensorProto.EXTERNAL:
        item.raw_data = _content(item, data).tobytes()
        item.data_location = TensorProto.DEFAULT
        del item.external_data[:]


def _without(message: M, *left_out: str) -> M:
    """A copy of a message without some of its fields, which are not even read."""
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
