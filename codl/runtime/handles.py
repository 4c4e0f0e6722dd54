"""Handles of an executable's buffers, constants, kernels and nets, to which commands are bound."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from importlib.util import find_spec
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from codl.errors import CodlError, DeviceError, MissingPackageError, explained
from codl.ir.constants import Arrays
from codl.ir.executable import (
    Access,
    Argument,
    Buffer,
    Command,
    Constant,
    Executable,
    Fill,
    GpuOp,
    Launch,
    NcnnNet,
    Net,
    OpenVinoNet,
    Port,
    Refusal,
    Scratch,
    Slice,
)
from codl.ir.ops.base import Array
from codl.ir.records.profile import SpanName, span_of
from codl.lower.nets import TAG
from codl.machine import threads
from codl.machine.cache import VariantBlocklist
from codl.runtime.drivers import as_device_error, make_kernel
from codl.runtime.launch import BoundKernel
from codl.runtime.loaded import StepCallback, Timeline, no_callback
from codl.runtime.memory import DeviceMemory, Staging, aligned_zeros, allocate, upload
from codl.runtime.opencl import OpenClDevice

if TYPE_CHECKING:
    import pyopencl as cl


class CpuNet(Protocol):
    """A net that is ready to run."""

    label: str

    def run(self) -> None:
        """Compute the outputs from the present content of the input arrays."""
        ...

    def run_layers(self) -> Mapping[str, float]:
        """Compute layer by layer; returns the end of each in seconds of `perf_counter`, in order.

        Computes nothing and returns no ends if the library reports no layers.
        """
        ...


def profile_net(net: CpuNet, timeline: Timeline) -> None:
    """Run a net and add its span, and its layers' spans if the timeline has layers."""
    start = perf_counter()
    ends = net.run_layers() if timeline.layers else {}
    if not ends:
        net.run()
    timeline.cpu("net", net.label, start, perf_counter())
    for layer, end in ends.items():
        timeline.cpu("layer", layer, start, end)
        start = end


