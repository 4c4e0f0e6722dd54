"""A plan lowered to data: what is allocated, what runs, in which order, on which side.

`codl.lower` makes an `Executable` without any device; `codl.runtime` loads it and then only runs
its commands; the planner prices it; a bundle is one on disk, and an agent gets one over the wire.

Commands are OpenCL's own: launches go to one in-order queue, and everything else is done by the
CPU's thread in order. A command that `signals` an event tells the CPU, which waits for it, when
all before it on the queue is done: by an event of OpenCL's, or, of a `Raise`, by a flag. Numbers
refer to the tuples of the executable.

A tensor is a region of a network's tensor in a buffer. Layouts are those of `codl.kernels.base`;
the CPU's arrays are planar float32 tensors too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any, Literal, TypeAlias

import msgspec

from codl.ir.constants import Constants
from codl.ir.region import Region, Shape, Span
from codl.ir.types import Direction, ImageSize, Storage


class Tensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The region `held` of the tensor `name`, shaped `shape` as a whole, in a buffer.

    `buffer` is its number in the executable. Where channels lie in blocks of `block`, the region
    starts at a whole block; rows lie densely.
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
        """Pixels of one channel, or block of channels, of one image."""
        return self.held.rows.size * self.shape.w

    @property
    def image_stride(self) -> int:
        """Pixels from an image to the next, of all blocks of channels; not of an `image`."""
        return self.blocks * self.pixels

    @property
    def bytes(self) -> int:
        """Bytes of the images held, with their last blocks whole."""
        elements = self.held.images.size * self.blocks * self.block * self.pixels
        return self.storage.element_bytes * elements

    @property
    def image_size(self) -> ImageSize | None:
        """Texels of all images side by side and one below the other; None of a buffer."""
        if self.storage.layout != "image":
            return None
        rows = self.held.images.size * self.held.rows.size
        return ImageSize(self.blocks * self.shape.w, rows, self.storage.element)

    def lead(self, part: Region) -> int:
        """Channels of the first block of `part` that lie before it."""
        return (part.channels.start - self.held.channels.start) % self.block

    def blocks_around(self, part: Region, block: int | None = None) -> Region:
        """The region of whole blocks (or of `block` channels) that `part` lies in."""
        block, (first, last) = block or self.block, self.held.channels
        begin = part.channels.start - (part.channels.start - first) % block
        end = part.channels.stop + (first - part.channels.stop) % block
        return part._replace(channels=Span(begin, min(end, last)))

    def is_whole_blocks(self, part: Region, block: int | None = None) -> bool:
        return self.blocks_around(part, block) == part

    def serves(self, part: Region) -> bool:
        """Whether a kernel can work on `part` in place: from a block on or, where it is planar, in
        one piece.
        """
        if self.storage.layout != "planar":
            return not self.lead(part)
        before = 1  # elements of the axes further out
        for span, held in zip(part, self.held, strict=True):
            if span != held and before > 1:
                return False
            before *= span.size
        return True

    def place(self, part: Region, image: int = 0) -> tuple[int, int]:
        """The two integers that tell a kernel where one image of `part` lies, counted from its
        first: the offset and the stride of blocks in pixels, or an image's column and row.

        Raises `ValueError` for a part that does not begin at a block.
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


#: The version of executables, and of those that have flags. All that are read, the last one first.
VERSION, WITH_FLAGS = 1, 2
VERSIONS = (WITH_FLAGS, VERSION)

#: `cpu`: host memory. `gpu`: the device's. `staging`: what both map by turns. `shared`: what both
#: see at once (fine-grained shared virtual memory). `flag`: a count that the GPU writes and the CPU
#: looks at while kernels run (the same with atomics).
Place: TypeAlias = Literal["cpu", "gpu", "staging", "shared", "flag"]
#: A flag has a cache line of its own.
FLAG_BYTES = 64
Sizes: TypeAlias = tuple[int, ...]


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of what an executable is made of."""


class Tagged(Record, frozen=True, tag=True):
    """Base of records that stand where others may stand too; the `type` key tells which it is."""


class Buffer(Record, frozen=True):
    """Memory that starts as zeros; `image` is its size where it is an image of RGBA texels."""

    place: Place
    bytes: int
    image: ImageSize | None = None


class Program(Record, frozen=True):
    """OpenCL C to be compiled: the file's name, the SHA-256 of its text, the compiler's options."""

    name: str
    text: str
    options: str


# Arguments of kernels.


class Slice(Tagged, frozen=True):
    """From one image on of a tensor's region: the memory and two integers (see `Tensor.place`)."""

    tensor: int
    region: Region
    image: int


class Constant(Tagged, frozen=True):
    """One packed array, in a buffer of its own, or in an image."""

    constants: int
    name: str
    is_image: bool = False


class Scratch(Tagged, frozen=True):
    """Memory that only the kernels of one step use."""

    buffer: int


Argument: TypeAlias = Slice | Constant | Scratch | int | float


# Steps: what commands are for. Spans, prices and the NumPy interpreter go by them.


class Access(Record, frozen=True):
    """A region of a tensor that is read or written."""

    tensor: int
    region: Region


class GpuOp(Tagged, frozen=True):
    """Kernels that compute a part of an op, and of the residual add that they do too.

    `layers` and `ops` are the names and texts of what is computed, the add last.
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
    """A region on its way from one processor to the other, or a constant on its way in."""

    label: str
    direction: Direction
    source: Access
    target: Access


Step: TypeAlias = GpuOp | Relayout | Transfer


# Nets of the CPU.


class NetLayer(Record, frozen=True):
    """A part of an op in a net: what it reads and writes, by the network's tensors."""

    name: str
    op: str
    variant: str
    inputs: tuple[tuple[str, Region], ...]
    output: str
    region: Region
    constants: int | None


