"""Checks of kernel variants against the ops' NumPy references on small ops, for `codl doctor`.

Both get the same random inputs. Outputs may differ by rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Literal, TypeAlias

import numpy as np

from codl.errors import CodlError, DeviceError
from codl.ir import OP_TYPES, Array, Op, Weights, parse, split, to_text
from codl.ir.records.soc import Soc
from codl.ir.types import PROCESSORS, Processor
from codl.kernels import registry
from codl.kernels.base import Variant
from codl.lower import pieces
from codl.machine.cache import VariantBlocklist
from codl.measure.budget import Budget
from codl.measure.closeness import OF_HALVES, difference, tolerance
from codl.measure.op_runner import operands
from codl.runtime.opencl import OpenClDevice
from codl.runtime.session import Session, host_session

#: Small ops of every kind, mostly of sizes that fill no block of 4, 8 or 16; they cover all of
#: codl's variants.
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
    "fc in=1x19x3x2 oc=21 act=relu",
    "fc in=1x40x1x1 oc=5",
    "concat in=1x16x5x3,1x7x5x3",
    "concat in=1x5x4x3,1x6x4x3",
    "eltwise in=1x19x5x3,1x19x5x3 act=relu",
    "eltwise in=1x6x5x3,1x6x1x1 mode=mul",
    "eltwise in=1x6x5x3 mode=identity act=sigmoid",
    "reshape in=1x6x5x4 to=1x1x24x5",
    "conv_transpose2d in=1x6x5x4 oc=7 kernel=3x3 size=10x8 stride=2 crop=1x1",
    "conv_transpose2d in=1x20x4x5 oc=20 kernel=3x3 size=9x11 stride=2 groups=20",
    "resize in=1x6x5x4 size=9x7",
    "resize in=1x19x5x4 size=8x9 mode=linear",
    "transpose in=5x7x6 perm=2x0x1",
    "transpose in=1x6x5x7 perm=0x2x3x1",
    "slice in=9x10 starts=8x0 steps=-2x3 to=4x3",
    "tile in=1x3x2x5 repeats=2x1x3x1",
    "pad in=1x3x5x6 before=0x0x2x1 after=0x0x1x-2",
    "concat_nd in=5x3x1,5x3x2 axis=2",
    "gather in=7x5,3x2 axis=0",
    "matmul in=5x7,7x6",
    "matmul in=2x9x19,2x19x18",
    "matmul in=3x11 matrix=11x21",
    "matmul in=2x3x1x19,2x1x21x19 trans_b=1",
    "matmul in=6x8 matrix=8x12",
    "attention in=1x4x9x7,1x2x37x7,1x2x37x18,1x1x9x37 scale=0.4",
    "attention in=2x2x19x8,2x2x23x8,2x2x23x8 causal=1 first=4",
    "softmax in=3x5x7 axes=2",
    "softmax in=2x6x5 axes=1",
    "norm in=3x4x5,1x1x5,1x1x5 axis=2",
    "norm in=1x19x9x11,1x19x1x1,1x19x1x1 groups=19 axis=1 act=relu",
    "reduce in=3x5x7 mode=mean axes=1x2",
    "reduce in=4x6 mode=max axes=0",
    "slice in=1x10 starts=0x9 steps=1x-1 to=1x10",
)
#: Prefixes of problems: a difference beyond rounding, and beyond float16's error.
IMPRECISE, WRONG = "the result is imprecise", "the result is wrong"


@dataclass(frozen=True)
class CheckTask:
    """A check of a kernel variant on an op."""

    op: Op
    variant: Variant

    @property
    def key(self) -> tuple[str, str]:
        return to_text(self.op), self.variant.name

    @property
    def name(self) -> str:
        """Name of the variant with its kind of op, such as `conv2d gpu_gemm`."""
        return f"{self.variant.op_kind} {self.variant.name}"


@dataclass(frozen=True)
class VariantCheck:
    """The result of a check: `problem` is "" if correct; `is_lost` if the process died."""

    task: CheckTask
    problem: str
    is_lost: bool = False

    @property
    def is_wrong(self) -> bool:
        """Whether the variant ran with a wrong result."""
        return self.problem.startswith(WRONG)


@dataclass
class CheckRun:
    """The results of checks, and the number of tasks `left`."""

    checked: list[VariantCheck] = field(default_factory=list)
    left: int = 0

    def problems(self) -> dict[str, list[VariantCheck]]:
        """Results with a problem, by the variant's name."""
        problems: dict[str, list[VariantCheck]] = {}
        for result in self.checked:
            if result.problem:
                problems.setdefault(result.task.name, []).append(result)
        return problems


