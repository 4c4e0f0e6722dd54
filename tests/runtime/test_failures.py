"""Kernels that a device cannot build or run, or runs wrong: remembered and got around."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs
from support.devices import here
from support.executables import small_network, small_plan
from support.plans import row
from support.references import converted, evaluate
from support.variants import Failing, source, with_variants

from codl.engine.engine import Engine
from codl.errors import CodlError, CodlWarning, DeviceError
from codl.frontend.models.builder import ModelBuilder
from codl.ir import Network, parse
from codl.ir.constants import Constants
from codl.ir.executable import Executable
from codl.ir.plan import Plan
from codl.ir.records.soc import Soc
from codl.kernels import registry
from codl.kernels.base import KernelPlan, ScratchArg
from codl.kernels.conv2d.gpu_direct import GpuDirect
from codl.kernels.source import compile_options, text_of
from codl.kernels.tuning import Tuning
from codl.lower import pieces
from codl.lower.lowering import VALUE, lower
from codl.machine import cache
from codl.machine.cache import VariantBlocklist
from codl.machine.placement import LocalSoc
from codl.plan.build_plan import default_plan
from codl.runtime import program_cache
from codl.runtime.drivers import cl_module
from codl.runtime.handles import Handles
from codl.runtime.loaded import RefusedError
from codl.runtime.opencl import OpenClDevice
from codl.runtime.program_cache import Programs
from codl.runtime.session import Session
from codl.targets.local import LocalTarget

#: So many bytes are more than any device here gives to one buffer.
HUGE = 1 << 46
OP = parse("conv2d in=1x16x12x12 oc=32 kernel=3 pad=1")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))
    return tmp_path


def launched(plan: KernelPlan, **changes: Any) -> KernelPlan:
    return replace(plan, launches=tuple(replace(each, **changes) for each in plan.launches))


KERNEL = "{} kernel void conv2d_direct({}) {{ {} }}"
PARAMETERS = (
    "__global float *x, int xo, int xs, __global float *y, int yo, int ys, "
    "__global const float *w, __global const float *b, "
    + ", ".join(f"int s{index}" for index in range(17))
)


def does_not_build(folder: Path) -> Callable[[KernelPlan, Soc], KernelPlan]:
    return source(folder, KERNEL.format("", PARAMETERS, "no_such_function(x);"))


def lacks_the_kernel(folder: Path) -> Callable[[KernelPlan, Soc], KernelPlan]:
    return source(folder, "kernel void another(__global float *x) { x[0] = 0; }")


def too_few_arguments(folder: Path) -> Callable[[KernelPlan, Soc], KernelPlan]:
    return lambda plan, soc: launched(plan, args=plan.launches[0].args[:-1])


def too_large_a_group(folder: Path) -> Callable[[KernelPlan, Soc], KernelPlan]:
    def spoil(plan: KernelPlan, soc: Soc) -> KernelPlan:
        size = 2 * soc.gpu.max_work_group_size
        return launched(plan, global_size=(size, 1), local_size=(size, 1))

    return spoil


def too_much_scratch(folder: Path) -> Callable[[KernelPlan, Soc], KernelPlan]:
    def spoil(plan: KernelPlan, soc: Soc) -> KernelPlan:
        (launch,) = plan.launches
        huge = launched(plan, args=(*launch.args, ScratchArg("huge")))
        return replace(huge, scratch={"huge": HUGE})

    return spoil


def another_group_than_compiled_for(folder: Path) -> Callable[[KernelPlan, Soc], KernelPlan]:
    """Only the launch itself shows it."""
    attribute = "__attribute__((reqd_work_group_size(4, 1, 1)))"
    text = KERNEL.format(attribute, PARAMETERS, "")
    spoil = source(folder, text)
    return lambda plan, soc: launched(spoil(plan, soc), global_size=(8, 1), local_size=(2, 1))


FAILURES = {
    does_not_build: ("does not build on", "no_such_function", "-DPIXELS=", "-DV="),
    lacks_the_kernel: ("Binding the kernels of", "the built program has no such kernel"),
    too_few_arguments: ("'conv2d_direct' of 'conv1' takes 25 arguments, and its launch has 24",),
    too_large_a_group: ("'conv1' wants work-groups of", "allows it"),
    too_much_scratch: (f"A buffer of {HUGE} bytes is wanted", "allows"),
    another_group_than_compiled_for: ("'conv1'", "INVALID_WORK_GROUP_SIZE"),
}


@pytest.fixture(scope="module")
def network() -> Network:
    b = ModelBuilder("two")
    x = b.relu(b.conv(b.input("image", (1, 16, 12, 12)), 32, 3, pad=1))
    b.output(b.conv(x, 16, 3, pad=1))
    return converted(b)


def plan_of(network: Network, soc: Soc, first: str, second: str = "gpu_direct") -> Plan:
    """Everything on the GPU, in variants by name."""
    names = [layer.name for layer in network.layers]
    variants = dict(zip(names, (first, second), strict=True))
    return default_plan(network, soc, "gpu", variants=variants, chained=False)


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.__name__)
def test_what_fails_is_got_around(
    failure: Any, soc: Soc, network: Network, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoilt: Any = Failing(failure(folder))
    with_variants(monkeypatch, spoilt)
    x = np.random.default_rng(0).standard_normal((1, 16, 12, 12), np.float32)
    with pytest.warns(CodlWarning, match="'conv1' runs in .* and not in gpu_failing"):
        engine = Engine(network, plan_of(network, soc, "gpu_failing"), here(soc))
    with engine:
        (fallback,) = engine.fallbacks
        y = engine(x)
    assert (fallback.layer, fallback.variant) == ("conv1", "gpu_failing")
    assert fallback.instead != "gpu_failing"
    for text in FAILURES[failure]:
        assert text in fallback.reason
    (expected,) = evaluate(network, {"image": x}).values()
    np.testing.assert_allclose(y, expected, rtol=1e-3, atol=1e-3)


def test_where_nothing_works_every_reason_is_given(
    soc: Soc, network: Network, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoilt: Any = Failing(too_much_scratch(folder))
    with_variants(monkeypatch, spoilt, gpu=False)
    plan = plan_of(network, soc, "gpu_failing", "gpu_failing")
    with pytest.raises(DeviceError, match=r"No kernel variant of 'conv\d' .* A buffer"):
        Engine(network, plan, here(soc))


def test_a_variant_that_refuses_is_named_before_anything_is_compiled(
    soc: Soc, network: Network
) -> None:
    with pytest.raises(CodlError, match="gpu_depthwise cannot run 'conv1': groups, input and"):
        Engine(network, plan_of(network, soc, "gpu_depthwise"), here(soc))


def test_a_failed_build_is_remembered_by_its_process_alone(
    gpu: OpenClDevice, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a folder was full or a library was missing: the next process finds it mended."""
    plan = Failing(does_not_build(folder)).plan(OP, gpu.soc)  # type: ignore[arg-type]
    programs, text = Programs(gpu.context), text_of(plan.source)
    for _ in range(2):
        with pytest.raises(DeviceError, match="no_such_function"):
            programs.build_text(plan.source, text, compile_options(plan.defines))
        assert programs.compiled == 1
    with pytest.raises(DeviceError):
        programs.build_text(plan.source, text, compile_options({**plan.defines, "OTHER": 1}))
    assert programs.compiled == 2, "other macros are another build"
    again = Programs(gpu.context)
    monkeypatch.setattr(program_cache, "build_program", lambda program, options: None)
    monkeypatch.setattr(program_cache, "_binary", lambda program: b"")
    again.build_text(plan.source, text, compile_options(plan.defines))
    assert again.compiled == 1


