"""NumPy interpreter of executables, without any driver: plans and lowering are tested against it.

Ops are computed by their own references in float64 and stored as their tensors are. The queue's
work is done when it is enqueued; that no later time would give anything else is proved alongside.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from codl.errors import CodlError
from codl.ir.executable import (
    Access,
    Command,
    Copy,
    Executable,
    Fill,
    Flush,
    GpuOp,
    Launch,
    Map,
    NcnnNet,
    Net,
    NetLayer,
    Port,
    Raise,
    RunNet,
    Scratch,
    Slice,
    Step,
    Tensor,
    Unmap,
    Wait,
)
from codl.ir.executable_check import check
from codl.ir.op_text import parse
from codl.ir.ops.base import Array, Op, Weights
from codl.ir.ops.onnx_model import INPUT, OUTPUT, OnnxModel
from codl.ir.region import Region, Span
from codl.lower.onnx import MODEL
from codl.runtime.ordering import OrderError, Ordering

#: All bits set are not-a-number in float32 and in float16.
SPOILT = 0xFF


class SimulatedMemory:
    """Every buffer as bytes. What is read and written are regions, shaped nchw.

    `poisoned` memory begins as not-a-numbers, and to read one is an error: nothing was written
    there, or what was is lost. Otherwise it begins as zeros, as on a device.
    """

    def __init__(self, executable: Executable, *, poisoned: bool = False) -> None:
        self._tensors, self._is_poisoned = executable.tensors, poisoned
        try:
            self._bytes = [np.zeros(buffer.bytes, np.uint8) for buffer in executable.buffers]
        except MemoryError as error:
            total = sum(buffer.bytes for buffer in executable.buffers)
            raise CodlError(f"The buffers take {total:,} bytes, which are not there.") from error
        for number in range(len(self._bytes) if poisoned else 0):
            self.spoil(number)

    def read(self, access: Access, at: str) -> NDArray[np.float64]:
        """A region; raises `CodlError` with the place `at` where poisoned memory has nothing."""
        tensor = self._tensors[access.tensor]
        values = _elements(self._typed(tensor), tensor)[places(tensor, access.region)]
        ordered = np.ascontiguousarray(values.swapaxes(0, 1), np.float64)
        if self._is_poisoned and np.isnan(ordered).any():
            raise CodlError(f"{at} reads {tensor.name} ({access.region}): it was not all written.")
        return ordered

    def write(self, access: Access, values: NDArray[Any]) -> None:
        """Overwrite a region; the lanes beyond the last channel become zeros.

        Raises `CodlError` for another number of values.
        """
        tensor, region = self._tensors[access.tensor], access.region
        if np.size(values) != region.shape(tensor.shape).elements:
            raise CodlError(f"{np.size(values)} values are written to {tensor.name} ({region}).")
        elements = _elements(self._typed(tensor), tensor)
        shaped = np.asarray(values).reshape(region.shape(tensor.shape))
        with np.errstate(over="ignore"):  # as a device rounds to float16
            elements[places(tensor, region)] = shaped.swapaxes(0, 1)
        held = tensor.held.channels
        if region.channels.stop == held.stop:
            images, _, rows = region.within(tensor.held)
            beyond = slice(held.size % tensor.block or tensor.block, None)
            elements[slice(*images), -1, slice(*rows), :, beyond] = 0

    def view(self, number: int) -> Array:
        """All of a planar float32 tensor, in place."""
        tensor = self._tensors[number]
        view: Array = self._typed(tensor).reshape(tensor.held.shape(tensor.shape))
        return view

    def spoil(self, buffer: int) -> None:
        """What a buffer held is lost."""
        self._bytes[buffer][:] = SPOILT

    def _typed(self, tensor: Tensor) -> NDArray[Any]:
        """The elements of a tensor, one after the other."""
        typed: NDArray[Any] = self._bytes[tensor.buffer][: tensor.bytes].view(
            tensor.storage.element
        )
        return typed


def _elements(flat: NDArray[Any], tensor: Tensor) -> NDArray[Any]:
    """A tensor's elements as (images, blocks, rows, columns, lanes of a block), in place."""
    images, rows = tensor.held.images.size, tensor.held.rows.size
    if tensor.storage.layout == "image":
        texels = flat.reshape(images, rows, tensor.blocks, tensor.shape.w, tensor.block)
        elements: NDArray[Any] = texels.swapaxes(1, 2)
        return elements
    return flat.reshape(images, tensor.blocks, rows, tensor.shape.w, tensor.block)


