"""CPU-side handles of an executable's buffers, constants and nets; used by `handles`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from importlib.util import find_spec
from time import perf_counter
from typing import Protocol, TypeAlias

import numpy as np

from codl.boundary import MissingPackageError, explained
from codl.errors import CodlError, DeviceError
from codl.ir.constants import Arrays
from codl.ir.executable import Access, Executable, Fill, NcnnNet, Net, OpenVinoNet, Port, RunNet
from codl.ir.ops.base import Array
from codl.lower.nets import TAG
from codl.records.results import TimeSpan
from codl.runtime import threads
from codl.runtime.loaded import Footprint, Timeline
from codl.runtime.memory import aligned_zeros
from codl.runtime.placement import LocalSoc

#: A buffer as the CPU sees it, as flat floats, by its number.
Flat: TypeAlias = Callable[[int], Array]


class CpuNet(Protocol):
    """A net that is ready to run."""

    label: str

    def run(self) -> None:
        """Compute the outputs from what the input arrays hold now."""
        ...

    def run_layers(self) -> Mapping[str, float]:
        """The same layer by layer: when each was done, in order, in seconds of `perf_counter`.

        Empty, and nothing is computed, where the library shows no layers.
        """
        ...


def profile_net(net: CpuNet, timeline: Timeline) -> None:
    """Run a net and note when, and when each of its layers where that is asked for."""
    start = perf_counter()
    ends = net.run_layers() if timeline.layers else {}
    if not ends:
        net.run()
    timeline.cpu("net", net.label, start, perf_counter())
    for layer, end in ends.items():
        timeline.cpu("layer", layer, start, end)
        start = end


class HostHandles:
    """Views of tensors, packed constants and the nets of an executable.

    `flat` gives buffers as flat floats. With `own_memory` nets take no memory that others have put
    back (see `NcnnSession`).
    """

    def __init__(
        self,
        executable: Executable,
        soc: LocalSoc,
        flat: Flat,
        *,
        own_memory: bool = False,
    ) -> None:
        self._executable, self._soc, self._flat = executable, soc, flat
        self._own_memory = own_memory
        self._packed: tuple[int, Arrays] = (-1, {})
        self.nets: list[CpuNet] = []
        #: Bytes of weights that nets were given.
        self.weight_bytes = 0

    def view(self, access: Access) -> Array:
        """A region of a planar tensor, shaped (images, channels, rows, columns)."""
        tensor = self._executable.tensors[access.tensor]
        held = tensor.held.shape(tensor.shape)
        whole = self._flat(tensor.buffer)[: held.elements].reshape(held)
        view: Array = whole[access.region.within(tensor.held).slices]
        return view

    def whole(self, tensor: int) -> Array:
        """All of a planar tensor."""
        return self.view(Access(tensor, self._executable.tensors[tensor].held))

    def arrays(self, ports: Mapping[str, Port]) -> dict[str, Array]:
        """The arrays of inputs or outputs, by name, shaped as callers see them."""
        return {name: self.whole(port.tensor).reshape(port.shape) for name, port in ports.items()}

    def packed(self, number: int) -> Arrays:
        """The packed arrays of constants; those that were asked for last are kept."""
        if self._packed[0] != number:
            with threads.one_blas_thread():
                self._packed = (number, self._executable.constants[number].arrays())
        return self._packed[1]

    def forget_packed(self) -> None:
        self._packed = (-1, {})

    def fill(self, command: Fill) -> None:
        """Copy a constant to where it is read; raises `CodlError` where it is of another shape."""
        constant, target = command.constant, self.view(command.target)
        values = self.packed(constant.constants)[constant.name]
        if values.shape != target.shape:
            raise CodlError(
                f"The constant {constant.name!r} of {self._executable.model!r} must be "
                f"{target.shape}, got {values.shape}."
            )
        np.copyto(target, values)

    def make_nets(self) -> None:
        """Make the CPU's nets; raises `DeviceError` where a library does not take one."""
        self.nets = [self._net(net) for net in self._executable.nets]
        self.forget_packed()

    def _net(self, net: Net) -> CpuNet:
        """Libraries are imported here: what describes a machine, and most executables, need one or
        none.
        """
        soc, packed = self._soc, self._counted
        if isinstance(net, NcnnNet):
            # Its OpenMP counts the cores that it may use when it is loaded.
            with threads.pinned(threads.INITIAL_CORES), explained():
                from codl.runtime.ncnn_net import NcnnSession
            views, results = (
                [self.view(access) for _, access in side] for side in (net.inputs, net.outputs)
            )
            own_memory = self._own_memory
            return NcnnSession(net, views, results, packed, soc, own_memory=own_memory)
        views, results = (
            [self.view(binding.access) for binding in side] for side in (net.inputs, net.outputs)
        )
        if isinstance(net, OpenVinoNet):
            if find_spec("openvino") is None:
                raise MissingPackageError("openvino", f"the net {net.label!r}", "openvino")
            with explained():
                from codl.runtime.openvino_net import OpenVinoSession
            return OpenVinoSession(net, views, results, packed, soc)
        with explained():
            from codl.runtime.ort_net import OnnxSession
        return OnnxSession(net, views, results, packed, soc)

    def _counted(self, number: int) -> Arrays:
        is_new = self._packed[0] != number
        arrays = self.packed(number)
        if is_new:
            self.weight_bytes += sum(a.nbytes for name, a in arrays.items() if name != TAG)
        return arrays


