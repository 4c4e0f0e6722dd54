"""What a command loads of codl stays within figures, which are lowered with the code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from support.simulated import SOC, write_dataset

import codl
from codl.frontend.convert import load_structure
from codl.ir.records.soc import Soc
from codl.plan.build_plan import default_plan

#: A process that runs `codl` and writes, at its end, the modules of codl that it has loaded.
CODE = """
import atexit, json, sys
from pathlib import Path

def write_modules():
    loaded = {name: module.__file__ for name, module in sys.modules.items()
              if name.partition(".")[0] == "codl" and module.__file__}
    Path("modules.json").write_text(json.dumps(loaded))

atexit.register(write_modules)
from codl.cli import main
sys.argv[0] = "codl"
main()
"""
#: Modules that each command may load, and the lines of their files.
MOST = {
    "run": (139, 30_100),
    "search": (127, 27_800),
    "train": (79, 16_300),
    "collect": (124, 27_200),
}


def reach(folder: Path, *words: str) -> tuple[int, int]:
    """The number of codl's modules that a command loads, and the lines of their files."""
    done = subprocess.run(
        [sys.executable, "-c", CODE, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(codl.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    files = json.loads((folder / "modules.json").read_text()).values()
    return len(files), sum(len(Path(file).read_text().splitlines()) for file in files)


def check(command: str, folder: Path, *words: str) -> None:
    modules, lines = reach(folder, command, *words)
    most = MOST[command]
    assert (modules <= most[0], lines <= most[1]) == (True, True), (
        f"`codl {command}` loads {modules} modules of {lines} lines, more than {most}."
    )


def test_a_run(first_soc: Soc, tmp_path: Path) -> None:
    first_soc.save(tmp_path / "socs" / "test.yaml")
    plan = tmp_path / "plan.json"
    default_plan(load_structure("mobilenet_v2"), first_soc, "gpu").save(plan)
    check("run", tmp_path, "mobilenet_v2", "--soc", "test", "--plan", str(plan), "--rounds", "1")


def test_a_search(tmp_path: Path) -> None:
    check("search", tmp_path, "mobilenet_v2", "--soc", "epyc2", "-o", "plan.json")


def test_training(tmp_path: Path) -> None:
    SOC.save(tmp_path / "socs" / f"{SOC.name}.yaml")
    write_dataset(tmp_path / "lat_datasets" / SOC.name)
    check("train", tmp_path, "--soc", SOC.name, "--no-evaluate", "--jobs", "1")


def test_a_collection(first_soc: Soc, tmp_path: Path) -> None:
    first_soc.save(tmp_path / "socs" / "test.yaml")
    few = ("--ops", "fc in=1x32x5x5 oc=40", "--samples", "2")
    check("collect", tmp_path, "--soc", "test", *few)
