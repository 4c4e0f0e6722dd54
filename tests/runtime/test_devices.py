"""Processors: drivers in child processes, vectors, disjoint cores, SoC files, and hints."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from threading import Barrier, Thread

import pytest
from support.command_line import python
from support.devices_under_test import DEVICE

from codl.errors import CodlError, DeviceError, InvalidFileError, UnknownNameError
from codl.ir.records import soc as socs
from codl.ir.records.soc import Soc
from codl.machine import placement
from codl.machine.hardware import CpuFacts, cpu_facts
from codl.machine.placement import LocalSoc, ProbedDevice, ProbeResult
from codl.machine.threads import available_cores, spread
from codl.runtime.drivers import TARGET
from codl.runtime.probe import compiled_width, vector_registers
from codl.targets.child import inherited
from codl.targets.local import LocalTarget, look_at


@pytest.mark.device
def test_an_opencl_implementation_is_always_there() -> None:
    assert any(result.devices for result in LocalTarget().probe())


@pytest.mark.device
def test_a_library_that_is_no_driver_has_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    result = look_at("no-such-driver")
    assert result.devices == ()
    assert "Unknown OpenCL driver 'no-such-driver'" in result.error


def test_without_a_device_the_error_says_what_to_install() -> None:
    broken = [ProbeResult("pocl", error="the driver crashed (signal 6)")]
    with pytest.raises(DeviceError, match=r"pocl: the driver crashed.*pip install intel-opencl-rt"):
        placement.choose(broken, None)


def fake(icd: str, kind: str) -> ProbedDevice:
    return replace(DEVICE, icd=icd, name=f"{kind} of {icd}", type=kind)


def test_a_real_gpu_is_preferred_and_leaves_the_cpu_all_cores() -> None:
    found = [ProbeResult("pocl", (fake("pocl", "cpu"),)), ProbeResult("g", (fake("g", "gpu"),))]
    soc = placement.describe("test", placement.choose(found, None))
    assert soc.placement.icd == "g"
    assert soc.placement.gpu_cores == ()
    assert soc.placement.cpu_cores == cpu_facts().cores
    assert placement.choose(found, "pocl").type == "cpu"
    with pytest.raises(UnknownNameError, match="Unknown OpenCL device 'cuda'"):
        placement.choose(found, "cuda")


def test_one_core_is_not_enough_for_two_processors() -> None:
    with pytest.raises(DeviceError, match="two processors need two cores"):
        placement.describe("test", fake("pocl", "cpu"), cpu=CpuFacts("c", (3,), 8, 1 << 20))


#: Eight cores in the order of nearness, of which four are near the first.
FACTS = CpuFacts("c", (4, 5, 6, 7, 0, 1, 2, 3), 8, 1 << 20, near=4)


@pytest.mark.parametrize(
    ("kind", "threads", "cpu_cores", "gpu_cores"),
    [
        ("gpu", None, (4, 5, 6, 7), ()),
        ("gpu", 2, (4, 5, 6, 7), ()),
        ("gpu", 6, (4, 5, 6, 7, 0, 1, 2, 3), ()),
        ("cpu", None, (4, 5, 6, 7), (0, 1, 2, 3)),
        ("cpu", 3, (4, 5, 6, 7), (0, 1, 2, 3)),
    ],
)
def test_a_side_has_neighbouring_cores(
    kind: str, threads: int | None, cpu_cores: tuple[int, ...], gpu_cores: tuple[int, ...]
) -> None:
    soc = placement.describe("test", fake("pocl", kind), cpu=FACTS, cpu_threads=threads)
    assert (soc.placement.cpu_cores, soc.placement.gpu_cores) == (cpu_cores, gpu_cores)
    assert soc.cpu.threads == soc.placement.threads == (threads or len(cpu_cores))


@pytest.mark.parametrize(("kind", "most"), [("gpu", 8), ("cpu", 4)])
def test_more_threads_than_cores_are_refused(kind: str, most: int) -> None:
    for threads in (0, most + 1):
        expected = rf"{threads} threads need as many cores, .* has {most} .*: give 1 to {most}\."
        with pytest.raises(CodlError, match=expected):
            placement.describe("test", fake("pocl", kind), cpu=FACTS, cpu_threads=threads)


def test_both_sides_work_on_disjoint_cores(soc: LocalSoc, tmp_path: Path) -> None:
    """Observed while they work: neither side is seen on a core of the other.

    In a process of its own, since threads keep the cores of the SoC that they were made for.
    """
    if not soc.gpu.is_cpu:
        pytest.skip("a real GPU works on no core of this machine")
    path = soc.save(tmp_path / "test.yaml")
    program = (
        "import json, sys; sys.path.insert(0, sys.argv[2]); "
        "from codl.machine import placement; from support.threads_at_work import observe_cores; "
        "from codl.runtime.opencl import OpenClDevice; "
        "print(json.dumps(observe_cores(OpenClDevice(placement.load(sys.argv[1])))))"
    )
    seen = json.loads(python(program, path, Path(__file__).parents[1]).stdout)
    assert set(soc.placement.cpu_cores).isdisjoint(soc.placement.gpu_cores)
    assert seen["cpu"]
    assert seen["gpu"]
    assert set(seen["cpu"]) <= set(soc.placement.cpu_cores)
    assert set(seen["gpu"]) <= set(soc.placement.gpu_cores)


def test_threads_have_a_core_each_where_there_are_as_many() -> None:
    cores = available_cores()
    barrier = Barrier(len(cores) + 1)
    threads = [Thread(target=barrier.wait) for _ in cores]
    for thread in threads:
        thread.start()
    ids = [thread.native_id or 0 for thread in threads]
    spread(ids, cores)
    each = [os.sched_getaffinity(thread) for thread in ids]
    spread([*ids, os.getpid()], cores)
    free = [os.sched_getaffinity(thread) for thread in ids]
    barrier.wait()
    assert sorted(map(tuple, each)) == [(core,) for core in cores]
    assert free == [set(cores)] * len(cores)


def test_soc_file_round_trip(first_soc: LocalSoc, tmp_path: Path) -> None:
    path = first_soc.save(tmp_path / "socs" / "test.yaml")
    assert socs.load(path) == first_soc.facts
    assert placement.load(path) == first_soc


def _soc_of_a_gpu() -> Soc:
    gpu = placement._gpu_side(fake("g", "gpu"), (), ("buffer", "image2d"), "float")
    return Soc("test", "x", socs.CpuSide("c", 1, 16, 1), gpu)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("simd_floats: ", "simd_flots: ", "cpu: Unknown key 'simd_flots'. Did you mean 'simd_"),
        ("threads: 1", "threads: 0", "cpu.threads: expected int >= 1, got 0"),
        ("- buffer", "- bufer", "gpu.memory_types[0]: must be one of buffer, image2d, got 'bufer'"),
        ("  l2_cache_bytes: 1\n", "", "cpu.l2_cache_bytes: the key is missing"),
        ("gpu:", "gpu: [", "not YAML"),
    ],
)
def test_a_broken_soc_file_is_named_by_key(
    old: str, new: str, message: str, tmp_path: Path
) -> None:
    path = _soc_of_a_gpu().save(tmp_path / "test.yaml")
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(InvalidFileError) as error:
        socs.load(path)
    assert message in str(error.value)


def test_an_unknown_soc_says_how_to_make_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownNameError, match=r"codl soc detect --serial local --name hots"):
        socs.load("hots")


@pytest.mark.parametrize(
    ("native", "held_to", "compiled", "width"),
    [
        (16, None, 0, 16),
        (1, None, 0, 4),
        (16, "core-avx2", 0, 8),
        (8, "skx", 0, 8),
        (8, "corei7", 0, 4),
        (16, None, 8, 8),
        (8, None, 16, 8),
    ],
)
def test_vectors_are_those_that_kernels_are_compiled_for(
    native: int, held_to: str | None, compiled: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No wider than the processor's, the compiler's, or than the user says."""
    monkeypatch.delenv(TARGET, raising=False)
    if held_to is not None:
        monkeypatch.setenv(TARGET, held_to)
        assert inherited()[TARGET] == held_to, "children probe and compile as this process does"
    assert compiled_width(native, compiled) == width


def test_registers_are_those_of_the_instruction_set() -> None:
    assert vector_registers(16, "x86_64") == vector_registers(4, "aarch64") == 32
    assert vector_registers(4, "AMD64") == vector_registers(4, "armv7l") == 16
    assert vector_registers(4, "riscv64") == 0