class HostSession:
    """An executable that needs no GPU, such as a net alone; see `codl.runtime.session.Session`.

    `lock` is held by whatever runs something on the same CPU. Raises `DeviceError` for one with
    commands of the GPU.
    """

    #: It has no GPU that could have limits.
    limited = None

    def __init__(
        self,
        executable: Executable,
        soc: LocalSoc,
        *,
        own_memory: bool = False,
        lock: AbstractContextManager[object] | None = None,
    ) -> None:
        self.executable, self._soc, self.lock = executable, soc, lock or threads.ProcessLock()
        if executable.needs_gpu:
            raise DeviceError(f"{executable.model!r} has commands for a GPU: open it on a device.")
        memory = [aligned_zeros((buffer.bytes // 4,)) for buffer in executable.buffers]
        handles = HostHandles(executable, soc, memory.__getitem__, own_memory=own_memory)
        for command in executable.setup:
            if isinstance(command, Fill):
                handles.fill(command)
        with threads.placed(soc.placement.cpu_cores):
            handles.make_nets()
        self._runs = [command for command in executable.commands if isinstance(command, RunNet)]
        self.nets = handles.nets
        self.footprint = Footprint(executable.bytes("cpu", "shared"), 0, handles.weight_bytes, 0)
        self.inputs = handles.arrays(executable.inputs)
        self.outputs = handles.arrays(executable.outputs)

    def run(self) -> None:
        """One inference from what `inputs` hold; allocates no tensor."""
        with self.lock, threads.placed(self._soc.placement.cpu_cores):
            nets = self._open()
            for command in self._runs:
                nets[command.net].run()

    def profile(self, *, layers: bool = False) -> list[TimeSpan]:
        """What each net did when in one inference, and each of its `layers`."""
        with self.lock, threads.placed(self._soc.placement.cpu_cores):
            nets, timeline = self._open(), Timeline(layers)
            for command in self._runs:
                profile_net(nets[command.net], timeline)
            return timeline.spans()

    def close(self) -> None:
        """Release nets; nothing can run afterwards."""
        with self.lock:
            self.nets = []

    def _open(self) -> list[CpuNet]:
        if len(self.nets) != len(self.executable.nets):
            model = self.executable.model
            raise DeviceError(f"The engine of {model!r} is closed and cannot run.")
        return self.nets
