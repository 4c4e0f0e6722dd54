"""Splits of ops of any rank: a part computed alone equals that part of the whole."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.nd_ops import CUT, DIMS, parts
from support.random_ops import movements, norms, products, reductions, softmaxes

from codl.ir import Op, Region, Span, parse, split, to_text
from codl.ir.ops.movement import origins


@pytest.mark.parametrize(("text", "dims"), DIMS.items())
def test_ops_say_what_cuts_them(text: str, dims: str) -> None:
    assert parse(text).dims == tuple(dims.split())


def check_part(op: Op, part: Region) -> None:
    """What a part needs has the sizes that its own op takes, and is enough."""
    dice = np.random.default_rng(1)
    inputs = [dice.standard_normal(shape) for shape in op.inputs]
    if op.kind == "gather":
        inputs[1] = dice.integers(-5, 5, op.inputs[1]).astype(np.float64)
    if op.kind == "reduce":
        inputs = [1 + 0.01 * np.abs(x) for x in inputs]  # some take logarithms, some products
    weights = op.weights_of(lambda shape: dice.standard_normal(shape, np.float32))
    own = op.restrict(part)
    needs = [op.needs(part, index) for index in range(len(inputs))]
    given = [x[need.slices] for x, need in zip(inputs, needs, strict=True)]
    assert [x.shape for x in given] == list(own.inputs)
    assert own.output == part.shape(op.output)
    taken = op.restrict_weights(weights, part)
    assert {name: v.shape for name, v in taken.items()} == own.weight_shapes
    assert parse(to_text(own)) == own
    expected = op.reference(inputs, weights)[part.slices]
    np.testing.assert_allclose(own.reference(given, taken), expected, rtol=1e-9, atol=1e-9)


@given(data=st.data(), op=st.sampled_from(CUT))
@settings(max_examples=200, deadline=None)
def test_parts_of_ops_of_models_equal_the_whole(data: st.DataObject, op: Op) -> None:
    check_part(op, data.draw(parts(op)))


@given(
    data=st.data(),
    op=st.one_of(movements(), norms(), products(), reductions(), softmaxes()),
)
@settings(max_examples=150, deadline=None)
def test_parts_of_any_op_equal_the_whole(data: st.DataObject, op: Op) -> None:
    check_part(op, data.draw(parts(op)))


@pytest.mark.parametrize("op", CUT, ids=to_text)
def test_parts_of_parts_are_parts(op: Op) -> None:
    """A part is an ordinary op: it is cut as the whole is."""
    _, part = split(op, op.dims[-1], 0.6, align=8)
    own = op.restrict(part)
    inner, _ = split(own, op.dims[-1], 0.5, align=8)
    assert not inner.is_empty
    check_part(own, inner)


def test_what_is_mixed_is_refused() -> None:
    op = parse("softmax in=1x6x37x29 axes=2")
    rows = Region.whole(op.output)._replace(rows=Span(0, 5))
    with pytest.raises(ValueError, match="a softmax is not split so: channels 0:6, rows 0:5"):
        op.restrict(rows)
    assert op.around(rows) == Region.whole(op.output)


def test_tensors_of_one_axis_are_cut_through_channels() -> None:
    op = parse("slice in=30 starts=29 steps=-2 to=12")
    assert op.dims == ("OC",)
    check_part(op, Region(Span(0, 1), Span(3, 7), Span(0, 1)))


@pytest.mark.parametrize(
    ("to", "given", "expected"),
    [
        ((6, 4), (24,), {0: (0, 4)}),
        ((24,), (6, 4), {}),
        ((1, 5, 24), (5, 6, 4), {1: (0, 1)}),
        ((5, 6, 1, 4), (5, 24), {0: (0, 1), 1: (1, 4)}),
        ((2, 3, 4), (6, 4), {0: (0, 3), 2: (1, 1)}),
        ((4, 6), (6, 4), {}),
        ((2, 12), (4, 6), {0: (0, 2)}),
        ((1, 1), (1,), {}),
    ],
)
def test_origins_of_axes(
    to: tuple[int, ...], given: tuple[int, ...], expected: dict[int, tuple[int, int]]
) -> None:
    assert origins(to, given) == expected
