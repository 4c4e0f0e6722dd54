"""The base of operators: shapes, FLOPs, and the input region of an output region.

Other facts derive from these: a split's halo (padding of the paper's Eq. 1), legal chains, the
regions shared at a chain's ends, and predictors' features.
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

#: Columns per row of synthetic maps; most are square.
ASPECTS = (1.0, 1.0, 1.0, 1.0, 4 / 3, 3 / 4, 16 / 9)
#: The smallest synthetic map, unless the model's own is smaller.
LEAST_MAP = 4
#: Above `FEW_CHANNELS`, channels are multiples of `STEP`, as in models.
FEW_CHANNELS, STEP = 16, 8


class SyntheticGroup(NamedTuple):
    """A group of ops from which synthetic ops are drawn.

    A group has kernel variants of its own, and synthetic ops in proportion to `weight`. Ops of one
    group are only mixed if their `algorithm` is equal.
    """

    name: str
    weight: float
    algorithm: Hashable = None


def width(dice: Random) -> float:
    """A random factor of rows or channels, from a half to two."""
    return float(2 ** dice.uniform(-1, 1))


def channels(size: float) -> int:
    """The number of channels nearest to `size` that occurs in models."""
    return max(1, round(size)) if size < FEW_CHANNELS else STEP * round(size / STEP)


def map_size(shape: Shape, dice: Random, least: int = 1) -> tuple[int, int]:
    """Random rows and columns of a map, for another image size and aspect; at least `least`."""
    h = shape.h * width(dice)
    w = h * shape.w / shape.h * dice.choice(ASPECTS)
    return (
        max(round(h), min(shape.h, LEAST_MAP), least),
        max(round(w), min(shape.w, LEAST_MAP), least),
    )


Array: TypeAlias = NDArray[np.float32]
#: Arrays of references.
Values: TypeAlias = NDArray[np.float64]
#: float32, or 4-byte words into which shorter numbers are packed.
Weights: TypeAlias = Mapping[str, NDArray[Any]]
Dim: TypeAlias = Literal["H", "OC", "N"]
SomeOp = TypeVar("SomeOp", bound="Op")

#: The field of `Region` that a dimension cuts.
AXES: Mapping[Dim, str] = {"H": "rows", "OC": "channels", "N": "images"}


class Pad(NamedTuple):
    """Explicit padding in elements; a shard of a split has only its outer sides' padding."""

    top: int
    left: int
    bottom: int
    right: int


