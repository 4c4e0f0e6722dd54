"""NumPy interpreter of executables, the reference for plans and lowering; needs no driver.

Ops are computed by their references in float64 and stored in the types of their tensors. Enqueued
work runs at once; `Ordering` proves that no later time would change a result.

An enqueued command may run at any time until the CPU has waited for an event at or after it. The
order of accesses to memory of both processors must hold for any such time. The event of an
overwriting map means that the memory is mapped, and nothing about earlier commands: an NVIDIA
driver (580.159) signals it while earlier kernels still read the memory.
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
    Net,
    NetLayer,
    Port,
    RunNet,
    Scratch,
    Slice,
    Step,
    Tensor,
    Unmap,
    Wait,
)
from codl.ir.executable_json import check
from codl.ir.op_text import parse
from codl.ir.ops.base import Array, Op, Weights
from codl.ir.ops.onnx_model import OnnxModel
from codl.ir.region import Region, Span
from codl.lower.onnx import MODEL

#: Byte value that makes a NaN in both float32 and float16.
SPOILT = 0xFF


class SimulatedMemory:
    """Buffers as bytes, whose regions are read and written in NCHW shape.

    `poisoned` memory starts as NaN, and reading a NaN is an error: the place was not written, or
    its content was lost. Other memory starts as zeros, as on a device.
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
        """Read a region as float64; raises `CodlError` with `at` for unwritten poisoned memory."""
        tensor = self._tensors[access.tensor]
        values = _elements(self._typed(tensor), tensor)[places(tensor, access.region)]
        ordered = np.ascontiguousarray(values.swapaxes(0, 1), np.float64)
        if self._is_poisoned and np.isnan(ordered).any():
            raise CodlError(f"{at} reads {tensor.name} ({access.region}): it was not all written.")
        return ordered

    def write(self, access: Access, values: NDArray[Any]) -> None:
        """Write a region, with zeros beyond its last channel; `CodlError` for a wrong size."""
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
        """A planar float32 tensor, in place."""
        tensor = self._tensors[number]
        view: Array = self._typed(tensor).reshape(tensor.held.shape(tensor.shape))
        return view

    def spoil(self, buffer: int) -> None:
        """Fill a buffer with NaN."""
        self._bytes[buffer][:] = SPOILT

    def _typed(self, tensor: Tensor) -> NDArray[Any]:
        """The elements of a tensor in one dimension."""
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
    """Index of a region in `_elements`, as (channels, images, rows, columns)."""
    images, channels, rows = region.within(tensor.held)
    at = np.arange(*channels)
    return slice(*images), at // tensor.block, slice(*rows), slice(None), at % tensor.block


Values = NDArray[np.float64]
#: Computed region and values of each tensor, by name.
Computed = dict[str, tuple[Region, Values]]
#: Region and values of a missing tensor.
NOTHING, EMPTY = Region(Span(0, 0), Span(0, 0), Span(0, 0)), np.empty((0, 0, 0, 0))


#: Number of the last queue command that used each element of a buffer, from 1.
LastUse: TypeAlias = NDArray[np.int64]


class OrderError(CodlError):
    """Two commands race for memory, or a wait is for an event that nothing signals."""


