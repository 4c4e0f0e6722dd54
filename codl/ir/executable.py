"""A plan lowered to data: buffers, tensors, programs, nets and commands in order.

`codl.lower` makes an `Executable` without a device, `codl.runtime` loads and runs it, and the
planner prices it. Bundles store it; agents receive it over the wire.

Launches go to one in-order OpenCL queue; the CPU's thread does all other commands in order. An
event that a command `signals` is complete once the queue has finished up to that command. Numbers
index the executable's tuples.

A tensor is a region of a network's tensor in a buffer. Layouts are defined in `codl.kernels.base`;
the CPU's arrays are planar float32 tensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from typing import Any, Literal, TypeAlias

import msgspec

from codl.ir.constants import Constants
from codl.ir.region import Region, Shape, Span
from codl.ir.types import Direction, ImageSize, Storage


class Tensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The region `held` of the network's tensor `name`, in a buffer.

    `shape` is the whole tensor's, `buffer` a number in the executable. With channels in blocks of
    `block`, the region starts at a whole block. Rows lie densely.
    """

    name: str
    buffer: int
    shape: Shape
    held: Region
    storage: Storage
    block: int

    @property
    def blocks(self) -> int:
        return -(-self.held.channels.size // self.block)

    @property
    def pixels(self) -> int:
        """Pixels of one channel, or of one block of channels, of one image."""
        return self.held.rows.size * self.shape.w

    @property
    def bytes(self) -> int:
        """Bytes of the held images, with whole last blocks."""
        elements = self.held.images.size * self.blocks * self.block * self.pixels
        return self.storage.element_bytes * elements

    @property
    def image_size(self) -> ImageSize | None:
        """Texels of an `image`: blocks side by side, images below each other; None for a buffer."""
        if self.storage.layout != "image":
            return None
        rows = self.held.images.size * self.held.rows.size
        return ImageSize(self.blocks * self.shape.w, rows, self.storage.element)

    def lead(self, part: Region) -> int:
        """Channels of the first block of `part` that lie before `part`."""
        return (part.channels.start - self.held.channels.start) % self.block

    def blocks_around(self, part: Region, block: int | None = None) -> Region:
        """The smallest region of whole blocks (of `block` channels, if given) around `part`."""
        block, (first, last) = block or self.block, self.held.channels
        begin = part.channels.start - (part.channels.start - first) % block
        end = part.channels.stop + (first - part.channels.stop) % block
        return part._replace(channels=Span(begin, min(end, last)))

    def is_whole_blocks(self, part: Region, block: int | None = None) -> bool:
        return self.blocks_around(part, block) == part

    def serves(self, part: Region) -> bool:
        """Whether kernels can work on `part` in place: from a block, or contiguous if planar."""
        if self.storage.layout != "planar":
            return not self.lead(part)
        before = 1  # elements of the axes further out
        for span, held in zip(part, self.held, strict=True):
            if span != held and before > 1:
                return False
            before *= span.size
        return True

    def place(self, part: Region, image: int = 0) -> tuple[int, int]:
        """Position of image `image` of `part`, as the two integers that kernels take.

        A buffer's are offset and stride of blocks in pixels; an image's are column and row. Raises
        `ValueError` for a part that does not begin at a block.
        """
        inner = part.within(self.held)
        image += inner.images.start
        if inner.channels.start % self.block:
            raise ValueError(f"{part} does not begin at a block of {self.block} channels")
        first = inner.channels.start // self.block
        if self.storage.layout == "image":
            return first * self.shape.w, image * self.held.rows.size + inner.rows.start
        return (image * self.blocks + first) * self.pixels + inner.rows.start * self.shape.w, (
            self.pixels
        )


#: Version of the format; others are refused.
VERSION = 1

#: `cpu`: host memory. `gpu`: device memory. `staging`: mapped by either side in turn. `shared`:
#: visible to both sides at once (fine-grained shared virtual memory).
Place: TypeAlias = Literal["cpu", "gpu", "staging", "shared"]
Sizes: TypeAlias = tuple[int, ...]


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of an executable's parts."""


class Tagged(Record, frozen=True, tag=True):
    """Base of union members; the `type` key names the class."""


class Buffer(Record, frozen=True):
    """Memory, initially zero; `image` is its size as an image of RGBA texels."""

    place: Place
    bytes: int
    image: ImageSize | None = None


class Program(Record, frozen=True):
    """OpenCL C source: its file's name, the SHA-256 of its text, and compiler options."""

    name: str
    text: str
    options: str


# Arguments of kernels.


class Slice(Tagged, frozen=True):
    """A tensor's region from one image on, as memory and two integers (`Tensor.place`)."""

    tensor: int
    region: Region
    image: int


class Constant(Tagged, frozen=True):
    """One packed array, in its own buffer or image."""

    constants: int
    name: str
    is_image: bool = False


class Scratch(Tagged, frozen=True):
    """Memory for the kernels of a single step."""

    buffer: int


Argument: TypeAlias = Slice | Constant | Scratch | int | float


# Steps: the purpose of commands. Spans, prices and tests refer to steps.


class Access(Record, frozen=True):
    """A region of a tensor that is read or written."""

    tensor: int
    region: Region


class GpuOp(Tagged, frozen=True):
    """Kernels of a part of an op, with the residual add that they fuse.

    `layers` and `ops` are names and texts of the computed ops, the add last.
    """

    label: str
    layers: tuple[str, ...]
    ops: tuple[str, ...]
    variant: str
    choice: dict[str, int] | None
    reads: tuple[Access, ...]
    writes: Access
    constants: int | None


class Relayout(Tagged, frozen=True):
    """A copy on the GPU between two storages of one tensor."""

    label: str
    source: Access
    target: Access


class Transfer(Tagged, frozen=True):
    """A copy of a region between the processors, or of a constant to one."""

    label: str
    direction: Direction
    source: Access
    target: Access


Step: TypeAlias = GpuOp | Relayout | Transfer


# Nets of the CPU.


class NetLayer(Record, frozen=True):
    """A part of an op in a CPU net, with its regions of the network's tensors."""

    name: str
    op: str
    variant: str
    inputs: tuple[tuple[str, Region], ...]
    output: str
    region: Region
    constants: int | None


class NetValue(Record, frozen=True):
    """An input or output of an ncnn net or of its part: a region of a tensor, split by image."""

    tensor: str
    region: Region


class NcnnPart(Record, frozen=True):
    """One ncnn net: its text, the arrays of its weights file in order, and its options.

    `inputs` and `outputs` pair blobs with numbers of values. The net runs once for each image.
    """

    param: str
    weights: tuple[Constant, ...]
    options: dict[str, bool]
    images: Span
    inputs: tuple[tuple[str, int], ...]
    outputs: tuple[tuple[str, int], ...]


class NcnnNet(Tagged, frozen=True):
    """ncnn nets in sequence, with values between them in ncnn's packed layout.

    `inputs` and `outputs` pair values with regions of tensors. `copied` are inputs that ncnn cannot
    read in place.
    """

    label: str
    layers: tuple[NetLayer, ...]
    values: tuple[NetValue, ...]
    parts: tuple[NcnnPart, ...]
    inputs: tuple[tuple[int, Access], ...]
    outputs: tuple[tuple[int, Access], ...]
    copied: tuple[int, ...] = ()

    @property
    def reads(self) -> list[Access]:
        return [access for _, access in self.inputs]

    @property
    def writes(self) -> list[Access]:
        return [access for _, access in self.outputs]


class OnnxBinding(Record, frozen=True):
    """An input or output of an ONNX model: its name and sizes there, its region here."""

    name: str
    sizes: Sizes
    access: Access


class OnnxNet(Tagged, frozen=True):
    """An ONNX model for ONNX Runtime; the constant `model` has its bytes."""

    label: str
    layers: tuple[NetLayer, ...]
    model: Constant
    inputs: tuple[OnnxBinding, ...]
    outputs: tuple[OnnxBinding, ...]

    @property
    def reads(self) -> list[Access]:
        return [binding.access for binding in self.inputs]

    @property
    def writes(self) -> list[Access]:
        return [binding.access for binding in self.outputs]


class OpenVinoNet(OnnxNet, frozen=True, tag=True):
    """An ONNX model for OpenVINO."""


Net: TypeAlias = NcnnNet | OnnxNet | OpenVinoNet


# Commands.


class Launch(Tagged, frozen=True):
    """Enqueue a kernel."""

    step: int
    program: int
    kernel: str
    global_size: Sizes
    local_size: Sizes | None
    args: tuple[Argument, ...]
    signals: int | None = None


class RunNet(Tagged, frozen=True):
    """Run a net on the CPU."""

    net: int


class Copy(Tagged, frozen=True):
    """Copy a region from one planar float32 tensor to another, on the CPU."""

    step: int
    source: Access
    target: Access


class Fill(Tagged, frozen=True):
    """Copy a constant into a region of a planar float32 tensor, on the CPU."""

    step: int | None
    constant: Constant
    target: Access


class Map(Tagged, frozen=True):
    """Enqueue a mapping of a staging buffer for the CPU, to read or to overwrite all of it."""

    step: int
    buffer: int
    access: Literal["read", "write"]
    signals: int


class Unmap(Tagged, frozen=True):
    """Hand a staging buffer back to the GPU."""

    step: int
    buffer: int


class Wait(Tagged, frozen=True):
    """Wait on the CPU for an event."""

    step: int
    event: int


class Flush(Tagged, frozen=True):
    """Let the GPU begin with the enqueued commands."""


Command: TypeAlias = Launch | RunNet | Copy | Fill | Map | Unmap | Wait | Flush


class Stage(Record, frozen=True):
    """The commands of one chain: transfers before it, then the work of each side."""

    label: str
    commands: tuple[Command, ...]


class Port(Record, frozen=True):
    """An input or output of the network: its CPU tensor, and the callers' shape and type."""

    tensor: int
    shape: Sizes
    type: str = "float32"


class Refusal(Record, frozen=True):
    """A `GpuOp`'s kernels that a device does not build, allocate or launch, and the reason."""

    label: str
    variant: str
    choice: dict[str, int] | None
    reason: str

    def __str__(self) -> str:
        return f"{self.variant}: {self.reason}"


class Executable(Record, frozen=True):
    """All data that a target needs to run a network by a plan.

    `model` is the model's name, `network` the digest of its structure, `soc` the SoC's name.
    `setup` runs once after allocation; the commands of all `stages` are one inference. `texts` are
    sources of programs by SHA-256.
    """

    model: str
    network: str
    soc: str
    buffers: tuple[Buffer, ...]
    tensors: tuple[Tensor, ...]
    constants: tuple[Constants, ...]
    texts: dict[str, str]
    programs: tuple[Program, ...]
    nets: tuple[Net, ...]
    steps: tuple[Step, ...]
    setup: tuple[Command, ...]
    stages: tuple[Stage, ...]
    inputs: dict[str, Port]
    outputs: dict[str, Port]
    version: int = VERSION

    @property
    def commands(self) -> Iterator[Command]:
        for stage in self.stages:
            yield from stage.commands

    @property
    def needs_gpu(self) -> bool:
        """Whether any command is more than a CPU net or a fill."""
        commands = (*self.setup, *self.commands)
        return not all(isinstance(command, Fill | RunNet) for command in commands)

    @property
    def fused(self) -> dict[str, tuple[str, ...]]:
        """Layers of each label whose kernels compute several."""
        ops = (step for step in self.steps if isinstance(step, GpuOp))
        return {op.label: op.layers for op in ops if len(op.layers) > 1}

    def bytes(self, *places: Place) -> int:
        return sum(buffer.bytes for buffer in self.buffers if buffer.place in places)

    def digest(self, *, weights: bool = True) -> str:
        """SHA-256 of the executable, with constants by recipe: equal on all machines.

        Without `weights` only the packing of constants counts, and no weight is read.
        """

        def hook(value: Any) -> str:
            if not isinstance(value, Constants):
                raise NotImplementedError(f"{type(value).__name__} is not part of an executable")
            return value.recipe if weights else value.how

        encoder = msgspec.json.Encoder(enc_hook=hook, order="deterministic")
        return sha256(encoder.encode(self)).hexdigest()
