"""What executables are refused for, with the place and the value; sound ones pass."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs
from support.executable_fuzz import executables
from support.executables import SOCS, encoded, small_executable
from support.fuzzing import fuzz
from support.simulated import SOC

from codl.errors import CodlError, MismatchError
from codl.frontend.convert import load_network, network_of
from codl.frontend.graph.onnx_import import import_onnx
from codl.frontend.models.builder import ModelBuilder
from codl.ir import Network
from codl.ir.executable import Buffer, Executable, GpuOp, Raise
from codl.ir.executable_check import check
from codl.ir.executable_json import decode
from codl.kernels.tuning import Tuning
from codl.lower import lower
from codl.plan.build_plan import default_plan
from codl.records import soc as socs
from codl.runtime.numpy_interpreter import Interpreter
from codl.strategies import STRATEGIES, Context
from codl.validate.executable_ops import parts_of, stand_ins


def test_mutated_executables_run_or_are_refused() -> None:
    ran, refused = fuzz(executables(), 1000)
    assert refused > 750
    assert ran > 25


@pytest.mark.parametrize("model", ["mobilenet_v2", "op_chain"])
@pytest.mark.parametrize("side", ["cpu", "gpu"])
def test_those_of_models_are_sound(model: str, side: Any) -> None:
    network = load_network(model)
    check(lower(network, default_plan(network, SOC, side), SOC, Tuning()))


def test_a_convolution_with_its_residual_is_sound_alone() -> None:
    """As `codl validate` sends it to a device: one step of two ops and two inputs."""
    network = load_network("mobilenet_v2")
    plan = default_plan(network, SOC, "gpu")
    adding = [use for use in parts_of(lower(network, plan, SOC, Tuning()), network) if use.add]
    assert len(adding) == 10
    for use in adding:
        check(use.executable(SOC))


def residual_blocks() -> Network:
    b = ModelBuilder("residuals")
    x = b.relu(b.conv(b.input("image", (1, 32, 28, 28)), 32, 3, pad=1))
    for kernel in (1, 3):
        x = b.relu(b.add(x, b.conv(x, 32, kernel, pad=kernel // 2)))
    b.output(b.fully_connected(b.flatten(b.max_pool(x, 2, 2)), 10))
    return network_of(import_onnx(b.build(), "residuals"))


@pytest.mark.parametrize("name", [s.name for s in STRATEGIES.values() if not s.runs_plans])
def test_what_any_strategy_makes_of_residuals_is_sound(name: str) -> None:
    """Whole, op by op, and each in every variant that could stand in, as a device is sent them."""
    network, context = residual_blocks(), Context.of(socs.load("epyc2"))
    plan, soc = STRATEGIES.find(name).plan(network, context), context.soc
    executable = lower(network, plan, soc, context.tuning)
    check(executable)
    check(lower(network, plan, soc, context.tuning, fuse=False))
    every = parts_of(executable, network)
    assert {use.layer.op.kind for use in every} >= {"conv2d", "pooling", "fc"}
    assert any(use.result.op.kind == "eltwise" for use in every)
    if {use.processor for use in every} == {"gpu"}:
        assert any(use.add for use in every), "convolutions add their residuals"
    for use in every:
        check(use.executable(soc))
        alike = list(stand_ins(use, soc, context.tuning))
        assert alike
        for other in alike:
            check(other.executable(soc))


def first_of(kind: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """The first command of a kind."""

    def take(value: dict[str, Any]) -> dict[str, Any]:
        commands = [one for stage in value["stages"] for one in stage["commands"]]
        return next(one for one in commands if one["type"] == kind)

    return take


def first(*keys: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """The first one of a list."""

    def take(value: dict[str, Any]) -> dict[str, Any]:
        for key in keys:
            value = value[key][0]
        return value

    return take


#: Stands for the buffer of a flag.
FLAG = object()
#: What is changed, its key, the value there, and what the refusal says.
CHANGES = [
    (first("buffers"), "bytes", 1, r"tensors\[\d+\].* bytes in"),
    (first("buffers"), "bytes", 1 << 50, r"buffers, bytes of all"),
    (first("tensors"), "buffer", 99, r"tensors\[0\], buffer: 99"),
    (first("steps"), "ops", ["relu"], r"steps\[0\]"),
    (first("programs"), "options", "-I/etc", r"programs\[0\], options"),
    (first("programs"), "name", "../x.cl", r"programs\[0\], name"),
    (first_of("Launch"), "kernel", "main", r"kernel that .* has not: 'main'"),
    (first_of("Launch"), "global_size", [1 << 30] * 3, "global size"),
    (first_of("Launch"), "step", 400, "step: 400"),
    (first_of("Wait"), "event", 77, "event that nothing before signals: 77"),
    (first_of("Map"), "buffer", 0, "place of what is mapped"),
    (first_of("RunNet"), "net", -1, "net: -1"),
    (first("nets", "parts"), "param", "7767517\n1 1\nInput a 0 1 t0\n", "text of a net"),
    (first("nets", "layers"), "op", "conv2d in=1x9x9x9 oc=8 kernel=3", "layers that do not fit"),
]


@pytest.mark.parametrize(("take", "key", "value", "message"), CHANGES)
def test_what_is_changed_is_refused_with_its_place(
    take: Callable[[dict[str, Any]], dict[str, Any]], key: str, value: Any, message: str
) -> None:
    content, arrays = encoded(small_executable(SOCS[0]))
    changed = json.loads(content)
    take(changed)[key] = value
    with pytest.raises(CodlError, match=message):
        decode(json.dumps(changed).encode(), arrays.__getitem__)


@pytest.mark.parametrize(
    ("take", "key", "value", "message"),
    [
        (lambda value: value, "version", 1, "flags in an executable of version 1"),
        (first_of("Raise"), "buffer", 0, r"buffers\[0\] is raised, which is no flag"),
        (first_of("Raise"), "program", 99, "program: 99"),
        (first_of("Raise"), "kernel", "raise", "kernel that flag.cl has not: 'raise'"),
        (first_of("Raise"), "signals", 77, "event that nothing before signals"),
        (first_of("Raise"), "step", 400, "step: 400"),
        (first("tensors"), "buffer", FLAG, r"tensors\[0\].* bytes in|lies in a flag"),
    ],
)
def test_a_flag_that_is_changed_is_refused(
    take: Callable[[dict[str, Any]], dict[str, Any]], key: str, value: Any, message: str
) -> None:
    content, arrays = encoded(small_executable(SOCS[3]))
    changed = json.loads(content)
    if value is FLAG:
        value = first_of("Raise")(changed)["buffer"]
    take(changed)[key] = value
    with pytest.raises(CodlError, match=message):
        decode(json.dumps(changed).encode(), arrays.__getitem__)


def test_a_flag_has_one_command_and_its_own_size() -> None:
    executable = small_executable(SOCS[3])
    raised = next(one for one in executable.commands if isinstance(one, Raise))
    stage, *others = executable.stages
    again = structs.replace(stage, commands=(*stage.commands, structs.replace(raised, signals=99)))
    with pytest.raises(CodlError, match="or another's"):
        check(structs.replace(executable, stages=(again, *others)))
    buffers = [structs.replace(own, bytes=4) if own.place == "flag" else own
               for own in executable.buffers]  # fmt: skip
    with pytest.raises(CodlError, match="a flag of 4 bytes"):
        check(structs.replace(executable, buffers=tuple(buffers)))


def test_another_version_is_refused_before_all_else() -> None:
    with pytest.raises(MismatchError, match="version 99; this codl reads"):
        decode(b'{"version": 99, "anything": [1]}', {}.__getitem__)


def test_memory_that_is_not_there_is_said_to_be_missing() -> None:
    executable = small_executable()
    large = Buffer("cpu", (1 << 48) - (1 << 40))
    with pytest.raises(CodlError, match="which are not there"):
        Interpreter(structs.replace(executable, buffers=(*executable.buffers, large)))


def with_tensor(executable: Executable, number: int, name: str) -> Executable:
    """The executable with another name for a tensor."""
    tensors = list(executable.tensors)
    tensors[number] = structs.replace(tensors[number], name=name)
    return structs.replace(executable, tensors=tuple(tensors))


def test_a_tensor_has_one_producer() -> None:
    network = load_network("op_chain")
    on_gpu = lower(network, default_plan(network, SOC, "gpu"), SOC, Tuning())
    first, second = [step.writes.tensor for step in on_gpu.steps if isinstance(step, GpuOp)][:2]
    with pytest.raises(CodlError, match=r"tensors, two producers: .* makes .* and so does"):
        check(with_tensor(on_gpu, second, on_gpu.tensors[first].name))
    given = next(iter(on_gpu.inputs.values())).tensor
    with pytest.raises(CodlError, match="the caller gives it"):
        check(with_tensor(on_gpu, first, on_gpu.tensors[given].name))
    on_cpu = lower(network, default_plan(network, SOC, "cpu"), SOC, Tuning())
    (net, *others) = on_cpu.nets
    one, two, *rest = net.layers
    twice = structs.replace(net, layers=(one, structs.replace(two, output=one.output), *rest))
    with pytest.raises(CodlError, match="which is there already"):
        check(structs.replace(on_cpu, nets=(twice, *others)))
