"""Operators: the arithmetic of splits, checked by computing the parts with the reference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.nd_ops import CUT, parts
from support.random_ops import (
    batched,
    movements,
    norms,
    ops,
    products,
    reductions,
    softmaxes,
)  # fmt: skip
from support.some import some

from codl.errors import CodlError
from codl.ir import Op, Region, Shape, Span, parse, split, to_text
from codl.ir.columns import GenericColumns
from codl.ir.network import Layer
from codl.lower.partition import cut

DIMS = st.sampled_from(["H", "OC", "N"])
#: Ops of one image and of several.
BATCHES = st.one_of(ops(), st.builds(batched, ops(), st.integers(2, 5)))
RATIOS = st.floats(0, 1)


@given(ops())
def test_text_round_trip(op: Op) -> None:
    assert parse(to_text(op)) == op


def test_text_as_a_person_writes_it() -> None:
    op = parse("conv2d in=1x64x56x56 oc=128 kernel=3x3 stride=1 pad=1 groups=1")
    assert op.output == Shape(1, 128, 56, 56)
    assert op.flops == 2 * 64 * 9 * 128 * 56 * 56
    assert to_text(op) == "conv2d in=1x64x56x56 oc=128 kernel=3x3 pad=1"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("conv3d in=1x3x4x4", "Unknown op 'conv3d'. Did you mean 'conv2d'?"),
        ("conv2d in=1x3x4x4 oc=3 kernl=3", "Did you mean 'kernel'?"),
        ("conv2d in=1x3x4 oc=3 kernel=3", "expected something like 1x64x56x56"),
        ("conv2d in=1x3x4x4 oc=3 kernel=3 groups=2", "groups=2 must divide the 3 input"),
        ("conv2d in=1x3x2x2 oc=3 kernel=3", "has an empty output (1x3x0x0)"),
        ("conv2d in=1x3x4x4 oc=3 kernel=3 act=swish", "Unknown activation 'swish'"),
    ],
)
def test_bad_text_names_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(CodlError) as error:
        parse(text)
    assert message in str(error.value)


@given(op=BATCHES, dim=DIMS, ratio=RATIOS, align=st.sampled_from([1, 4, 16]))
def test_a_split_covers_the_output_once(op: Op, dim: str, ratio: float, align: int) -> None:
    dim = dim if dim in op.dims else op.dims[0]
    cpu, gpu = split(op, dim, ratio, align=align)  # type: ignore[arg-type]
    whole = Region.whole(op.output)
    assert cpu.meet(gpu).is_empty
    assert cpu.join(gpu) == whole
    if ratio in (0, 1):
        assert (gpu if ratio == 0 else cpu).is_empty
    if dim == "OC" and not cpu.is_empty:
        assert gpu.channels.stop % align == 0
        assert gpu.channels.stop % op.channel_step == 0


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


@given(op=BATCHES, dim=DIMS, ratio=RATIOS)
def test_parts_of_a_split_equal_the_whole(op: Op, dim: str, ratio: float) -> None:
    for part in some(split(op, dim if dim in op.dims else op.dims[0], ratio)):  # type: ignore[arg-type]
        if not part.is_empty:
            check_part(op, part)


@given(data=st.data(), op=st.sampled_from(CUT))
@settings(max_examples=200)
def test_parts_of_ops_of_models_equal_the_whole(data: st.DataObject, op: Op) -> None:
    check_part(op, data.draw(parts(op)))


@given(data=st.data(), op=st.one_of(movements(), norms(), products(), reductions(), softmaxes()))
@settings(max_examples=150)
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


def test_halo_of_a_split_is_the_papers_equation_1() -> None:
    op = parse("conv2d in=1x8x20x20 oc=8 kernel=5 stride=2 pad=2")
    cpu, gpu = split(op, "H", 0.5)
    # out rows 0:5 look at rows -2 ... 10, rows 5:10 at 8 ... 20 (five rows a window, two apart)
    assert op.needs(gpu).rows == Span(0, 11)
    assert op.needs(cpu).rows == Span(8, 20)
    assert op.restrict(gpu).pad.top == 2  # type: ignore[attr-defined]
    assert op.restrict(gpu).pad.bottom == 0  # type: ignore[attr-defined]
    assert op.restrict(cpu).pad.bottom == 1  # type: ignore[attr-defined]


SPANS = st.tuples(st.integers(0, 6), st.integers(0, 6)).map(lambda ends: Span(*sorted(ends)))
REGIONS = st.builds(Region, SPANS, SPANS, SPANS)
CUBE = Shape(6, 6, 6, 1)


def mask(region: Region) -> NDArray[np.bool_]:
    """Which elements of `CUBE` lie in a region."""
    cells = np.zeros(CUBE[:3], bool)
    cells[region.slices] = True
    return cells


def hull(cells: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The smallest box around some cells."""
    box = np.zeros_like(cells)
    if cells.any():
        box[tuple(slice(i.min(), i.max() + 1) for i in np.nonzero(cells))] = True
    return box


@given(a=REGIONS, b=REGIONS)
@example(a=Region(*[Span(0, 5)] * 3), b=Region(*[Span(1, 3)] * 3))
def test_regions_are_sets_of_elements(a: Region, b: Region) -> None:
    pieces = [mask(piece) for piece in a.minus(b)]
    assert np.array_equal(sum(pieces, np.zeros(CUBE[:3], int)), mask(a) & ~mask(b))
    assert all(piece.any() for piece in pieces)
    assert np.array_equal(mask(a.join(b)), hull(mask(a) | mask(b)))
    assert np.array_equal(mask(a.meet(b)), mask(a) & mask(b))
    assert a.covers(b) == bool((mask(a) >= mask(b)).all())
    assert a.is_empty == (not mask(a).any())
    assert a.shape(CUBE).elements == mask(a).sum()


def test_a_chain_computes_its_halo_twice_and_shares_nothing_inside() -> None:
    ops = [parse("conv2d in=1x8x16x16 oc=8 kernel=3 pad=1")] * 3
    layers = [Layer(f"c{i}", op, (f"t{i}",), f"t{i + 1}", {}) for i, op in enumerate(ops)]
    cpu, gpu = cut(layers, ["t3"], "H", 0.5, block=8)
    assert [p.region.rows for p in gpu.parts] == [Span(0, 10), Span(0, 9), Span(0, 8)]
    assert [p.region.rows for p in cpu.parts] == [Span(6, 16), Span(7, 16), Span(8, 16)]
    assert gpu.inputs["t0"].rows == Span(0, 11)
    assert cpu.inputs["t0"].rows == Span(5, 16)


def test_a_gather_reads_slices_and_not_the_table() -> None:
    """So a token's row of a table of words is no work for the memory."""
    op = parse("gather in=49152x576,1x1 axis=0")
    assert op.bytes == 4 * (576 + 1 + 576)
    assert parse("gather in=4x3,9 axis=0").bytes == 4 * (4 * 3 + 9 + 9 * 3)
    (columns,) = GenericColumns.of([op]).input_elements
    assert columns == 577


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("conv2d in=1x64x56x56 oc=128 kernel=3 stride=0", "stride of .* at least 1, got 0"),
        (f"conv2d in=1x64x56x56 oc={10**20} kernel=3", "Cannot read oc='1"),
        ("conv2d in=1x99999999x99999x9999 oc=1 kernel=1", "has a tensor of 9"),
    ],
)
def test_an_op_that_cannot_be_is_refused(text: str, message: str) -> None:
    with pytest.raises(CodlError, match=message):
        parse(text)
