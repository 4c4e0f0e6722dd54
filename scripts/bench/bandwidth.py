"""The bandwidth of kernels that mostly move memory, against a plain copy of as many bytes.

A copy of n bytes reads n and writes n; a kernel is charged with every byte of its inputs and
outputs once, filled channel blocks included.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from interleaved import Contender, busy_s, compare, one_core_soc, waiting_cores

from codl.ir import Op, Shape, parse, to_text
from codl.ir.executable import Executable
from codl.ir.types import BLOCKED, PLANAR, Storage
from codl.kernels import registry
from codl.kernels.tiling import ceil_div
from codl.lower import pieces
from codl.measure.op_runner import filler
from codl.provenance import provenance
from codl.runtime.launch import BoundKernel
from codl.runtime.opencl import OpenClDevice
from codl.runtime.session import Session

#: Every variant of these ops is a case.
OPS = (
    "pooling in=1x64x224x224 kernel=2x2 stride=2",
    "pooling in=1x512x28x28 kernel=2x2 stride=2",
    "pooling in=1x64x112x112 kernel=3x3 stride=2 pad=1",
    "pooling in=1x192x28x28 kernel=3x3 pad=1",
    "pooling in=1x256x56x56 mode=avg kernel=2x2 stride=2",
    "pooling in=1x2048x7x7 mode=avg kernel=7x7",
    "pooling in=1x1280x14x14 mode=avg kernel=14x14",
    "concat in=1x256x26x26,1x512x26x26",
    "concat in=1x64x28x28,1x96x28x28,1x32x28x28",
    "concat in=1x24x56x56,1x24x56x56",
    "eltwise in=1x64x112x112,1x64x112x112",
    "eltwise in=1x256x28x28,1x256x28x28 act=relu",
    "eltwise in=1x256x56x56,1x256x1x1 mode=mul",
    "eltwise in=1x256x56x56 mode=identity act=hard_swish",
    "eltwise in=1x256x56x56 mode=identity act=sigmoid",
    "transpose in=1024x1024 perm=1x0",
    "transpose in=1x64x56x56 perm=0x2x3x1",
    "transpose in=12x197x64 perm=1x0x2",
    "transpose in=2x58x28x28 perm=1x0x2x3",
    "slice in=64x112x112 starts=0x8x8 steps=1x1x1 to=64x96x96",
    "softmax in=12x197x197 axes=2",
    "norm in=197x768 axis=1",
    "reduce in=256x56x56 mode=mean axes=1x2",
)
#: Tensors that are converted from and to planar memory.
TENSORS = (
    Shape(1, 64, 224, 224),
    Shape(1, 64, 56, 56),
    Shape(1, 256, 26, 26),
    Shape(1, 512, 13, 13),
    Shape(1, 3, 224, 224),
)
COPY = """
kernel void copy(global const float16 *from, global float16 *to, int strip, int count) {
    const int first = get_global_id(0) * strip, stop = min(first + strip, count);
    for (int i = first; i < stop; i++) to[i] = from[i];
}
"""
#: Vectors of 64 bytes that one work-item of a CPU copies.
CPU_STRIP = 1024


@dataclass(frozen=True)
class Case:
    """Kernels that are to be compared with a copy, and the bytes that they must move."""

    name: str
    kernels: list[BoundKernel]
    bytes: int


@dataclass(frozen=True)
class Row:
    """A case's bandwidth in GB/s, that of a copy of as many bytes, and the first as a share."""

    name: str
    bytes: int
    ms: float
    gb_s: float
    copy_gb_s: float
    share: float


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="only cases whose name has this in it")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each case, about")
    parser.add_argument("--device", help="the OpenCL device, by driver or name")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("-o", "--output", type=Path, help="write JSON to this file")
    args = parser.parse_args()

    gpu, rows = OpenClDevice(one_core_soc(args.device)), []
    for case in cases(gpu, args.only):
        rows.append(measure(case, gpu, args.seconds))
        if not args.json:
            print(line(rows[-1]), flush=True)
    content = {**provenance(), "device": gpu.soc.gpu.name}
    text = json.dumps({**content, "rows": [asdict(row) for row in rows]}, indent=1)
    if args.output:
        args.output.write_text(text + "\n")
    if args.json:
        print(text)


def cases(gpu: OpenClDevice, only: str) -> Iterator[Case]:
    for op in map(parse, OPS):
        for variant in registry.variants(op, "gpu", gpu.soc):
            if only in (name := f"{to_text(op)} {variant.name}"):
                yield op_case(name, op, variant, gpu)
    for shape in TENSORS:
        for kind, source, target in (
            ("to_planar", BLOCKED, PLANAR),
            ("to_blocked", PLANAR, BLOCKED),
        ):
            if only in (name := f"{kind} {shape}"):
                yield transform_case(name, shape, source, target, gpu)


def op_case(name: str, op: Op, variant: Any, gpu: OpenClDevice) -> Case:
    plan = variant.plan(op, gpu.soc)
    return case(name, pieces.kernels_alone(op, plan, filler(op), gpu.soc), gpu)


def transform_case(
    name: str, shape: Shape, source: Storage, target: Storage, gpu: OpenClDevice
) -> Case:
    return case(name, pieces.relayout(shape, source, target, gpu.soc), gpu)


def case(name: str, executable: Executable, gpu: OpenClDevice) -> Case:
    kernels = Session(executable, gpu).kernels(pieces.WORK)
    return Case(name, kernels, executable.bytes("gpu"))


def copy_kernel(size: int, gpu: OpenClDevice) -> BoundKernel:
    """A kernel that reads half as many bytes as `size`, and writes them elsewhere."""
    import pyopencl as cl

    count = max(1, size // 128)
    strip = CPU_STRIP if gpu.soc.gpu.is_cpu else 1
    buffers = [cl.Buffer(gpu.context, cl.mem_flags.READ_WRITE, 64 * count) for _ in range(2)]
    for buffer in buffers:
        cl.enqueue_fill_buffer(gpu.queue, buffer, b"\0\0\0\0", 0, 64 * count)
    kernel = cl.Kernel(cl.Program(gpu.context, COPY).build(), "copy")
    sizes = (ceil_div(count, strip),), None
    return BoundKernel("copy", kernel, *sizes, [*buffers, *as_ints(strip, count)])


def as_ints(*values: int) -> list[bytes]:
    """Arguments of type int as OpenCL takes them."""
    return [value.to_bytes(4, "little") for value in values]


def measure(case: Case, gpu: OpenClDevice, seconds: float) -> Row:
    def contender(name: str, kernels: list[BoundKernel]) -> Contender:
        def work(repeats: int) -> None:
            gpu.run(kernels * repeats)

        return Contender(name, name, work, waiting_cores(gpu.soc), partial(busy_s, gpu))

    copy = contender("copy", [copy_kernel(case.bytes, gpu)])
    best = compare([contender("case", case.kernels), copy], seconds)
    gb_s = case.bytes / best["case"].ms / 1e6
    copy_gb_s = case.bytes / copy.ms / 1e6
    return Row(case.name, case.bytes, best["case"].ms, gb_s, copy_gb_s, gb_s / copy_gb_s)


def line(row: Row) -> str:
    return (
        f"| {row.name} | {row.bytes / 1e6:.2f} MB | {row.ms:.4g} ms | {row.gb_s:.1f} GB/s "
        f"| {row.copy_gb_s:.1f} GB/s | {row.share:.2f} |"
    )


if __name__ == "__main__":
    main()
