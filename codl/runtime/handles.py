"""Device handles of an executable's buffers, kernels and nets; a session binds commands to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from codl.errors import CodlError, DeviceError
from codl.ir.executable import (
    Argument,
    Buffer,
    Constant,
    Executable,
    GpuOp,
    Launch,
    Program,
    Raise,
    Refusal,
    Scratch,
    Slice,
)
from codl.ir.executable_check import UnfitError, check_weight
from codl.ir.ops.base import Array
from codl.records.span_names import span_of
from codl.runtime.cache import VariantBlocklist
from codl.runtime.drivers import explained, make_kernel
from codl.runtime.host_handles import HostHandles
from codl.runtime.launch import BoundKernel
from codl.runtime.memory import DeviceMemory, Flag, Staging, allocate, upload
from codl.runtime.opencl import OpenClDevice

if TYPE_CHECKING:
    import pyopencl as cl

#: Called with the number of a step before its kernels are built or run for the first time, and with
#: -1 after the last one.
StepCallback: TypeAlias = Callable[[int], object]


def no_callback(step: int) -> None:
    """The default: steps are not reported."""


class Handles:
    """An executable's memory, kernels and nets on a device.

    `refusals` are the steps that the device refuses, with the reason. `on_step` is called with
    every step before the driver is asked for its kernels.
    """

    def __init__(
        self,
        executable: Executable,
        device: OpenClDevice,
        *,
        own_memory: bool = False,
        on_step: StepCallback = no_callback,
    ) -> None:
        self._executable, self._device = executable, device
        self._on_step = on_step
        self.refusals: dict[int, str] = {}
        #: Bytes of weights that kernels read.
        self.weight_bytes = 0
        commands = [*executable.setup, *executable.commands]
        self._launches = [command for command in commands if isinstance(command, Launch)]
        self._memory = [self._allocate(*item) for item in enumerate(executable.buffers)]
        # Without a reference back, so that all of it goes as soon as it is let go.
        memory = self._memory
        #: The CPU's side of it.
        self.host = HostHandles(
            executable, device.soc, lambda n: memory[n].flat, own_memory=own_memory
        )
        self._constants = self._upload()
        self._programs: dict[int, cl.Program] = {}
        self._kernels: dict[Launch, BoundKernel] = {}
        for launch in self._launches:
            if launch.step not in self.refusals:
                self._bind(launch)
        self._flags: dict[Raise, Flag] = {}
        for command in commands:
            if isinstance(command, Raise):  # nothing stands in for a flag's kernel
                memory_of_flag, name = self._memory[command.buffer], command.kernel
                with explained("Binding the kernel of a flag"):
                    kernel = make_kernel(self._program(command.program), name)
                    bound = BoundKernel(name, kernel, (1,), (1,), [memory_of_flag.argument])
                self._flags[command] = Flag(device, memory_of_flag.words, bound)

    # Memory.

    def _allocate(self, number: int, buffer: Buffer) -> DeviceMemory:
        try:
            return allocate(buffer, self._device)
        except DeviceError as error:
            self._refuse(self._users(number), str(error))
            return DeviceMemory()

    def _users(self, buffer: int) -> set[int]:
        """The steps with kernels that use a buffer."""
        tensors = self._executable.tensors

        def uses(arg: Argument) -> bool:
            if isinstance(arg, Slice):
                return tensors[arg.tensor].buffer == buffer
            return isinstance(arg, Scratch) and arg.buffer == buffer

        return {launch.step for launch in self._launches if any(map(uses, launch.args))}

    def argument(self, buffer: int) -> Any:
        """A buffer as kernels take it."""
        return self._memory[buffer].argument

    def staging(self, buffer: int) -> Staging:
        memory = self._memory[buffer].staging
        assert memory is not None
        return memory

    # Constants.

    def _upload(self) -> dict[Constant, cl.MemoryObject]:
        """The constants of kernels in memory of the device."""
        users: dict[Constant, set[int]] = {}
        for launch in self._launches:
            for arg in launch.args:
                if isinstance(arg, Constant):
                    users.setdefault(arg, set()).add(launch.step)
        uploaded = {}
        for constant, steps in sorted(users.items(), key=lambda item: item[0].constants):
            values = self.host.packed(constant.constants)[constant.name]
            self._check_size(constant, values, steps)
            try:
                uploaded[constant] = upload(values, constant, self._device)
            except DeviceError as error:
                self._refuse(steps, str(error))
                continue
            self.weight_bytes += uploaded[constant].size
        return uploaded

    def _check_size(self, constant: Constant, values: Array, steps: Iterable[int]) -> None:
        """Raise `CodlError` for an array that is too small for the op of one of some steps."""
        for number in steps:
            step = self._executable.steps[number]
            if not isinstance(step, GpuOp) or step.constants != constant.constants:
                continue
            try:
                check_weight(step.ops[0], constant.name, values.size)
            except UnfitError as error:
                raise CodlError(f"The executable is not sound: steps[{number}], {error}.") from None

    # Kernels.

    def kernel(self, launch: Launch) -> BoundKernel:
        return self._kernels[launch]

    def _bind(self, launch: Launch) -> None:
        self._on_step(launch.step)
        try:
            bound = self.bound(launch, self._program(launch.program))
        except DeviceError as error:
            self._refuse([launch.step], str(error))
        else:
            self._kernels[launch] = bound

    def bound(self, launch: Launch, program: cl.Program) -> BoundKernel:
        name = self._executable.programs[launch.program].name
        with explained(f"Binding the kernels of {name}"):
            kernel = make_kernel(program, launch.kernel)
            values = [value for arg in launch.args for value in self._values(arg)]
            bound = BoundKernel(
                self._name(launch), kernel, launch.global_size, launch.local_size, values
            )
            bound.check(self._device.device)
            return bound

    def source(self, launch: Launch) -> tuple[Program, str]:
        """The program of a launch, and its text."""
        program = self._executable.programs[launch.program]
        return program, self._executable.texts[program.text]

    def flag(self, command: Raise) -> Flag:
        """The flag that a command raises, however often that is bound."""
        return self._flags[command]

    def _program(self, number: int) -> cl.Program:
        if number not in self._programs:
            program = self._executable.programs[number]
            text = self._executable.texts[program.text]
            built = self._device.programs.build_text(program.name, text, program.options)
            self._programs[number] = built
        return self._programs[number]

    def _values(self, arg: Argument) -> list[Any]:
        if isinstance(arg, Slice):
            tensor = self._executable.tensors[arg.tensor]
            place = tensor.place(arg.region, arg.image)
            return [self._memory[tensor.buffer].argument, *map(np.int32, place)]
        if isinstance(arg, Constant):
            return [self._constants[arg]]
        if isinstance(arg, Scratch):
            return [self._memory[arg.buffer].argument]
        return [np.float32(arg) if isinstance(arg, float) else np.int32(arg)]

    def _name(self, launch: Launch) -> str:
        """What spans and messages call a kernel."""
        span = span_of(self._executable, launch)
        assert span is not None
        return span.label

    def refuse_blocked(self) -> None:
        """Leave steps to other variants whose own is known to compute something wrong here."""
        reason_of = cache(VariantBlocklist(self._device.programs.identity).reason)
        for number, step in enumerate(self._executable.steps):
            if isinstance(step, GpuOp) and step.variant:
                kind, _, _ = step.ops[0].partition(" ")
                if reason := reason_of(f"{kind} {step.variant}"):
                    self._refuse([number], reason)

    def try_kernels(self) -> None:
        """Run every kernel once to its end: what a driver does or refuses at a first launch."""
        for launch in self._launches:
            if launch.step in self.refusals:
                continue
            kernel = self._kernels[launch]
            self._on_step(launch.step)
            try:
                with explained(f"Running the kernel {kernel.name!r}"):
                    self._device.run([kernel])
            except DeviceError as error:
                self._refuse([launch.step], str(error))
        for flag in self._flags.values():
            flag.enqueue()
            flag.wait()

    def _refuse(self, steps: Iterable[int], reason: str) -> None:
        """Note what others may stand in for; raises `DeviceError` where nothing may."""
        users = list(steps)
        for step in users:
            if not isinstance(self._executable.steps[step], GpuOp):
                raise DeviceError(reason)
            self.refusals.setdefault(step, reason)
        if not users:
            raise DeviceError(reason)

    @property
    def refused(self) -> list[Refusal]:
        """What the device refuses, as whoever lowered it wants to hear."""
        refused = []
        for step, reason in self.refusals.items():
            op = self._executable.steps[step]
            assert isinstance(op, GpuOp)
            refused.append(Refusal(op.label, op.variant, op.choice, reason))
        return refused
