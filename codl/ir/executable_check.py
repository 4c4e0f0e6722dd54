"""What must hold of an executable before anything of it is allocated, built or run.

Whatever it says of memory stays inside that memory, every number refers to something that is there,
and programs are compiled with nothing but macros.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from hashlib import sha256
from math import prod
from typing import Any

from codl.errors import CodlError
from codl.ir.executable import (
    Access,
    Argument,
    Command,
    Constant,
    Copy,
    Executable,
    Fill,
    GpuOp,
    Launch,
    Map,
    NcnnNet,
    Net,
    OnnxNet,
    RunNet,
    Scratch,
    Slice,
    Step,
    Unmap,
    Wait,
)
from codl.ir.region import Region, Shape
from codl.ir.tensor import Tensor

#: The options that a program may be compiled with: a version of OpenCL C, and macros.
OPTIONS = re.compile(r"-cl-std=CL\d\.\d( -D[A-Za-z_]\w*(=[\w.()+-]*)?)*")
IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
#: Sizes of memory and of tensors are below this, so that no sum of a few overflows anything.
MOST_BYTES = 1 << 48
#: ncnn's options that a net may set.
NET_OPTIONS = re.compile(r"use_\w+")


class Checker:
    """Checks one executable; every refusal names the place, the value and the rule."""

    def __init__(self, executable: Executable) -> None:
        self._executable = executable
        #: The staging buffers that are mapped at a point.
        self._mapped: set[int] = set()
        self._signalled: set[int] = set()

    def check(self) -> None:
        executable = self._executable
        for number, buffer in enumerate(executable.buffers):
            at = f"buffers[{number}]"
            self._that(0 <= buffer.bytes < MOST_BYTES, at, "bytes", buffer.bytes)
            if buffer.image is not None:
                image = buffer.image
                self._that(buffer.place == "gpu", at, "place of an image", buffer.place)
                sizes = (image.width, image.height)
                self._that(all(0 < size < 1 << 20 for size in sizes), at, "image size", sizes)
                self._that(image.bytes <= buffer.bytes, at, "bytes of an image", buffer.bytes)
        for number, tensor in enumerate(executable.tensors):
            self._tensor(tensor, f"tensors[{number}]")
        for number, program in enumerate(executable.programs):
            self._program(program.text, program.options, f"programs[{number}]")
        for number, step in enumerate(executable.steps):
            self._step(step, f"steps[{number}]")
        for number, net in enumerate(executable.nets):
            self._net(net, f"nets[{number}]")
        self._commands(executable.setup, "setup")
        before = set(self._mapped)
        for number, stage in enumerate(executable.stages):
            self._commands(stage.commands, f"stages[{number}].commands")
        self._that(self._mapped == before, "stages", "mapped buffers at the end", self._mapped)
        for name, port in (*executable.inputs.items(), *executable.outputs.items()):
            self._port(port.tensor, port.shape, f"the port {name!r}")

    # Memory.

    def _tensor(self, tensor: Tensor, at: str) -> None:
        buffers = self._executable.buffers
        self._that(0 <= tensor.buffer < len(buffers), at, "buffer", tensor.buffer)
        self._that(all(0 < size < 1 << 40 for size in tensor.shape), at, "shape", tensor.shape)
        self._that(0 < tensor.block <= 64, at, "block", tensor.block)
        self._region(tensor.held, Region.whole(tensor.shape), at)
        buffer = buffers[tensor.buffer]
        self._that(tensor.bytes <= buffer.bytes, at, f"{tensor.bytes} bytes in", buffer.bytes)
        is_image = tensor.storage.layout == "image"
        self._that(is_image == (buffer.image is not None), at, "storage", str(tensor.storage))
        if is_image:
            self._that(tensor.image_size == buffer.image, at, "image size", tensor.image_size)
        if buffer.place != "gpu":
            is_plain = tensor.block == 1 and str(tensor.storage) == "planar float32"
            self._that(is_plain, at, f"storage in {buffer.place} memory", str(tensor.storage))

    def _region(self, region: Region, outer: Region, at: str) -> None:
        is_inside = all(o.start <= r.start < r.stop <= o.stop
                        for r, o in zip(region, outer, strict=True))  # fmt: skip
        self._that(is_inside, at, f"region outside {outer}", str(region))

    def _access(self, access: Access, at: str, *, on_cpu: bool = False) -> None:
        tensors = self._executable.tensors
        self._that(0 <= access.tensor < len(tensors), at, "tensor", access.tensor)
        tensor = tensors[access.tensor]
        self._region(access.region, tensor.held, at)
        if on_cpu:
            place = self._executable.buffers[tensor.buffer].place
            self._that(place != "gpu", at, "place of memory that the CPU uses", place)

    def _port(self, tensor: int, shape: Sequence[int], at: str) -> None:
        tensors = self._executable.tensors
        self._that(0 <= tensor < len(tensors), at, "tensor", tensor)
        held = tensors[tensor]
        self._access(Access(tensor, held.held), at, on_cpu=True)
        self._that(prod(shape) == held.held.shape(held.shape).elements, at, "shape", shape)

    # Programs, steps and nets.

    def _program(self, text: str, options: str, at: str) -> None:
        source = self._executable.texts.get(text)
        self._that(source is not None, at, "digest of a text that is not there", text)
        own = sha256((source or "").encode()).hexdigest()
        self._that(own == text, at, "digest of the text", text)
        self._that(OPTIONS.fullmatch(options) is not None, at, "options", options)

    def _step(self, step: Step, at: str) -> None:
        if isinstance(step, GpuOp):
            for access in (*step.reads, step.writes):
                self._access(access, at)
            if step.constants is not None:
                self._constants(step.constants, at)
            is_alike = 0 < len(step.layers) == len(step.ops)
            self._that(is_alike, at, "layers", step.layers)
        else:
            self._access(step.source, at)
            self._access(step.target, at)

    def _constants(self, number: int, at: str) -> None:
        self._that(0 <= number < len(self._executable.constants), at, "constants", number)

    def _constant(self, constant: Constant, at: str) -> None:
        self._constants(constant.constants, at)
        names = self._executable.constants[constant.constants].names
        is_known = names is None or constant.name in names
        self._that(is_known, at, "name of a constant", constant.name)

    def _net(self, net: Net, at: str) -> None:
        for layer in net.layers:
            if layer.constants is not None:
                self._constants(layer.constants, at)
        if isinstance(net, OnnxNet):
            self._constant(net.model, at)
            for binding in (*net.inputs, *net.outputs):
                self._access(binding.access, at, on_cpu=True)
                size = prod(self._shape(binding.access))
                self._that(prod(binding.sizes) == size, at, "sizes", binding.sizes)
        else:
            self._ncnn(net, at)

    def _shape(self, access: Access) -> Shape:
        return access.region.shape(self._executable.tensors[access.tensor].shape)

    def _ncnn(self, net: NcnnNet, at: str) -> None:
        count, known = len(net.values), {value for value, _ in net.inputs}
        for value, access in (*net.inputs, *net.outputs):
            self._that(0 <= value < count, at, "value", value)
            self._access(access, at, on_cpu=True)
            images = (net.values[value].region.images, access.region.images)
            self._that(images[0] == images[1], at, "images of a value", images)
        self._that(set(net.copied) <= known, at, "copied values", net.copied)
        self._that(len(net.parts) > 0, at, "parts", 0)
        for part in net.parts:
            self._that(0 <= part.images.start < part.images.stop, at, "images", part.images)
            for _, value in part.inputs:
                self._that(value in known, at, "value that is read before it is there", value)
                own = net.values[value].region.images
                is_there = own.size == 1 or (
                    own.start <= part.images.start and part.images.stop <= own.stop
                )
                self._that(is_there, at, "images of a value", own)
            for _, value in part.outputs:
                self._that(0 <= value < count, at, "value", value)
                known.add(value)
            for constant in part.weights:
                self._constant(constant, at)
            for option in part.options:
                self._that(NET_OPTIONS.fullmatch(option) is not None, at, "option", option)
        missing = [value for value, _ in net.outputs if value not in known]
        self._that(not missing, at, "outputs that no part computes", missing)

    # Commands.

    def _commands(self, commands: Sequence[Command], at: str) -> None:
        for number, command in enumerate(commands):
            self._command(command, f"{at}[{number}]")

    def _command(self, command: Command, at: str) -> None:
        executable = self._executable
        step = getattr(command, "step", None)
        if step is not None:
            self._that(0 <= step < len(executable.steps), at, "step", step)
        if isinstance(command, Launch):
            self._launch(command, at)
        elif isinstance(command, RunNet):
            self._that(0 <= command.net < len(executable.nets), at, "net", command.net)
            self._nothing_mapped(_accesses(executable.nets[command.net]), at)
        elif isinstance(command, Copy):
            self._copy(command, at)
        elif isinstance(command, Fill):
            self._constant(command.constant, at)
            self._access(command.target, at, on_cpu=True)
            self._is_mapped(command.target, at)
        elif isinstance(command, Map | Unmap):
            self._map(command, at)
        elif isinstance(command, Wait):
            is_coming = command.event in self._signalled
            self._that(is_coming, at, "event that nothing before signals", command.event)

    def _launch(self, launch: Launch, at: str) -> None:
        programs = self._executable.programs
        self._that(0 <= launch.program < len(programs), at, "program", launch.program)
        self._that(IDENTIFIER.fullmatch(launch.kernel) is not None, at, "kernel", launch.kernel)
        sizes, local = launch.global_size, launch.local_size
        is_sound = 1 <= len(sizes) <= 3 and all(0 < size < 1 << 31 for size in sizes)
        self._that(is_sound, at, "global size", sizes)
        if local is not None:
            divides = len(local) == len(sizes) and all(
                own > 0 and size % own == 0 for size, own in zip(sizes, local, strict=True)
            )
            self._that(divides, at, f"local size of {sizes}", local)
        for arg in launch.args:
            self._argument(arg, at)
        if launch.signals is not None:
            self._signalled.add(launch.signals)

    def _argument(self, arg: Argument, at: str) -> None:
        if isinstance(arg, Slice):
            tensors = self._executable.tensors
            self._that(0 <= arg.tensor < len(tensors), at, "tensor", arg.tensor)
            tensor = tensors[arg.tensor]
            first = arg.region.channels.start
            # A region may begin with the lanes of its first block that lie before it.
            self._region(arg.region, tensor.held, at)
            is_block = (first - tensor.held.channels.start) % tensor.block == 0
            self._that(is_block, at, f"first channel in blocks of {tensor.block}", first)
            self._that(0 <= arg.image < arg.region.images.size, at, "image", arg.image)
        elif isinstance(arg, Constant):
            self._constant(arg, at)
        elif isinstance(arg, Scratch):
            buffers = self._executable.buffers
            self._that(0 <= arg.buffer < len(buffers), at, "buffer", arg.buffer)
            place = buffers[arg.buffer].place
            self._that(place == "gpu", at, "place of scratch", place)
        elif isinstance(arg, int):
            self._that(-(1 << 31) <= arg < 1 << 31, at, "integer argument", arg)

    def _copy(self, copy: Copy, at: str) -> None:
        for access in (copy.source, copy.target):
            self._access(access, at, on_cpu=True)
            self._is_mapped(access, at)
        shapes = self._shape(copy.source), self._shape(copy.target)
        self._that(shapes[0] == shapes[1], at, f"shape copied to {shapes[1]}", shapes[0])

    def _map(self, command: Map | Unmap, at: str) -> None:
        buffers = self._executable.buffers
        self._that(0 <= command.buffer < len(buffers), at, "buffer", command.buffer)
        place, is_map = buffers[command.buffer].place, isinstance(command, Map)
        self._that(place == "staging", at, "place of what is mapped", place)
        is_mapped = command.buffer in self._mapped
        self._that(is_mapped != is_map, at, "buffer that is mapped already, or not yet",
                   command.buffer)  # fmt: skip
        self._mapped ^= {command.buffer}
        if isinstance(command, Map):
            self._signalled.add(command.signals)

    def _is_mapped(self, access: Access, at: str) -> None:
        number = self._executable.tensors[access.tensor].buffer
        if self._executable.buffers[number].place == "staging":
            self._that(number in self._mapped, at, "buffer that is not mapped", number)

    def _nothing_mapped(self, accesses: Iterator[Access], at: str) -> None:
        """Nets are bound to memory that stays where it is."""
        for access in accesses:
            number = self._executable.tensors[access.tensor].buffer
            place = self._executable.buffers[number].place
            self._that(place != "staging", at, "place of what a net uses", place)

    def _that(self, holds: bool, at: str, what: str, value: Any) -> None:
        if not holds:
            raise CodlError(f"The executable is not sound: {at}, {what}: {value!r}.")


def _accesses(net: Net) -> Iterator[Access]:
    if isinstance(net, NcnnNet):
        yield from (access for _, access in (*net.inputs, *net.outputs))
    else:
        yield from (binding.access for binding in (*net.inputs, *net.outputs))


def check(executable: Executable) -> None:
    """Raise `CodlError` with the place, the rule and the value where an executable is not sound."""
    Checker(executable).check()
