"""JSON form of an executable, and its checks before allocation, compilation and execution.

Arrays of constants are stored by SHA-256. All memory accesses stay inside their buffers, all
numbers refer to entries, and compiler options are macros only. Staging memory is mapped when the
CPU uses it, and events are signalled before waits. Numbers of launches, offsets in tables and the
contents of nets cannot be checked: load only trusted executables.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from hashlib import sha256
from math import prod
from typing import Any, get_args

import msgspec
from numpy.typing import NDArray

from codl.errors import CodlError, MismatchError
from codl.ir import executable as ex
from codl.ir.constants import Constants
from codl.ir.executable import VERSION, Executable, Record
from codl.ir.region import Region, Shape

#: Store and fetch an array by its digest (`constants.array_digest`).
Put = Callable[[NDArray[Any]], str]
Get = Callable[[str], NDArray[Any]]


class StoredConstants(Record, frozen=True):
    """Constants in JSON: packing, recipe, and the digest of each packed array by name."""

    how: str
    recipe: str
    arrays: dict[str, str]


class _Head(msgspec.Struct):
    """The version alone, which is read before the rest."""

    version: int


def encode(executable: Executable, put: Put) -> bytes:
    """An executable as JSON; passes each packed array to `put`."""

    def hook(value: Any) -> StoredConstants:
        if not isinstance(value, Constants):
            raise NotImplementedError(f"{type(value).__name__} is not part of an executable")
        arrays = {name: put(array) for name, array in value.arrays().items()}
        return StoredConstants(value.how, value.recipe, arrays)

    return msgspec.json.Encoder(enc_hook=hook).encode(executable)


def decode(content: bytes, get: Get) -> Executable:
    """Read and check JSON of `encode`; arrays are fetched on use.

    Raises `MismatchError` for another version. Raises `CodlError` with the place for content that
    is no executable or not sound.
    """

    def hook(kind: type, value: Any) -> Any:
        stored = msgspec.convert(value, StoredConstants)
        arrays = stored.arrays

        def pack() -> dict[str, NDArray[Any]]:
            return {name: get(digest) for name, digest in arrays.items()}

        return Constants(stored.how, None, pack, names=tuple(arrays), recipe=stored.recipe)

    try:
        version = msgspec.json.decode(content, type=_Head).version
        if version != VERSION:
            raise MismatchError(
                f"The executable is of version {version}; this codl reads version {VERSION}."
            )
        executable = msgspec.json.Decoder(Executable, dec_hook=hook).decode(content)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise CodlError(f"This is no executable: {error}.") from error
    check(executable)
    return executable


#: Allowed compiler options: a version of OpenCL C, and macros.
OPTIONS = re.compile(r"-cl-std=CL\d\.\d( -D[A-Za-z_]\w*(=[\w.()+-]*)?)*")
IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
#: Names of program files, with a package in front if another's; NumPy types of ports.
SOURCE = re.compile(r"(\w+(\.\w+)*:)?\w+(/\w+)*\.cl")
TYPES = re.compile(r"bool|float(16|32|64)|u?int(8|16|32|64)")
#: ncnn's options that a net may set.
NET_OPTIONS = re.compile(r"use_\w+")
#: Upper bounds of the bytes of all buffers and of a kernel's work-items.
MOST_BYTES, MOST_WORK_ITEMS = 1 << 48, 1 << 40


def check(executable: Executable) -> None:
    """Raise `CodlError` with the place, the rule and the value where an executable is not sound."""
    _Checker(executable).check()


class _Checker:
    """Checks one executable; each error names the place, the rule and the value."""

    def __init__(self, executable: Executable) -> None:
        self._executable = executable
        #: Kernels already found: digest of the program's text, and name.
        self._kernels: set[tuple[str, str]] = set()
        #: Staging buffers that are mapped before the current command.
        self._mapped: set[int] = set()
        #: Events that are signalled and not yet waited for.
        self._signalled: set[int] = set()

    def check(self) -> None:
        executable = self._executable
        total = executable.bytes(*get_args(ex.Place))
        self._must(total < MOST_BYTES, "buffers", "bytes of all", total)
        parts: dict[str, Callable[[Any, str], None]] = {
            "buffers": self._buffer,
            "tensors": self._tensor,
            "programs": self._program,
            "steps": self._step,
            "nets": self._net,
            "setup": self._command,
        }
        for part, check_one in parts.items():
            for number, one in enumerate(getattr(executable, part)):
                check_one(one, f"{part}[{number}]")
        mapped, signalled = set(self._mapped), set(self._signalled)
        for number, stage in enumerate(executable.stages):
            for index, command in enumerate(stage.commands):
                self._command(command, f"stages[{number}].commands[{index}]")
        ends = (self._mapped, mapped, "mapped"), (self._signalled, signalled, "signalled")
        for now, before, what in ends:
            self._must(now == before, "stages", f"buffers or events still {what} at the end", now)
        for name, port in (*executable.inputs.items(), *executable.outputs.items()):
            at = f"the port {name!r}"
            held = self._entry(executable.tensors, port.tensor, at, "tensor")
            self._on_cpu(ex.Access(port.tensor, held.held), at)
            size = held.held.shape(held.shape).elements
            self._must(prod(port.shape) == size, at, "shape", port.shape)
            self._match(TYPES, port.type, at, "type")

    # Memory.

    def _buffer(self, buffer: ex.Buffer, at: str) -> None:
        self._must(buffer.bytes >= 0, at, "bytes", buffer.bytes)
        if buffer.image is not None:
            sizes = (buffer.image.width, buffer.image.height)
            self._must(buffer.place == "gpu", at, "place of an image", buffer.place)
            self._must(all(0 < size < 1 << 20 for size in sizes), at, "image size", sizes)
            self._must(buffer.image.bytes <= buffer.bytes, at, "bytes of an image", buffer.bytes)

    def _tensor(self, tensor: ex.Tensor, at: str) -> None:
        buffer = self._entry(self._executable.buffers, tensor.buffer, at, "buffer")
        self._must(all(0 < size < 1 << 40 for size in tensor.shape), at, "shape", tensor.shape)
        self._must(0 < tensor.block <= 64, at, "block", tensor.block)
        self._region(tensor.held, Region.whole(tensor.shape), at)
        self._must(tensor.bytes <= buffer.bytes, at, f"{tensor.bytes} bytes in", buffer.bytes)
        self._must(tensor.image_size == buffer.image, at, "image size", tensor.image_size)
        if buffer.place != "gpu":
            is_plain = tensor.block == 1 and str(tensor.storage) == "planar float32"
            self._must(is_plain, at, f"storage in {buffer.place} memory", str(tensor.storage))

    def _region(self, region: Region, outer: Region, at: str) -> None:
        pairs = zip(region, outer, strict=True)
        is_inside = all(o.start <= r.start < r.stop <= o.stop for r, o in pairs)
        self._must(is_inside, at, f"region outside {outer}", str(region))

    def _access(self, access: ex.Access, at: str) -> ex.Tensor:
        tensor: ex.Tensor = self._entry(self._executable.tensors, access.tensor, at, "tensor")
        self._region(access.region, tensor.held, at)
        return tensor

    def _on_cpu(self, access: ex.Access, at: str, *, by: ex.Command | None = None) -> None:
        """Check memory that the CPU uses; a command uses staging memory only while it is mapped."""
        number = self._access(access, at).buffer
        place = self._executable.buffers[number].place
        self._must(place != "gpu", at, "place of memory that the CPU uses", place)
        if by is not None and place == "staging":
            # Nets keep pointers to their memory, so it must not be remapped.
            self._must(not isinstance(by, ex.RunNet), at, "place of what a net uses", place)
            self._must(number in self._mapped, at, "buffer that is not mapped", number)

    def _shape(self, access: ex.Access) -> Shape:
        return access.region.shape(self._executable.tensors[access.tensor].shape)

    def _moves(self, source: ex.Access, target: ex.Access, at: str) -> None:
        shapes = self._shape(source), self._shape(target)
        self._must(shapes[0] == shapes[1], at, f"shape moved to {shapes[1]}", shapes[0])

    # Programs, steps and nets.

    def _program(self, program: ex.Program, at: str) -> None:
        source = self._entry(self._executable.texts, program.text, at, "digest of a text")
        digest = sha256(source.encode(errors="replace")).hexdigest()
        self._must(digest == program.text, at, "digest of the text", program.text)
        self._match(OPTIONS, program.options, at, "options")
        self._match(SOURCE, program.name, at, "name")

    def _step(self, step: ex.Step, at: str) -> None:
        if not isinstance(step, ex.GpuOp):
            self._access(step.source, at)
            self._access(step.target, at)
            self._moves(step.source, step.target, at)
            return
        self._must(len(step.layers) == len(step.ops) > 0, at, "layers", step.layers)
        if step.constants is not None:
            self._entry(self._executable.constants, step.constants, at, "constants")
        for access in (*step.reads, step.writes):
            tensor = self._access(access, at)
            # Kernels see planar tensors as arrays.
            is_whole = tensor.serves(access.region)
            self._must(is_whole, at, "region in several pieces", str(access.region))

    def _constant(self, constant: ex.Constant, at: str) -> None:
        constants = self._executable.constants
        names = self._entry(constants, constant.constants, at, "constants").names
        is_known = names is None or constant.name in names
        self._must(is_known, at, "name of a constant", constant.name)

    def _net(self, net: ex.Net, at: str) -> None:
        for layer in net.layers:
            if layer.constants is not None:
                self._entry(self._executable.constants, layer.constants, at, "constants")
        for access in (*net.reads, *net.writes):
            self._on_cpu(access, at)
        if isinstance(net, ex.OnnxNet):
            self._constant(net.model, at)
            for binding in (*net.inputs, *net.outputs):
                size = self._shape(binding.access).elements
                self._must(prod(binding.sizes) == size, at, "sizes", binding.sizes)
            return
        for part in net.parts:
            self._must(0 <= part.images.start < part.images.stop, at, "images", part.images)
            for _, value in (*part.inputs, *part.outputs):
                self._entry(net.values, value, at, "value")
            for constant in part.weights:
                self._constant(constant, at)
            for option in part.options:
                self._match(NET_OPTIONS, option, at, "option")
        for value, access in (*net.inputs, *net.outputs):
            expected = ex.NetValue(self._executable.tensors[access.tensor].name, access.region)
            is_alike = self._entry(net.values, value, at, "value") == expected
            self._must(is_alike, at, f"value where there is {expected}", net.values[value])

    # Commands.

    def _command(self, command: ex.Command, at: str) -> None:
        executable = self._executable
        if (step := getattr(command, "step", None)) is not None:
            self._entry(executable.steps, step, at, "step")
        if isinstance(command, ex.Launch):
            self._launch(command, at)
        elif isinstance(command, ex.RunNet):
            net: ex.Net = self._entry(executable.nets, command.net, at, "net")
            for access in (*net.reads, *net.writes):
                self._on_cpu(access, at, by=command)
        elif isinstance(command, ex.Copy):
            self._on_cpu(command.source, at, by=command)
            self._on_cpu(command.target, at, by=command)
            self._moves(command.source, command.target, at)
        elif isinstance(command, ex.Fill):
            self._constant(command.constant, at)
            self._on_cpu(command.target, at, by=command)
        elif isinstance(command, ex.Map | ex.Unmap):
            place = self._entry(executable.buffers, command.buffer, at, "buffer").place
            self._must(place == "staging", at, "place of what is mapped", place)
            is_right = (command.buffer in self._mapped) != isinstance(command, ex.Map)
            what = "buffer that is mapped already, or not yet"
            self._must(is_right, at, what, command.buffer)
            self._mapped ^= {command.buffer}
        elif isinstance(command, ex.Wait):
            what, is_coming = "event that nothing before signals", command.event in self._signalled
            self._must(is_coming, at, what, command.event)
            self._signalled.remove(command.event)
        if (event := getattr(command, "signals", None)) is not None:
            self._must(event not in self._signalled, at, "event that is signalled already", event)
            self._signalled.add(event)

    def _launch(self, launch: ex.Launch, at: str) -> None:
        name = launch.kernel
        program = self._entry(self._executable.programs, launch.program, at, "program")
        if (program.text, name) not in self._kernels:
            self._match(IDENTIFIER, name, at, "kernel")
            is_there = re.search(rf"\b{name}\b", self._executable.texts[program.text])
            self._must(is_there is not None, at, f"kernel that {program.name} has not", name)
            self._kernels.add((program.text, name))
        sizes, local = launch.global_size, launch.local_size
        is_sound = 1 <= len(sizes) <= 3 and all(0 < size < 1 << 31 for size in sizes)
        self._must(is_sound and prod(sizes) < MOST_WORK_ITEMS, at, "global size", sizes)
        if local is not None:
            divides = len(local) == len(sizes) and all(
                part > 0 and size % part == 0 for size, part in zip(sizes, local, strict=True)
            )
            self._must(divides, at, f"local size of {sizes}", local)
        for arg in launch.args:
            self._argument(arg, at)
        step = self._executable.steps[launch.step]
        if isinstance(step, ex.GpuOp):
            said = {(access.tensor, access.region) for access in (*step.reads, step.writes)}
            touched = {(a.tensor, a.region) for a in launch.args if isinstance(a, ex.Slice)}
            self._must(touched <= said, at, "regions that its step has not", touched - said)

    def _argument(self, arg: ex.Argument, at: str) -> None:
        if isinstance(arg, ex.Slice):
            # A region may begin with the lanes of its first block before its channels.
            tensor = self._access(ex.Access(arg.tensor, arg.region), at)
            lead = tensor.lead(arg.region)
            self._must(not lead, at, f"channels in front, in blocks of {tensor.block}", lead)
            self._must(0 <= arg.image < arg.region.images.size, at, "image", arg.image)
        elif isinstance(arg, ex.Constant):
            self._constant(arg, at)
        elif isinstance(arg, ex.Scratch):
            place = self._entry(self._executable.buffers, arg.buffer, at, "buffer").place
            self._must(place == "gpu", at, "place of scratch", place)
        elif isinstance(arg, int):
            self._must(-(1 << 31) <= arg < 1 << 31, at, "integer argument", arg)

    def _entry(self, entries: Any, key: int | str, at: str, what: str) -> Any:
        """The entry of a tuple or a dictionary; raises `CodlError` if there is none."""
        is_there = key in entries if isinstance(key, str) else 0 <= key < len(entries)
        self._must(is_there, at, what, key)
        return entries[key]

    def _match(self, pattern: re.Pattern[str], text: str, at: str, what: str) -> None:
        self._must(pattern.fullmatch(text) is not None, at, what, text)

    def _must(self, holds: bool, at: str, what: str, value: Any) -> None:
        if not holds:
            raise CodlError(f"The executable is not sound: {at}, {what}: {value!r}.")
