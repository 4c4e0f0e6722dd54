"""What every operator declares: shapes, work, and which inputs a part of the output needs.

Everything else follows from that declaration: the halo of a split (padding of the paper's Eq. 1),
what may be chained, what must be shared at a chain's ends, and the features of the predictors.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import erf, lcm, pi, sqrt
from random import Random
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from codl.ir.columns import Columns, GenericColumns
from codl.ir.region import Region, Shape, Span
from codl.registry import Registry

#: Maps and channels grow by 2 to a power up to these.
RESOLUTION, WIDTH = 1.0, 1.0
#: Columns for every row of an image; most are square.
ASPECTS = (1.0, 1.0, 1.0, 1.0, 4 / 3, 3 / 4, 16 / 9)
#: Maps do not get smaller than this, unless a model has such.
LEAST_MAP = 4
#: Above this, channels are a multiple of the step below it, as models have them.
FEW_CHANNELS, STEP = 16, 8


class SyntheticGroup(NamedTuple):
    """Ops that new ones are made among, as they have kernel variants of their own.

    Groups get new ops by their `weight`; within one, ops that differ in `algorithm` do not vary
    into each other.
    """

    name: str
    weight: float
    algorithm: Hashable = None


def factor(dice: Random, power: float) -> float:
    """2 to a power between -`power` and `power`."""
    return float(2 ** dice.uniform(-power, power))


def width(dice: Random) -> float:
    """How many times as many channels another network has."""
    return factor(dice, WIDTH)


def channels(size: float) -> int:
    """The number of channels nearest to `size` that models have."""
    return max(1, round(size)) if size < FEW_CHANNELS else STEP * round(size / STEP)


def map_size(shape: Shape, dice: Random, least: int = 1) -> tuple[int, int]:
    """Rows and columns of a map for an image of another size and shape, `least` at least."""
    h = shape.h * factor(dice, RESOLUTION)
    w = h * shape.w / shape.h * dice.choice(ASPECTS)
    return (
        max(round(h), min(shape.h, LEAST_MAP), least),
        max(round(w), min(shape.w, LEAST_MAP), least),
    )


Array: TypeAlias = NDArray[np.float32]
#: What references compute with.
Values: TypeAlias = NDArray[np.float64]
#: float32, or words of as many bytes into which shorter numbers are packed.
Weights: TypeAlias = Mapping[str, NDArray[Any]]
Dim: TypeAlias = Literal["H", "OC", "N"]
SomeOp = TypeVar("SomeOp", bound="Op")

#: What of a region every dimension cuts.
AXES: Mapping[Dim, str] = {"H": "rows", "OC": "channels", "N": "images"}


class Pad(NamedTuple):
    """Explicit padding, in elements; either shard of a split has it on its outer sides only."""

    top: int
    left: int
    bottom: int
    right: int


#: Activations by name, with the parameters (`alpha`, `beta`) that each takes, in float64.
ACTIVATIONS: Mapping[str, tuple[int, Callable[..., NDArray[np.float64]]]] = {
    "none": (0, lambda x: x),
    "relu": (0, lambda x: np.maximum(x, 0)),
    "leaky_relu": (1, lambda x, alpha: np.where(x < 0, alpha * x, x)),
    "clip": (2, np.clip),
    "sigmoid": (0, lambda x: 1 / (1 + np.exp(-x))),
    "tanh": (0, np.tanh),
    "hard_sigmoid": (2, lambda x, alpha, beta: np.clip(alpha * x + beta, 0, 1)),
    "hard_swish": (0, lambda x: x * np.clip(x / 6 + 0.5, 0, 1)),
    "gelu": (0, lambda x: 0.5 * x * (1 + np.vectorize(erf, [float])(x / sqrt(2)))),
    "gelu_tanh": (0, lambda x: 0.5 * x * (1 + np.tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))),
    "silu": (0, lambda x: x / (1 + np.exp(-x))),
    "elu": (1, lambda x, alpha: np.where(x < 0, alpha * np.expm1(x), x)),
    "erf": (0, lambda x: np.vectorize(erf, [float])(x)),
}


@dataclass(frozen=True)
class Activation:
    """A function applied to every element of an operator's output, one of `ACTIVATIONS`."""

    kind: str = "none"
    alpha: float = 0.0
    beta: float = 0.0

    @property
    def parameters(self) -> tuple[float, ...]:
        return (self.alpha, self.beta)[: ACTIVATIONS[self.kind][0]]

    def reference(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        return ACTIVATIONS[self.kind][1](x, *self.parameters)


@dataclass(frozen=True, kw_only=True)
class Op:
    """One operator: a node's type, shapes and attributes, without its weights.

    Frozen and hashable, so that equal operators are measured and predicted once. A subclass sets
    `kind`, which adds it to `OP_TYPES`, and implements the abstract properties. Its fields are all
    that it is: `codl.ir.op_text` writes and reads them by their types. A shard of a split op is
    again an `Op`.
    """

    inputs: tuple[Shape, ...]
    activation: Activation = Activation()
    #: Whether an earlier op may have made NaN or infinities of numbers: variants that would change
    #: them refuse the op.
    nonfinite: bool = False

    kind: ClassVar[str] = ""
    #: Small ops of this kind as text, such that each kernel variant accepts one: what the common
    #: test of all that is registered runs.
    examples: ClassVar[tuple[str, ...]] = ()
    #: Whether an activation behind the op can become a part of it.
    fuses_activations: ClassVar[bool] = True
    #: Multiplies matrices, which keeps the multiply-add units of a core busy.
    is_product: ClassVar[bool] = False
    #: Takes no longer than changing the CPU's library for it: it runs in that of its neighbours.
    is_light: ClassVar[bool] = False
    #: Kernels see its tensors as arrays, whose channels come in no blocks and are cut anywhere.
    is_dense: ClassVar[bool] = False
    #: Measured for several images at once, too: networks are made of it.
    is_batched: ClassVar[bool] = False
    #: Where it is cut decides how what comes before it in a chain is cut, at any dimension.
    sets_cut: ClassVar[bool] = False
    #: The sizes of many such ops as columns, from which features are computed.
    size_columns: ClassVar[type[Columns]] = GenericColumns

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "kind" in cls.__dict__:
            OP_TYPES.add(cls.kind, cls)

    @property
    def dims(self) -> tuple[Dim, ...]:
        """Dimensions on which the output may be split; the first is preferred on ties."""
        images: tuple[Dim, ...] = ("N",) if self.output.n > 1 else ()
        return (*self.inner_dims, *images)

    @property
    def inner_dims(self) -> tuple[Dim, ...]:
        """Those of `dims` that cut through images."""
        raise NotImplementedError

    @property
    def images(self) -> int:
        """How many images are computed one after another, by the kernels of one image."""
        return self.output.n

    @property
    def one_image(self) -> Op:
        """What is computed for each of `images`."""
        if self.images == 1:
            return self
        return self.restrict(Region.whole(self.output)._replace(images=Span(0, 1)))

    @property
    def carries_channels(self) -> bool:
        """True where some output channels need a part of an input alone: an OC chain may go on."""
        return False

    @property
    def keeps_order(self) -> bool:
        """Whether the output is the first input, element by element, under other sizes."""
        return False

    @property
    def input(self) -> Shape:
        return self.inputs[0]

    @property
    def output(self) -> Shape:
        raise NotImplementedError

    @property
    def flops(self) -> int:
        """Floating-point operations, a multiply-add counted as two, as its columns have them.

        One for each output element, where a kind has no columns of its own and says nothing else.
        """
        if self.size_columns is GenericColumns:
            return self.output.elements
        return int(self.size_columns.of([self]).flops[0])

    @property
    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape, in elements of 4 bytes, of every weight; empty for an op without any."""
        return {}

    def weights_of(self, values: Callable[[tuple[int, ...]], Array]) -> Weights:
        """Weights from floats of any shape, for measuring and testing."""
        return {name: values(shape) for name, shape in self.weight_shapes.items()}

    @property
    def read_elements(self) -> int:
        """Elements of the inputs that are read, each counted once: of most ops all."""
        return sum(shape.elements for shape in self.inputs)

    @property
    def bytes(self) -> int:
        """Bytes of what is read of inputs, of weights and of the output as float32."""
        weights = sum(4 * int(np.prod(shape)) for shape in self.weight_shapes.values())
        return 4 * self.read_elements + weights + self.output.bytes

    @property
    def flavor(self) -> str:
        """What tells ops of one kind apart in latency, such as a pooling's mode; "" for most."""
        return ""

    @property
    def channel_step(self) -> int:
        """A cut through the output channels must lie on a multiple of this."""
        return 1

    @property
    def problem(self) -> str | None:
        """What of the op's numbers does not fit together; None for an op that can be computed."""
        return None

    @property
    def whole(self) -> Op:
        """The op that does the same on one processor alone: this one, if not said otherwise."""
        return self

    @property
    def stands_for(self) -> tuple[Op, ...]:
        """Ops that do the same one after the other: what an op that nobody measured may cost."""
        return ()

    @property
    def synthetic_group(self) -> SyntheticGroup | None:
        """The ops that new ones like this one are made with; None where `synthesize` makes none."""
        return None

    @property
    def synthetic_sizes(self) -> tuple[int, ...]:
        """The sizes over whose range new ops are spread: channels, rows and columns."""
        return (self.output.c, self.input.h, self.input.w, *(shape.c for shape in self.inputs))

    def synthesize(self, other: Op, dice: Random) -> Op:
        """The op of another network in the place of this one, with sizes that it may have there.

        `other` is one of the same group, for what can only be between two. May raise `CodlError`
        where the sizes that were drawn do not fit.
        """
        raise NotImplementedError

    def needs(self, part: Region, index: int = 0) -> Region:
        """The region of input `index` from which the region `part` of the output is computed."""
        raise NotImplementedError

    def around(self, part: Region) -> Region:
        """The smallest region with `part` in it that a part of the op computes.

        All of what no dimension cuts, and of channels that belong together all.
        """
        whole, dims = Region.whole(self.output), self.dims
        fixed = {AXES[dim]: getattr(whole, AXES[dim]) for dim in AXES if dim not in dims}
        part = part._replace(**fixed)
        return part._replace(channels=part.channels.in_steps(self.channel_step))

    def _with(self: SomeOp, **fields: Any) -> SomeOp:
        """As `dataclasses.replace`, in a fifth of the time: a search makes thousands of parts.

        For ops that check nothing and keep nothing but their fields.
        """
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__, **fields)
        return made

    def restrict(self, part: Region) -> Op:
        """The ordinary op that computes the region `part` of the output from what it needs."""
        raise NotImplementedError

    def restrict_weights(self, weights: Weights, part: Region) -> dict[str, NDArray[Any]]:
        """The weights of `restrict(part)`, as views: all have an output channel as first axis."""
        rows = slice(*part.channels)
        return {name: value[rows] for name, value in weights.items()}

    def reference(self, inputs: Sequence[Values], weights: Weights) -> Values:
        """The output in float64, as nchw: what every kernel is tested against."""
        return self.activation.reference(self.computed(inputs, weights).reshape(self.output))

    def computed(self, inputs: Sequence[Values], weights: Weights) -> Values:
        """The same before the activation and under any sizes, written for clarity."""
        raise NotImplementedError

    def with_activation(self, activation: Activation) -> Op:
        return replace(self, activation=activation)


