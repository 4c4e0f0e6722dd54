"""Measures stages: what the shards of a chain take in a small network that runs as plans do.

An op of its own comes before the chain, cut alike, so the chain finds its inputs where the other
processor, or another net, has left them. Before every run other data goes through the caches of
both processors, so that weights lie in memory, as those of a large network do; and both processors
are at work at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from zlib import crc32

from codl.errors import UnsupportedError
from codl.ir import Dim, Layer, Network, to_text
from codl.ir.executable import Executable, GpuOp, Launch, RunNet, Stage
from codl.ir.plan import Chain, Plan
from codl.ir.types import PROCESSORS
from codl.kernels import registry
from codl.kernels.base import LIBRARIES
from codl.kernels.tuning import Tuning
from codl.lower import lower
from codl.lower.nets import packed
from codl.lower.partition import chain_outputs, cut
from codl.measure.dataset import SEPARATOR, StageRow
from codl.measure.op_runner import filler
from codl.measure.tasks import StageTask, cuts_of
from codl.measure.timing import Samples, Seconds
from codl.records.results import Latency
from codl.records.soc import Soc
from codl.runtime.loaded import totals_ms
from codl.runtime.opencl import OpenClDevice
from codl.runtime.session import Session

NAME = "stage"
#: Emptying the caches takes longer than most stages, so they are visited this often all the same.
VISITS = 8


def network_of(task: StageTask) -> Network:
    """The op before and the chain, one behind the other."""
    inputs = {f"x{at}": shape for at, shape in enumerate(task.before.inputs)}
    layers = [Layer("before", task.before, tuple(inputs), "t0", filler(task.before))]
    for at, op in enumerate(task.ops):
        layers.append(Layer(f"op{at}", op, (f"t{at}",), f"t{at + 1}", filler(op)))
    last = layers[-1]
    outputs = {"y": (last.output, tuple(last.op.output))}
    return Network(NAME, tuple(layers), inputs, outputs)


def plan_of(task: StageTask, network: Network, soc: Soc) -> Plan:
    """Both stages; the first like the second as far as its op can be cut.

    Kernels are default variants, and the CPU's ops are one library's, by turns from task to task,
    where that has them. Raises `UnsupportedError` for a part that a processor has no variant for.
    """
    before, *chain = network.layers
    dims = cuts_of(before.op)
    dim: Dim = task.dim if task.dim in dims else next(iter(dims), "H")
    ratio = task.gpu_ratio if dims else float(task.gpu_ratio >= 1 / 2)
    library = LIBRARIES[crc32(task.chain.encode()) % len(LIBRARIES)]
    chains = (
        _chain(network, [before], dim, ratio, soc, library),
        _chain(network, chain, task.dim, task.gpu_ratio, soc, library),
    )
    return Plan(network.name, network.digest, soc.name, NAME, "", "missing", None, chains)


def _chain(
    network: Network, layers: Sequence[Layer], dim: Dim, gpu_ratio: float, soc: Soc, library: str
) -> Chain:
    outputs = chain_outputs(network, layers)
    shards = cut(layers, outputs, dim, gpu_ratio, block=soc.gpu.vector_width)
    variants: dict[str, dict[str, str]] = {layer.name: {} for layer in layers}
    for processor, shard in zip(PROCESSORS, shards, strict=True):
        for part in shard.parts:
            able = registry.variants(part.op, processor, soc)
            if not able:
                text = to_text(part.op)
                raise UnsupportedError(f"The {processor} has no kernel variant for {text!r}.")
            preferred = [v for v in able if v.backend == library] or able
            variants[part.layer.name][processor] = preferred[0].name
    return Chain(tuple(layer.name for layer in layers), dim, gpu_ratio, variants)


class StageTimer:
    """Such a network on a device, ready to run; raises where that fails.

    `evict` empties the caches of both processors.
    """

    def __init__(
        self, task: StageTask, gpu: OpenClDevice, tuning: Tuning, evict: Callable[[], None]
    ) -> None:
        network, soc = network_of(task), gpu.soc
        executable = lower(network, plan_of(task, network, soc), soc, tuning)
        self._session, self._evict = Session(executable, gpu), evict
        self._shards = _Shards(executable)

    def sample(self, repeats: int) -> Seconds:
        """Mean seconds of what either processor computes in the stage, in profiled runs."""
        runs = [self._run() for _ in range(repeats)]
        each = zip(PROCESSORS, zip(*runs, strict=True), strict=True)
        return {side: 1e-3 * sum(taken) / repeats for side, taken in each}

    def _run(self) -> tuple[float, float]:
        self._evict()
        return self._shards.taken_ms(self._session)

    def row(self, row_template: StageRow, samples: Samples) -> StageRow:
        return self._shards.row(row_template, samples)


class _Shards:
    """What each processor does in the second stage of an executable."""

    def __init__(self, executable: Executable) -> None:
        self._executable = executable
        stage = self._second()
        nets = [command.net for command in stage.commands if isinstance(command, RunNet)]
        steps = [command.step for command in stage.commands if isinstance(command, Launch)]
        self._nets = [executable.nets[number] for number in dict.fromkeys(nets)]
        launched = (executable.steps[number] for number in dict.fromkeys(steps))
        self._steps = [step for step in launched if isinstance(step, GpuOp)]

    def _second(self) -> Stage:
        """Of those in which something computes; a stage that only moves data is none."""
        computing = [
            stage
            for stage in self._executable.stages
            if any(self._computes(command) for command in stage.commands)
        ]
        return computing[1]

    def _computes(self, command: object) -> bool:
        if isinstance(command, Launch):
            return isinstance(self._executable.steps[command.step], GpuOp)
        return isinstance(command, RunNet)

    def taken_ms(self, session: Session) -> tuple[float, float]:
        """Milliseconds of nets and of kernels in a profiled run."""
        spent = totals_ms(session.profile())
        nets = sum(spent.get(("net", net.label), 0.0) for net in self._nets)
        return nets, sum(spent.get(("kernel", step.label), 0.0) for step in self._steps)

    def row(self, row_template: StageRow, samples: Samples) -> StageRow:
        cpu, gpu = (Latency.of(samples[side]) for side in PROCESSORS)
        longer = max(cpu, gpu, key=lambda side: side.level)
        return replace(
            row_template,
            cpu_ops=SEPARATOR.join(
                f"{layer.variant} {layer.op}" for net in self._nets for layer in net.layers
            ),
            gpu_ops=SEPARATOR.join(f"{step.variant} {step.ops[0]}" for step in self._steps),
            cpu_calls=len(self._nets),
            gpu_calls=len(self._steps),
            packed=SEPARATOR.join(self._packed()),
            cpu_ms=cpu.level,
            gpu_ms=gpu.level,
            latency_ms=longer.level,
            p20_ms=longer.p20,
            p80_ms=longer.p80,
            runs=longer.runs,
        )

    def _packed(self) -> list[str]:
        moves = [move for net in self._nets for move in packed(self._executable, net)]
        return [f"{way} {shape}" for way, shape in moves]
