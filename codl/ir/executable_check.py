"""What must hold of an executable before anything of it is allocated, built or run.

Whatever it says of memory stays inside that memory, every number refers to something that is
there, and programs are compiled with nothing but macros. Texts of ops can be read and have the
sizes that they get. Each flag has memory of its own, and one command that raises it. Tensors that
last from run to run are the caches that ops write. Of a tensor one layer is the producer, or the
caller.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from itertools import chain
from math import prod
from typing import Any

from codl.errors import CodlError
from codl.ir import executable as ex
from codl.ir.executable import FLAG_BYTES, VERSION, VERSIONS, Executable
from codl.ir.op_text import parse
from codl.ir.ops.base import Op
from codl.ir.region import Region, Shape

MAGIC = "7767517"
WORD = re.compile(r"[A-Za-z_]\w{0,200}")
#: `key=value`, of a number, or of several with their count in front.
PARAMETER = re.compile(r"(-?\d{1,5})=(-?[\d.]\S{0,40}(?:,-?[\d.]\S*)*)")
NUMBER = re.compile(r"-?(\d{1,10}|\d*\.\d+|\d+\.?\d*e[+-]?\d{1,2}|\d+\.\d*(e[+-]?\d{1,2})?)")
#: Keys of one number, and of several at `ARRAYS - key`, as ncnn has them.
KEYS, ARRAYS = 32, -23300


class UnfitError(Exception):
    """Of an op, a net's text or a flag: what does not fit, and its value."""


def check_text(text: str, inputs: Collection[str], outputs: Collection[str]) -> None:
    """Raise `UnfitError` unless every blob is made once, before what reads it, and read once.

    `inputs` are the blobs that are fed, each of which an Input layer makes, and `outputs` those
    that are taken out. Layers read no files, so any type will do: ncnn refuses what it has not.
    """
    lines = text.split("\n")
    if len(lines) < 4 or lines[0] != MAGIC or lines[-1]:
        raise UnfitError(f"a text that begins with {text[:20]!r}")
    layers = [line.split(" ") for line in lines[2:-1]]
    made: set[str] = set()
    fed: set[str] = set()
    reads: Counter[str] = Counter(outputs)
    for words in layers:
        sources, targets = _blobs(words)
        missing, twice = set(sources) - made, made.intersection(targets)
        if missing or twice or len(set(targets)) < len(targets):
            raise UnfitError(f"blobs of the layer {' '.join(words[:8])!r}")
        reads.update(sources)
        made.update(targets)
        if words[0] == "Input":
            fed.update(targets)
    if lines[1] != f"{len(layers)} {len(made)}":
        raise UnfitError(f"{len(layers)} layers and {len(made)} blobs are said {lines[1]!r}")
    if not set(inputs) == fed:
        raise UnfitError(f"inputs {sorted(fed)} that are fed {sorted(inputs)}")
    if not set(outputs) <= made:
        raise UnfitError(f"outputs {sorted(set(outputs) - made)}")
    if max(reads.values(), default=0) > 1:
        raise UnfitError(f"several readers of the blob {reads.most_common(1)[0][0]!r}")


def _blobs(words: list[str]) -> tuple[list[str], list[str]]:
    """The blobs that a layer reads and makes."""
    line = " ".join(words)[:80]
    if len(words) < 4 or not all(word.isdecimal() and len(word) < 6 for word in words[2:4]):
        raise UnfitError(f"the layer {line!r}")
    count, results = int(words[2]), int(words[3])
    names, parameters = words[4 : 4 + count + results], words[4 + count + results :]
    if len(names) < count + results or not all(WORD.fullmatch(n) for n in (*words[:2], *names)):
        raise UnfitError(f"names of the layer {line!r}")
    keys = [_key(parameter) for parameter in parameters]
    if len(set(keys)) < len(keys):
        raise UnfitError(f"parameters of the layer {line!r}")
    return names[:count], names[count:]


def _key(parameter: str) -> int:
    """The key of a parameter that ncnn can read."""
    match = PARAMETER.fullmatch(parameter)
    values = match[2].split(",") if match else []
    if match is None or not all(NUMBER.fullmatch(value) for value in values):
        raise UnfitError(f"the parameter {parameter[:40]!r}")
    key = int(match[1])
    is_array = key <= ARRAYS
    number = ARRAYS - key if is_array else key
    fits = values[0] == str(len(values) - 1) if is_array else len(values) == 1
    if not 0 <= number < KEYS or not fits:
        raise UnfitError(f"the parameter {parameter[:40]!r}")
    return number