def test_weights_that_are_too_large_are_a_refusal(gpu: OpenClDevice) -> None:
    op = parse("fc in=1x4x1x1 oc=3")
    plan = registry.find(op, "gpu_direct").plan(op, gpu.soc)  # type: ignore[attr-defined]
    huge = np.broadcast_to(np.float32(0), HUGE)
    spoilt = replace(plan, pack=lambda weights: {"weight": huge, "bias": weights["bias"]})
    weights = {name: np.zeros(shape, np.float32) for name, shape in op.weight_shapes.items()}
    with pytest.raises(RefusedError, match=f"A buffer of {4 * HUGE} bytes is wanted"):
        Session(pieces.kernels_alone(op, spoilt, weights, gpu.soc), gpu)


def test_too_much_local_memory_is_explained(gpu: OpenClDevice, folder: Path) -> None:
    """By the driver's compiler, or by what the built kernel says that it needs.

    Some drivers for CPUs take as much memory as is asked for, and say of no kernel what it needs.
    """
    size = gpu.device.local_mem_size // 4 + 1024
    body = f"local float a[{size}]; a[s0] = *x; barrier(CLK_LOCAL_MEM_FENCE); *y = a[s1];"
    spoil = source(folder, KERNEL.format("", PARAMETERS, body))
    plan = spoil(GpuDirect().plan(OP, gpu.soc), gpu.soc)  # type: ignore[arg-type]
    weights = {name: np.zeros(shape, np.float32) for name, shape in OP.weight_shapes.items()}
    executable = pieces.kernels_alone(OP, plan, weights, gpu.soc)
    handles = Handles(executable, gpu)
    handles.try_kernels()
    if handles.refused:
        assert re.search("local memory|does not build|RESOURCES", handles.refused[0].reason)
    else:
        (launch,) = executable.stages[1].commands
        kernel = handles.kernels[launch].kernel  # type: ignore[arg-type]
        assert gpu.soc.gpu.is_cpu
        said = cl_module().kernel_work_group_info.LOCAL_MEM_SIZE
        assert kernel.get_work_group_info(said, gpu.device) <= gpu.device.local_mem_size


