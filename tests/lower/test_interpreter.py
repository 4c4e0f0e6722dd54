"""Executables of random networks and plans, run in NumPy: their outputs are the networks' own."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from support.command_order import OrderError, check_order
from support.executables import small_executable
from support.numpy_interpreter import Interpreter
from support.plans import apart, branching_case, make_plan
from support.random_networks import random_networks, random_plans
from support.random_plans import random_plan
from support.references import evaluate
from support.simulated import SOC, soc_with

from codl.errors import CodlError
from codl.ir.executable import Executable, GpuOp, Launch, Wait
from codl.ir.network import Layer, Network
from codl.ir.op_text import parse
from codl.ir.ops.base import Op
from codl.ir.plan import Chain
from codl.ir.records.soc import Soc
from codl.ir.region import Span
from codl.kernels.tuning import Tuning
from codl.lower.lowering import lower
from codl.lower.partition import cut
from codl.measure.inputs import random_inputs

#: What outputs may be off, against the largest of them: tensors are stored between ops.
TOLERANCES = {"float32": 2e-5, "float16": 3e-2}


@st.composite
def socs(draw: st.DrawFn) -> Soc:
    """SoCs of every storage, with and without memory that both processors see."""
    memory_types = [("buffer",), ("image2d",), ("buffer", "image2d"), ("image2d", "buffer")]
    return soc_with(
        type=draw(st.sampled_from(["gpu", "gpu", "cpu"])),
        vector_width=draw(st.sampled_from([4, 8, 16])),
        memory_types=draw(st.sampled_from(memory_types)),
        element=draw(st.sampled_from(["float32", "float32", "float16"])),
        fine_grained_svm=draw(st.booleans()),
    )


def check_outputs(network: Network, interpreter: Interpreter, element: str, seed: int = 1) -> None:
    inputs = random_inputs(network, seed)
    for name, array in interpreter.inputs.items():
        np.copyto(array, inputs[name].reshape(array.shape))
    interpreter.run()
    for name, expected in evaluate(network, inputs).items():
        error = np.abs(interpreter.outputs[name] - expected).max()
        assert error <= TOLERANCES[element] * max(np.abs(expected).max(), 1), (
            f"{name} is {error} off"
        )


@given(data=st.data(), network=random_networks(), soc=socs(), fuse=st.booleans())
@settings(max_examples=150, derandomize=True)
def test_an_executable_computes_what_its_network_does(
    data: st.DataObject, network: Network, soc: Soc, fuse: bool
) -> None:
    """Whatever is reused, poisoned or waited for; the second inference as the first one."""
    plan = data.draw(random_plans(network, soc))
    with nullcontext() if fuse else apart():
        executable = lower(network, plan, soc, Tuning())
    interpreter = Interpreter(executable, poisoned=True)
    for seed in (1, 2):
        check_outputs(network, interpreter, soc.gpu.element, seed)


def test_a_chain_keeps_the_groups_of_a_convolution_whole() -> None:
    """A depthwise convolution behind one in groups is cut where the groups cannot be."""
    first = parse("conv2d in=1x12x7x5 oc=40 kernel=3 pad=1 groups=2")
    second = parse("conv2d in=1x40x7x5 oc=40 kernel=1 groups=40")
    network = chain_of([first, second])
    cpu, gpu = cut(network.layers, ["t1"], "OC", 0.7, block=4)
    assert [part.region.channels for part in cpu.parts] == [Span(20, 40), Span(28, 40)]
    assert [part.region.channels for part in gpu.parts] == [Span(0, 40), Span(0, 28)]
    plan = make_plan(network, SOC, [(2, "OC", 0.7)])
    check_outputs(network, Interpreter(lower(network, plan, SOC, Tuning())), "float32")


def test_what_two_libraries_share_lies_in_a_tensor_of_the_right_shape() -> None:
    """On the second image of a batch, which is another processor's part of the network's tensor."""
    op = parse("conv2d in=2x3x6x5 oc=3 kernel=3 pad=1")
    norm = parse("norm in=2x3x6x5,1x3x1x1,1x3x1x1 axis=1 epsilon=0.01")
    ones = {name: np.ones((1, 3, 1, 1), np.float32) for name in ("scale", "bias")}
    layers = [*chain_of([op]).layers, Layer("norm", norm, ("t0", *ones), "t1", {})]
    network = Network("two", tuple(layers), {"x": op.input}, {"y": ("t1", (2, 3, 6, 5))}, ones)
    variants = {"op0": {"cpu": "cpu_direct", "gpu": "gpu_direct"},
                "norm": {"cpu": "cpu_ort", "gpu": "gpu_direct"}}  # fmt: skip
    chain = Chain(("op0", "norm"), "N", 0.5, variants)
    plan = replace(make_plan(network, SOC, []), chains=(chain,))
    check_outputs(network, Interpreter(lower(network, plan, SOC, Tuning())), "float32")


def lowered(soc: Soc) -> Executable:
    """Convolutions that move rows and channels both ways, lowered."""
    ops = [parse("conv2d in=1x8x9x5 oc=8 kernel=3 pad=1")] * 4
    network = chain_of(ops)
    cuts = [(1, "H", 0.5), (1, "OC", 0.5), (1, "H", 0.0), (1, "H", 0.4)]
    return lower(network, make_plan(network, soc, cuts), soc, Tuning())


@pytest.mark.parametrize("seed", range(40))
def test_commands_do_not_race(seed: int) -> None:
    """Whatever their timing: memory that both see is taken again only when the other is done."""
    network, _, _ = branching_case()
    for soc in (SOC, soc_with(unified_memory=True, fine_grained_svm=True)):
        plan = random_plan(network, soc, Random(seed), ratios=(0.5,))
        executable = lower(network, plan, soc, Tuning())
        assert sum(isinstance(one, Wait) for one in executable.commands)
        check_order(executable)


def test_no_wait_is_superfluous() -> None:
    """Were any one of its waits last, an executable would race, and the interpreter says so."""
    executable = lowered(soc_with(fine_grained_svm=True))
    *places, last = waits(executable)
    assert places
    assert last == (len(executable.stages) - 1, len(executable.stages[-1].commands) - 1)
    for stage, place in places:
        with pytest.raises(OrderError, match="no wait lies between"):
            run_waiting_late(executable, stage, place)
        with pytest.raises(OrderError, match="no wait lies between"):
            check_order(waiting_late(executable, stage, place))


def test_staging_memory_is_not_overwritten_while_the_gpu_reads_it() -> None:
    """That it is mapped to be overwritten does not say that kernels before have read it."""
    executable = small_executable(SOC)
    copied = {one.signals for one in executable.setup if isinstance(one, Launch)}
    assert len(copied) > 1
    kept = [one for one in executable.setup if not (isinstance(one, Wait) and one.event in copied)]
    with pytest.raises(OrderError, match="may still use it"):
        Interpreter(structs.replace(executable, setup=tuple(kept)))


def waits(executable: Executable) -> list[tuple[int, int]]:
    return [
        (stage, place)
        for stage, own in enumerate(executable.stages)
        for place, command in enumerate(own.commands)
        if isinstance(command, Wait)
    ]


def run_waiting_late(
    executable: Executable, stage: int, place: int, to_stage: int = -1, to: int = 1 << 30
) -> None:
    """Two inferences with one of the waits elsewhere, or behind all else."""
    interpreter = Interpreter(waiting_late(executable, stage, place, to_stage, to))
    interpreter.run()
    interpreter.run()


def waiting_late(
    executable: Executable, stage: int, place: int, to_stage: int = -1, to: int = 1 << 30
) -> Executable:
    stages = [list(one.commands) for one in executable.stages]
    stages[to_stage].insert(to, stages[stage].pop(place))
    late = tuple(
        structs.replace(one, commands=tuple(commands))
        for one, commands in zip(executable.stages, stages, strict=True)
    )
    return structs.replace(executable, stages=late)


def test_a_wait_for_an_event_of_before_is_refused() -> None:
    executable = lowered(soc_with(fine_grained_svm=True))
    stages = tuple(
        structs.replace(stage, commands=tuple(again for one in stage.commands
                                              for again in [one] * (1 + isinstance(one, Wait))))
        for stage in executable.stages
    )  # fmt: skip
    with pytest.raises(CodlError, match="event that nothing before signals"):
        Interpreter(structs.replace(executable, stages=stages))


def test_tensors_that_live_at_once_may_not_share_a_buffer() -> None:
    executable = lowered(soc_with(fine_grained_svm=True))
    op = next(step for step in executable.steps if isinstance(step, GpuOp))
    read, tensors = op.reads[0].tensor, list(executable.tensors)
    tensors[read] = structs.replace(tensors[read], buffer=tensors[op.writes.tensor].buffer)
    with pytest.raises(OrderError, match="reads and overwrites"):
        Interpreter(structs.replace(executable, tensors=tuple(tensors))).run()


def chain_of(ops: list[Op]) -> Network:
    """Ops one behind the other."""
    dice, layers = np.random.default_rng(0), []
    for index, op in enumerate(ops):
        weights = {
            name: dice.standard_normal(shape).astype(np.float32)
            for name, shape in op.weight_shapes.items()
        }
        source = "x" if index == 0 else f"t{index - 1}"
        layers.append(Layer(f"op{index}", op, (source,), f"t{index}", weights))
    last = ops[-1].output
    return Network("chain", tuple(layers), {"x": ops[0].input}, {"y": (layers[-1].output, last)})


def test_mapped_memory_is_not_used_before_it_is_there() -> None:
    """A wait that comes one command later, behind the copy to what it waits for."""
    executable = lowered(SOC)
    stage, place = waits(executable)[0]
    with pytest.raises(OrderError, match="nothing waited for setup"):
        run_waiting_late(executable, stage, place, stage, place + 1)
