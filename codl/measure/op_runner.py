"""Runs of single ops in a kernel variant on its processor, and comparison of variants."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np

from codl.errors import is_defect
from codl.ir import Array, Op, Weights
from codl.ir.constants import Arrays
from codl.ir.executable import Executable, NcnnNet, OnnxNet, OpenVinoNet
from codl.ir.records.results import Latency
from codl.ir.records.statistic import level
from codl.ir.records.tuned import BenchRow, Refused
from codl.ir.types import Processor
from codl.kernels import registry
from codl.kernels.base import KernelPlan
from codl.kernels.tuning import Tuning
from codl.lower import pieces
from codl.machine.placement import LocalSoc
from codl.measure.timing import Protocol, measure_together
from codl.runtime.opencl import OpenClDevice
from codl.runtime.session import Session, host_session

if TYPE_CHECKING:
    from codl.runtime.ncnn_net import NcnnSession

SEED = 3
ELSEWHERE = "written for another type of device, memory or element than the SoC file names"
#: A function that performs n runs and returns at their end.
Work: TypeAlias = Callable[[int], None]
#: Runs to measure an op's share of a call; profiled runs, and warm-up runs before them.
SHARE_RUNS, RUNS, BEFORE = 15, 12, 3
#: Kind and seconds of a profiled step of a net.
Step: TypeAlias = tuple[str, float]
#: Kinds of steps without arithmetic: layout conversions, inputs and outputs.
MOVES = frozenset({"ReorderInput", "ReorderOutput", "Reorder", "Input", "Output"})
#: Ratio of run time to profiled kernel time up to which there is no call overhead.
NOISE = 1.1
#: Mean truncation error of a profiled time, which is in whole microseconds.
CUT_S = 0.5e-6
#: Period of random operands: a prime, unlikely to divide a tensor's size.
RANDOM = 65537


class GpuWork:
    """The kernels of an op over their own tensors, enqueued back to back, as in a chain.

    Default inputs are mostly zeros. Each kernel runs once at loading; raises `DeviceError` for a
    kernel that the device cannot run.
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
        self._session = Session(pieces.kernels_alone(op, plan, weights, gpu.soc), gpu)
        self._kernels = self._session.kernels(pieces.WORK)
        if inputs is not None:
            for name, value in zip(pieces.input_names(len(inputs)), inputs, strict=True):
                np.copyto(self._session.inputs[name], value)
            self._session.run()

    def __call__(self, repeats: int) -> None:
        self._gpu.run(self._kernels * repeats)

    def output(self) -> Array:
        """The output of the last run, shaped (images, channels, rows, columns)."""
        for action in self._session.stage(pieces.FETCH):
            action.run()
        output: Array = self._session.outputs[pieces.OUTPUT].copy()
        return output


def default_work(op: Op, processor: Processor, gpu: OpenClDevice, tuning: Tuning) -> Work:
    """The work of an op in the default variant of a processor, with tuned kernels."""
    variant: Any = registry.variants(op, processor, gpu.soc)[0]
    return work_of(variant, op, gpu, tuning)


def work_of(variant: Any, op: Op, gpu: OpenClDevice, tuning: Tuning) -> Work:
    """The work of an op in a variant, as inside a chain.

    On the CPU it is a net whose tensors stay packed, because data sharing measures packing apart;
    on the GPU, tuned kernels enqueued back to back.
    """
    if variant.processor == "cpu":
        return cpu_work(op, variant, gpu.soc)
    return GpuWork(gpu, op, tuning.plan(variant, op, gpu.soc), filler(op))


@dataclass(frozen=True)
class CpuWork:
    """A net of one op; `share` is the op's share of a run, as some libraries pack in each run."""

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
        alone = pieces.net_alone([self.op], self.variant, [filler(self.op)], self.soc)
        taken_s = []
        for _ in range(SHARE_RUNS):
            start = perf_counter()
            self.run()
            taken_s.append(perf_counter() - start)
        return share_of_ops(alone, self.soc, level(taken_s))


def cpu_work(op: Op, variant: Any, soc: LocalSoc) -> CpuWork:
    """A net of one op over memory of its own; ncnn's inputs and results stay packed."""
    executable = pieces.net_alone([op], variant, [filler(op)], soc)
    (net,) = host_session(executable, soc, own_memory=True).nets
    if not isinstance(executable.nets[0], NcnnNet):
        return CpuWork(op, variant, soc, net.run)
    packed = cast("NcnnSession", net)
    packed.pack_inputs()
    return CpuWork(op, variant, soc, packed.compute)


