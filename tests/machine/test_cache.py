"""The cache: what is damaged, stale or another's is made anew; kills and rivals do no harm."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.some import some

from codl import files
from codl.ir import parse
from codl.kernels import registry
from codl.kernels.base import KernelPlan
from codl.kernels.source import compile_options, source_digest, text_of
from codl.machine import cache
from codl.machine.cache import Slot
from codl.runtime import program_cache
from codl.runtime.drivers import make_kernel
from codl.runtime.opencl import OpenClDevice
from codl.runtime.program_cache import Compilation, Programs


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path))
    monkeypatch.setattr(program_cache, "KEEP_THEIR_OWN", frozenset())
    return cache.folder()


def small_plan(gpu: OpenClDevice) -> KernelPlan:
    op = parse("concat in=1x16x3x3,1x16x3x3")
    plan: KernelPlan = registry.find(op, "gpu_copy").plan(op, gpu.soc)  # type: ignore[attr-defined]
    return plan


def job_of(plan: KernelPlan) -> Compilation:
    options = compile_options(plan.defines)
    return Compilation(plan.source, text_of(plan.source), source_digest(plan), options)


def build(programs: Programs, plan: KernelPlan) -> Any:
    job = job_of(plan)
    return programs.build_text(job.name, job.text, job.options)


def flip(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda content: content[: len(content) // 2],
    "bit flipped in the binary": lambda content: flip(content, len(content) - 9),
    "another version": lambda content: content.replace(b'"version": 1', b'"version": 0', 1),
    "garbage": lambda content: b"\x00garbage\n" * 100,
    "another driver": lambda content: content.replace(b'"driver": "', b'"driver": "0', 1),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_binary_is_built_anew(kind: str, gpu: OpenClDevice) -> None:
    plan, first = small_plan(gpu), Programs(gpu.context)
    build(first, plan)
    path = first.slot(job_of(plan)).path
    whole = path.read_bytes()
    damaged = DAMAGE[kind](whole)
    assert damaged != whole
    path.write_bytes(damaged)
    second = Programs(gpu.context)
    build(second, plan)
    assert second.compiled == 1
    assert first.slot(job_of(plan)).load() is not None, "overwritten by a whole one"
    third = Programs(gpu.context)
    build(third, plan)
    assert third.compiled == 0


def test_a_binary_that_the_driver_refuses_is_built_anew(gpu: OpenClDevice) -> None:
    plan = small_plan(gpu)
    slot = Programs(gpu.context).slot(job_of(plan))
    slot.store(b"no binary of any driver" * 10)
    programs = Programs(gpu.context)
    build(programs, plan)
    assert programs.compiled == 1
    again = Programs(gpu.context)
    build(again, plan)
    assert again.compiled == 0


def test_a_program_is_compiled_once_a_process_and_once_a_cache(gpu: OpenClDevice) -> None:
    plan, programs = small_plan(gpu), Programs(gpu.context)
    assert build(programs, plan) is build(programs, plan)
    with programs.trying():
        assert build(programs, plan) is build(programs, plan)
    assert programs.compiled == 1
    loaded, names = build(Programs(gpu.context), plan), [launch.kernel for launch in plan.launches]
    assert [make_kernel(loaded, name).function_name for name in some(names)] == names


def test_a_key_holds_all_that_a_binary_depends_on(gpu: OpenClDevice) -> None:
    plan = small_plan(gpu)
    slot = Programs(gpu.context).slot(job_of(plan))
    assert slot.key["driver"] == gpu.device.driver_version
    assert {"device", "version", "platform", "host", "source", "options"} <= slot.key.keys()
    other = KernelPlan(plan.source, plan.launches, {**plan.defines, "EXTRA": 1})
    assert Programs(gpu.context).slot(job_of(other)).path != slot.path


def test_a_cache_that_cannot_be_written_costs_only_time(
    gpu: OpenClDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "file"))
    for _ in range(2):
        programs = Programs(gpu.context)
        build(programs, small_plan(gpu))
        assert programs.compiled == 1


def test_the_least_recently_used_goes_first(folder: Path) -> None:
    slots = [Slot("binaries", {"number": str(index)}) for index in range(4)]
    for slot in slots:
        slot.store(bytes(1000))
    size = slots[0].path.stat().st_size
    now = time.time()
    for age, slot in enumerate(slots):
        os.utime(slot.path, (now, now - age))
    slots[3].touch()
    usage = cache.prune(limit_bytes=2 * size)
    assert (usage.files, usage.pruned_files, usage.bytes) == (2, 2, 2 * size)
    assert [slot.load() is not None for slot in slots] == [True, False, False, True]


def test_what_is_old_or_half_written_goes(folder: Path) -> None:
    old, new = Slot("binaries", {"is": "old"}), Slot("binaries", {"is": "new"})
    for slot in (old, new):
        slot.store(b"x")
    left, current = (folder / "binaries" / f"tmp{name}{files.PARTIAL}" for name in "ab")
    for path in (left, current):
        path.write_bytes(b"half")
    other = folder.parent / "not-ours"
    other.write_text("keep me")
    long_ago = time.time() - cache.MAX_AGE_S - 1
    for path in (old.path, left, other):
        os.utime(path, (long_ago, long_ago))
    cache.prune()
    assert (old.load(), new.load()) == (None, b"x")
    assert (left.exists(), current.exists()) == (False, True)
    assert cache.clear().files == 0
    assert new.load() is None
    assert other.exists(), "the cache touches only its own files"


WRITER = """
import sys
from codl.machine.cache import Slot
from codl.runtime.drivers import make_kernel
print("ready", flush=True)
for index in range(10**6):
    Slot("binaries", {"of": "all"}).store(bytes([index % 256]) * 3_000_000)
