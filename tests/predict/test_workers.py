"""Workers: processes and a Dask cluster do what this process does, and fail as it does."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
from support.simulated import REPLAYED, SOC, write_dataset
from support.synthetic_predictors import SyntheticContext
from support.worker_tasks import STARS, die, hears, misread, refuse, scaled, shine
from typer.testing import CliRunner

from codl.cli.app import app
from codl.errors import CodlError, MismatchError, MissingPackageError
from codl.frontend.models.builder import ModelBuilder
from codl.measure.budget import Budget
from codl.measure.dataset import Dataset
from codl.plan.strategies.model_search import FoundPlan, ModelSearch, search_models
from codl.predict import workers as module
from codl.predict.training import train
from codl.predict.workers import Workers
from codl.registry import VARIABLE, load_plugin, rolled_back
from codl.report.results import SearchesResult, load_result

TWO = Workers(2)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    """A Dask cluster of two processes, which are in another folder than the tests."""
    from distributed import LocalCluster

    here = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("elsewhere"))
    try:
        local = LocalCluster(
            n_workers=2, threads_per_worker=2, processes=True, dashboard_address=":0"
        )
    finally:
        os.chdir(here)
    with local:
        yield Workers(dask=local.scheduler_address)


@pytest.fixture(params=["jobs", "dask"])
def workers(request: pytest.FixtureRequest) -> Workers:
    """Either kind of workers."""
    return TWO if request.param == "jobs" else request.getfixturevalue("cluster")


def mapped(workers: Workers, work: Any, common: Any, values: Iterable[Any]) -> list[Any]:
    """The results of the values, in the order of the values."""
    with closing(workers.results(work, common, values)) as results:
        return [result for _, result in sorted(results, key=itemgetter(0))]


# What they do


def test_results_come_in_the_order_of_the_values(workers: Workers) -> None:
    results = mapped(workers, scaled, 3, iter(range(12)))
    assert [product for product, _ in results] == [3 * value for value in range(12)]
    assert os.getpid() not in {process for _, process in results}
    assert mapped(workers, scaled, 3, []) == []


def test_what_is_still_under_way_can_be_given_up(workers: Workers) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with closing(workers.results(scaled, 3, range(40))) as results:
            at, (product, _) = next(results)
    assert product == 3 * at
    assert len(mapped(workers, scaled, 3, [1, 2])) == 2, "and they go on"


def test_processes_never_hear_ctrl_c_and_this_one_does_again() -> None:
    before = signal.getsignal(signal.SIGINT)
    assert mapped(TWO, hears, None, range(4)) == [False] * 4
    assert signal.getsignal(signal.SIGINT) is before


def test_errors_are_those_of_this_process(workers: Workers) -> None:
    for work, common, value in ((refuse, ("vega",), "vgea"), (misread, "line 3", "t.csv")):
        messages = []
        for who in (Workers(), workers):
            with pytest.raises(CodlError) as caught:
                mapped(who, work, common, [value])  # type: ignore[arg-type]
            messages.append((caught.type, str(caught.value)))
        assert messages[0] == messages[1]
    assert mapped(workers, refuse, ("vega",), ["vega"]) == ["vega"], "and they go on"


def test_a_worker_that_dies_is_an_error() -> None:
    with pytest.raises(CodlError, match=r"A worker process died.*fewer by --jobs"):
        mapped(TWO, die, None, [1, 1, 1])
    assert len(mapped(TWO, scaled, 1, [1, 2])) == 2


def test_workers_load_the_plugins_of_this_process(
    workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / f"stars_{'here' if workers.have_files else 'there'}"
    folder.mkdir()
    added = "from support.worker_tasks import STARS\nSTARS.add('vega', 'bright')\n"
    (folder / "__init__.py").write_text(added)
    monkeypatch.setenv(VARIABLE, "")
    with rolled_back(always=True):
        load_plugin(folder)
        assert mapped(workers, shine, None, ["vega"] * 4) == ["bright"] * 4
    assert "vega" not in STARS


def test_workers_of_another_codl_are_refused(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "VERSION", "0.0.1")
    with pytest.raises(MismatchError, match=r"worker on .* has codl .*comes from codl 0.0.1"):
        mapped(workers, scaled, 3, [1])


@pytest.mark.parametrize("address", ["", "host", "magic://host:1", "tcp://127.0.0.1:1"])
def test_an_address_of_no_cluster(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE_S", 0.5)
    with pytest.raises(CodlError, match=r"No Dask cluster answers at .*such as tcp://host:8786"):
        mapped(Workers(dask=address), scaled, 3, [1])


def test_a_cluster_without_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    from distributed import LocalCluster

    monkeypatch.setattr(module, "PATIENCE_S", 2)
    with (
        LocalCluster(n_workers=0, processes=False, dashboard_address=":0", protocol="tcp") as empty,
        pytest.raises(CodlError, match=r"has no worker after 2 s: `dask worker tcp://"),
    ):
        mapped(Workers(dask=empty.scheduler_address), scaled, 3, [1])


def test_without_dask_there_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(MissingPackageError, match=r"dask is not installed.*codl\[dask\]"):
        mapped(Workers(dask="tcp://127.0.0.1:1"), scaled, 3, [1])


# Searching


def found(outcomes: list[Any]) -> list[Any]:
    """What searches came to, without the time that they took."""
    return [replace(one, search_ms=0.0) if isinstance(one, FoundPlan) else str(one)
            for one in outcomes]  # fmt: skip


def test_a_model_that_no_time_is_left_for_has_no_plan_and_says_so() -> None:
    """The clock moves by three seconds each time that it is read."""
    seconds = itertools.count(0.0, 3.0)
    searches = [ModelSearch(model="op_chain", strategy="cpu") for _ in range(3)]
    budget = Budget(20.0, lambda: next(seconds))
    first, *others = search_models(searches, SyntheticContext(), budget=budget)
    assert isinstance(first, FoundPlan)
    assert str(others[-1]) == "There was no time left for it."
    assert budget.ended == "budget"


# Training


def test_a_cluster_trains_the_same_predictors(
    cluster: Workers, simulated: Dataset, trained: tuple[Path, Any], tmp_path: Path
) -> None:
    """As processes do: see test_training."""
    names = ["codl", "gbdt"]
    report = train(SOC, simulated, predictors=names, folder=tmp_path, workers=cluster)
    assert [path.stem for path in report.files] == names
    for path in report.files:
        assert path.read_bytes() == (trained[0] / path.relative_to(tmp_path)).read_bytes()


# Commands


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a SoC, somebody's latencies of it (simulated), predictors, and a model."""
    folder = tmp_path_factory.mktemp("workplace")
    REPLAYED.save(folder / "socs" / "phone.yaml")
    data = write_dataset(folder / "lat_datasets" / "phone")
    train(REPLAYED, data, predictors=["codl"], folder=folder / "predictors", evaluate=False)
    write_model(folder / "small.onnx")
    return folder


