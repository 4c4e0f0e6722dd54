"""Random operators for property tests."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from hypothesis import assume
from hypothesis import strategies as st

from codl.ir import Activation, Op, Pad, Shape
from codl.ir.ops import base, resize
from codl.ir.ops.convolution import Conv2d, ConvTranspose2d
from codl.ir.ops.eltwise import Eltwise
from codl.ir.ops.matmul import Attention, FullyConnected, MatMul
from codl.ir.ops.movement import Concat, ConcatNd, PadNd, SliceNd, TileNd, Transpose
from codl.ir.ops.reductions import REDUCTIONS, Norm, Reduce, Softmax
from codl.ir.ops.resize import Resize
from codl.ir.ops.window import Pool2d, Size2


def batched(op: Op, images: int) -> Op:
    """The same op on so many images."""
    return replace(op, inputs=tuple(shape._replace(n=images) for shape in op.inputs))


ACTIVATIONS = st.sampled_from(
    [Activation(), Activation("relu"), Activation("leaky_relu", 0.1), Activation("clip", -0.5, 2.0)]
)
PARAMETERS = {"leaky_relu": (0.1,), "clip": (-0.5, 2.0), "hard_sigmoid": (0.2, 0.5), "elu": (0.7,)}
ALL_ACTIVATIONS = st.sampled_from(
    [Activation(kind, *PARAMETERS.get(kind, ())) for kind in base.ACTIVATIONS]
)
CHANNELS = st.sampled_from([1, 3, 4, 8, 16, 20, 32, 48])
SIZES = st.integers(1, 14)
#: Groups, and the input and output channels of each: one, a channel each, or some.
GROUPS = st.one_of(
    st.tuples(st.just(1), CHANNELS, CHANNELS),
    st.tuples(st.sampled_from([3, 16, 20]), st.just(1), st.just(1)),
    st.tuples(st.sampled_from([2, 3]), st.sampled_from([3, 16]), st.sampled_from([5, 16])),
)


@st.composite
def convolutions(draw: st.DrawFn) -> Conv2d:
    groups, per_in, per_out = draw(GROUPS)
    kernel = Size2(*draw(st.sampled_from([(1, 1), (3, 3), (3, 3), (5, 5), (2, 3), (1, 7)])))
    stride = Size2(*draw(st.sampled_from([(1, 1), (1, 1), (2, 2), (1, 2)])))
    dilation = Size2(*draw(st.sampled_from([(1, 1), (1, 1), (2, 2)])))
    pad = Pad(*draw(st.tuples(*[st.integers(0, 2)] * 4)))
    least_h = max((kernel.h - 1) * dilation.h + 1 - pad.top - pad.bottom, 1)
    least_w = max((kernel.w - 1) * dilation.w + 1 - pad.left - pad.right, 1)
    shape = Shape(1, groups * per_in, least_h + draw(SIZES), least_w + draw(SIZES))
    return Conv2d(
        inputs=(shape,),
        out_channels=groups * per_out,
        groups=groups,
        kernel=kernel,
        stride=stride,
        dilation=dilation,
        pad=pad,
        activation=draw(ACTIVATIONS),
    )


@st.composite
def transposed_convolutions(draw: st.DrawFn) -> ConvTranspose2d:
    groups, per_in, per_out = draw(GROUPS)
    pair = st.tuples(st.integers(1, 3), st.integers(1, 3))
    kernel, stride = Size2(*draw(pair)), Size2(*draw(pair))
    dilation = Size2(*draw(st.sampled_from([(1, 1), (1, 1), (2, 3)])))
    shape = Shape(1, groups * per_in, draw(st.integers(1, 7)), draw(st.integers(1, 12)))
    whole = [(n - 1) * s + (k - 1) * d + 1 + draw(st.integers(0, s - 1))
             for n, s, k, d in zip(shape[2:], stride, kernel, dilation, strict=True)]  # fmt: skip
    crop = Size2(*(draw(st.integers(0, min(2, n - 1))) for n in whole))
    size = Size2(*(n - c - draw(st.integers(0, min(2, n - c - 1)))
                   for n, c in zip(whole, crop, strict=True)))  # fmt: skip
    return ConvTranspose2d(
        inputs=(shape,),
        out_channels=groups * per_out,
        groups=groups,
        kernel=kernel,
        stride=stride,
        dilation=dilation,
        crop=crop,
        size=size,
        activation=draw(ACTIVATIONS),
    )


@st.composite
def poolings(draw: st.DrawFn) -> Pool2d:
    size = draw(st.integers(1, 4))
    # Padding stays below the window, so that no window lies in padding alone.
    pad = Pad(*draw(st.tuples(*[st.integers(0, size - 1)] * 4)))
    shape = Shape(1, draw(CHANNELS), size + draw(SIZES), size + draw(SIZES))
    return Pool2d(
        inputs=(shape,),
        mode=draw(st.sampled_from(["max", "avg"])),
        count_pad=draw(st.booleans()),
        kernel=Size2(size, size),
        stride=Size2(*draw(st.sampled_from([(1, 1), (2, 2), (3, 2)]))),
        pad=pad,
        activation=draw(ACTIVATIONS),
    )


@st.composite
def fully_connected(draw: st.DrawFn) -> FullyConnected:
    side = draw(st.sampled_from([1, 2, 7]))
    shape = Shape(1, draw(CHANNELS), side, side)
    oc = draw(st.sampled_from([1, 10, 16, 33, 64]))
    return FullyConnected(inputs=(shape,), out_channels=oc, activation=draw(ACTIVATIONS))


@st.composite
def concats(draw: st.DrawFn) -> Concat:
    height, width = draw(SIZES), draw(SIZES)
    first = draw(st.sampled_from([16, 32, 3]))
    shapes = tuple(Shape(1, c, height, width) for c in (first, draw(CHANNELS)))
    return Concat(inputs=shapes, activation=draw(ACTIVATIONS))


@st.composite
def elementwise(draw: st.DrawFn) -> Eltwise:
    """Two inputs, any axes of either stretched but the first's channels."""
    shape = Shape(1, draw(CHANNELS), draw(SIZES), draw(SIZES))
    mode = draw(st.sampled_from(["add", "sub", "mul", "max", "min", "prelu", "identity"]))
    if mode == "identity":
        return Eltwise(inputs=(shape,), mode=mode, activation=draw(ALL_ACTIVATIONS))
    keep = st.tuples(*[st.booleans()] * 4)
    first, second = (
        Shape(*(size if kept else 1 for size, kept in zip(shape, draw(keep), strict=True)))
        for _ in range(2)
    )
    inputs = draw(st.sampled_from([(shape, shape), (shape, first), (first, second)]))
    return Eltwise(inputs=inputs, mode=mode, activation=draw(ACTIVATIONS))


