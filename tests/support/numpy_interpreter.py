"""NumPy interpreter of executables, the reference for plans and lowering; needs no driver.

Ops are computed by their references in float64 and stored in the types of their tensors. Enqueued
work runs at once; `support.command_order` proves that no later time would change a result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codl.errors import CodlError
from codl.ir.executable import (
    Access,
    Command,
    Copy,
    Executable,
    Fill,
    GpuOp,
    Launch,
    Map,
    Net,
    NetLayer,
    Port,
    Scratch,
    Tensor,
)
from codl.ir.executable_json import check
from codl.ir.op_text import parse
from codl.ir.ops.base import Array, Op, Weights
from codl.ir.ops.onnx_model import OnnxModel
from codl.ir.region import Region, Span
from codl.lower.onnx import MODEL
from support.command_order import OrderError, OrderWalk, Placed, slices_of

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


class Interpreter(OrderWalk):
    """Runs one executable in NumPy.

    `inputs` and `outputs` are the network's arrays by name: fill `inputs`, call `run`, and read
    `outputs` before the next run. With `poisoned`, reading unwritten memory is an error. Raises
    `CodlError` for an invalid executable or missing weights, and `OrderError` for racing commands.
    """

    def __init__(self, executable: Executable, *, poisoned: bool = False) -> None:
        check(executable)
        self._memory = SimulatedMemory(executable, poisoned=poisoned)
        super().__init__(executable)
        self.inputs = self._arrays(executable.inputs)
        self.outputs = self._arrays(executable.outputs)

    def _arrays(self, ports: Mapping[str, Port]) -> dict[str, Array]:
        views = {name: self._memory.view(port.tensor) for name, port in ports.items()}
        return {name: view.reshape(ports[name].shape) for name, view in views.items()}

    # Commands of the CPU.

    def _on_cpu(self, command: Command) -> None:
        super()._on_cpu(command)
        if isinstance(command, Fill):
            constants = self.executable.constants[command.constant.constants]
            self._memory.write(command.target, constants.arrays()[command.constant.name])
        elif isinstance(command, Map) and command.access == "write":
            self._memory.spoil(command.buffer)  # the former content is not mapped

    def _copy(self, command: Copy) -> None:
        self._cpu_writes(command.target, self._cpu_reads(command.source))

    def _cpu_reads(self, access: Access) -> Any:
        self.cpu_uses(access, writes=False)
        return self._memory.read(access, self.at)

    def _cpu_writes(self, access: Access, values: Any) -> None:
        self.cpu_uses(access, writes=True)
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
        values = [self._memory.read(access, self.at) for access in reads]
        self._spoil_memory_between(launches, [*reads, target])
        self.gpu_uses(target, writes=True)
        if isinstance(step, GpuOp):
            self._memory.write(target, self._step_values(step, values))
        else:
            self._memory.write(target, values[0])

    def _spoil_memory_between(self, launches: Sequence[Launch], accesses: Sequence[Access]) -> None:
        """Spoil scratch memory, and tensors between a step's kernels.

        Raises `OrderError` if these, or the target, share memory with the step's inputs.
        """
        tensors, used = self.executable.tensors, {access.tensor for access in accesses}
        ends = [tensors[access.tensor].buffer for access in accesses]
        between = {tensors[x.tensor].buffer for x in slices_of(launches) if x.tensor not in used}
        between |= {
            arg.buffer for launch in launches for arg in launch.args if isinstance(arg, Scratch)
        }
        for buffer in between.intersection(ends) or {ends[-1]}.intersection(ends[:-1]):
            raise OrderError(f"{self.at} reads and overwrites buffers[{buffer}] at once.")
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