class Handles:
    """An executable's memory, kernels and nets on a device.

    `refusals` maps refused steps to reasons. `on_step` receives each step before building its
    kernels. With `own_memory`, nets use their own pools (see `NcnnSession`).
    """

    def __init__(
        self,
        executable: Executable,
        device: OpenClDevice,
        *,
        own_memory: bool = False,
        on_step: StepCallback = no_callback,
    ) -> None:
        self.executable, self.device = executable, device
        self._own_memory, self._on_step = own_memory, on_step
        self._packed: tuple[int, Arrays] = (-1, {})
        self.refusals: dict[int, str] = {}
        #: Bytes of weights that kernels and nets read.
        self.gpu_weight_bytes = self.cpu_weight_bytes = 0
        self.nets: list[CpuNet] = []
        commands = [*executable.setup, *executable.commands]
        self._launches = [command for command in commands if isinstance(command, Launch)]
        self.memory = [self._allocate(*item) for item in enumerate(executable.buffers)]
        self._constants = self._upload()
        self._programs: dict[int, cl.Program] = {}
        self.kernels: dict[Launch, BoundKernel] = {}
        for launch in self._launches:
            if launch.step not in self.refusals:
                self._bind(launch)

    # Memory.

    def _allocate(self, number: int, buffer: Buffer) -> DeviceMemory:
        if not self.executable.needs_gpu:
            return DeviceMemory(array=aligned_zeros((buffer.bytes // 4,)))
        try:
            return allocate(buffer, self.device)
        except DeviceError as error:
            self._refuse(self._users(number), str(error))
            return DeviceMemory()

    def _users(self, buffer: int) -> set[int]:
        """The steps whose kernels use a buffer."""
        tensors = self.executable.tensors

        def uses(arg: Argument) -> bool:
            if isinstance(arg, Slice):
                return tensors[arg.tensor].buffer == buffer
            return isinstance(arg, Scratch) and arg.buffer == buffer

        return {launch.step for launch in self._launches if any(map(uses, launch.args))}

    def staging(self, buffer: int) -> Staging:
        memory = self.memory[buffer].staging
        assert memory is not None
        return memory

    def view(self, access: Access) -> Array:
        """A region of a planar tensor of the CPU, shaped (images, channels, rows, columns)."""
        tensor = self.executable.tensors[access.tensor]
        held = tensor.held.shape(tensor.shape)
        whole = self.memory[tensor.buffer].flat[: held.elements].reshape(held)
        view: Array = whole[access.region.within(tensor.held).slices]
        return view

    def arrays(self, ports: Mapping[str, Port]) -> dict[str, Array]:
        """The arrays of inputs or outputs by name, in the network's shapes."""
        tensors = self.executable.tensors
        return {
            name: self.view(Access(port.tensor, tensors[port.tensor].held)).reshape(port.shape)
            for name, port in ports.items()
        }

    # Constants.

    def packed(self, number: int) -> Arrays:
        """Packed arrays of constants by number; the last ones are cached."""
        if self._packed[0] != number:
            with threads.one_blas_thread():
                self._packed = (number, self.executable.constants[number].arrays())
        return self._packed[1]

    def forget_packed(self) -> None:
        self._packed = (-1, {})

    def fill(self, command: Fill) -> None:
        """Copy a constant to its tensor; raises `CodlError` for another shape."""
        constant, target = command.constant, self.view(command.target)
        values = self.packed(constant.constants)[constant.name]
        if values.shape != target.shape:
            raise CodlError(
                f"The constant {constant.name!r} of {self.executable.model!r} must be "
                f"{target.shape}, got {values.shape}."
            )
        np.copyto(target, values)

    def _upload(self) -> dict[Constant, cl.MemoryObject]:
        """Upload the constants of kernels."""
        users: dict[Constant, set[int]] = {}
        for launch in self._launches:
            for arg in launch.args:
                if isinstance(arg, Constant):
                    users.setdefault(arg, set()).add(launch.step)
        uploaded = {}
        for constant, steps in sorted(users.items(), key=lambda item: item[0].constants):
            values = self.packed(constant.constants)[constant.name]
            try:
                uploaded[constant] = upload(values, constant, self.device)
            except DeviceError as error:
                self._refuse(steps, str(error))
                continue
            self.gpu_weight_bytes += uploaded[constant].size
        return uploaded

    # Kernels.

    def _bind(self, launch: Launch) -> None:
        self._on_step(launch.step)
        try:
            bound = self.bound(launch, self._program(launch.program))
        except DeviceError as error:
            self._refuse([launch.step], str(error))
        else:
            self.kernels[launch] = bound

    def bound(self, launch: Launch, program: cl.Program) -> BoundKernel:
        name = self.executable.programs[launch.program].name
        with as_device_error(f"Binding the kernels of {name}"):
            kernel = make_kernel(program, launch.kernel)
            values = [value for arg in launch.args for value in self._values(arg)]
            bound = BoundKernel(
                self.span(launch).label, kernel, launch.global_size, launch.local_size, values
            )
            bound.check(self.device.device)
            return bound

    def _program(self, number: int) -> cl.Program:
        if number not in self._programs:
            program = self.executable.programs[number]
            text = self.executable.texts[program.text]
            built = self.device.programs.build_text(program.name, text, program.options)
            self._programs[number] = built
        return self._programs[number]

    def _values(self, arg: Argument) -> list[Any]:
        if isinstance(arg, Slice):
            tensor = self.executable.tensors[arg.tensor]
            place = tensor.place(arg.region, arg.image)
            return [self.memory[tensor.buffer].argument, *map(np.int32, place)]
        if isinstance(arg, Constant):
            return [self._constants[arg]]
        if isinstance(arg, Scratch):
            return [self.memory[arg.buffer].argument]
        return [np.float32(arg) if isinstance(arg, float) else np.int32(arg)]

    def span(self, command: Command) -> SpanName:
        """Kind and name of a command in spans and messages."""
        span = span_of(self.executable, command)
        assert span is not None
        return span

    def refuse_blocked(self) -> None:
        """Refuse steps whose variant is known to compute wrong results on this driver."""
        steps = enumerate(self.executable.steps)
        chosen = [(n, step) for n, step in steps if isinstance(step, GpuOp) and step.variant]
        if not chosen:
            return
        reason_of = cache(VariantBlocklist(self.device.programs.identity).reason)
        for number, step in chosen:
            kind, _, _ = step.ops[0].partition(" ")
            if reason := reason_of(f"{kind} {step.variant}"):
                self._refuse([number], reason)

    def try_kernels(self) -> None:
        """Run every kernel once to its end, as drivers may refuse kernels at the first launch."""
        for launch in self._launches:
            if launch.step in self.refusals:
                continue
            kernel = self.kernels[launch]
            self._on_step(launch.step)
            try:
                with as_device_error(f"Running the kernel {kernel.name!r}"):
                    self.device.run([kernel])
            except DeviceError as error:
                self._refuse([launch.step], str(error))

    def _refuse(self, steps: Iterable[int], reason: str) -> None:
        """Record refused steps for replacement; raises `DeviceError` if one cannot be replaced."""
        users = list(steps)
        for step in users:
            if not isinstance(self.executable.steps[step], GpuOp):
                raise DeviceError(reason)
            self.refusals.setdefault(step, reason)
        if not users:
            raise DeviceError(reason)

    @property
    def refused(self) -> list[Refusal]:
        """The refused ops, with their variants, choices and reasons."""
        refused = []
        for step, reason in self.refusals.items():
            op = self.executable.steps[step]
            assert isinstance(op, GpuOp)
            refused.append(Refusal(op.label, op.variant, op.choice, reason))
        return refused

    # Nets.

    def make_nets(self) -> None:
        """Make the CPU's nets; raises `DeviceError` if a library refuses one."""
        self.nets = [self._net(net) for net in self.executable.nets]
        self.forget_packed()

    def _net(self, net: Net) -> CpuNet:
        """Import the net's library and make the net."""
        views, results = ([self.view(end) for end in side] for side in (net.reads, net.writes))
        arguments = views, results, self._counted, self.device.soc
        if isinstance(net, NcnnNet):
            # Its OpenMP counts the available cores when it is loaded.
            with threads.pinned(threads.INITIAL_CORES), explained():
                from codl.runtime.ncnn_net import NcnnSession
            return NcnnSession(net, *arguments, own_memory=self._own_memory)
        with explained():
            from codl.runtime.onnx_nets import OnnxSession, OpenVinoSession
        if not isinstance(net, OpenVinoNet):
            return OnnxSession(net, *arguments)
        if find_spec("openvino") is None:
            raise MissingPackageError("openvino", f"the net {net.label!r}", "openvino")
        return OpenVinoSession(net, *arguments)

    def _counted(self, number: int) -> Arrays:
        """The packed weights of a net, counted once."""
        is_new = self._packed[0] != number
        arrays = self.packed(number)
        if is_new:
            self.cpu_weight_bytes += sum(a.nbytes for name, a in arrays.items() if name != TAG)
        return arrays
