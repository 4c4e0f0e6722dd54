"""Runs one op in one kernel variant alone on its processor, again and again; compares variants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import cycle, islice
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np

from codl.boundary import is_defect
from codl.ir import Array, Op, Weights
from codl.ir.executable import NcnnNet
from codl.ir.types import Processor
from codl.kernels import registry
from codl.kernels.base import KernelPlan
from codl.kernels.tuning import Tuning
from codl.lower import pieces
from codl.measure.timing import Protocol, measure_together
from codl.records.results import Latency
from codl.records.statistic import level
from codl.records.tuned import BenchRow, Refused
from codl.runtime.host_handles import HostSession
from codl.runtime.launch import BoundKernel
from codl.runtime.opencl import OpenClDevice
from codl.runtime.placement import LocalSoc
from codl.runtime.session import Session

if TYPE_CHECKING:
    import pyopencl as cl

    from codl.runtime.ncnn_net import NcnnSession

SEED = 3
ELSEWHERE = "written for another type of device, memory or element than the SoC file names"
#: Does the same thing n times over, and returns when it is done.
Work: TypeAlias = Callable[[int], None]
#: Runs that tell what a call takes beside an op.
SHARE_RUNS = 15
#: How many random numbers are made, to be repeated: a prime, so that no tensor's size divides it.
RANDOM = 65537


class GpuWork:
    """An op's kernels over tensors of their own, enqueued back to back, as in a chain.

    `inputs` are what is typical of the op, mostly zeros, where they are not given. A plan that is
    `adding` computes the residual `add` too, and has its other input behind the op's.
    Loading runs each kernel once: raises `DeviceError` where the device cannot.
    """

    def __init__(
        self,
        gpu: OpenClDevice,
        op: Op,
        plan: KernelPlan,
        weights: Weights,
        inputs: Sequence[Array] | None = None,
        *,
        add: Op | None = None,
    ) -> None:
        self._gpu = gpu
        self._session = Session(pieces.kernels_alone(op, plan, weights, gpu.soc, add=add), gpu)
        self._kernels = self._session.kernels(pieces.WORK)
        if inputs is not None:
            self.feed(inputs)

    def feed(self, inputs: Sequence[Array]) -> None:
        """Run once on these inputs, which later runs read too."""
        for name, value in zip(pieces.input_names(len(inputs)), inputs, strict=True):
            np.copyto(self._session.inputs[name], value)
        self._session.run()

    def scratch(self) -> list[cl.MemoryObject]:
        """The memory that only the kernels use among themselves."""
        executable = self._session.executable
        held = {tensor.buffer for tensor in executable.tensors}
        numbers = set(range(len(executable.buffers))) - held
        return [self._session.device_memory(number) for number in sorted(numbers)]

    def __call__(self, repeats: int) -> None:
        self._gpu.run(self._kernels * repeats)

    def begin(self, repeats: int) -> None:
        """Do the same without waiting for its end, but for its beginning."""
        first, *others = self._kernels * repeats
        event = first.enqueue(self._gpu.queue)
        self._gpu.submit(others)
        self._gpu.queue.flush()
        self._gpu.wait_for_start(event)

    def end(self) -> None:
        """Wait for what was begun."""
        self._gpu.finish()

    @property
    def kernels(self) -> tuple[BoundKernel, ...]:
        return tuple(self._kernels)

    def output(self) -> Array:
        """What the last run computed, shaped (images, channels, rows, columns)."""
        for action in self._session.stage(pieces.FETCH):
            action.run()
        output: Array = self._session.outputs[pieces.OUTPUT].copy()
        return output


def default_work(op: Op, processor: Processor, gpu: OpenClDevice, tuning: Tuning) -> Work:
    """The op in the default variant of a processor, alone; kernels as they were tuned."""
    variant: Any = registry.variants(op, processor, gpu.soc)[0]
    return work_of(variant, op, gpu, tuning)


def work_of(variant: Any, op: Op, gpu: OpenClDevice, tuning: Tuning) -> Work:
    """The op in a variant as it runs inside a chain.

    A net of its own whose tensors stay packed (see `load` and `store` of data sharing), or its
    kernels in their tuned choice, enqueued back to back.
    """
    if variant.processor == "cpu":
        return cpu_work(op, variant, gpu.soc)
    return GpuWork(gpu, op, tuning.plan(variant, op, gpu.soc), filler(op))


@dataclass(frozen=True)
class CpuWork:
    """A net of one op; a library that packs tensors in its nets does so in each run.

    `share` is the part of a run that the op takes, and would in a net of many.
    """

    op: Op
    variant: Any
    soc: LocalSoc
    run: Callable[[], object]

    def __call__(self, repeats: int) -> None:
        for _ in range(repeats):
            self.run()

    @cached_property
    def share(self) -> float:
        if self.variant.backend == "ncnn":
            return 1.0
        from codl.measure.net_shares import share_of_ops  # a device may have ncnn alone

        alone = pieces.net_alone([self.op], self.variant, [filler(self.op)], self.soc)
        taken_s = []
        for _ in range(SHARE_RUNS):
            start = perf_counter()
            self.run()
            taken_s.append(perf_counter() - start)
        return share_of_ops(alone, self.soc, level(taken_s))


def cpu_work(op: Op, variant: Any, soc: LocalSoc) -> CpuWork:
    """The op as a net of its own, as inside a chain: ncnn's inputs packed, its result left so."""
    return CpuWork(op, variant, soc, row_of_ops([op], variant, soc))