#: An op's tensors have fewer elements, the padding of a window included.
MOST_ELEMENTS = 1 << 40


def check_step(texts: Sequence[str], reads: Sequence[Shape], writes: Shape) -> None:
    """A GPU's step: one op, or one and another that reads its result before the inputs left."""
    if not 1 <= len(texts) <= 2:
        raise UnfitError(f"{len(texts)} ops in one step")
    first, *others = (_parsed(text) for text in texts)
    count = len(first.inputs)
    _check_inputs(first, reads[:count])
    result = first.output
    for op in others:
        _check_inputs(op, [result, *reads[count:]])
        result = op.output
    if not others and count != len(reads):
        raise UnfitError(f"{len(reads)} regions are read by {texts[0]!r}")
    if result.elements != writes.elements:
        raise UnfitError(f"{writes} is written by {texts[-1]!r}")


def check_weight(text: str, name: str, packed: int) -> None:
    """An array of so many elements, packed for the kernels of an op, under the name of a weight.

    Kernels read all of a weight; packing adds elements to it and leaves out none.
    """
    wanted = prod(_parsed(text).weight_shapes.get(name, (0,)))
    if packed < wanted:
        raise UnfitError(f"{packed} elements of the {name} of {text!r}, which has {wanted}")


def check_layers(
    layers: Sequence[ex.NetLayer], inputs: Mapping[str, tuple[Region, Shape]]
) -> dict[str, tuple[Region, Shape]]:
    """The layers of a net in order, of what enters; returns the regions of all that is there.

    Regions come with the shapes of their tensors, of which the width alone counts.
    """
    values = dict(inputs)
    for layer in layers:
        op, shapes = _parsed(layer.op), []
        for name, region in layer.inputs:
            if name not in values or not values[name][0].covers(region) or region.is_empty:
                raise UnfitError(f"{layer.name!r} reads {name} ({region}), which is not there")
            shapes.append(region.shape(values[name][1]))
        _check_inputs(op, shapes)
        if layer.region.shape(op.output) != op.output:
            raise UnfitError(f"{layer.region} is written by {layer.op!r}")
        if layer.output in values:
            raise UnfitError(f"{layer.name!r} makes {layer.output!r}, which is there already")
        values[layer.output] = layer.region, op.output
    return values


def _parsed(text: str) -> Op:
    """An op that can be computed: whatever its text does to arithmetic is told as a problem."""
    try:
        op = parse(text)
        sizes = [prod(shape) for shape in (*op.inputs, op.output, *op.weight_shapes.values())]
        pad = getattr(op, "pad", ())
        padded = [(shape.h + sum(pad)) * (shape.w + sum(pad)) for shape in op.inputs]
    except CodlError as error:
        raise UnfitError(str(error)) from error
    except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise UnfitError(f"the op {text!r} cannot be computed ({error!r})") from error
    if max(*sizes, *padded) >= MOST_ELEMENTS or min(pad, default=0) < 0:
        raise UnfitError(f"the sizes of {text!r}")
    return op


def _check_inputs(op: Op, shapes: Sequence[Shape]) -> None:
    sizes = [shape.elements for shape in shapes], [shape.elements for shape in op.inputs]
    if sizes[0] != sizes[1]:
        raise UnfitError(f"{sizes[0]} elements are read by an op {op.kind} of {sizes[1]}")


def check_flags(executable: Executable) -> None:
    """Raise `UnfitError` with what does not hold, and its value."""
    flags = {n: buffer for n, buffer in enumerate(executable.buffers) if buffer.place == "flag"}
    raised = [command.buffer for command in executable.commands if isinstance(command, ex.Raise)]
    if executable.version not in VERSIONS or (flags and executable.version == VERSION):
        raise UnfitError(f"flags in an executable of version {executable.version}")
    if any(isinstance(command, ex.Raise) for command in executable.setup):
        raise UnfitError("a flag that is raised once, in the setup")
    for number, buffer in flags.items():
        if buffer.bytes != FLAG_BYTES:
            raise UnfitError(f"buffers[{number}], a flag of {buffer.bytes} bytes")
    for number in raised:
        if number not in flags or raised.count(number) > 1:
            raise UnfitError(f"buffers[{number}] is raised, which is no flag, or another's")
    for place, tensor in enumerate(executable.tensors):
        if tensor.buffer in flags:
            raise UnfitError(f"tensors[{place}] lies in a flag, buffers[{tensor.buffer}]")