def resized(executable: Executable, name: str, size: int) -> Executable:
    """With the first so many elements of packed arrays of a name, or with one more than all."""

    def pack(own: Constants) -> dict[str, Any]:
        arrays = dict(own.arrays())
        if name in arrays:
            arrays[name] = np.resize(arrays[name], size or arrays[name].size + 1)
        return arrays

    constants = (Constants(own.how, None, partial(pack, own)) for own in executable.constants)
    return structs.replace(executable, constants=tuple(constants))


@pytest.mark.parametrize(
    ("name", "size", "problem"),
    [
        ("weight", 9, "ncnn could not load a net and its .* too little memory"),
        ("bias", 0, r"ncnn could not load a net .* \(4 were not read\)"),
    ],
)
def test_weights_of_another_size_are_refused(
    name: str, size: int, problem: str, first_soc: LocalSoc
) -> None:
    network = row(1)
    executable = lower(network, default_plan(network, first_soc, "cpu"), first_soc, Tuning())
    LocalTarget(first_soc).load(executable).close()
    with pytest.raises(CodlError, match=problem):
        LocalTarget(first_soc).load(resized(executable, name, size))


def test_constants_of_another_shape_are_refused(first_soc: LocalSoc) -> None:
    network = small_network()
    executable = lower(network, small_plan(network, first_soc), first_soc, Tuning())
    LocalTarget(first_soc).load(executable).close()
    with pytest.raises(CodlError, match=r"constant 'value' of 'small' must be \(1, 8, 1, 1\), got"):
        LocalTarget(first_soc).load(resized(executable, VALUE, 1))


NAME, TEXT = "conv2d gpu_direct", "conv2d in=1x5x7x9 oc=6 kernel=3x3 pad=1"


def test_what_is_wrong_is_kept_until_it_is_right() -> None:
    known = VariantBlocklist({"device": "a", "driver": "1"})
    assert known.reason(NAME) == ""
    known.note(NAME, TEXT, is_wrong=True)
    known.note(NAME, "another op", is_wrong=True)
    assert set(known.ops(NAME)) == {TEXT, "another op"}
    assert "`codl doctor` found it wrong on this driver" in known.reason(NAME)
    known.note(NAME, "a third op", is_wrong=False)
    known.note(NAME, TEXT, is_wrong=False)
    assert known.ops(NAME) == ("another op",)
    known.note(NAME, "another op", is_wrong=False)
    assert known.reason(NAME) == ""


def test_another_driver_and_another_variant_begin_with_a_clean_slate() -> None:
    VariantBlocklist({"driver": "1"}).note(NAME, TEXT, is_wrong=True)
    assert VariantBlocklist({"driver": "2"}).reason(NAME) == ""
    assert VariantBlocklist({"driver": "1"}).reason("conv2d gpu_gemm") == ""


@pytest.mark.parametrize("content", [b"", b"{", b"3", b"\xff"])
def test_a_damaged_note_is_none(content: bytes) -> None:
    known = VariantBlocklist({"driver": "1"})
    known._slot(NAME).store(content)
    assert known.reason(NAME) == ""


def test_an_engine_runs_another_variant_in_its_place(first_soc: LocalSoc) -> None:
    b = ModelBuilder("one")
    b.output(b.conv(b.input("image", (1, 16, 12, 12)), 32, 3, pad=1))
    network = converted(b)
    (layer,) = network.layers
    names = [variant.name for variant in registry.variants(layer.op, "gpu", first_soc)]
    plan = default_plan(network, first_soc, "gpu", variants={layer.name: names[0]})
    target = here(first_soc)
    VariantBlocklist(target.device.programs.identity).note(
        f"conv2d {names[0]}", TEXT, is_wrong=True
    )
    with pytest.warns(CodlWarning, match="found it wrong on this driver"):
        engine = Engine(network, plan, target)
    with engine:
        (fallback,) = engine.fallbacks
        assert fallback.variant == names[0]
        x = np.random.default_rng(0).random((1, 16, 12, 12), np.float32)
        expected = layer.op.reference([x.astype(np.float64)], layer.weights)
        np.testing.assert_allclose(engine(x), expected, rtol=1e-3, atol=1e-3)
