"""One op in one kernel variant, alone on its processor, ready to be repeated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle, islice
from typing import Any

import numpy as np

from codl.ir import Array, Op, Region, Weights
from codl.ir.soc import Soc
from codl.kernels.base import KernelPlan, TensorArg
from codl.runtime.bound_kernel import BoundKernel
from codl.runtime.memory import GpuTensor, SharedBuffer
from codl.runtime.ncnn_net import CpuLayer, CpuNet, Home
from codl.runtime.opencl import OpenClDevice
from codl.runtime.ort_net import OrtNet
from codl.runtime.profiler import Timeline

SEED = 3
#: So many random numbers are made, and repeated: a prime, so that no size of a tensor divides it.
RANDOM = 65537


class GpuWork:
    """An op's kernels over tensors of their own, enqueued back to back, as in a chain.

    `inputs` are zeros where they are not given; a plan that is `adding` has one more than the op.
    Binding runs each kernel once: raises `DeviceError` where the device cannot.
    """

    def __init__(
        self,
        gpu: OpenClDevice,
        op: Op,
        plan: KernelPlan,
        weights: Weights,
        inputs: Sequence[Array] | None = None,
    ) -> None:
        self._gpu = gpu
        arguments: dict[TensorArg, tuple[GpuTensor, Region]] = {}
        residual = TensorArg("input", len(op.inputs)) in plan.storages
        for index, shape in enumerate((*op.inputs, op.output) if residual else op.inputs):
            argument, whole = TensorArg("input", index), Region.whole(shape)
            tensor = gpu.tensor(shape, whole, plan.storage(argument))
            if inputs is not None:
                gpu.upload(tensor, inputs[index])
            arguments[argument] = (tensor, whole)
        result, whole = TensorArg("output"), Region.whole(op.output)
        self._result = gpu.tensor(op.output, whole, plan.storage(result))
        arguments[result] = (self._result, whole)
        self._kernels = gpu.bind(plan, arguments, weights=weights)
        gpu.warm_up(self._kernels)

    def __call__(self, repeats: int) -> None:
        self._gpu.run(self._kernels * repeats)

    @property
    def kernels(self) -> tuple[BoundKernel, ...]:
        return tuple(self._kernels)

    def output(self) -> Array:
        """What the last run computed, shaped (images, channels, rows, columns)."""
        gpu, tensor = self._gpu, self._result
        shared = SharedBuffer(gpu, tensor.shape, tensor.region)
        gpu.run(gpu.transform(tensor, shared.tensor, tensor.region))
        gpu.wait(shared.map(write=False))
        values: Array = shared.array.copy()
        gpu.wait(shared.unmap())
        return values


class GpuTurns:
    """Kernels of several works on one device, in turns."""

    def __init__(self, gpu: OpenClDevice, works: Sequence[GpuWork]) -> None:
        self._gpu, self._works = gpu, works

    def __call__(self, repeats: int) -> None:
        self._gpu.run(self._kernels(repeats))

    def enqueue(self, repeats: int, timeline: Timeline) -> None:
        """Begin, and note when the first and the last kernel run; does not wait."""
        first, *others = self._kernels(repeats)
        timeline.gpu("kernel", first.name, first.enqueue(self._gpu.queue))
        self._gpu.submit(others[:-1])
        for last in others[-1:]:
            timeline.gpu("kernel", last.name, last.enqueue(self._gpu.queue))
        self._gpu.queue.flush()

    def _kernels(self, repeats: int) -> list[BoundKernel]:
        turns = islice(cycle(self._works), repeats)
        return [kernel for work in turns for kernel in work.kernels]


def cpu_work(op: Op, variant: Any, soc: Soc) -> Callable[[int], None]:
    """The op as a net of its own, as inside a chain: inputs packed, the result left where it is."""
    if variant.backend == "ort":
        return repeated(OrtNet(*_row_of_ops([op], variant), soc).run)
    net = one_op_net(op, variant, soc)
    net.pack_inputs()
    return repeated(net.compute)


def one_op_net(op: Op, variant: Any, soc: Soc) -> CpuNet:
    """A net of one op over arrays of its own."""
    return row_of_ops_net([op], variant, soc)


def row_of_ops_net(ops: Sequence[Op], variant: Any, soc: Soc) -> CpuNet:
    """A net of ops in a row, each of one input but for the first, over memory of its own."""
    return CpuNet(*_row_of_ops(ops, variant), soc, own_memory=True)


def _row_of_ops(
    ops: Sequence[Op], variant: Any
) -> tuple[list[CpuLayer], dict[str, Home], dict[str, Home]]:
    """Layers with what enters and what leaves them."""
    first, last = ops[0], ops[-1]
    inputs = {
        f"input{i}": Home.allocate(shape, Region.whole(shape))
        for i, shape in enumerate(first.inputs)
    }
    layers, reads = [], tuple((name, home.held) for name, home in inputs.items())
    for index, op in enumerate(ops):
        name, whole = f"op{index}", Region.whole(op.output)
        layers.append(CpuLayer(name, op, variant, reads, name, whole, filler(op)))
        reads = ((name, whole),)
    result = Home.allocate(last.output, Region.whole(last.output))
    return layers, inputs, {layers[-1].output: result}


def filler(op: Op) -> Weights:
    """Weights that are quick to make; their values do not matter to a latency."""
    return {name: np.full(s, 0.01, np.float32) for name, s in op.weight_shapes.items()}


def operands(op: Op) -> tuple[list[Array], Weights]:
    """Inputs and weights that show a wrong result; random, and quick to make."""
    table = np.random.default_rng(SEED).standard_normal(RANDOM, np.float32)
    weights = {name: np.resize(table, shape) for name, shape in op.weight_shapes.items()}
    return [np.resize(table[index:], shape) for index, shape in enumerate(op.inputs)], weights


def in_turns(works: Sequence[Callable[[int], None]]) -> Callable[[int], None]:
    """So many runs of several works, each followed by the next."""

    def work(repeats: int) -> None:
        for one in islice(cycle(works), repeats):
            one(1)

    return work


def repeated(once: Callable[[], object]) -> Callable[[int], None]:
    """`once`, as work that is done so many times over."""

    def work(repeats: int) -> None:
        for _ in range(repeats):
            once()

    return work
