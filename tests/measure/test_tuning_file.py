"""The file of tuning results: read whole or not at all, for one device, by several processes."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support.simulated import SOC

from codl.errors import InvalidFileError, MismatchError
from codl.ir.records.tuned import Trial, Tuned
from codl.kernels.tuning import Tuning
from codl.measure import tuning_file
from codl.measure.dataset import Dataset

RESULT = Tuned(
    op="conv2d in=1x16x12x12 oc=32 kernel=3x3 pad=1",
    variant="gpu_direct",
    source="0123",
    choice={"block": 4},
    default_ms=2.0,
    best_ms=1.0,
    complete=True,
    trials=(Trial({"block": 4}, 1.0), Trial({"block": 64}, None, "no luck")),
    measured="2026-01-01",
    codl="0",
)
UNMEASURED = replace(RESULT, variant="gpu_image", default_ms=None, trials=())


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return Dataset(tmp_path / "lat_datasets" / SOC.name)


def test_results_come_back_as_they_were_written(dataset: Dataset) -> None:
    assert tuning_file.add(dataset, SOC, [RESULT]) == Tuning.of([RESULT])
    both = tuning_file.add(dataset, SOC, [UNMEASURED])
    assert both == tuning_file.read(dataset, SOC) == Tuning.of([RESULT, UNMEASURED])
    better = replace(RESULT, choice={"block": 8}, best_ms=0.5)
    assert tuning_file.add(dataset, SOC, [better]) == Tuning.of([better, UNMEASURED])
    tuning_file.forget(dataset)
    tuning_file.forget(dataset)
    assert tuning_file.read(dataset, SOC) == Tuning()


DAMAGE: dict[str, tuple[Callable[[str], str], str]] = {
    "truncated": (lambda text: text[: len(text) // 2], "not JSON|cannot be read"),
    "a changed number": (lambda text: text.replace('"block": 4', '"block": 5'), "sha256: does not"),
    "newer": (lambda text: text.replace('"version": 2', '"version": 3'), "must be 2, got 3"),
    "garbage": (lambda text: "\x00 garbage", "not JSON|cannot be read"),
    "garbage in the results": (lambda text: '{"results": [1, 2], "version": 2}', r"\[0\]"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_file_is_an_error_and_is_left_alone(kind: str, dataset: Dataset) -> None:
    tuning_file.add(dataset, SOC, [RESULT])
    path, (damage, problem) = tuning_file.path_of(dataset), DAMAGE[kind]
    damaged = damage(path.read_text())
    assert damaged != path.read_text()
    path.write_text(damaged)
    for attempt in (
        lambda: tuning_file.read(dataset, SOC),
        lambda: tuning_file.add(dataset, SOC, [UNMEASURED]),
    ):
        with pytest.raises(InvalidFileError, match=problem) as error:
            attempt()
        assert str(path) in str(error.value)
        assert "`codl tune --soc simulated --anew` begins anew." in str(error.value)
    assert path.read_text() == damaged


def test_results_are_of_one_device_driver_and_host(dataset: Dataset) -> None:
    tuning_file.add(dataset, SOC, [RESULT])
    gpu, cpu = SOC.gpu, SOC.cpu
    others = {
        "driver": replace(SOC, gpu=replace(gpu, driver="2")),
        "name": replace(SOC, gpu=replace(gpu, name="another")),
        "compute_units": replace(SOC, gpu=replace(gpu, compute_units=99)),
        "host": replace(SOC, cpu=replace(cpu, name="another")),
    }
    for key, other in others.items():
        with pytest.raises(MismatchError, match=f"device, {key}: is .* another device"):
            tuning_file.read(dataset, other)
    halves = replace(SOC, name="renamed", gpu=replace(gpu, element="float16"))
    assert tuning_file.read(dataset, halves) == Tuning.of([RESULT])


WRITER = """
import sys
from dataclasses import replace
from pathlib import Path
from test_tuning_file import RESULT, SOC, Dataset, Trial, tuning_file
trials = tuple(Trial({"a": n}, 1.0) for n in range(20))
dataset = Dataset(Path(sys.argv[1]))
print("ready", flush=True)
for index in range(int(sys.argv[3])):
    tuning_file.add(dataset, SOC, [replace(RESULT, op=f"{sys.argv[2]} {index}", trials=trials)])
"""


def writer(dataset: Dataset, name: str, count: int) -> subprocess.Popen[bytes]:
    """A process that adds so many results, and has begun."""
    command = [sys.executable, "-c", WRITER, str(dataset.folder), name, str(count)]
    paths = f"import sys; sys.path[:0] = {[str(Path(__file__).parent), *sys.path]!r}\n"
    command[2] = paths + command[2]
    child = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    return child


def test_two_processes_at_once_lose_no_result(dataset: Dataset) -> None:
    for child in [writer(dataset, name, 20) for name in "ab"]:
        with child:
            assert child.wait() == 0
    assert len(tuning_file.read(dataset, SOC).results) == 40


def test_a_kill_during_a_write_leaves_whole_results(dataset: Dataset) -> None:
    for least in (1, 5, 9):
        with writer(dataset, "k", 1000) as child:
            while len(tuning_file.read(dataset, SOC).results) < least:
                assert child.poll() is None
            child.send_signal(signal.SIGKILL)
        assert len(tuning_file.read(dataset, SOC).results) >= least
