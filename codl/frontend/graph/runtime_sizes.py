"""Sizes that ONNX Runtime gives outputs, where those that ONNX infers are others.

ONNX rounds the sizes of a Resize by scales otherwise, adds the padding of a ConvTranspose to a SAME
size, and has counted other windows of poolings that round up. So such a node is run, with one image
and one channel of zeros.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from codl.frontend.graph.integer_products import session_options

Sizes = tuple[int, ...]
POOLS = ("AveragePool", "LpPool", "MaxPool")
RESIZES = ("Resize", "Upsample")
#: Attributes that say how values, not how many, come about.
OF_VALUES = ("antialias", "coordinate_transformation_mode", "cubic_coeff_a", "exclude_outside",
             "extrapolation_value", "group", "mode", "nearest_mode", "storage_order")  # fmt: skip


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    return {item.name: helper.get_attribute_value(item) for item in node.attribute}


def is_doubtful(node: onnx.NodeProto) -> bool:
    """Whether ONNX may infer other sizes of a node's output than ONNX Runtime gives it."""
    if node.domain not in ("", "ai.onnx"):
        return False
    given = attributes_of(node)
    if node.op_type in POOLS:
        return bool(given.get("ceil_mode"))
    if node.op_type == "ConvTranspose":
        return not given.keys().isdisjoint(("auto_pad", "output_padding", "output_shape"))
    return node.op_type in RESIZES


class Trial(NamedTuple):
    """Inputs of a node behind its first, None for one left out, and the sizes of output axes that
    are known: along these there is one element.
    """

    inputs: Sequence[NDArray[Any] | None]
    known: Mapping[int, int]


def runtime_sizes(
    node: onnx.NodeProto,
    sizes: Mapping[str, Sizes],
    constants: Mapping[str, NDArray[Any]],
    opset: int,
) -> Sizes | None:
    """The sizes of a doubtful node's first output; None where they cannot be told.

    `sizes` are those of its inputs, `constants` the values of those that have any.
    """
    x, given = sizes.get(node.input[0], ()), attributes_of(node)
    if not x:
        return None
    if node.op_type in RESIZES:
        trial = _resize(node, given, x, constants)
    else:
        trial = _window(node, given, x, sizes)
    if trial is None:
        return None
    seen = tuple(1 if axis in trial.known else size for axis, size in enumerate(x))
    made = _run(_single(node.op_type, given, seen, trial.inputs, opset))
    return made and tuple(trial.known.get(axis, size) for axis, size in enumerate(made))


def _resize(
    node: onnx.NodeProto, given: Mapping[str, Any], x: Sizes, constants: Mapping[str, NDArray[Any]]
) -> Trial | None:
    """An axis of scale 1 stays as it is, and one that is not named."""
    inputs = [constants.get(name) for name in node.input[1:]]
    at = 1 if len(inputs) > 1 else 0  # of the scales, behind the corners of a crop
    if at:
        inputs[0] = np.empty(0, np.float32) if node.input[1] else None
    if any(name and value is None for name, value in zip(node.input[1:], inputs, strict=True)):
        return None
    scales = inputs[at] if inputs else np.asarray(given.get("scales", ()))
    axes = [int(axis) % len(x) for axis in given.get("axes", range(len(x)))]
    known = {axis: x[axis] for axis in range(len(x)) if axis not in axes}
    if scales is not None and scales.size == len(axes):
        known |= {a: x[a] for a, scale in zip(axes, scales.tolist(), strict=True) if scale == 1}
    return Trial(inputs, known)


def _window(
    node: onnx.NodeProto, given: Mapping[str, Any], x: Sizes, sizes: Mapping[str, Sizes]
) -> Trial | None:
    if len(x) < 3:
        return None
    if node.op_type in POOLS:
        return Trial((), {0: x[0], 1: x[1]})
    weight = sizes.get(node.input[1], ())
    if len(weight) != len(x):
        return None
    known = {0: x[0], 1: weight[1] * given.get("group", 1)}
    return Trial([np.zeros((1, 1, *weight[2:]), np.float32)], known)


def _single(
    kind: str,
    given: Mapping[str, Any],
    x: Sizes,
    inputs: Sequence[NDArray[Any] | None],
    opset: int,
) -> bytes:
    """A model of one node, with constants behind its first input."""
    fixed = {f"v{i}": value for i, value in enumerate(inputs) if value is not None}
    names = ["x", *(f"v{i}" if f"v{i}" in fixed else "" for i in range(len(inputs)))]
    attributes = {key: value for key, value in given.items() if key not in OF_VALUES}
    graph = helper.make_graph(
        [helper.make_node(kind, names, ["y"], **attributes)],
        "single",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in fixed.items()],
    )
    opsets = [helper.make_opsetid("", opset)]
    version = max(4, helper.find_min_ir_version_for(opsets, ignore_unknown=True))
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=version)
    return bytes(proto.SerializeToString(deterministic=True))


@lru_cache(maxsize=4096)
def _run(model: bytes) -> Sizes | None:
    """The sizes of the output of zeros; None where ONNX Runtime refuses the model."""
    options = session_options(1)
    options.log_severity_level = 4
    try:
        session = ort.InferenceSession(model, options, ["CPUExecutionProvider"])
        x = session.get_inputs()[0]
        (y,) = session.run(None, {x.name: np.zeros(x.shape, np.float32)})
    except Exception:  # ONNX Runtime's exceptions share no base class
        return None
    return tuple(y.shape)
