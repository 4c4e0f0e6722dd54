"""Our OpenCL products of matrices against ONNX Runtime's, each on one and the same core.

The products are those of transformers of today; constant matrices are packed before, on either
side. All is timed in turns in one process, and with it a loop of multiply-adds and a kernel that
only reads: how near each side is to what the core can do. The matrices of products of one row come
from memory, as they do in a model whose other layers have gone through the caches since.

The best OpenCL variant counts, with its untuned parameters unless `--choices` is given.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from time import thread_time
from typing import Any

import numpy as np
import ops_on_one_core
from interleaved import Contender, busy_s, compare, waiting_cores
from ops_on_one_core import choices, geometric_mean, random_weights

from codl.ir import Op, to_text
from codl.ir.ops.matmul import MatMul
from codl.kernels import registry
from codl.kernels.tiling import ceil_div
from codl.lower import pieces
from codl.runtime.host_handles import HostSession
from codl.runtime.launch import BoundKernel
from codl.runtime.opencl import OpenClDevice
from codl.runtime.placement import LocalSoc
from codl.runtime.session import Session

OPS = Path(__file__).with_name("products.txt")
#: Matrices that are to come from memory take so many times the largest cache; and that one's size
#: where the system does not tell.
CACHES, USUAL_CACHE_BYTES = 2, 1 << 25
LIMITS = """
#define V CAT(float, WIDTH)
#define CAT_(a, b) a##b
#define CAT(a, b) CAT_(a, b)
// Ten sums, none of which waits for another, and two factors: in the registers of any CPU.
kernel __attribute__((reqd_work_group_size(1, 1, 1))) void multiply(global float *out, int loops) {
    V sums[10];
    const V x = (V)(out[0]), y = (V)(out[1]);
    _Pragma("unroll") for (int i = 0; i < 10; i++) sums[i] = (V)(i);
    _Pragma("nounroll") for (int loop = 0; loop < loops; loop++)
        _Pragma("unroll") for (int i = 0; i < 10; i++) sums[i] = fma(sums[i], x, y);
    _Pragma("unroll") for (int i = 1; i < 10; i++) sums[0] += sums[i];
    CAT(vstore, WIDTH)(sums[0], 0, out + 2);
}
// Four streams, each of `count` vectors.
kernel __attribute__((reqd_work_group_size(1, 1, 1))) void sum(
    global const float *in, global float *out, int count) {
    V sums[4] = {(V)(0.0f), (V)(0.0f), (V)(0.0f), (V)(0.0f)};
    for (int i = 0; i < count; i++)
        _Pragma("unroll") for (int s = 0; s < 4; s++)
            sums[s] += CAT(vload, WIDTH)((size_t)s * count + i, in);
    CAT(vstore, WIDTH)(sums[0] + sums[1] + sums[2] + sums[3], 0, out);
}
"""
LOOPS, SUMS, STREAMS = 1 << 16, 10, 4


@dataclass(frozen=True)
class Row:
    """One product: either side's latency, and the shares of the core's two limits.

    `arithmetic` is of its rate of multiply-adds, `memory` of the rate at which it reads as many
    bytes as the product has in its operands; the limit that is nearer is the one that holds.
    """

    op: str
    ort_ms: float
    opencl: str
    opencl_ms: float
    ratio: float
    arithmetic: float
    memory: float
    ort_arithmetic: float
    ort_memory: float

    @property
    def limit(self) -> float:
        return max(self.arithmetic, self.memory)

    @property
    def ort_limit(self) -> float:
        return max(self.ort_arithmetic, self.ort_memory)


class Limits:
    """Kernels that only multiply and only read, on the device that the products run on."""

    def __init__(self, gpu: OpenClDevice) -> None:
        import pyopencl as cl

        self._gpu, self._cl, self._width = gpu, cl, gpu.soc.gpu.vector_width
        program = cl.Program(gpu.context, LIMITS)
        self._program = program.build([f"-DWIDTH={self._width}"])
        self._cores = waiting_cores(gpu.soc)

    def contenders(self, op: MatMul, together: int) -> Iterator[Contender]:
        """Each does as much as the op at a time: the multiply-adds, the reading of `together`."""
        yield self._contender("multiply", self._multiply())
        yield self._contender("read", self._read(op.bytes * together))

    def flops(self) -> int:
        return 2 * LOOPS * SUMS * self._width

    def _multiply(self) -> BoundKernel:
        out = self._zeros(2 + self._width)
        return self._kernel("multiply", [out, LOOPS.to_bytes(4, "little")])

    def _read(self, size: int) -> BoundKernel:
        count = max(1, ceil_div(size, 4 * self._width * STREAMS))
        from_, out = self._zeros(count * STREAMS * self._width), self._zeros(self._width)
        return self._kernel("sum", [from_, out, count.to_bytes(4, "little")])

    def _zeros(self, floats: int) -> Any:
        buffer = self._cl.Buffer(self._gpu.context, self._cl.mem_flags.READ_WRITE, 4 * floats)
        self._cl.enqueue_fill_buffer(self._gpu.queue, buffer, b"\0\0\0\0", 0, 4 * floats)
        return buffer

    def _kernel(self, name: str, arguments: Sequence[Any]) -> BoundKernel:
        kernel = self._cl.Kernel(self._program, name)
        return BoundKernel(name, kernel, (1, 1, 1), (1, 1, 1), arguments)

    def _contender(self, name: str, kernel: BoundKernel) -> Contender:
        work = enqueued(self._gpu, [[kernel]])
        return Contender(name, name, work, self._cores, partial(busy_s, self._gpu))


def main() -> None:
    about = (__doc__ or "").splitlines()[0]
    ops_on_one_core.run(about, OPS, 1.5, prepared, line=line, report=report, summary=summary)


def prepared(gpu: OpenClDevice, args: argparse.Namespace) -> Callable[[Op], Row]:
    limits = Limits(gpu)

    def measured(op: Op) -> Row:
        assert isinstance(op, MatMul)
        return measure(op, gpu, limits, args)

    return measured


def measure(op: MatMul, gpu: OpenClDevice, limits: Limits, args: argparse.Namespace) -> Row:
    together = copies(op, gpu.soc)
    best = compare(
        [
            ort(op, together, gpu.soc),
            *opencl(op, together, gpu, args.variant, args.choices),
            *limits.contenders(op, together),
        ],
        args.seconds,
    )
    ort_ms, opencl_ms = best["ort"].ms, best["opencl"].ms
    multiplying = best["multiply"].ms * op.flops / limits.flops()
    reading = best["read"].ms / together
    return Row(
        op=to_text(op),
        ort_ms=ort_ms,
        opencl=best["opencl"].name,
        opencl_ms=opencl_ms,
        ratio=opencl_ms / ort_ms,
        arithmetic=multiplying / opencl_ms,
        memory=reading / opencl_ms,
        ort_arithmetic=multiplying / ort_ms,
        ort_memory=reading / ort_ms,
    )


def copies(op: MatMul, soc: LocalSoc) -> int:
    """How many products take turns, each with a matrix of its own: one, but of a single row."""
    if not op.matrix or op.m > 1:
        return 1
    largest = max((cache.bytes for cache in soc.cpu.caches), default=USUAL_CACHE_BYTES)
    return ceil_div(CACHES * largest, op.bytes)


def ort(op: Op, together: int, soc: LocalSoc) -> Contender:
    """The product in ONNX Runtime on the one core, over arrays of its own."""
    variant, runs = registry.find(op, "cpu_ort"), []
    for _ in range(together):
        executable = pieces.net_alone([op], variant, [random_weights(op)], soc)
        session = HostSession(executable, soc)
        fill(op, session.inputs)
        (net,) = session.nets
        runs.append(net.run)
    return Contender("ort", "cpu_ort", in_turns(runs), soc.placement.cpu_cores, thread_time)


def opencl(
    op: Op, together: int, gpu: OpenClDevice, only: str, all_choices: bool
) -> Iterator[Contender]:
    """Every variant of the GPU side that is meant for it."""
    cores = waiting_cores(gpu.soc)
    for name, plan in choices(op, gpu, only, all_choices):
        kernels = []
        for _ in range(together):
            executable = pieces.kernels_alone(op, plan, random_weights(op), gpu.soc)
            session = Session(executable, gpu)
            fill(op, session.inputs)
            session.run()
            kernels.append(session.kernels(pieces.WORK))
        work = enqueued(gpu, kernels)
        yield Contender("opencl", name, work, cores, partial(busy_s, gpu))


def fill(op: Op, inputs: Any) -> None:
    random = np.random.default_rng(0)
    for name, shape in zip(pieces.input_names(len(op.inputs)), op.inputs, strict=True):
        inputs[name][...] = random.standard_normal(shape, np.float32)


def in_turns(runs: Sequence[Callable[[], object]]) -> Callable[[int], None]:
    """Work that goes on with the next each time, also from one sample to the next."""
    turns = cycle(runs)

    def work(repeats: int) -> None:
        for _ in range(repeats):
            next(turns)()

    return work


def enqueued(gpu: OpenClDevice, works: Sequence[Sequence[BoundKernel]]) -> Callable[[int], None]:
    """The same of kernels."""
    turns = cycle(works)
    return lambda repeats: gpu.run([own for _ in range(repeats) for own in next(turns)])


def line(row: Row) -> str:
    return (
        f"| {row.op.removeprefix('matmul ')} | {row.ort_ms:.4g} | {row.opencl} {row.opencl_ms:.4g} "
        f"| {row.ratio:.3f} | {row.limit:.2f} | {row.ort_limit:.2f} "
        f"| {row.arithmetic:.2f} | {row.memory:.2f} |"
    )


def report(rows: Sequence[Row]) -> str:
    """The table without its body, which has been printed while it grew, and what it comes to."""
    return "\n".join(
        [
            "| op | ONNX Runtime, ms | OpenCL's best, ms | ratio | share of the limit "
            "| ONNX Runtime's | arithmetic | memory |",
            *(f"{key}: {value:.3f}" for key, value in summary(rows).items()),
            "The worst:",
            *map(line, sorted(rows, key=lambda row: -row.ratio)[:10]),
        ]
    )


def summary(rows: Sequence[Row]) -> dict[str, float]:
    ratios = [row.ratio for row in rows]
    return {
        "geometric mean": geometric_mean(ratios),
        "worst": max(ratios),
        "share of the limit": geometric_mean([row.limit for row in rows]),
        "share of the limit, ONNX Runtime": geometric_mean([row.ort_limit for row in rows]),
    }


if __name__ == "__main__":
    main()
