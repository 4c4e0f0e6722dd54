"""The programs that networks need: which lanes have work, and what GPUs are called."""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np
import pytest
from support.some import some

from codl.errors import UnknownNameError
from codl.frontend.convert import load_structure
from codl.ir.executable import GpuOp
from codl.kernels.base import KernelLaunch
from codl.kernels.tuning import Tuning
from codl.lower.lowering import lower
from codl.plan.build_plan import default_plan
from codl_phone_compilers import gpus
from codl_phone_compilers.programs import exported, lanes, needs, programs_of


def test_lanes_are_those_of_waves_with_work() -> None:
    random = np.random.default_rng(0)
    for _ in some(range(40)):
        local = tuple(int(n) for n in random.integers(1, 9, 3))
        groups = tuple(int(n) for n in random.integers(1, 4, 3))
        size = tuple(a * b for a, b in zip(local, groups, strict=True))
        used = tuple(int(random.integers(1, n + 1)) for n in size)
        wave = int(random.choice([4, 8, 64]))
        launch = KernelLaunch("any", size, (), local, used=used)
        assert lanes(launch, wave) == _one_by_one(launch, wave)


def _one_by_one(launch: KernelLaunch, wave: int) -> float:
    """By OpenCL's numbers of work-items, each looked at."""
    local = launch.local_size
    assert local is not None
    waves = set()
    for item in product(*map(range, launch.used)):
        group = tuple(i // n for i, n in zip(item, local, strict=True))
        x, y, z = (i % n for i, n in zip(item, local, strict=True))
        waves.add((group, ((z * local[1] + y) * local[0] + x) // wave))
    return prod(launch.used) / (len(waves) * wave)


def test_all_programs_of_a_plan_are_among_those_that_are_needed() -> None:
    soc, network = gpus.soc_of("adreno630"), load_structure("mobilenet_v2")
    listed = programs_of({"it": needs(network)}, [soc])
    texts = {(program.source, program.options) for program in listed.programs.values()}
    executable = lower(network, default_plan(network, soc, "gpu"), soc, Tuning())
    computing = {
        launch.program
        for stage in executable.stages
        for launch in stage.commands
        if hasattr(launch, "kernel") and isinstance(executable.steps[launch.step], GpuOp)
    }
    planned = {
        (executable.texts[program.text], program.options)
        for at, program in enumerate(executable.programs)
        if at in computing
    }
    assert planned
    assert planned <= texts


def test_socs_are_compiled_for_by_their_gpu() -> None:
    assert gpus.find("sdm865")[0] == gpus.find("Adreno (TM) 650")[0] == "adreno660"
    assert gpus.find("dimensity8050")[0] == gpus.find("Mali-G77 MC9 r0p1")[0] == "malig57"
    assert gpus.soc_of("kirin990", "half").gpu.max_work_group_size == 384
    with pytest.raises(UnknownNameError, match="Did you mean 'adreno630'"):
        gpus.find("adreno63")


def test_exported_networks_come_as_ops() -> None:
    networks = exported()
    assert len(networks) >= 8
    assert any(need.mode == "add" for need in networks["resnet18"])