def share_of_ops(executable: Executable, soc: LocalSoc, run_s: float = 0.0) -> float:
    """The ops' share (0 ... 1) of the run time of the executable's single net, by its profile.

    Any net converts tensors to the library's layout and back once, so only the time of the ops' own
    kernels counts. `run_s` are the seconds of a run; time beyond all kernels is call overhead, such
    as waking threads. 1 for an empty profile.
    """
    (net,) = executable.nets
    assert isinstance(net, OnnxNet)
    profiled = _openvino_runs if isinstance(net, OpenVinoNet) else _onnx_runtime_runs
    runs = profiled(executable, net, soc)[BEFORE:]
    ops_s, moves_s = (
        level([sum(taken_s for kind, taken_s in run if (kind in MOVES) == is_move) for run in runs])
        for is_move in (False, True)
    )
    if not ops_s:
        return 1.0
    kernels_s = ops_s + moves_s
    return ops_s / (run_s if run_s > NOISE * kernels_s else kernels_s)


def profiled_in_openvino(executable: Executable, net: OnnxNet, soc: LocalSoc) -> Any:
    """An OpenVINO request for the net with profiling of each step; raises as loading does."""
    from codl.runtime.onnx_nets import compiled

    model, weights = _content(executable, net)
    options = {"PERF_COUNT": True}
    return compiled(model, weights, soc, net.label, options).create_infer_request()


def openvino_steps(request: Any) -> list[Step]:
    """Run a profiled request; returns the steps that took time, in order."""
    request.infer(share_outputs=True)
    return [
        (step.node_type, CUT_S + step.real_time.total_seconds())
        for step in request.get_profiling_info()
        if step.real_time
    ]


def _openvino_runs(executable: Executable, net: OnnxNet, soc: LocalSoc) -> list[list[Step]]:
    request = profiled_in_openvino(executable, net, soc)
    return [openvino_steps(request) for _ in range(BEFORE + RUNS)]


def _onnx_runtime_runs(executable: Executable, net: OnnxNet, soc: LocalSoc) -> list[list[Step]]:
    from codl.runtime.onnx_nets import level_of, make_session  # a device may have ncnn alone

    model, weights = _content(executable, net)
    with TemporaryDirectory(prefix="codl-profile-", ignore_cleanup_errors=True) as folder:
        session = make_session(
            model,
            soc,
            [net.label],
            weights=weights,
            level=level_of(net),
            profile=str(Path(folder, "run")),
        )
        binding, arrays = session.io_binding(), []
        for bind, ends in ((binding.bind_input, net.inputs), (binding.bind_output, net.outputs)):
            for end in ends:
                arrays.append(np.zeros(end.sizes, np.float32))
                bind(end.name, "cpu", 0, np.float32, list(end.sizes), arrays[-1].ctypes.data)
        for _ in range(BEFORE + RUNS):
            session.run_with_iobinding(binding)
        events = json.loads(Path(session.end_profiling()).read_text())
    runs: list[list[Step]] = []
    steps: list[Step] = []
    for event in events:  # each run's kernels precede the run's event
        if event.get("name", "").endswith("_kernel_time"):
            steps.append((event["args"]["op_name"], CUT_S + 1e-6 * event.get("dur", 0)))
        elif event.get("name") == "model_run":
            runs.append(steps)
            steps = []
    return runs


def _content(executable: Executable, net: OnnxNet) -> tuple[bytes, Arrays]:
    """A net's serialised model, and its external weights by name."""
    weights = dict(executable.constants[net.model.constants].arrays())
    return weights.pop(net.model.name).tobytes(), weights


def filler(op: Op) -> Weights:
    """Constant weights: quick to create, and sufficient for latencies."""
    return op.weights_of(lambda shape: np.full(shape, 0.01, np.float32))


def operands(op: Op) -> tuple[list[Array], Weights]:
    """Random inputs and weights, for comparing results."""
    table = np.random.default_rng(SEED).standard_normal(RANDOM, np.float32)
    weights = op.weights_of(lambda shape: np.resize(table, shape))
    return [np.resize(table[index:], shape) for index, shape in enumerate(op.inputs)], weights


def bench(
    gpu: OpenClDevice,
    op: Op,
    tuning: Tuning = Tuning(),
    *,
    every: bool = False,
    protocol: Protocol | None = None,
) -> tuple[list[BenchRow], list[Refused]]:
    """Measure every variant of both processors for an op, in turns.

    `every` includes variants unfit for this SoC. Returns measured variants in order of latency, and
    refused ones with reasons.
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