def write_model(file: Path) -> None:
    b = ModelBuilder(file.stem)
    b.output(b.relu(b.conv(b.input("image", (1, 3, 32, 32)), 32, 3, pad=1)))
    file.write_bytes(b.build().SerializeToString())


def search(workplace: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Any:
    monkeypatch.chdir(workplace)
    return CliRunner().invoke(app, ["search", "--soc", "phone", *arguments])


def test_search_writes_the_same_plans(
    workplace: Path, cluster: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, files = [], []
    for at, how in enumerate((["--jobs", "1"], ["--jobs", "2"], ["--dask", str(cluster.dask)])):
        models = [f"op_chain,{workplace}/small.onnx", "--json", "-o", f"plans{at}"]
        done = search(workplace, monkeypatch, *models, *how)
        assert "Searching on phone" in done.stderr
        found = json.loads(done.stdout)
        assert (found["soc"], found["failed"]) == ("phone", [])
        assert all(plan.pop("search_ms") > 0 for plan in found["plans"])
        answers.append(found["plans"])
        files.append({p.name: p.read_bytes() for p in (workplace / f"plans{at}").iterdir()})
    assert set(files[0]) == {"op_chain.json", "small.json"}
    assert files[0] == files[1] == files[2]
    assert answers[0] == answers[1] == answers[2]


def test_one_model_is_searched_as_several_are(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = search(workplace, monkeypatch, "small.onnx", "--json", "-o", "plan.json")
    several = search(workplace, monkeypatch, "small.onnx,yolo", "--json", "-o", "plans")
    answers = [json.loads(result.stdout) for result in (alone, several)]
    (plan,), (failed,) = answers[1]["plans"], answers[1]["failed"]
    assert {key: answers[0][key] for key in plan if key != "search_ms"} == {
        key: value for key, value in plan.items() if key != "search_ms"
    }
    assert (workplace / "plan.json").read_bytes() == (workplace / "plans/small.json").read_bytes()
    assert failed["model"] == "yolo"
    assert "Unknown model 'yolo'" in failed["reason"]
    assert alone.exit_code == 0
    assert str(several.exception) == "1 of 2 models have no plan: yolo."
    (workplace / "several.json").write_text(several.stdout)
    result = load_result(workplace / "several.json")
    assert isinstance(result, SearchesResult)
    assert [own.model for own in (*result.plans, *result.failed)] == ["small", "yolo"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([","], r"Name at least one model, such as yolov2; got ','"),
        (["small.onnx", "op_chain", "-o", "small.onnx"], r"-o must be a folder .*got small.onnx"),
        (["small.onnx", "./x/small.onnx", "-o", "x"], r"would all be small.json: search them"),
        (["small.onnx", "--dask", "a:1", "--strategy", "ideal"], r"ideal is computed from the"),
    ],
)
def test_what_cannot_be_searched_so(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    result = search(workplace, monkeypatch, *arguments)
    assert isinstance(result.exception, CodlError)
    assert re.search(message, str(result.exception))


def test_workers_end_with_a_command_that_is_terminated(tmp_path: Path) -> None:
    words = ["train", "--soc", "epyc2", "--jobs", "2", "--predictors", str(tmp_path)]
    process = subprocess.Popen(
        [sys.executable, "-c", "from codl.cli import main; main()", *words],
        cwd=Path(__file__).parents[2],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        wait_until(
            lambda: len(children.read_text().split()) > 3
        )  # a guard, and what tracks semaphores
        process.terminate()
        _, said = process.communicate(timeout=30)
        assert process.returncode == 128 + signal.SIGTERM
        assert said.splitlines()[-1].startswith("Error: Interrupted.")
        wait_until(lambda: not is_there(process.pid))
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def is_there(group: int) -> bool:
    """Whether a group has a process yet."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def wait_until(is_so: Callable[[], bool], most_s: float = 60) -> None:
    end = monotonic() + most_s
    while not is_so():
        assert monotonic() < end
        sleep(0.1)