def check_tasks(soc: Soc, processors: Sequence[Processor] = PROCESSORS) -> list[CheckTask]:
    """Tasks of all variants of `processors` on each small op that they accept, and on its part.

    Variants unfit for this SoC are included: they must be correct on any device. Each variant's
    first task comes before any second one.
    """
    tasks: dict[str, list[CheckTask]] = {}
    for op in parts(soc):
        for processor in processors:
            for variant in registry.variants(op, processor, soc, include_unfit=True):
                task = CheckTask(op, variant)
                tasks.setdefault(task.name, []).append(task)
    turns = zip_longest(*tasks.values())
    return [task for turn in turns for task in turn if task is not None]


def parts(soc: Soc) -> Iterator[Op]:
    """The small ops, each whole and as the GPU's half of a split.

    Kinds absent from `OPS`, such as a plugin's, contribute their `examples`.
    """
    ops = [parse(text) for text in OPS]
    kinds = {op.kind for op in ops}
    for kind, op_type in OP_TYPES.items():
        if kind not in kinds and kind != "onnx":  # the text of an `onnx` op has no model
            ops += [parse(text) for text in op_type.examples]
    for index, op in enumerate(ops):
        yield op
        if not op.dims:
            continue
        _, part = split(op, op.dims[index % len(op.dims)], 0.5, align=soc.gpu.vector_width)
        if not part.is_empty and op.restrict(part) != op:
            yield op.restrict(part)


def checked_operands(op: Op) -> tuple[list[Array], Weights]:
    """Random inputs and weights; indices of `gather` are rounded."""
    inputs, weights = operands(op)
    if op.kind == "gather":
        inputs[1] = np.rint(inputs[1])
    return inputs, weights


def check(gpu: OpenClDevice, task: CheckTask) -> VariantCheck:
    """Compare a variant's output with the reference; any error is the check's problem."""
    try:
        inputs, weights = checked_operands(task.op)
        got = _output(_loaded(gpu, task, weights), inputs)
        expected = task.op.reference([array.astype(np.float64) for array in inputs], weights)
        error_share = difference(got, expected)
    except DeviceError as error:
        return VariantCheck(task, " ".join(str(error).split()))
    except Exception as error:  # a variant that fails is a result, not the end
        kind = "" if isinstance(error, CodlError) else f"{type(error).__name__}: "
        return VariantCheck(task, f"{kind}{' '.join(str(error).split())}")
    limit = tolerance(task.variant)
    if error_share <= limit:
        return VariantCheck(task, "")
    how = WRONG if error_share > OF_HALVES else IMPRECISE
    off = f"off by {error_share:.2g} of the largest value, at most {limit:.2g} is rounding"
    return VariantCheck(task, f"{how}: {off}")


def _loaded(gpu: OpenClDevice, task: CheckTask, weights: Weights) -> Session:
    op, variant, soc = task.op, task.variant, gpu.soc
    if variant.processor == "cpu":
        return host_session(pieces.net_alone([op], variant, [weights], soc), soc)
    described: Any = variant
    return Session(pieces.kernels_alone(op, described.plan(op, soc), weights, soc), gpu)


def _output(session: Session, inputs: Sequence[Array]) -> Array:
    """The output of a session, whose memory of the output was NaN."""
    named = dict(zip(pieces.input_names(len(inputs)), inputs, strict=True))
    for name, array in session.inputs.items():
        array[...] = named.get(name, np.nan)
    session.run()
    return session.outputs[pieces.OUTPUT]


#: Callback for a check's progress: a task's index at its start, or its index and problem.
Emit: TypeAlias = Callable[[Literal["begin", "done"], int, str | None], object]


def check_all(gpu: OpenClDevice, tasks: Sequence[CheckTask], *, emit: Emit, budget: Budget) -> None:
    """Check tasks in a budget."""
    for index, task in enumerate(budget.steps(tasks)):
        emit("begin", index, None)
        result = check(gpu, task)
        ran = not result.problem or result.problem.startswith((WRONG, IMPRECISE))
        if task.variant.processor == "gpu" and ran:  # read by engines on this driver
            blocklist = VariantBlocklist(gpu.programs.identity)
            blocklist.note(task.name, to_text(task.op), is_wrong=result.is_wrong)
        emit("done", index, result.problem)
