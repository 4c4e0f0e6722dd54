"""Timing of stages: the shards of a chain in a small network, executed like a plan.

An op before the chain is cut in the same way, so the chain's inputs come from the other processor
or another net. Caches are evicted before each run, so weights come from memory, as in a large
network. Both processors work at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from zlib import crc32

from codl.errors import UnsupportedError
from codl.ir import Dim, Layer, Network, to_text
from codl.ir.executable import GpuOp, Launch, RunNet
from codl.ir.plan import Chain, Plan
from codl.ir.records.results import Latency
from codl.ir.records.soc import Soc
from codl.ir.types import PROCESSORS
from codl.kernels import registry
from codl.kernels.base import LIBRARIES
from codl.kernels.tuning import Tuning
from codl.lower.lowering import lower
from codl.lower.nets import packed
from codl.lower.partition import chain_outputs, cut
from codl.measure.dataset import SEPARATOR, StageRow
from codl.measure.exchanges import filled
from codl.measure.op_runner import filler
from codl.measure.tasks import StageTask, cuts_of
from codl.measure.timing import Samples, Seconds
from codl.runtime.loaded import totals_ms
from codl.runtime.opencl import OpenClDevice
from codl.runtime.session import Session

NAME = "stage"
#: Least visits of a stage, although evicting the caches takes longer than most stages.
VISITS = 8


def network_of(task: StageTask) -> Network:
    """The network of a task's op `before` and its chain."""
    inputs = {f"x{at}": shape for at, shape in enumerate(task.before.inputs)}
    layers = [Layer("before", task.before, tuple(inputs), "t0", filler(task.before))]
    for at, op in enumerate(task.ops):
        layers.append(Layer(f"op{at}", op, (f"t{at}",), f"t{at + 1}", filler(op)))
    last = layers[-1]
    outputs = {"y": (last.output, tuple(last.op.output))}
    return Network(NAME, tuple(layers), inputs, outputs)


def plan_of(task: StageTask, network: Network, soc: Soc) -> Plan:
    """The plan of both stages; the first is cut like the second if its op allows.

    Variants are default ones; on the CPU a hash of the chain picks a preferred library. Raises
    `UnsupportedError` for a part without a variant on its processor.
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
    """Timer of a stage's network on a device; `evict` empties the caches of both processors."""

    def __init__(
        self, task: StageTask, gpu: OpenClDevice, tuning: Tuning, evict: Callable[[], None]
    ) -> None:
        network, soc = network_of(task), gpu.soc
        self._executable = executable = lower(network, plan_of(task, network, soc), soc, tuning)
        self._session, self._evict = Session(executable, gpu), evict
        computing = [
            stage for stage in executable.stages if any(map(self._computes, stage.commands))
        ]
        stage = computing[1]  # other stages only move data
        nets = [command.net for command in stage.commands if isinstance(command, RunNet)]
        steps = [command.step for command in stage.commands if isinstance(command, Launch)]
        self._nets = [executable.nets[number] for number in dict.fromkeys(nets)]
        launched = (executable.steps[number] for number in dict.fromkeys(steps))
        self._steps = [step for step in launched if isinstance(step, GpuOp)]

    def _computes(self, command: object) -> bool:
        if isinstance(command, Launch):
            return isinstance(self._executable.steps[command.step], GpuOp)
        return isinstance(command, RunNet)

    def sample(self, repeats: int) -> Seconds:
        """Mean seconds of each processor's computation in the stage, in profiled runs."""
        cpu_ms = gpu_ms = 0.0
        for _ in range(repeats):
            self._evict()
            spent = totals_ms(self._session.profile())
            cpu_ms += sum(spent.get(("net", net.label), 0.0) for net in self._nets)
            gpu_ms += sum(spent.get(("kernel", step.label), 0.0) for step in self._steps)
        return {"cpu": 1e-3 * cpu_ms / repeats, "gpu": 1e-3 * gpu_ms / repeats}

    def row(self, row_template: StageRow, samples: Samples) -> StageRow:
        cpu, gpu = (Latency.of(samples[side]) for side in PROCESSORS)
        longer = max(cpu, gpu, key=lambda side: side.level)
        moves = [move for net in self._nets for move in packed(self._executable, net)]
        return replace(
            filled(row_template, samples["cpu" if longer is cpu else "gpu"]),
            cpu_ops=SEPARATOR.join(
                f"{layer.variant} {layer.op}" for net in self._nets for layer in net.layers
            ),
            gpu_ops=SEPARATOR.join(f"{step.variant} {step.ops[0]}" for step in self._steps),
            cpu_calls=len(self._nets),
            gpu_calls=len(self._steps),
            packed=SEPARATOR.join(f"{way} {shape}" for way, shape in moves),
            cpu_ms=cpu.level,
            gpu_ms=gpu.level,
        )