"""


def writer() -> subprocess.Popen[bytes]:
    """A process that writes one slot again and again, and has begun."""
    child = subprocess.Popen([sys.executable, "-c", WRITER], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    return child


def test_a_kill_during_a_write_leaves_a_whole_file() -> None:
    slot = Slot("binaries", {"of": "all"})
    slot.store(b"first")

    def half_written() -> set[Path]:
        return set(slot.path.parent.glob(f"*{files.PARTIAL}"))

    for _ in range(3):
        before = half_written()
        with writer() as child:
            while half_written() <= before:
                assert child.poll() is None
            child.send_signal(signal.SIGKILL)
        blob = slot.load()
        assert blob == b"first" or (blob and len(blob) == 3_000_000 and len(set(blob)) == 1)


def test_two_writers_at_once_leave_a_whole_file() -> None:
    slot = Slot("binaries", {"of": "all"})
    with writer() as one, writer() as other:
        seen: set[bytes] = set()
        while len(seen) < 20:
            assert one.poll() is None
            assert other.poll() is None
            blob = slot.load()
            if blob is not None:  # none of the two has written anything yet
                assert len(blob) == 3_000_000
                seen.add(blob[:1])
        one.kill()
        other.kill()


def test_a_store_prunes_where_nobody_did_lately(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache.prune, "__kwdefaults__", {"limit_bytes": 5000, "max_age_s": 1e9})

    def store(number: int) -> int:
        Slot("binaries", {"number": str(number)}).store(bytes(1000))
        return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())

    lately = [store(number) for number in range(10)][-1]
    assert lately >= 10 * 1000, "a look at all files would take longer than the stores"
    an_hour_ago = time.time() - 3600
    os.utime(folder, (an_hour_ago, an_hour_ago))
    assert store(10) <= 5000
    assert [store(number) for number in (11, 12)][-1] > 2 * 1000
    os.utime(folder, (time.time() + 3600,) * 2)  # a clock that was set back
    assert store(13) <= 5000
