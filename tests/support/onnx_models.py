"""ONNX models of a few nodes, also from YAML files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import yaml
from numpy.typing import NDArray
from onnx import helper, numpy_helper


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Sequence[Any]],
    outputs: Sequence[str],
    constants: Mapping[str, Any] | None = None,
    types: Mapping[str, str] | None = None,
    opset: int = 17,
) -> onnx.ModelProto:
    """A model whose outputs have no declared shapes; inputs and outputs are floats, or `types`."""
    kinds = {
        name: helper.np_dtype_to_tensor_dtype(np.dtype((types or {}).get(name, "float32")))
        for name in (*inputs, *outputs)
    }
    graph = helper.make_graph(
        list(nodes),
        "test",
        [helper.make_tensor_value_info(n, kinds[n], shape) for n, shape in inputs.items()],
        [helper.make_tensor_value_info(name, kinds[name], None) for name in outputs],
        [numpy_helper.from_array(np.asarray(v), name) for name, v in (constants or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def node(kind: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    names = outputs.split()
    return helper.make_node(kind, inputs.split(), names, name=f"n_{names[0]}", **attributes)


def floats(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def node_of(text: str, **attributes: Any) -> onnx.NodeProto:
    """Such as `y = Conv x w pads=[1,1,1,1]`; `-` stands for a tensor that is left out."""
    made, _, rest = text.partition(" = ")
    kind, *words = rest.split()
    given = dict(word.split("=", 1) for word in words if "=" in word)
    for key, value in given.items():
        try:
            attributes[key] = json.loads(value)
        except ValueError:  # a word
            attributes[key] = value
    inputs, outputs = ([name.strip("-") for name in names] for names in
                       ([word for word in words if "=" not in word], made.split()))  # fmt: skip
    return helper.make_node(kind, inputs, outputs, name=f"n_{made}", **attributes)


def _sizes(text: object) -> tuple[int, ...]:
    return tuple(map(int, str(text).split("x")))


def _constant(text: object) -> NDArray[Any]:
    """Of a type and values, such as `int64 [1, 4]`, or random numbers of sizes like 4x3x1x1."""
    kind, _, values = str(text).partition(" ")
    return np.array(json.loads(values), kind) if values else floats(*_sizes(kind))


def graphs_in(path: Path) -> dict[str, dict[str, Any]]:
    """The graphs of a YAML file, by name."""
    return {
        name: {
            **graph,
            "nodes": [*map(node_of, graph["nodes"])],
            "inputs": {key: _sizes(text) for key, text in graph["inputs"].items()},
            "outputs": graph["outputs"].split(),
            "constants": {k: _constant(text) for k, text in graph.get("constants", {}).items()},
        }
        for name, graph in yaml.safe_load(path.read_text()).items()
    }
