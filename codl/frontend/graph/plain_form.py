"""One form for every ONNX model, so that what reads a model knows one alone.

Constants are dense, and no inputs; sizes that are open have no number; the version of the format
is one in which that is allowed. Graphs inside of nodes are as those around them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from codl.errors import UnsupportedError

#: From this version of the format on, initializers need not be inputs, too.
LEAST_IR_VERSION = 4
#: Before this one, models name no opset: theirs is the first.
FIRST_WITH_OPSETS = 3


def make_plain(proto: onnx.ModelProto) -> None:
    """Bring a model into that form, in place.

    Raises `UnsupportedError` for a sparse tensor whose parts do not fit together.
    """
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
    """A graph, and behind it all inside of its nodes."""
    left = [graph]
    while left:
        yield (one := left.pop())
        for attribute in (item for node in one.node for item in node.attribute):
            left += [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]


def tensors_of(graphs: Iterable[onnx.GraphProto]) -> Iterator[TensorProto]:
    """All tensors of some graphs and of their nodes, the parts of sparse ones too."""
    for graph in graphs:
        attributes = [item for node in graph.node for item in node.attribute]
        yield from graph.initializer
        for item in attributes:
            yield from (*([item.t] if item.HasField("t") else []), *item.tensors)
        alone = [item.sparse_tensor for item in attributes if item.HasField("sparse_tensor")]
        for sparse in (*graph.sparse_initializer, *alone):
            yield from (sparse.values, sparse.indices)


def array_of(item: TensorProto) -> NDArray[Any]:
    """What a tensor of a model holds; raises `UnsupportedError` where that is not what it says."""
    try:
        return np.asarray(numpy_helper.to_array(item))
    except Exception as error:  # of many unrelated types
        raise _unreadable("tensor", item.name, item.dims, error) from error


def dense(item: onnx.SparseTensorProto) -> TensorProto:
    """The tensor with its zeros; indices are numbers of elements, or a row of coordinates each."""
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