class Ordering:
    """Follows the commands of an executable and refuses races; `at` is the present command."""

    def __init__(self, executable: Executable) -> None:
        self.at = "setup"
        self._executable = executable
        #: Places of the enqueued commands, and number of commands known to have finished.
        self._enqueued: list[str] = []
        self._done = 0
        #: Effects of waiting for signalled events: the number of finished commands, and the mapped
        #: buffer, if any.
        self._events: dict[int, tuple[int, int | None]] = {}
        #: Mapped staging buffers with the number of their map command; buffers whose map was waited
        #: for; and the last GPU command that used each buffer.
        self._mapped: dict[int, tuple[int, Map]] = {}
        self._arrived: set[int] = set()
        self._used: dict[int, int] = {}
        shared = {n: b.bytes // 4 for n, b in enumerate(executable.buffers) if b.place == "shared"}
        self._read = {number: np.zeros(size, np.int64) for number, size in shared.items()}
        self._written = {number: np.zeros(size, np.int64) for number, size in shared.items()}

    # Commands.

    def enqueue(self, signals: int | None = None) -> None:
        """Enqueue the present command."""
        self._enqueued.append(self.at)
        if signals is not None:
            self._events[signals] = len(self._enqueued), None

    def wait(self, command: Wait) -> None:
        event = self._events.pop(command.event, None)
        if event is None:
            raise OrderError(f"{self.at} waits for the event {command.event}: nothing signals it.")
        done, buffer = event
        self._done = max(self._done, done)
        if buffer is not None:
            self._arrived.add(buffer)

    def map(self, command: Map) -> None:
        if command.buffer in self._mapped:
            self._refuse_mapping(command.buffer, "it is mapped already")
        self.enqueue()
        done = len(self._enqueued) if command.access == "read" else 0
        self._events[command.signals] = done, command.buffer
        self._mapped[command.buffer] = len(self._enqueued), command

    def unmap(self, command: Unmap) -> None:
        self._seen(command.buffer)
        del self._mapped[command.buffer]
        self._arrived.discard(command.buffer)
        self.enqueue()

    # Memory.

    def cpu_uses(self, access: Access, *, writes: bool) -> None:
        """Record that the CPU reads or writes a region now."""
        buffer = self._executable.tensors[access.tensor].buffer
        place = self._executable.buffers[buffer].place
        if place == "gpu":
            raise OrderError(f"{self.at}: the CPU sees nothing of buffers[{buffer}], the GPU's.")
        if place == "staging":
            wanted = "write" if writes else "read"
            if self._seen(buffer).access != wanted:
                self._refuse_mapping(buffer, f"it is not mapped to {wanted} it")
            used = self._used.get(buffer, 0)
            if used > self._done:
                self._refuse_mapping(buffer, f"{self._enqueued[used - 1]} may still use it")
        elif place == "shared":
            self._check_done(self._written[buffer], access, "writes", writes=writes)
            if writes:
                self._check_done(self._read[buffer], access, "reads", writes=True)

    def gpu_uses(self, access: Access, *, writes: bool) -> None:
        """Record that the last enqueued command reads or writes a region."""
        buffer = self._executable.tensors[access.tensor].buffer
        place = self._executable.buffers[buffer].place
        if place == "cpu":
            raise OrderError(f"{self.at}: the GPU sees nothing of buffers[{buffer}], the CPU's.")
        if place == "staging" and buffer in self._mapped:
            self._refuse_mapping(buffer, "the GPU uses it while it is mapped")
        if place == "staging":
            self._used[buffer] = len(self._enqueued)
        if place == "shared":
            last = self._written if writes else self._read
            self._part(last[buffer], access)[:] = len(self._enqueued)

    def _seen(self, buffer: int) -> Map:
        """The map of a staging buffer that the CPU uses now; raises `OrderError` if not mapped."""
        if buffer not in self._mapped:
            self._refuse_mapping(buffer, "it is not mapped")
        since, command = self._mapped[buffer]
        if buffer not in self._arrived:
            self._refuse_mapping(buffer, f"nothing waited for {self._enqueued[since - 1]}")
        return command

    def _check_done(self, last: LastUse, access: Access, does: str, *, writes: bool) -> None:
        latest = int(self._part(last, access).max(initial=0))
        if latest > self._done:
            name = self._executable.tensors[access.tensor].name
            verb = "writes" if writes else "reads"
            raise OrderError(
                f"{self.at} {verb} {name} ({access.region}) on the CPU while "
                f"{self._enqueued[latest - 1]} {does} it on the GPU: no wait lies between."
            )

    def _part(self, last: LastUse, access: Access) -> LastUse:
        tensor = self._executable.tensors[access.tensor]
        held = tensor.held.shape(tensor.shape)
        whole = last[: held.elements].reshape(held)
        return whole[access.region.within(tensor.held).slices]

    def _refuse_mapping(self, buffer: int, problem: str) -> None:
        raise OrderError(f"{self.at}: the staging memory buffers[{buffer}]: {problem}.")


#: Commands with their places in the executable.
Placed: TypeAlias = tuple[str, Command]


class Interpreter:
    """Runs one executable in NumPy.

    `inputs` and `outputs` are the network's arrays by name: fill `inputs`, call `run`, and read
    `outputs` before the next run. With `poisoned`, reading unwritten memory is an error. Raises
    `CodlError` for an invalid executable or missing weights, and `OrderError` for racing commands.
    """

    def __init__(self, executable: Executable, *, poisoned: bool = False) -> None:
        check(executable)
        self.executable = executable
        self._memory = SimulatedMemory(executable, poisoned=poisoned)
        self._order = Ordering(executable)
        self._interpret(executable.setup, "setup")
        self.inputs = self._arrays(executable.inputs)
        self.outputs = self._arrays(executable.outputs)

    def run(self) -> None:
        """Run one inference on the content of `inputs`."""
        self._caller_uses(self.executable.inputs, writes=True)
        for number, stage in enumerate(self.executable.stages):
            self._interpret(stage.commands, f"stages[{number}].commands")
        self._caller_uses(self.executable.outputs, writes=False)

    def _arrays(self, ports: Mapping[str, Port]) -> dict[str, Array]:
        views = {name: self._memory.view(port.tensor) for name, port in ports.items()}
        return {name: view.reshape(ports[name].shape) for name, view in views.items()}

    def _caller_uses(self, ports: Mapping[str, Port], *, writes: bool) -> None:
        """Record that the caller writes inputs before a run, or reads outputs after it."""
        self._order.at = "the caller"
        for port in ports.values():
            held = self.executable.tensors[port.tensor].held
            self._order.cpu_uses(Access(port.tensor, held), writes=writes)

    def _interpret(self, commands: Sequence[Command], where: str) -> None:
        placed = [
            (f"{where}[{number}] ({describe(command, self.executable)})", command)
            for number, command in enumerate(commands)
        ]
        # Grouped by the step of a launch; None for other commands.
        steps = groupby(placed, lambda pair: pair[1].step if isinstance(pair[1], Launch) else None)
        for step, group in steps:
            if step is None:
                for self._order.at, command in group:
                    self._on_cpu(command)
            else:
                self._launch(step, list(group))

    # Commands of the CPU, and commands that it enqueues.

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
            if command.access == "write":  # the former content is not mapped
                self._memory.spoil(command.buffer)
        elif isinstance(command, Unmap):
            self._order.unmap(command)
        else:
            assert isinstance(command, Flush)

    def _cpu_reads(self, access: Access) -> Any:
        self._order.cpu_uses(access, writes=False)
        return self._memory.read(access, self._order.at)

    def _cpu_writes(self, access: Access, values: Any) -> None:
        self._order.cpu_uses(access, writes=True)
        self._memory.write(access, values)

    def _run_net(self, net: Net) -> None:
        tensors, computed = self.executable.tensors, Computed()
        for access in net.reads:
            computed[tensors[access.tensor].name] = access.region, self._cpu_reads(access)
        computed = self._net_values(net, computed)
        for access in net.writes:
            held, values = computed[tensors[access.tensor].name]
            self._cpu_writes(access, values[access.region.within(held).slices])

    # Commands of the queue.

    def _launch(self, number: int, group: Sequence[Placed]) -> None:
        """Execute the launches of a step: read, compute and write."""
        step = self.executable.steps[number]
        launches, reads, target = self._enqueue(step, group)
        values = [self._memory.read(access, self._order.at) for access in reads]
        self._spoil_memory_between(launches, [*reads, target])
        self._order.gpu_uses(target, writes=True)
        if isinstance(step, GpuOp):
            self._memory.write(target, self._step_values(step, values))
        else:
            self._memory.write(target, values[0])

    def _enqueue(
        self, step: Step, group: Sequence[Placed]
    ) -> tuple[list[Launch], tuple[Access, ...], Access]:
        """Enqueue the launches of a step; returns them with the step's reads and target."""
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
        """The reads and the target of a step's kernels.

        If no kernel uses one end of a transfer, the CPU copies it from or to staging memory.
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
        """Raise `CodlError` if the kernels of an op use other regions than its step."""
        said = {(access.tensor, access.region) for access in (*step.reads, step.writes)}
        touched = {(slice.tensor, slice.region) for slice in _slices(launches)}
        for tensor, region in said ^ touched:
            name = self.executable.tensors[tensor].name
            raise CodlError(
                f"{self._order.at}: of {name} ({region}) the step {step.label!r} and its kernels "
                "do not say the same."
            )

    def _spoil_memory_between(self, launches: Sequence[Launch], accesses: Sequence[Access]) -> None:
        """Spoil scratch memory, and tensors between a step's kernels.

        Raises `OrderError` if these, or the target, share memory with the step's inputs.
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

    # References.

    def _step_values(self, step: GpuOp, inputs: Sequence[Values]) -> Values:
        """The result of a step; ops after the first take its result and the remaining inputs."""
        first, *others = (parse(text) for text in step.ops)
        count = len(first.inputs)
        result = self._compute(first, step.label, inputs[:count], step.constants)
        for op in others:
            result = self._compute(op, step.label, [result, *inputs[count:]], None)
        return result

    def _net_values(self, net: Net, computed: Computed) -> Computed:
        """Values after a net, including the values in `computed`."""
        computed = dict(computed)
        for layer in net.layers:
            inputs = [self._part(layer, computed, *pair) for pair in layer.inputs]
            op = parse(layer.op)
            if isinstance(op, OnnxModel) and layer.constants is not None:
                constants = self.executable.constants[layer.constants]
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
        return op.reference(shaped, self._weights(op, label, constants))

    def _weights(self, op: Op, label: str, constants: int | None) -> Weights:
        if not op.weight_shapes:
            return {}
        weights = None if constants is None else self.executable.constants[constants].weights
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


class _OrderWalk(Interpreter):
    """Follows the commands of an executable without computing."""

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
        for access in net.reads:
            self._order.cpu_uses(access, writes=False)
        for access in net.writes:
            self._order.cpu_uses(access, writes=True)

    def _launch(self, number: int, group: Sequence[Placed]) -> None:
        _, _, target = self._enqueue(self.executable.steps[number], group)
        self._order.gpu_uses(target, writes=True)


def check_order(executable: Executable) -> None:
    """Raise `OrderError` if two commands race, in one run or between two.

    Outputs of racing commands depend on timing, so no run can show that they are right.
    """
    walk = _OrderWalk(executable)
    for _ in range(2):
        walk.run()


def describe(command: Command, executable: Executable) -> str:
    """Kind and object of a command, such as `launch of conv1`."""
    kind = type(command).__name__.lower()
    if isinstance(command, RunNet):
        return f"run of {executable.nets[command.net].label}"
    step: int | None = getattr(command, "step", None)
    return kind if step is None else f"{kind} of {executable.steps[step].label}"


def _slices(launches: Sequence[Launch]) -> Iterator[Slice]:
    for launch in launches:
        yield from (arg for arg in launch.args if isinstance(arg, Slice))
