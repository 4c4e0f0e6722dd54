"""Products as partial sums: any cut gives what the product does, by NumPy and by ONNX Runtime."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codl.errors import CodlError, MismatchError
from codl.ir import Network, Shape, parse, to_text
from codl.ir.network import SUM, Layer, with_sums
from codl.ir.ops.base import Activation


def _weights(layer_op: Any, dice: np.random.Generator) -> dict[str, Any]:
    made: dict[str, Any] = layer_op.weights_of(
        lambda shape: dice.normal(size=shape).astype(np.float32)
    )
    return made


def _network(op: Any, before: Any = None) -> Network:
    """A product, perhaps of features that are reshaped before."""
    dice = np.random.default_rng(7)
    layers, name, given_shape = [], "x", op.inputs[0]
    if before is not None:
        layers.append(Layer("heads", before, ("x",), "flat", {}))
        name, given_shape = "flat", before.inputs[0]
    layers.append(Layer("product", op, (name,), "y", _weights(op, dice)))
    return Network("one", tuple(layers), {"x": given_shape}, {"y": ("y", tuple(op.out_sizes))})


def _run(network: Network, x: Any) -> Any:
    values = {"x": x}
    for layer in network.layers:
        inputs = [values[name] for name in layer.inputs]
        values[layer.output] = layer.op.reference(inputs, layer.weights)
    return values["y"]


@st.composite
def products(draw: st.DrawFn) -> tuple[Any, int]:
    """A product and a place to cut its features."""
    rows, columns = draw(st.integers(1, 9)), draw(st.integers(1, 24))
    shape = draw(st.sampled_from(["{m}x{k}", "1x{m}x{k}"]))
    act = draw(st.sampled_from(["none", "relu", "gelu"]))
    depth = draw(st.integers(2, 40))
    cut, turned = draw(st.integers(1, depth - 1)), draw(st.booleans())
    matrix = f"{columns}x{depth}" if turned else f"{depth}x{columns}"
    given_shape = shape.format(m=rows, k=depth)
    text = f"matmul in={given_shape} matrix={matrix} trans_b={int(turned)} act={act}"
    return parse(text), cut


@given(products(), st.integers(0, 1 << 16))
@settings(max_examples=80, deadline=None, derandomize=True)
def test_any_cut_gives_the_product(case: tuple[Any, int], seed: int) -> None:
    op, cut = case
    network = _network(op)
    x = np.random.default_rng(seed).normal(size=op.inputs[0])
    weights = network.layers[0].weights
    matrix = np.asarray(weights["weight"], np.float64)
    right = x.reshape(-1, op.k) @ (matrix.T if op.trans_b else matrix) + weights["bias"]
    right = op.activation.reference(right.reshape(op.output))
    written = with_sums(network, {"product": cut})
    assert [layer.name for layer in written.layers] == ["product", "product" + SUM]
    assert written.shapes["y"] == network.shapes["y"]
    np.testing.assert_allclose(_run(written, x), right, atol=1e-9 * (1 + np.abs(right).max()))
    terms: Any = written.layers[0].op
    assert parse(to_text(terms)) == terms


def test_features_of_heads_are_cut_as_heads() -> None:
    """The reshape that makes them one axis is left out, and a head stays whole."""
    before = parse("reshape in=1x5x3x8 to=1x5x24")
    op: Any = parse("matmul in=1x5x24 matrix=24x6")
    network = _network(op, before)
    written = with_sums(network, {"product": 16})
    terms, total = written.layers
    assert terms.inputs == ("x",)
    assert terms.op.inputs == (Shape(1, 5, 3, 8),)
    x = np.random.default_rng(1).normal(size=(1, 5, 3, 8))
    np.testing.assert_allclose(_run(written, x), _run(network, x), atol=1e-12)
    shown = replace(network, outputs={**network.outputs, "z": ("flat", (1, 5, 24))})
    assert len(with_sums(shown, {"product": 16}).layers) == 3
    assert total.op.activation == Activation()


@pytest.mark.parametrize(
    ("sums", "said"),
    [
        ({"other": 8}, "'other' as partial sums; there is no such layer"),
        ({"product": 0}, "before and behind 0; it is a matmul, which is not cut there"),
        ({"product": 24}, "before and behind 24"),
        ({"product": -8}, "before and behind -8"),
        ({"heads": 8}, "it is a reshape"),
    ],
)
def test_what_cannot_be_cut_is_refused(sums: dict[str, int], said: str) -> None:
    before = parse("reshape in=1x5x3x8 to=1x5x24")
    network = _network(parse("matmul in=1x5x24 matrix=24x6"), before)
    with pytest.raises(MismatchError, match=said):
        with_sums(network, sums)


@pytest.mark.parametrize(
    "text",
    [
        "matmul_terms in=1x5x24 matrix=24x6 cut=24",
        "matmul_terms in=1x5x24,24x6 cut=8",
        "matmul_terms in=1x5x24 matrix=25x6 cut=8",
        "matmul_terms in=1x5x24 matrix=24x6 cut=8 trans_a=1",
        "matmul_terms in=1x5x3x8 matrix=24x6 cut=4",
        "matmul_terms in=1x5x24 matrix=0x6 cut=4",
    ],
)
def test_terms_that_do_not_fit_are_refused(text: str) -> None:
    with pytest.raises(CodlError):
        parse(text)