def places(tensor: Tensor, region: Region) -> tuple[Any, ...]:
    """What takes a region from `_elements`, as (channels, images, rows, columns)."""
    images, channels, rows = region.within(tensor.held)
    at = np.arange(*channels)
    return slice(*images), at // tensor.block, slice(*rows), slice(None), at % tensor.block


Values = NDArray[np.float64]
#: By tensor, a region of it and what it holds.
Computed = dict[str, tuple[Region, Values]]
#: Of a tensor that is not there.
NOTHING, EMPTY = Region(Span(0, 0), Span(0, 0), Span(0, 0)), np.empty((0, 0, 0, 0))


class References:
    """Computes parts of one executable from values that were read."""

    def __init__(self, executable: Executable) -> None:
        self._executable = executable

    def step(self, step: GpuOp, inputs: Sequence[Values]) -> Values:
        """What a step writes; an op behind the first one gets its result, and the inputs left."""
        first, *others = (parse(text) for text in step.ops)
        count = len(first.inputs)
        result = self._compute(first, step.label, inputs[:count], step.constants)
        for op in others:
            result = self._compute(op, step.label, [result, *inputs[count:]], None)
        return result

    def net(self, net: Net, computed: Computed) -> Computed:
        """All that is computed when a net has run on what was `computed` before."""
        computed = dict(computed)
        for layer in net.layers:
            inputs = [self._part(layer, computed, *pair) for pair in layer.inputs]
            op = parse(layer.op)
            if isinstance(op, OnnxModel) and layer.constants is not None:
                constants = self._executable.constants[layer.constants]
                op = replace(op, model=constants.arrays()[MODEL].tobytes())
            value = self._compute(op, layer.name, inputs, layer.constants)
            computed[layer.output] = layer.region, value
        return computed

    def _part(self, layer: NetLayer, computed: Computed, tensor: str, region: Region) -> Values:
        held, values = computed.get(tensor, (NOTHING, EMPTY))
        if not held.covers(region):
            raise CodlError(
                f"The layer {layer.name!r} of a net reads {tensor} ({region}); there is {held}."
            )
        return values[region.within(held).slices]

    def _compute(
        self, op: Op, label: str, inputs: Sequence[Values], constants: int | None
    ) -> Values:
        if len(inputs) != len(op.inputs):
            raise CodlError(f"{label!r} reads {len(inputs)} regions, its op {len(op.inputs)}.")
        shaped = [value.reshape(shape) for value, shape in zip(inputs, op.inputs, strict=True)]
        if isinstance(op, OnnxModel):
            return _by_onnx_runtime(op, shaped)
        return op.reference(shaped, self._weights(op, label, constants))

    def _weights(self, op: Op, label: str, constants: int | None) -> Weights:
        if not op.weight_shapes:
            return {}
        weights = None if constants is None else self._executable.constants[constants].weights
        if weights is None:
            raise CodlError(
                f"The weights of {label!r} are only there as kernels and libraries take them, as "
                "in every executable that was read from a file. Interpret one that `codl.lower` "
                "makes of the network and its plan."
            )
        sizes = {name: value.shape for name, value in weights.items()}
        if sizes != op.weight_shapes:
            raise CodlError(f"The weights of {label!r} must be {op.weight_shapes}, got {sizes}.")
        return weights


def _by_onnx_runtime(op: OnnxModel, inputs: Sequence[Values]) -> Values:
    """Nodes that codl has no op for, as they stand; ONNX's own reference lacks some of them."""
    # Interpreting an executable without such nodes needs no library.
    import onnx

    from codl.frontend.graph.integer_products import reference_session
    from codl.frontend.graph.weights import Model

    feeds = {
        f"{INPUT}{index}": np.asarray(value.reshape(sizes), np.float32)
        for index, (value, sizes) in enumerate(zip(inputs, op.shapes, strict=True))
    }
    session = reference_session(Model(onnx.load_from_string(op.model), {}))
    (made,) = session.run([OUTPUT], feeds)
    return np.asarray(made, np.float64).reshape(op.output)


#: Commands with their places in the executable.
Placed: TypeAlias = tuple[str, Command]