#: Every operator's class by its `kind`.
OP_TYPES: Registry[type[Op]] = Registry("op")


def split(op: Op, dim: Dim, gpu_ratio: float, *, align: int = 1) -> tuple[Region, Region]:
    """Cut an op's output into the CPU's and the GPU's region (the GPU takes the first part).

    `align` rounds a cut through channels to whole blocks of the GPU's layout, where it has any;
    rows and images are cut anywhere. A ratio of 0 or 1 leaves one side empty; any other neither,
    where the size allows.
    """
    (place,) = cuts(op, dim, [gpu_ratio], align=align)
    whole, axis = Region.whole(op.output), AXES[dim]
    size = getattr(whole, axis).size
    first, rest = (whole._replace(**{axis: span}) for span in (Span(0, place), Span(place, size)))
    return rest, first


def cuts(op: Op, dim: Dim, gpu_ratios: Iterable[float], *, align: int = 1) -> list[int]:
    """Where `split` cuts an op's output at such ratios: how many rows, say, are the GPU's."""
    size = getattr(Region.whole(op.output), AXES[dim]).size
    step = cut_step(op, dim, align)
    places = []
    for ratio in gpu_ratios:
        place = size if ratio == 1 else min(round(ratio * size / step) * step, size)
        if 0 < ratio < 1 and place in (0, size) and size > step:
            place = step if place == 0 else (size - 1) // step * step
        places.append(place)
    return places


def cut_step(op: Op, dim: Dim, align: int) -> int:
    """A cut through an op lies on a multiple of this where channels come in blocks of `align`."""
    if dim != "OC":
        return 1
    return lcm(op.channel_step, 1 if op.is_dense else align)
