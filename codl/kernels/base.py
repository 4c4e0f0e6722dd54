"""What a kernel variant is: one implementation of an op on one processor, described, not run.

A GPU variant turns an op into a `KernelPlan`: which `.cl` file, compiled with which macros,
launched with which sizes and arguments, over which constants. `codl.device` compiles and runs
plans; nothing here imports OpenCL, so plans can be made, tested and predicted without a driver.

Layout of every tensor on the GPU: blocked, `nc{V}hw{V}` with V channels to a block (the SoC's
`gpu.vector_width`; `nc4hw4` for V = 4). Element (c, y, x) of a tensor lies at

    ((c // V) * block_stride + offset + y * W + x) * V + c % V

floats from the start of its buffer. `offset` and `block_stride` are in pixels and come as kernel
arguments, so a kernel works in place on any rows and any blocks of a larger buffer. Channels beyond
the last are stored as zeros up to a full block, and kernels keep them finite.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, TypeAlias

from codl.ops.base import Array, Weights
from codl.soc import Soc

Processor: TypeAlias = Literal["cpu", "gpu"]


@dataclass(frozen=True)
class TensorArg:
    """An op's input or output; expands to three kernel arguments.

    They are `__global float *data, int offset, int block_stride` (see the module's layout).
    """

    role: Literal["input", "output"]
    index: int = 0


@dataclass(frozen=True)
class ConstantArg:
    """A packed weight by its name in the result of `KernelPlan.pack`: `__global const float *`."""

    name: str


@dataclass(frozen=True)
class ScratchArg:
    """A scratch buffer by its name in `KernelPlan.scratch`: `__global float *`."""

    name: str


Arg: TypeAlias = TensorArg | ConstantArg | ScratchArg | int | float


@dataclass(frozen=True)
class Launch:
    """One enqueued kernel. Ints become `int` arguments, floats `float` ones."""

    kernel: str
    global_size: tuple[int, ...]
    args: tuple[Arg, ...]
    local_size: tuple[int, ...] | None = None


def no_constants(weights: Weights) -> dict[str, Array]:
    return {}


@dataclass(frozen=True)
class KernelPlan:
    """How a GPU variant computes one op.

    `source` is a `.cl` file's path relative to this package; `defines` its macros; `pack` arranges
    the op's weights once, at compile time; `scratch` names buffers by size in bytes. Equal source
    and defines are compiled once, so sizes that vary with a split belong in `args`, not in
    `defines`.
    """

    source: str
    launches: tuple[Launch, ...]
    defines: Mapping[str, int | float | str] = field(default_factory=dict)
    pack: Callable[[Weights], dict[str, Array]] = no_constants
    scratch: Mapping[str, int] = field(default_factory=dict)


class Variant(Protocol):
    """One implementation of one kind of op on one processor.

    Ops are passed as `Any`: a variant is only ever given ops of its `op_kind`.
    """

    name: ClassVar[str]
    op_kind: ClassVar[str]
    processor: ClassVar[Processor]

    def refusal(self, op: Any, soc: Soc) -> str | None:
        """Why this variant cannot do `op` (the rule and the value), or None where it can."""
        ...

    def features(self, op: Any, soc: Soc) -> dict[str, float]:
        """What `op` costs in this variant, extracted analytically (the paper's section 5.2).

        Counted after tiling and padding: blocks, waves, padded multiply-adds, bytes. The same names
        for every op; training and planning both call this.
        """
        ...


#: Values of a variant's tuning parameters by name, such as tile sizes.
Choice: TypeAlias = Mapping[str, int]


class GpuVariant(Variant, Protocol):
    """A variant that runs OpenCL kernels of this package."""

    #: The types of device that this variant is written for; on others it works, slowly.
    meant_for: ClassVar[frozenset[str]]

    def choices(self, op: Any, soc: Soc) -> tuple[Choice, ...]:
        """Every choice of tuning parameters worth trying; the first is what holds untuned."""
        ...

    def plan(self, op: Any, soc: Soc, choice: Choice | None = None) -> KernelPlan:
        """The kernels for `op`, with the first of `choices` where none is given."""
        ...