@st.composite
def resizes(draw: st.DrawFn) -> Resize:
    shape = Shape(1, draw(CHANNELS), draw(st.integers(1, 9)), draw(st.integers(1, 9)))
    size = Size2(draw(st.integers(1, 20)), draw(st.integers(1, 20)))
    coords = draw(st.sampled_from(sorted(resize.COORDS)))
    return Resize(
        inputs=(shape,),
        size=size,
        mode=draw(st.sampled_from(["nearest", "linear"])),
        coords=coords,
        rounding=draw(st.sampled_from(sorted(resize.ROUNDING))),
        activation=draw(ACTIVATIONS),
    )


@st.composite
def movements(draw: st.DrawFn) -> Op:
    """Transposes, slices, pads, tilings and concatenations of tensors of any rank."""
    sizes = tuple(draw(st.lists(st.integers(1, 24), min_size=1, max_size=5)))
    while prod(sizes) > 20000:
        sizes = sizes[1:]
    rank, activation = len(sizes), draw(ACTIVATIONS)
    kind = draw(st.sampled_from(["transpose", "slice", "tile", "pad", "concat"]))
    if kind == "transpose":
        perm = tuple(draw(st.permutations(range(rank))))
        return Transpose(shapes=(sizes,), perm=perm, activation=activation)
    if kind == "slice":
        taken = [range(size)[draw(slices(size))] for size in sizes]
        return SliceNd(
            shapes=(sizes,),
            starts=tuple(r.start for r in taken),
            steps=tuple(r.step for r in taken),
            to=tuple(len(r) for r in taken),
            activation=activation,
        )
    if kind == "tile":
        repeats = tuple(draw(st.integers(1, 3)) for _ in sizes)
        return TileNd(shapes=(sizes,), repeats=repeats, activation=activation)
    if kind == "pad":
        mode = draw(st.sampled_from(["constant", "edge", "reflect", "wrap"]))
        least = [-(size - 1) // 2 for size in sizes]
        most = [size - 1 if mode == "reflect" else 20 for size in sizes]
        sides = [
            tuple(draw(st.integers(low, high)) for low, high in zip(least, most, strict=True))
            for _ in range(2)
        ]
        value = draw(st.sampled_from([0.0, -1.5]))
        pad = PadNd(
            shapes=(sizes,),
            before=sides[0],
            after=sides[1],
            mode=mode,
            value=value if mode == "constant" else 0.0,
            activation=activation,
        )
        assume(min(pad.out_sizes) > 0)
        return pad
    axis = draw(st.integers(0, rank - 1))
    given = draw(st.lists(st.integers(1, 20), min_size=1, max_size=3))
    shapes = tuple((*sizes[:axis], size, *sizes[axis + 1 :]) for size in given)
    return ConcatNd(shapes=shapes, axis=axis, activation=activation)


def slices(size: int) -> st.SearchStrategy[slice]:
    """Slices of an axis that take something."""
    return st.slices(size).filter(lambda s: len(range(size)[s]) > 0)


def ops() -> st.SearchStrategy[Op]:
    return st.one_of(
        convolutions(),
        convolutions(),
        poolings(),
        fully_connected(),
        concats(),
        elementwise(),
        transposed_convolutions(),
        resizes(),
    )


#: Only one, because each is a program of its own for a driver to build.
ONE_ACTIVATION = st.just(Activation("leaky_relu", 0.5))


@st.composite
def sizes(draw: st.DrawFn, most: int = 40) -> tuple[int, ...]:
    found = tuple(draw(st.lists(st.integers(1, most), min_size=1, max_size=5)))
    while prod(found) > 20000:
        found = found[1:]
    return found


@st.composite
def adjacent(draw: st.DrawFn, rank: int) -> tuple[int, ...]:
    first = draw(st.integers(0, rank - 1))
    return tuple(range(first, draw(st.integers(first, rank - 1)) + 1))


@st.composite
def reductions(draw: st.DrawFn) -> Reduce:
    shape = draw(sizes())
    return Reduce(
        shapes=(shape,),
        mode=draw(st.sampled_from(sorted(REDUCTIONS))),
        axes=draw(adjacent(len(shape))),
        keepdims=draw(st.booleans()),
        activation=draw(ONE_ACTIVATION),
    )


@st.composite
def softmaxes(draw: st.DrawFn) -> Softmax:
    shape = draw(sizes())
    axes = draw(adjacent(len(shape)))
    log = draw(st.booleans())
    return Softmax(shapes=(shape,), axes=axes, log=log, activation=draw(ONE_ACTIVATION))


@st.composite
def norms(draw: st.DrawFn) -> Norm:
    shape = draw(sizes())
    axis = draw(st.integers(0, len(shape) - 1))
    groups = draw(st.sampled_from([1, shape[axis]]))
    affine = draw(st.sampled_from(["none", "elements", "channels"]))
    if affine == "elements":
        scale = tuple(1 if i < axis else size for i, size in enumerate(shape))
    else:
        scale = tuple(size if i == axis else 1 for i, size in enumerate(shape))
    return Norm(
        shapes=(shape,) if affine == "none" else (shape, scale, scale),
        axis=axis,
        groups=groups,
        epsilon=draw(st.sampled_from([1e-3, 1e-2])),
        center=draw(st.booleans()),
        activation=draw(ONE_ACTIVATION),
    )


@st.composite
def products(draw: st.DrawFn) -> MatMul:
    m, k, n = (draw(st.one_of(st.integers(1, 40), st.integers(1, 200))) for _ in range(3))
    trans_a, trans_b = draw(st.booleans()), draw(st.booleans())
    batch = draw(st.lists(st.integers(1, 3), max_size=3))
    keep = [draw(st.lists(st.booleans(), min_size=len(batch), max_size=len(batch))) for _ in "ab"]
    lead = [tuple(b if kept else 1 for b, kept in zip(batch, ks, strict=True)) for ks in keep]
    drop = draw(st.integers(0, len(batch)))
    a = (*lead[0], *((k, m) if trans_a else (m, k)))
    b = (*lead[1][drop:], *((n, k) if trans_b else (k, n)))
    constant = draw(st.booleans())
    return MatMul(
        shapes=(a,) if constant else (a, b),
        matrix=b[-2:] if constant else (),
        trans_a=trans_a,
        trans_b=trans_b,
        alpha=draw(st.sampled_from([1.0, -0.5])),
        activation=draw(ONE_ACTIVATION),
    )


@st.composite
def attentions(draw: st.DrawFn) -> Attention:
    size = lambda low, high: draw(st.integers(low, high))  # noqa: E731
    groups, sharing, features, values = size(1, 3), size(1, 3), size(1, 80), size(1, 80)
    queries, form = size(1, 300), draw(st.sampled_from(("", "bias", "causal")))
    first = size(0, 40) if form == "causal" else 0
    keys = queries + first if form == "causal" else size(1, 300)
    bias = [(1, 1, queries, keys)] if form == "bias" else []
    shapes = (
        (1, groups * sharing, queries, features),
        (1, groups, keys, features),
        (1, groups, keys, values),
        *bias,
    )
    return Attention(shapes=shapes, causal=form == "causal", first=first)
