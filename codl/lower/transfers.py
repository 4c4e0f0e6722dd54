"""Lowering of data sharing: the commands that move a region from one processor to the other.

Where the device sees the host's memory as it is (fine-grained shared virtual memory), a kernel
reads and writes the CPU's array in place, and that is all there is to do; that it has written it is
told by its event, or where the SoC says so by a flag. Elsewhere the region goes
through staging memory that is mapped by turns, and is copied once more. The staging memory of what
the CPU hands over is mapped again at once, for the next inference, off this one's critical path.
"""

from __future__ import annotations

from collections.abc import Mapping

from codl.ir.executable import Access, Command, Copy, Map, Tensor, Transfer, Unmap, Wait
from codl.ir.types import PLANAR
from codl.lower.assembly import Assembly
from codl.lower.gpu import KernelLowering
from codl.lower.partition import TensorMove
from codl.records.soc import Soc


class TransferLowering:
    """Emits transfers between `host` arrays and `device` tensors, by the network's tensors."""

    def __init__(
        self,
        assembly: Assembly,
        kernels: KernelLowering,
        host: Mapping[str, Tensor],
        device: Mapping[str, Tensor],
        soc: Soc,
    ) -> None:
        self._assembly, self._kernels, self._soc = assembly, kernels, soc
        self._host, self._device = host, device
        #: Staging memory that is to be mapped before the first inference.
        self.mapped: list[Map] = []

    def begin_to_cpu(self, move: TensorMove) -> tuple[Command, ...]:
        """Emit what the GPU does, and return what the CPU is to do once the region is there."""
        host, device, step = self._sides(move)
        event = self._assembly.event()
        if self._is_shared(host):
            self._kernels.copy(device, host, move.region, step=step)
            if self._soc.gpu.raises_flags:
                self._assembly.raise_flag(event, step=step, soc=self._soc)
            else:
                self._assembly.signal(event)
            return (Wait(step, event),)
        staging = self._staging(move, host)
        self._kernels.copy(device, staging, move.region, step=step)
        self._assembly.emit(Map(step, staging.buffer, "read", event))
        copy = Copy(step, self._access(staging, move), self._access(host, move))
        return Wait(step, event), copy, Unmap(step, staging.buffer)

    def to_gpu(self, move: TensorMove) -> None:
        """Emit the whole transfer; what is enqueued after it sees the region."""
        host, device, step = self._sides(move)
        if self._is_shared(host):
            self._kernels.copy(host, device, move.region, step=step)
            return
        staging, event = self._staging(move, host), self._assembly.event()
        mapping = Map(step, staging.buffer, "write", event)
        self.mapped.append(mapping)
        self._assembly.emit(
            Wait(step, event),
            Copy(step, self._access(host, move), self._access(staging, move)),
            Unmap(step, staging.buffer),
        )
        self._kernels.copy(staging, device, move.region, step=step)
        self._assembly.emit(mapping)

    def _sides(self, move: TensorMove) -> tuple[Tensor, Tensor, int]:
        """Both tensors, and the transfer's step."""
        host, device = self._host[move.tensor], self._device[move.tensor]
        source, target = (host, device) if move.direction == "to_gpu" else (device, host)
        accesses = self._access(source, move), self._access(target, move)
        label = f"{move.tensor} ({move.region})"
        return host, device, self._assembly.step(Transfer(label, move.direction, *accesses))

    def _is_shared(self, host: Tensor) -> bool:
        return self._assembly.buffers[host.buffer].place == "shared"

    def _access(self, tensor: Tensor, move: TensorMove) -> Access:
        return self._assembly.access(tensor, move.region)

    def _staging(self, move: TensorMove, host: Tensor) -> Tensor:
        """New staging memory for what moves."""
        buffer = self._assembly.buffer("staging", move.region.shape(host.shape).bytes)
        return Tensor(host.name, buffer, host.shape, move.region, PLANAR, 1)