def row_of_ops(ops: Sequence[Op], variant: Any, soc: LocalSoc) -> Callable[[], object]:
    """A net of ops in a row, each of one input but for the first, over memory of its own.

    What ncnn computes is left packed.
    """
    executable = pieces.net_alone(ops, variant, [filler(op) for op in ops], soc)
    session = HostSession(executable, soc, own_memory=True)
    (net,) = session.nets
    if not isinstance(executable.nets[0], NcnnNet):
        return net.run
    packed = cast("NcnnSession", net)
    packed.pack_inputs()
    return packed.compute


def filler(op: Op) -> Weights:
    """Weights that are quick to make; their values do not matter to a latency."""
    return op.weights_of(lambda shape: np.full(shape, 0.01, np.float32))


def operands(op: Op) -> tuple[list[Array], Weights]:
    """Inputs and weights that show a wrong result; random, and quick to make."""
    table = np.random.default_rng(SEED).standard_normal(RANDOM, np.float32)
    weights = op.weights_of(lambda shape: np.resize(table, shape))
    return [np.resize(table[index:], shape) for index, shape in enumerate(op.inputs)], weights


def in_turns(works: Sequence[Callable[[int], None]]) -> Callable[[int], None]:
    """`repeats` runs of several works, each followed by the next."""

    def work(repeats: int) -> None:
        for following in islice(cycle(works), repeats):
            following(1)

    return work


def repeated(once: Callable[[], object]) -> Callable[[int], None]:
    """`once`, as work that is done `repeats` times."""

    def work(repeats: int) -> None:
        for _ in range(repeats):
            once()

    return work


def bench(
    gpu: OpenClDevice,
    op: Op,
    tuning: Tuning = Tuning(),
    *,
    every: bool = False,
    protocol: Protocol | None = None,
) -> tuple[list[BenchRow], list[Refused]]:
    """Measure every variant of both processors for an op, in turns: what `codl bench ops` does.

    `every` includes variants that are not for this SoC.
    """
    soc = gpu.soc
    works: list[tuple[Any, Work]] = []
    refused: list[Refused] = []
    for variant in registry.of_kind(op.kind):
        reason = variant.refusal(op, soc)
        able = registry.variants(op, variant.processor, soc, include_unfit=every)
        if reason is None and variant not in able:
            reason = ELSEWHERE
        try:
            if reason is None:
                works.append((variant, work_of(variant, op, gpu, tuning)))
        except Exception as error:  # a variant that fails is a row, not the end
            if is_defect(error):
                raise
            reason = str(error)
        if reason is not None:
            refused.append(Refused(variant.name, variant.processor, reason))
    rows = []
    samples_s = measure_together([work for _, work in works], protocol)
    for (variant, _), samples in zip(works, samples_s, strict=True):
        latency = Latency.of(samples)
        choice = tuning.choice(variant, op, soc) if variant.processor == "gpu" else None
        gflops = op.flops / latency.level / 1e6
        rows.append(BenchRow(variant.name, variant.processor, latency, gflops, choice))
    return sorted(rows, key=lambda row: row.latency.level), refused
