"""What surrounds the code: distribution, version and commit, files of a project, planted faults."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import grimp
import numpy as np
import pytest
import yaml
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components
from support.some import some

from codl import files
from codl.files import VERSION
from scripts.plant_faults import TABLE, Fault, read

ROOT = Path(__file__).parents[1]
#: An action with the commit that it is pinned to, and the tag beside it.
PINNED = re.compile(r"^[\w./-]+@[0-9a-f]{40}$")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that is made of the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-2000:]
    return folder


def test_the_wheel_needs_no_compiler_and_brings_what_ships(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    assert wheel.name == f"codl-{VERSION}-py3-none-any.whl"
    names = set(zipfile.ZipFile(wheel).namelist())
    for name in (
        "codl/py.typed",
        "codl/kernels/conv2d/gpu_direct.cl",
        "codl/socs/epyc2.yaml",
        "codl/report/page.html.j2",
        "codl_published/mappings/conv_cpu_gpu.yaml",
        "codl_phone_compilers/compilers.sh",
    ):
        assert name in names, name
    assert any(name.startswith("codl/predictors/epyc2/") for name in names)
    assert not any(name.startswith(("contrib/", "docs/", "scripts/")) for name in names)
    assert not any("tests" in name.split("/") for name in names)


def test_the_sdist_has_its_tests_and_pages(built: Path) -> None:
    (source,) = built.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for name in (
        "LICENSE",
        "CHANGELOG.md",
        "tests/test_project.py",
        "Makefile",
        "docs/reference/soc.md",
    ):
        assert name in names, name


def test_an_installed_wheel_plans_in_an_empty_folder(built: Path, tmp_path: Path) -> None:
    """By pip, without a compiler or the checkout; packages that codl needs are those of here."""
    (wheel,) = built.glob("*.whl")
    installed, empty = tmp_path / "installed", tmp_path / "empty"
    empty.mkdir()
    environment = {
        "PATH": str(tmp_path / "without-a-compiler"),
        "HOME": str(empty),
        "PYTHONPATH": str(installed),
        "LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH", ""),
    }
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--quiet"]
    subprocess.run([*pip, "--target", installed, wheel], check=True, env=environment, cwd=empty)
    search = [sys.executable, "-c", "from codl.cli import main; main()", "search", "yolov2"]
    run = subprocess.run(
        [*search, "--soc", "epyc2", "--json"],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        cwd=empty,
    )
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["predicted_ms"] > 0
    where = [sys.executable, "-c", "import codl; print(codl.__file__)"]
    path = subprocess.check_output(where, env=environment, cwd=empty, text=True)
    assert Path(path.strip()).is_relative_to(installed)


def test_actions_are_pinned_to_commits_and_run_what_make_has() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for path in some((ROOT / ".github" / "workflows").glob("*.yml")):
        for job in some(yaml.safe_load(path.read_text())["jobs"].values()):
            for step in some(job["steps"]):
                if "uses" in step:
                    assert PINNED.match(step["uses"]), f"{path.name}: {step['uses']}"
                for target in re.findall(r"\bmake ([\w-]+)", step.get("run", "")):
                    assert target in targets, f"{path.name}: make {target}"


def test_the_version_has_an_entry_and_a_citation() -> None:
    assert f"\n## {VERSION} (" in (ROOT / "CHANGELOG.md").read_text()
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == VERSION
    (paper,) = citation["references"]
    assert paper["doi"] in (ROOT / "pyproject.toml").read_text()


def test_files_do_not_import_each_other_in_a_circle() -> None:
    packages = "codl", "codl_original", "codl_phone_compilers", "codl_published"
    graph = grimp.build_graph(*packages, cache_dir=None)
    modules = sorted(graph.modules)
    number = {module: at for at, module in enumerate(modules)}
    arrows = [
        (number[module], number[other])
        for module in modules
        for other in graph.find_modules_directly_imported_by(module)
    ]
    rows, columns = np.array(arrows).T
    matrix = csr_matrix((np.ones(len(arrows)), (rows, columns)), shape=(len(modules),) * 2)
    _, circles = connected_components(matrix, connection="strong")
    shared = np.bincount(circles) > 1
    assert [module for module, circle in zip(modules, circles, strict=True) if shared[circle]] == []


def test_the_commit_of_a_package_that_was_changed_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*words: str) -> str:
        own = ("-c", "user.name=x", "-c", "user.email=x@example.org")
        command = ["git", "-C", str(tmp_path), *own, *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    source = tmp_path / "codl" / "a.py"
    source.parent.mkdir()
    source.write_text("x = 1\n")
    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "x")
    monkeypatch.setattr(files, "ROOT", tmp_path)
    commit, revision = files.commit.__wrapped__, git("rev-parse", "--short", "HEAD")
    (tmp_path / "results.json").write_text("{}")  # results change nothing of what computes them
    assert commit() == revision
    (source.parent / "new.py").write_text("")
    assert commit() == f"{revision}{files.DIRTY}"
    (source.parent / "new.py").unlink()
    source.write_text("x = 2\n")
    assert commit() == f"{revision}{files.DIRTY}"


FAULTS = read(TABLE)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_can_be_planted(fault: Fault) -> None:
    text = (ROOT / fault.file).read_text()
    planted = fault.planted(text)
    assert planted != text
    compile(planted, fault.file, "exec") if fault.file.endswith(".py") else None
