"""Types and sizes of all tensors of a model, by ONNX and by ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

from codl.frontend.graph.integer_products import session_options
from codl.frontend.graph.runtime_sizes import is_doubtful
from codl.frontend.graph.shapes import infer_shapes, known_sizes, text_of
from codl.frontend.graph.weights import Model, refill, with_fields

#: ONNX's codes of types by what ONNX Runtime calls them.
TENSOR_TYPES = {f"tensor({k.lower()})": code for k, code in TensorProto.DataType.items()}


def with_shapes(source: Model) -> Model:
    """ONNX infers the shapes of what its own operators make; ONNX Runtime those of its own too.

    ONNX Runtime says the same of a scalar as of what it knows nothing of.
    """
    model = infer_shapes(source.proto)
    inferred = Model(model, source.weights)
    versions = {item.domain: item.version for item in model.opset_import}
    nodes = model.graph.node
    if all(onnx.defs.has(n.op_type, versions.get(n.domain, 1), n.domain) for n in nodes):
        return inferred
    infos = (*model.graph.value_info, *model.graph.input, *model.graph.output)
    shaped = {info.name for info in infos if not unknown_reason(info)}
    made = [name for node in model.graph.node for name in node.output if name]
    outputs = [onnx.ValueInfoProto(name=name) for name in made if name not in shaped]
    asked = _cut(with_fields(model, output=outputs), known_sizes(model.graph))
    options = session_options()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = Model(asked, source.weights).session(options)
    except Exception:  # ONNX Runtime's exceptions share no base class
        return inferred
    args = [arg for arg in session.get_outputs() if arg.type in TENSOR_TYPES and arg.shape]
    answers = {  # sizes that depend on data have names
        arg.name: helper.make_tensor_value_info(arg.name, TENSOR_TYPES[arg.type], arg.shape)
        for arg in args
    }
    for field in (model.graph.output, model.graph.value_info):
        refill(field, [answers.get(info.name, info) for info in field])
    declared = {info.name for info in (*model.graph.output, *model.graph.value_info)}
    model.graph.value_info.extend(answers[name] for name in sorted(answers.keys() - declared))
    return Model(infer_shapes(model, answers), source.weights)


def _cut(proto: onnx.ModelProto, sizes: Mapping[str, tuple[int, ...]]) -> onnx.ModelProto:
    """The model whose doubtful nodes are gone: what they make are inputs of the sizes known."""
    cut = [
        node
        for node in proto.graph.node
        if is_doubtful(node) and all(name in sizes for name in node.output if name)
    ]
    if not cut:
        return proto
    infos = (*proto.graph.value_info, *proto.graph.output)
    types = {info.name: info.type.tensor_type.elem_type for info in infos}
    made = [name for node in cut for name in node.output if name]
    inputs = [
        helper.make_tensor_value_info(name, types.get(name) or TensorProto.FLOAT, sizes[name])
        for name in made
    ]
    gone = set(made)
    kept = [node for node in proto.graph.node if gone.isdisjoint(node.output)]
    return with_fields(proto, node=kept, input=[*proto.graph.input, *inputs])


def unknown_reason(info: onnx.ValueInfoProto) -> str:
    """Why a tensor's sizes are not known, or of no use; empty where they are."""
    if not info.type.tensor_type.HasField("shape"):
        return f"The shape of the tensor {info.name!r} is not known before a run."
    dims = info.type.tensor_type.shape.dim
    if all(dim.dim_value > 0 for dim in dims):
        return ""
    sizes = text_of(info)
    if all(dim.HasField("dim_value") for dim in dims):
        return f"The tensor {info.name!r} is empty ({sizes}); codl has no empty tensors."
    return f"The tensor {info.name!r} has the shape {sizes}; every size must be fixed."