class Interpreter:
    """Runs one executable in NumPy.

    `inputs` and `outputs` are the arrays of the network's inputs and outputs, by name: fill the
    former, `run`, and read the latter before the next run. With `poisoned` memory begins as
    not-a-numbers, and to read what was not written is an error. Raises `CodlError` for an
    executable that is not sound or has no weights as its ops have them, and `OrderError` where its
    commands race.
    """

    def __init__(self, executable: Executable, *, poisoned: bool = False) -> None:
        check(executable)
        self.executable = executable
        self._memory = SimulatedMemory(executable, poisoned=poisoned)
        self._order = Ordering(executable)
        self._references = References(executable)
        self._interpret(executable.setup, "setup")
        self.inputs = self._arrays(executable.inputs)
        self.outputs = self._arrays(executable.outputs)

    def run(self) -> None:
        """One inference from what `inputs` hold."""
        self._caller_uses(self.executable.inputs, writes=True)
        for number, stage in enumerate(self.executable.stages):
            self._interpret(stage.commands, f"stages[{number}].commands")
        self._caller_uses(self.executable.outputs, writes=False)

    def _arrays(self, ports: Mapping[str, Port]) -> dict[str, Array]:
        views = {name: self._memory.view(port.tensor) for name, port in ports.items()}
        return {name: view.reshape(ports[name].shape) for name, view in views.items()}

    def _caller_uses(self, ports: Mapping[str, Port], *, writes: bool) -> None:
        """Whoever runs this fills inputs before a run, and reads outputs behind it."""
        self._order.at = "the caller"
        for port in ports.values():
            held = self.executable.tensors[port.tensor].held
            self._order.cpu_uses(Access(port.tensor, held), writes=writes)

    def _interpret(self, commands: Sequence[Command], where: str) -> None:
        placed = [
            (f"{where}[{number}] ({describe(command, self.executable)})", command)
            for number, command in enumerate(commands)
        ]
        # By the step that they launch a kernel of; None of other commands.
        steps = groupby(placed, lambda pair: pair[1].step if isinstance(pair[1], Launch) else None)
        for step, group in steps:
            if step is None:
                for self._order.at, command in group:
                    self._on_cpu(command)
            else:
                self._launch(step, list(group))

    # What the CPU does, and what it enqueues by name.

    def _on_cpu(self, command: Command) -> None:
        if isinstance(command, RunNet):
            self._run_net(self.executable.nets[command.net])
        elif isinstance(command, Copy):
            self._cpu_writes(command.target, self._cpu_reads(command.source))
        elif isinstance(command, Fill):
            constants = self.executable.constants[command.constant.constants]
            self._cpu_writes(command.target, constants.arrays()[command.constant.name])
        elif isinstance(command, Wait):
            self._order.wait(command)
        elif isinstance(command, Map):
            self._order.map(command)
            if command.access == "write":  # what was there is not handed over
                self._memory.spoil(command.buffer)
        elif isinstance(command, Unmap):
            self._order.unmap(command)
        elif isinstance(command, Raise):
            self._order.enqueue(command.signals)
        else:
            assert isinstance(command, Flush)

    def _cpu_reads(self, access: Access) -> Any:
        self._order.cpu_uses(access, writes=False)
        return self._memory.read(access, self._order.at)

    def _cpu_writes(self, access: Access, values: Any) -> None:
        self._order.cpu_uses(access, writes=True)
        self._memory.write(access, values)

    def _run_net(self, net: Net) -> None:
        sides, tensors, computed = _ends(net), self.executable.tensors, Computed()
        for access in sides[0]:
            computed[tensors[access.tensor].name] = access.region, self._cpu_reads(access)
        computed = self._references.net(net, computed)
        for access in sides[1]:
            held, values = computed[tensors[access.tensor].name]
            self._cpu_writes(access, values[access.region.within(held).slices])

    # What the queue does.

    def _launch(self, number: int, group: Sequence[Placed]) -> None:
        """All launches of a step, one after the other: read, compute and write at once."""
        step = self.executable.steps[number]
        launches, reads, target = self._enqueue(step, group)
        values = [self._memory.read(access, self._order.at) for access in reads]
        self._spoil_memory_between(launches, [*reads, target])
        self._order.gpu_uses(target, writes=True)
        if isinstance(step, GpuOp):
            self._memory.write(target, self._references.step(step, values))
        else:
            self._memory.write(target, values[0])

    def _enqueue(
        self, step: Step, group: Sequence[Placed]
    ) -> tuple[list[Launch], tuple[Access, ...], Access]:
        """The launches of a step, and what they read and write; that they read is in order."""
        launches = [launch for _, launch in group if isinstance(launch, Launch)]
        for self._order.at, launch in zip((at for at, _ in group), launches, strict=True):
            self._order.enqueue(launch.signals)
        reads, target = self._accesses(step, launches)
        for access in reads:
            self._order.gpu_uses(access, writes=False)
        return launches, reads, target

    def _accesses(
        self, step: Step, launches: Sequence[Launch]
    ) -> tuple[tuple[Access, ...], Access]:
        """What a step's kernels read and write.

        An end of a transfer that no kernel touches is the CPU's copy from or to staging memory.
        """
        if isinstance(step, GpuOp):
            self._refuse_others(step, launches)
            return step.reads, step.writes
        tensors, buffers = self.executable.tensors, self.executable.buffers
        touched = {slice.tensor for slice in _slices(launches)}
        staged = [t for t in touched if buffers[tensors[t].buffer].place == "staging"]

        def in_staging(access: Access) -> Access:
            if access.tensor in touched:
                return access
            if len(staged) != 1 or not tensors[staged[0]].held.covers(access.region):
                name = tensors[access.tensor].name
                raise CodlError(f"{self._order.at}: no kernel touches {name} ({access.region}).")
            return Access(staged[0], access.region)

        return (in_staging(step.source),), in_staging(step.target)

    def _refuse_others(self, step: GpuOp, launches: Sequence[Launch]) -> None:
        """The kernels of an op touch what its step says, all of it, and nothing else."""
        said = {(access.tensor, access.region) for access in (*step.reads, step.writes)}
        touched = {(slice.tensor, slice.region) for slice in _slices(launches)}
        for tensor, region in said ^ touched:
            name = self.executable.tensors[tensor].name
            raise CodlError(
                f"{self._order.at}: of {name} ({region}) the step {step.label!r} and its kernels "
                "do not say the same."
            )

    def _spoil_memory_between(self, launches: Sequence[Launch], accesses: Sequence[Access]) -> None:
        """Scratch, and tensors on the way, hold something else afterwards.

        Neither they nor what is written may lie where the step's own tensors do.
        """
        tensors, used = self.executable.tensors, {access.tensor for access in accesses}
        ends = [tensors[access.tensor].buffer for access in accesses]
        between = {tensors[x.tensor].buffer for x in _slices(launches) if x.tensor not in used}
        between |= {
            arg.buffer for launch in launches for arg in launch.args if isinstance(arg, Scratch)
        }
        for buffer in between.intersection(ends) or {ends[-1]}.intersection(ends[:-1]):
            raise OrderError(f"{self._order.at} reads and overwrites buffers[{buffer}] at once.")
        for buffer in between:
            self._memory.spoil(buffer)