#: Activations by name: number of parameters (`alpha`, `beta`), and the function in float64.
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
    """A function of each element of an operator's output, one of `ACTIVATIONS`."""

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
    """An operator: type, shapes and attributes of a node, without weights.

    Ops are hashable, so equal ops are measured and predicted once. A subclass with a `kind` is
    added to `OP_TYPES`; it implements the abstract properties. `codl.ir.op_text` writes and reads
    the fields by their types. A shard of a split op is an `Op` too.
    """

    inputs: tuple[Shape, ...]
    activation: Activation = Activation()
    #: Whether inputs may hold NaN or infinities; variants that would change these refuse the op.
    nonfinite: bool = False

    kind: ClassVar[str] = ""
    #: Small ops as text, with one at least for each kernel variant; all kernels are tested on them.
    examples: ClassVar[tuple[str, ...]] = ()
    #: Whether a following activation can be fused into the op.
    fuses_activations: ClassVar[bool] = True
    #: Whether the op multiplies matrices, which keeps a core's multiply-add units busy.
    is_product: ClassVar[bool] = False
    #: Whether the op takes less time than a change of CPU library, so it runs in its neighbours'.
    is_light: ClassVar[bool] = False
    #: Whether kernels take dense arrays: no blocks of channels, cuts anywhere.
    is_dense: ClassVar[bool] = False
    #: Columns of this kind, from which features are computed.
    size_columns: ClassVar[type[Columns]] = GenericColumns

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "kind" in cls.__dict__:
            OP_TYPES.add(cls.kind, cls)

    @property
    def dims(self) -> tuple[Dim, ...]:
        """Dimensions on which the output may be split; ties go to the first."""
        images: tuple[Dim, ...] = ("N",) if self.output.n > 1 else ()
        return (*self.inner_dims, *images)

    @property
    def inner_dims(self) -> tuple[Dim, ...]:
        """Dimensions of a split within images."""
        raise NotImplementedError

    @property
    def images(self) -> int:
        """Number of images that one-image kernels compute in sequence."""
        return self.output.n

    @property
    def one_image(self) -> Op:
        if self.images == 1:
            return self
        return self.restrict(Region.whole(self.output)._replace(images=Span(0, 1)))

    @property
    def carries_channels(self) -> bool:
        """Whether some output channels need only a part of an input, so OC chains continue."""
        return False

    @property
    def keeps_order(self) -> bool:
        """Whether the output has the first input's elements in order, under other sizes."""
        return False

    @property
    def input(self) -> Shape:
        return self.inputs[0]

    @property
    def output(self) -> Shape:
        raise NotImplementedError

    @property
    def flops(self) -> int:
        """Floating-point operations, a multiply-add as two, from the kind's columns.

        A kind without own columns has one for each output element, unless it overrides this.
        """
        if self.size_columns is GenericColumns:
            return self.output.elements
        return int(self.size_columns.of([self]).flops[0])

    @property
    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each weight by name, in 4-byte elements; empty without weights."""
        return {}

    def weights_of(self, values: Callable[[tuple[int, ...]], Array]) -> Weights:
        """Weights from a function that gives floats of a shape, for measurements and tests."""
        return {name: values(shape) for name, shape in self.weight_shapes.items()}

    @property
    def read_elements(self) -> int:
        """Elements of the inputs that are read, each counted once; by default all."""
        return sum(shape.elements for shape in self.inputs)

    @property
    def bytes(self) -> int:
        """Bytes of read inputs, weights and output, as float32."""
        weights = sum(4 * int(np.prod(shape)) for shape in self.weight_shapes.values())
        return 4 * self.read_elements + weights + self.output.bytes

    @property
    def flavor(self) -> str:
        """Attribute with separate predictors, such as a pooling's mode; mostly ""."""
        return ""

    @property
    def channel_step(self) -> int:
        """Channels in a unit: cuts lie on multiples of it."""
        return 1

    @property
    def problem(self) -> str | None:
        """The reason why attributes do not fit together; None for a valid op."""
        return None

    @property
    def stands_for(self) -> tuple[Op, ...]:
        """Ops whose sequence computes the same, to estimate an op without measurements."""
        return ()

    @property
    def synthetic_group(self) -> SyntheticGroup | None:
        """The group of synthetic ops; None for kinds without `synthesize`."""
        return None

    @property
    def synthetic_sizes(self) -> tuple[int, ...]:
        """Sizes over which synthetic ops are spread: channels, rows and columns."""
        return (self.output.c, self.input.h, self.input.w, *(shape.c for shape in self.inputs))

    def synthesize(self, other: Op, dice: Random) -> Op:
        """A synthetic op like this one, with sizes of another network.

        `other` is an op of the same group, for sizes drawn between two. May raise `CodlError` where
        the drawn sizes do not fit.
        """
        raise NotImplementedError

    def needs(self, part: Region, index: int = 0) -> Region:
        """The region of input `index` that the output region `part` depends on."""
        raise NotImplementedError

    def around(self, part: Region) -> Region:
        """The smallest computable region that contains `part`.

        It has the full range of each dimension outside `dims`, and whole units of channels.
        """
        whole, dims = Region.whole(self.output), self.dims
        fixed = {AXES[dim]: getattr(whole, AXES[dim]) for dim in AXES if dim not in dims}
        part = part._replace(**fixed)
        (first, last), step = part.channels, self.channel_step
        return part._replace(channels=Span(first // step * step, -(-last // step) * step))

    def _with(self: SomeOp, **fields: Any) -> SomeOp:
        """`dataclasses.replace` in a fifth of the time, as searches make thousands of parts.

        Only for ops without checks and cached attributes.
        """
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__, **fields)
        return made

    def restrict(self, part: Region) -> Op:
        """The op that computes the output region `part` from its `needs`."""
        raise NotImplementedError

    def restrict_weights(self, weights: Weights, part: Region) -> dict[str, NDArray[Any]]:
        """The weights of `restrict(part)`, as views; by default rows of the first axis."""
        rows = slice(*part.channels)
        return {name: value[rows] for name, value in weights.items()}

    def reference(self, inputs: Sequence[Values], weights: Weights) -> Values:
        """The output in float64, nchw: the reference of all kernel tests."""
        return self.activation.reference(self.computed(inputs, weights).reshape(self.output))

    def computed(self, inputs: Sequence[Values], weights: Weights) -> Values:
        """The output before the activation, in any shape, in the clearest form."""
        raise NotImplementedError

    def with_activation(self, activation: Activation) -> Op:
        return replace(self, activation=activation)


#: Classes of operators by `kind`.
OP_TYPES: Registry[type[Op]] = Registry("op")


def split(op: Op, dim: Dim, gpu_ratio: float, *, align: int = 1) -> tuple[Region, Region]:
    """Cut an op's output into the CPU's and the GPU's region; the GPU has the first part.

    `align` rounds cuts of channels to whole blocks of the GPU's layout; rows and images are cut
    anywhere. Ratio 0 or 1 leaves one side empty; others leave neither empty where the size allows.
    """
    (place,) = cuts(op, dim, [gpu_ratio], align=align)
    whole, axis = Region.whole(op.output), AXES[dim]
    size = getattr(whole, axis).size
    first, rest = (whole._replace(**{axis: span}) for span in (Span(0, place), Span(place, size)))
    return rest, first


def cuts(op: Op, dim: Dim, gpu_ratios: Iterable[float], *, align: int = 1) -> list[int]:
    """The GPU's rows, channels or images at each ratio, as `split` cuts."""
    size = getattr(Region.whole(op.output), AXES[dim]).size
    step = lcm(op.channel_step, 1 if op.is_dense else align) if dim == "OC" else 1
    places = []
    for ratio in gpu_ratios:
        place = size if ratio == 1 else min(round(ratio * size / step) * step, size)
        if 0 < ratio < 1 and place in (0, size) and size > step:
            place = step if place == 0 else (size - 1) // step * step
        places.append(place)
    return places
