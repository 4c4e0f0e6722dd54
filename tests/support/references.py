"""Networks by the references of their layers, without a device, against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from codl.frontend.convert import convert, network_of, simplify
from codl.frontend.graph.integer_products import reference_session
from codl.frontend.graph.onnx_import import import_onnx
from codl.frontend.graph.weights import Model
from codl.frontend.models.builder import ModelBuilder
from codl.ir import Network, parse, to_text
from support.onnx_models import model

Values = dict[str, NDArray[Any]]


def model_of_values(
    nodes: list[onnx.NodeProto],
    given: Values,
    constants: Values | None = None,
    opset: int = 17,
    outputs: tuple[str, ...] = ("y",),
) -> onnx.ModelProto:
    """A model of inputs like `given`, which may have nodes of `com.microsoft`."""
    sizes = {name: value.shape for name, value in given.items()}
    types = {name: value.dtype.name for name, value in given.items()}
    proto = model(nodes, sizes, outputs, constants, types, opset)
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    proto.ir_version = 10
    return proto


def tensors(network: Network, given: Values) -> Values:
    """Every tensor by the references of the layers, in float64."""
    values = {name: np.asarray(v, np.float64) for name, v in network.constants.items()}
    values |= {
        name: given[name].astype(np.float64).reshape(shape)
        for name, shape in network.inputs.items()
    }
    for layer in network.layers:
        inputs = [values[name] for name in layer.inputs]
        for value, shape in zip(inputs, layer.op.inputs, strict=True):
            assert value.shape == shape
        assert parse(to_text(layer.op)) == layer.op
        values[layer.output] = layer.op.reference(inputs, layer.weights)
        assert values[layer.output].shape == layer.op.output
    return values


def evaluate(network: Network, given: Values) -> Values:
    """The outputs, in the shapes that the network declares."""
    values = tensors(network, given)
    return {name: values[holder].reshape(s) for name, (holder, s) in network.outputs.items()}


def converted(source: onnx.ModelProto | ModelBuilder, name: str = "test") -> Network:
    """The network of a model, every node of which has an operator."""
    if isinstance(source, ModelBuilder):
        source, name = source.build(), source.name
    return convert(simplify(import_onnx(source, name)))


def imported(proto: onnx.ModelProto) -> Network:
    """The network of a model, of which nodes without an operator run whole in ONNX Runtime."""
    return network_of(import_onnx(proto, "test"))


def by_onnx_runtime(
    proto: onnx.ModelProto, given: Mapping[str, Any], *, as_it_is: bool = False
) -> Values:
    """A model's outputs by ONNX Runtime, which may not rewrite it `as_it_is`."""
    session = reference_session(Model(proto, {}), 1, optimised=not as_it_is)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(given)), strict=True))


def check(
    proto: onnx.ModelProto, given: Values, tolerance: float = 1e-4, *, encloses: bool = False
) -> Network:
    """Lower a model and compare its outputs with those of ONNX Runtime.

    Every node must have an operator, or, with `encloses`, is run whole where it has none.
    """
    network = imported(proto) if encloses else converted(proto)
    got = evaluate(network, given)
    for name, expected in by_onnx_runtime(proto, given).items():
        assert got[name].shape == expected.shape
        np.testing.assert_allclose(got[name], expected, rtol=tolerance, atol=tolerance)
    return network