class _OrderWalk(Interpreter):
    """Follows the commands of an executable and computes nothing."""

    def __init__(self, executable: Executable) -> None:
        self.executable, self._order = executable, Ordering(executable)
        self._interpret(executable.setup, "setup")

    def _on_cpu(self, command: Command) -> None:
        if isinstance(command, Map):
            self._order.map(command)
        elif isinstance(command, Fill):
            self._order.cpu_uses(command.target, writes=True)
        elif isinstance(command, Copy):
            self._order.cpu_uses(command.source, writes=False)
            self._order.cpu_uses(command.target, writes=True)
        else:
            super()._on_cpu(command)

    def _run_net(self, net: Net) -> None:
        for writes, side in enumerate(_ends(net)):
            for access in side:
                self._order.cpu_uses(access, writes=bool(writes))

    def _launch(self, number: int, group: Sequence[Placed]) -> None:
        _, _, target = self._enqueue(self.executable.steps[number], group)
        self._order.gpu_uses(target, writes=True)


def check_order(executable: Executable) -> None:
    """Raise `OrderError` where two of its commands race, in one run or between two.

    Such outputs are right or wrong as time has it: no run shows that they are always right.
    """
    walk = _OrderWalk(executable)
    for _ in range(2):
        walk.run()


def _ends(net: Net) -> tuple[list[Access], list[Access]]:
    """What a net reads and what it writes."""
    if isinstance(net, NcnnNet):
        return [access for _, access in net.inputs], [access for _, access in net.outputs]
    return [binding.access for binding in net.inputs], [binding.access for binding in net.outputs]


def describe(command: Command, executable: Executable) -> str:
    """What a command is and what for, such as `launch of conv1`."""
    kind = type(command).__name__.lower()
    if isinstance(command, RunNet):
        return f"run of {executable.nets[command.net].label}"
    step: int | None = getattr(command, "step", None)
    return kind if step is None else f"{kind} of {executable.steps[step].label}"


def _slices(launches: Sequence[Launch]) -> Iterator[Slice]:
    for launch in launches:
        yield from (arg for arg in launch.args if isinstance(arg, Slice))
