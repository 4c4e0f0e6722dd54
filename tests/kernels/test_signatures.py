"""What every entry passes to its kernels, against their parameters in the OpenCL text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.common_checks import CPU_DEVICE, WITH_IMAGES, examples
from support.opencl_text import Parameter, parameters

from codl.ir import Op, Shape, parse
from codl.ir.types import Storage
from codl.kernels import registry
from codl.kernels.base import ApartArg, ConstantArg, KernelLaunch, KernelPlan, ScratchArg, TensorArg
from codl.kernels.layout import KERNELS, transform
from codl.kernels.source import text_of

#: Ops whose kernels have arguments that none of the examples needs.
MORE = {
    "conv2d": ("conv2d in=2x32x14x14 oc=32 kernel=1x1", "conv2d in=1x256x7x7 oc=64 kernel=1x1"),
    "matmul": (
        "matmul in=2x3x1x70,2x1x83x70 alpha=0.5 trans_b=1",
        "matmul in=13x2100,41x2100 trans_b=1 act=tanh",
        "matmul in=70x260 matrix=76x260 trans_b=1",
        "matmul in=2x70 matrix=76x70 trans_b=1",
    ),
    "attention": ("attention in=1x2x9x16,1x2x300x16,1x2x300x16,1x1x9x300",),
    "norm": ("norm in=1x16x170x130,1x16x1x1,1x16x1x1 axis=1 groups=16",),
}
VARIANTS = [name for name, v in registry.VARIANTS.items() if v.processor == "gpu"]


def plans(variant: Any) -> Iterator[KernelPlan]:
    ops: list[Op] = [*examples(variant.op_kind), *map(parse, MORE.get(variant.op_kind, ()))]
    for soc in (WITH_IMAGES, CPU_DEVICE):
        for op in ops:
            if variant.refusal(op, soc) is None:
                for choice in variant.choices(op, soc)[:8]:
                    yield variant.plan(op, soc, choice)


def check(plan: KernelPlan, launch: KernelLaunch) -> None:
    text = text_of(plan.source)
    left = parameters(text, plan.defines | {"__IMAGE_SUPPORT__": 1}, launch.kernel)
    names = (*launch.names, *[""] * len(launch.args))
    for argument, name in zip(launch.args, names, strict=False):
        where = f"{plan.source} {launch.kernel}: {argument} {name}"
        if isinstance(argument, TensorArg):
            tensor, first, second = left.pop(0), left.pop(0), left.pop(0)
            assert (first.type, second.type) == ("int", "int"), where
            ends = ("column", "row") if tensor.type == "image2d_t" else ("offset", "stride")
            assert (first.name, second.name) in (ends, tuple(f"{tensor.name}_{e}" for e in ends))
            storage = plan.storage(argument)
            wanted = {"float32": "float *", "float16": "half *"}[storage.element]
            assert tensor.type == ("image2d_t" if storage.layout == "image" else wanted), where
            assert argument.role == "input" or not tensor.is_const, where
        else:
            check_one(argument, name, left.pop(0), plan, where)
    assert not left, f"{plan.source} {launch.kernel} lacks {left}"


def check_one(argument: Any, name: str, found: Parameter, plan: KernelPlan, where: str) -> None:
    if isinstance(argument, int | float):
        # Without a name an order that is wrong compiles, and computes something else. But scratch
        # memory may stand in for a tensor.
        assert name or found.name.endswith(("_offset", "_stride")), where
    if name:
        assert found.name == name, where
    if isinstance(argument, ConstantArg | ScratchArg):
        in_image = argument.name in plan.images or not isinstance(
            plan.scratch.get(argument.name, 0), int
        )
        assert (found.type == "image2d_t") == in_image, where
        assert in_image or found.type.endswith("*"), where
    elif isinstance(argument, ApartArg):
        assert found == Parameter("int", found.name, is_const=False), where
        assert found.name.endswith("_apart"), where
    else:
        assert found.type == type(argument).__name__, where


@pytest.mark.parametrize("name", VARIANTS)
def test_arguments_are_the_kernels_parameters(name: str) -> None:
    seen = set()
    for plan in plans(registry.VARIANTS[name]):
        for launch in plan.launches:
            key = (plan.source, launch.kernel, *sorted(plan.defines.items()), launch.names)
            if key not in seen:
                seen.add(key)
                check(plan, launch)
    assert seen


@pytest.mark.parametrize(("source", "target"), KERNELS)
def test_arguments_of_copies_between_layouts(source: Any, target: Any) -> None:
    for soc in (WITH_IMAGES, CPU_DEVICE):
        for element, other in (("float32", "float16"), ("float16", "float32")):
            plan = transform(
                Storage(source, element), Storage(target, other), Shape(1, 8, 9, 7), soc
            )
            check(plan, plan.launches[0])