def check_producers(executable: Executable) -> None:
    """Raise `UnfitError` with a tensor that two layers make, or a layer and the caller.

    Where kernels are measured alone, the caller says what an output holds before.
    """
    tensors, ends = executable.tensors, {port.tensor for port in executable.outputs.values()}
    makers: dict[str, str | None] = {}
    for port in executable.inputs.values():
        if 0 <= port.tensor < len(tensors) and port.tensor not in ends:
            makers[tensors[port.tensor].name] = None
    made = [(tensors[step.writes.tensor].name, step.layers[-1])
            for step in executable.steps if isinstance(step, ex.GpuOp)]  # fmt: skip
    made += [(layer.output, layer.name) for net in executable.nets for layer in net.layers]
    for tensor, layer in made:
        other = makers.setdefault(tensor, layer)
        if other != layer:
            others = "the caller gives it" if other is None else f"so does {other!r}"
            raise UnfitError(f"{layer!r} makes {tensor!r}, and {others}")


#: The options that a program may be compiled with: a version of OpenCL C, and macros.
OPTIONS = re.compile(r"-cl-std=CL\d\.\d( -D[A-Za-z_]\w*(=[\w.()+-]*)?)*")
IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
#: Sizes of memory and of tensors are below this, so that no sum of a few overflows anything.
MOST_BYTES = 1 << 48
#: Work-items of one kernel are fewer, and commands and whatever else there are lists of.
MOST_WORK_ITEMS, MOST_ENTRIES = 1 << 40, 1 << 22
#: The files of programs, also of other packages, and NumPy's names of the types that callers see.
SOURCE = re.compile(r"(\w+(\.\w+)*:)?\w+(/\w+)*\.cl")
TYPES = re.compile(r"bool|float(16|32|64)|u?int(8|16|32|64)")
#: ncnn's options that a net may set.
NET_OPTIONS = re.compile(r"use_\w+")