class NetValue(Record, frozen=True):
    """What enters or leaves an ncnn net or a part of one: a region of a tensor, image by image."""

    tensor: str
    region: Region


class NcnnPart(Record, frozen=True):
    """One ncnn net: its text, the arrays of its weights file in order, and its options.

    `inputs` and `outputs` pair the net's blobs with numbers of values. It runs once for each image.
    """

    param: str
    weights: tuple[Constant, ...]
    options: dict[str, bool]
    images: Span
    inputs: tuple[tuple[str, int], ...]
    outputs: tuple[tuple[str, int], ...]


class NcnnNet(Tagged, frozen=True):
    """ncnn nets, one after the other, between which values stay in ncnn's packed layout.

    `inputs` and `outputs` say in which tensors values lie outside; `copied` are the inputs that
    cannot be read in place.
    """

    label: str
    layers: tuple[NetLayer, ...]
    values: tuple[NetValue, ...]
    parts: tuple[NcnnPart, ...]
    inputs: tuple[tuple[int, Access], ...]
    outputs: tuple[tuple[int, Access], ...]
    copied: tuple[int, ...] = ()


class OnnxBinding(Record, frozen=True):
    """An input or output of an ONNX model: its name and sizes there, and where it lies here."""

    name: str
    sizes: Sizes
    access: Access


class OnnxNet(Tagged, frozen=True):
    """An ONNX model for ONNX Runtime: the constant `model` has its bytes."""

    label: str
    layers: tuple[NetLayer, ...]
    model: Constant
    inputs: tuple[OnnxBinding, ...]
    outputs: tuple[OnnxBinding, ...]


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


class Raise(Tagged, frozen=True):
    """Enqueue the kernel that counts a flag up; no other command uses that buffer."""

    step: int
    program: int
    kernel: str
    buffer: int
    signals: int


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
    """Enqueue handing a staging buffer to the CPU, to read it or to overwrite all of it."""

    step: int
    buffer: int
    access: Literal["read", "write"]
    signals: int


class Unmap(Tagged, frozen=True):
    """Hand a staging buffer back to the GPU."""

    step: int
    buffer: int


class Wait(Tagged, frozen=True):
    """Wait on the CPU for an event, however it is signalled."""

    step: int
    event: int


class Flush(Tagged, frozen=True):
    """Let the GPU begin with what is enqueued."""


Command: TypeAlias = Launch | Raise | RunNet | Copy | Fill | Map | Unmap | Wait | Flush


class Stage(Record, frozen=True):
    """The commands of one chain: what is shared before it, and what each side then computes."""

    label: str
    commands: tuple[Command, ...]


class Port(Record, frozen=True):
    """An input or output of the network: the tensor that holds it on the CPU, and how callers see
    it, with NumPy's name of its type.
    """

    tensor: int
    shape: Sizes
    type: str = "float32"


class Refusal(Record, frozen=True):
    """Kernels that a device does not build, allocate or launch: of a `GpuOp`, and the reason."""

    label: str
    variant: str
    choice: dict[str, int] | None
    reason: str

    def is_of(self, label: str, variant: str, choice: Mapping[str, int] | None) -> bool:
        kernels = (self.label, self.variant, self.choice)
        return kernels == (label, variant, None if choice is None else dict(choice))

    def __str__(self) -> str:
        return f"{self.variant}: {self.reason}"


class Executable(Record, frozen=True):
    """All that a target needs to run a network as a plan says.

    `model`, `network` and `soc` say what it was lowered for: the model's name, the digest of its
    structure, the SoC's name. `setup` runs once, when everything is allocated; the commands of all
    `stages` in order are one inference. `texts` has the sources of programs by SHA-256.
    `version` is `WITH_FLAGS` where commands raise flags, and else `VERSION`.
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
        """The commands of one inference, in order."""
        for stage in self.stages:
            yield from stage.commands

    @property
    def needs_gpu(self) -> bool:
        """Whether anything but nets of the CPU runs."""
        commands = (*self.setup, *self.commands)
        return not all(isinstance(command, Fill | RunNet) for command in commands)

    @property
    def fused(self) -> dict[str, tuple[str, ...]]:
        """The layers that one set of kernels computes, by label, where they are several."""
        ops = (step for step in self.steps if isinstance(step, GpuOp))
        return {op.label: op.layers for op in ops if len(op.layers) > 1}

    def bytes(self, *places: Place) -> int:
        """Bytes of all buffers in some places."""
        return sum(buffer.bytes for buffer in self.buffers if buffer.place in places)

    def digest(self, *, weights: bool = True) -> str:
        """SHA-256 of everything, constants by their recipes: equal on every machine.

        Without `weights` only how they are packed counts, and none is read.
        """
        hook = _recipe if weights else _packing
        encoder = msgspec.json.Encoder(enc_hook=hook, order="deterministic")
        return sha256(encoder.encode(self)).hexdigest()


def _recipe(value: Any) -> Any:
    if isinstance(value, Constants):
        return value.recipe
    raise NotImplementedError(f"{type(value).__name__} is not part of an executable")


def _packing(value: Any) -> Any:
    return value.how if isinstance(value, Constants) else _recipe(value)