class Checker:
    """Checks one executable; every refusal names the place, the value and the rule."""

    def __init__(self, executable: Executable) -> None:
        self._executable = executable
        #: Texts of programs, and the names in them that kernels are known to have.
        self._kernels: set[tuple[str, str]] = set()
        #: The staging buffers that are mapped at a point.
        self._mapped: set[int] = set()
        #: The events that are signalled and not yet waited for.
        self._signalled: set[int] = set()

    def check(self) -> None:
        executable = self._executable
        # Sums of what is checked one by one below.
        total = sum(buffer.bytes for buffer in executable.buffers)
        self._that(total < MOST_BYTES, "buffers", "bytes of all", total)
        count = len(executable.setup) + sum(len(stage.commands) for stage in executable.stages)
        self._that(count < MOST_ENTRIES, "stages", "commands of all", count)
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
            self._program(program, f"programs[{number}]")
        with self._fitting("flags", "what they are"):
            check_flags(executable)
        for number, step in enumerate(executable.steps):
            self._step(step, f"steps[{number}]")
        for number, net in enumerate(executable.nets):
            self._net(net, f"nets[{number}]")
        with self._fitting("tensors", "two producers"):
            check_producers(executable)
        self._commands(executable.setup, "setup")
        before, signalled = set(self._mapped), set(self._signalled)
        for number, stage in enumerate(executable.stages):
            self._commands(stage.commands, f"stages[{number}].commands")
        self._that(self._mapped == before, "stages", "mapped buffers at the end", self._mapped)
        is_alike = self._signalled == signalled
        self._that(is_alike, "stages", "events that nothing waited for", self._signalled)
        for name, port in (*executable.inputs.items(), *executable.outputs.items()):
            self._port(port.tensor, port.shape, f"the port {name!r}")
            is_known = TYPES.fullmatch(port.type) is not None
            self._that(is_known, f"the port {name!r}", "type", port.type)

    @contextmanager
    def _fitting(self, at: str, what: str) -> Iterator[None]:
        """Names the place of an `UnfitError`."""
        try:
            yield
        except UnfitError as error:
            self._that(False, at, what, str(error))

    # Memory.

    def _tensor(self, tensor: ex.Tensor, at: str) -> None:
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

    def _access(self, access: ex.Access, at: str, *, on_cpu: bool = False) -> None:
        tensors = self._executable.tensors
        self._that(0 <= access.tensor < len(tensors), at, "tensor", access.tensor)
        tensor = tensors[access.tensor]
        self._region(access.region, tensor.held, at)
        if on_cpu:
            place = self._buffer(access).place
            self._that(place != "gpu", at, "place of memory that the CPU uses", place)

    def _port(self, tensor: int, shape: Sequence[int], at: str) -> None:
        tensors = self._executable.tensors
        self._that(0 <= tensor < len(tensors), at, "tensor", tensor)
        held = tensors[tensor]
        self._access(ex.Access(tensor, held.held), at, on_cpu=True)
        self._that(prod(shape) == held.held.shape(held.shape).elements, at, "shape", shape)

    # Programs, steps and nets.

    def _program(self, program: ex.Program, at: str) -> None:
        source = self._executable.texts.get(program.text)
        self._that(source is not None, at, "digest of a text that is not there", program.text)
        digest = sha256((source or "").encode(errors="replace")).hexdigest()
        self._that(digest == program.text, at, "digest of the text", program.text)
        self._that(OPTIONS.fullmatch(program.options) is not None, at, "options", program.options)
        self._that(SOURCE.fullmatch(program.name) is not None, at, "name", program.name)

    def _step(self, step: ex.Step, at: str) -> None:
        if not isinstance(step, ex.GpuOp):
            self._access(step.source, at)
            self._access(step.target, at)
            shapes = self._shape(step.source), self._shape(step.target)
            self._that(shapes[0] == shapes[1], at, f"shape moved to {shapes[1]}", shapes[0])
            return
        for access in (*step.reads, step.writes):
            self._access(access, at)
        if step.constants is not None:
            self._constants(step.constants, at)
        self._that(len(step.layers) == len(step.ops), at, "layers", step.layers)
        with self._fitting(at, "ops that do not fit"):
            check_step(step.ops, [*map(self._shape, step.reads)], self._shape(step.writes))
            for access in (*step.reads, step.writes):
                tensor = self._executable.tensors[access.tensor]
                if not tensor.serves(access.region):  # kernels see planar tensors as arrays
                    pieces = f"{tensor.name} ({access.region}) lies in several pieces"
                    raise UnfitError(f"{pieces} for {step.ops[0]!r}")

    def _constants(self, number: int, at: str) -> None:
        self._that(0 <= number < len(self._executable.constants), at, "constants", number)

    def _constant(self, constant: ex.Constant, at: str) -> None:
        self._constants(constant.constants, at)
        names = self._executable.constants[constant.constants].names
        is_known = names is None or constant.name in names
        self._that(is_known, at, "name of a constant", constant.name)

    def _net(self, net: ex.Net, at: str) -> None:
        for layer in net.layers:
            if layer.constants is not None:
                self._constants(layer.constants, at)
        self._layers(net, at)
        if isinstance(net, ex.OnnxNet):
            self._constant(net.model, at)
            for binding in (*net.inputs, *net.outputs):
                self._access(binding.access, at, on_cpu=True)
                size = prod(self._shape(binding.access))
                self._that(prod(binding.sizes) == size, at, "sizes", binding.sizes)
        else:
            self._ncnn(net, at)

    def _layers(self, net: ex.Net, at: str) -> None:
        """The layers compute the net's outputs from its inputs."""
        inputs, outputs = _sides(net)
        for access in (*inputs, *outputs):
            self._access(access, at, on_cpu=True)
        tensors = self._executable.tensors
        entering = {tensors[a.tensor].name: (a.region, tensors[a.tensor].shape) for a in inputs}
        self._that(len(entering) == len(inputs), at, "inputs of one tensor", list(entering))
        with self._fitting(at, "layers that do not fit"):
            values = check_layers(net.layers, entering)
        for access in outputs:
            tensor = tensors[access.tensor]
            region, shape = values.get(tensor.name, (None, None))
            is_made = region is not None and region.covers(access.region)
            is_made = is_made and shape is not None and shape.w == tensor.shape.w
            self._that(is_made, at, "output that no layer computes", tensor.name)

    def _shape(self, access: ex.Access) -> Shape:
        return access.region.shape(self._executable.tensors[access.tensor].shape)

    def _ncnn(self, net: ex.NcnnNet, at: str) -> None:
        count, made = len(net.values), {value for value, _ in net.inputs}
        for value, access in (*net.inputs, *net.outputs):
            self._that(0 <= value < count, at, "value", value)
            self._access(access, at, on_cpu=True)
            images = (net.values[value].region.images, access.region.images)
            self._that(images[0] == images[1], at, "images of a value", images)
        self._that(set(net.copied) <= made, at, "copied values", net.copied)
        self._that(len(net.parts) > 0, at, "parts", 0)
        for part in net.parts:
            self._that(0 <= part.images.start < part.images.stop, at, "images", part.images)
            for _, value in part.inputs:
                self._that(value in made, at, "value that is read before it is there", value)
                held = net.values[value].region.images
                is_there = held.size == 1 or (
                    held.start <= part.images.start and part.images.stop <= held.stop
                )
                self._that(is_there, at, "images of a value", held)
            for _, value in part.outputs:
                self._that(0 <= value < count, at, "value", value)
                made.add(value)
            for constant in part.weights:
                self._constant(constant, at)
            with self._fitting(at, "text of a net"):
                check_text(part.param, [b for b, _ in part.inputs], [b for b, _ in part.outputs])
            for option in part.options:
                self._that(NET_OPTIONS.fullmatch(option) is not None, at, "option", option)
        for value, access in (*net.inputs, *net.outputs):
            expected = ex.NetValue(self._executable.tensors[access.tensor].name, access.region)
            is_alike = net.values[value] == expected
            self._that(is_alike, at, f"value where there is {expected}", net.values[value])
        missing = [value for value, _ in net.outputs if value not in made]
        self._that(not missing, at, "outputs that no part computes", missing)

    # Commands.

    def _commands(self, commands: Sequence[ex.Command], at: str) -> None:
        for number, command in enumerate(commands):
            self._command(command, f"{at}[{number}]")

    def _command(self, command: ex.Command, at: str) -> None:
        executable = self._executable
        step = getattr(command, "step", None)
        if step is not None:
            self._that(0 <= step < len(executable.steps), at, "step", step)
        if isinstance(command, ex.Launch):
            self._launch(command, at)
        elif isinstance(command, ex.Raise):
            self._runs(command, at)
            self._signal(command.signals, at)
        elif isinstance(command, ex.RunNet):
            self._that(0 <= command.net < len(executable.nets), at, "net", command.net)
            for access in chain(*_sides(executable.nets[command.net])):
                # Nets are bound to memory that stays where it is.
                place = self._buffer(access).place
                self._that(place != "staging", at, "place of what a net uses", place)
        elif isinstance(command, ex.Copy):
            for access in (command.source, command.target):
                self._access(access, at, on_cpu=True)
                self._is_mapped(access, at)
            shapes = self._shape(command.source), self._shape(command.target)
            self._that(shapes[0] == shapes[1], at, f"shape copied to {shapes[1]}", shapes[0])
        elif isinstance(command, ex.Fill):
            self._constant(command.constant, at)
            self._access(command.target, at, on_cpu=True)
            self._is_mapped(command.target, at)
        elif isinstance(command, ex.Map | ex.Unmap):
            self._map(command, at)
        elif isinstance(command, ex.Wait):
            is_coming = command.event in self._signalled
            self._that(is_coming, at, "event that nothing before signals", command.event)
            self._signalled.remove(command.event)

    def _signal(self, event: int, at: str) -> None:
        self._that(event not in self._signalled, at, "event that is signalled already", event)
        self._signalled.add(event)

    def _launch(self, launch: ex.Launch, at: str) -> None:
        self._runs(launch, at)
        sizes, local = launch.global_size, launch.local_size
        is_sound = 1 <= len(sizes) <= 3 and all(0 < size < 1 << 31 for size in sizes)
        self._that(is_sound and prod(sizes) < MOST_WORK_ITEMS, at, "global size", sizes)
        if local is not None:
            divides = len(local) == len(sizes) and all(
                part > 0 and size % part == 0 for size, part in zip(sizes, local, strict=True)
            )
            self._that(divides, at, f"local size of {sizes}", local)
        for arg in launch.args:
            self._argument(arg, at)
        self._touches(launch, at)
        if launch.signals is not None:
            self._signal(launch.signals, at)

    def _runs(self, command: ex.Launch | ex.Raise, at: str) -> None:
        """The program and the kernel that a command runs."""
        programs, name = self._executable.programs, command.kernel
        self._that(0 <= command.program < len(programs), at, "program", command.program)
        self._that(IDENTIFIER.fullmatch(name) is not None, at, "kernel", name)
        program = programs[command.program]
        if (program.text, name) not in self._kernels:
            is_there = re.search(rf"\b{name}\b", self._executable.texts[program.text])
            self._that(is_there is not None, at, f"kernel that {program.name} has not", name)
            self._kernels.add((program.text, name))

    def _touches(self, launch: ex.Launch, at: str) -> None:
        """The kernels of an op read and write what its step says."""
        step = self._executable.steps[launch.step]
        if isinstance(step, ex.GpuOp):
            said = {(access.tensor, access.region) for access in (*step.reads, step.writes)}
            touched = {(a.tensor, a.region) for a in launch.args if isinstance(a, ex.Slice)}
            self._that(touched <= said, at, "regions that its step has not", touched - said)

    def _argument(self, arg: ex.Argument, at: str) -> None:
        if isinstance(arg, ex.Slice):
            tensors = self._executable.tensors
            self._that(0 <= arg.tensor < len(tensors), at, "tensor", arg.tensor)
            tensor = tensors[arg.tensor]
            first = arg.region.channels.start
            # A region may begin with the lanes of its first block that lie before it.
            self._region(arg.region, tensor.held, at)
            is_block = (first - tensor.held.channels.start) % tensor.block == 0
            self._that(is_block, at, f"first channel in blocks of {tensor.block}", first)
            self._that(0 <= arg.image < arg.region.images.size, at, "image", arg.image)
        elif isinstance(arg, ex.Constant):
            self._constant(arg, at)
        elif isinstance(arg, ex.Scratch):
            buffers = self._executable.buffers
            self._that(0 <= arg.buffer < len(buffers), at, "buffer", arg.buffer)
            place = buffers[arg.buffer].place
            self._that(place == "gpu", at, "place of scratch", place)
        elif isinstance(arg, int):
            self._that(-(1 << 31) <= arg < 1 << 31, at, "integer argument", arg)

    def _map(self, command: ex.Map | ex.Unmap, at: str) -> None:
        buffers = self._executable.buffers
        self._that(0 <= command.buffer < len(buffers), at, "buffer", command.buffer)
        place, is_map = buffers[command.buffer].place, isinstance(command, ex.Map)
        self._that(place == "staging", at, "place of what is mapped", place)
        is_mapped = command.buffer in self._mapped
        self._that(is_mapped != is_map, at, "buffer that is mapped already, or not yet",
                   command.buffer)  # fmt: skip
        self._mapped ^= {command.buffer}
        if isinstance(command, ex.Map):
            self._signal(command.signals, at)

    def _is_mapped(self, access: ex.Access, at: str) -> None:
        if self._buffer(access).place == "staging":
            number = self._executable.tensors[access.tensor].buffer
            self._that(number in self._mapped, at, "buffer that is not mapped", number)

    def _buffer(self, access: ex.Access) -> ex.Buffer:
        """The memory that a region lies in."""
        return self._executable.buffers[self._executable.tensors[access.tensor].buffer]

    def _that(self, holds: bool, at: str, what: str, value: Any) -> None:
        if not holds:
            raise CodlError(f"The executable is not sound: {at}, {what}: {value!r}.")


def _sides(net: ex.Net) -> tuple[list[ex.Access], list[ex.Access]]:
    """Where what a net reads lies, and what it writes."""
    if isinstance(net, ex.NcnnNet):
        return [access for _, access in net.inputs], [access for _, access in net.outputs]
    return [binding.access for binding in net.inputs], [binding.access for binding in net.outputs]


def check(executable: Executable) -> None:
    """Raise `CodlError` with the place, the rule and the value where an executable is not sound."""
    Checker(executable).check()
