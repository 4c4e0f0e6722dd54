"""Commands: lists, help, examples and completion, what is shown of files, and the usual SoC."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from support import command_line
from support.executables import encoded, small_executable
from support.simulated import SOC
from support.some import some
from typer.testing import CliRunner

from codl.cli.app import app
from codl.errors import CodlError, InvalidFileError
from codl.files import HOME
from codl.frontend.convert import load_network
from codl.frontend.models.builder import ModelBuilder
from codl.ir import to_text
from codl.ir.executable import Executable
from codl.jobs.bundle.archive import EXECUTABLE, write_archive
from codl.jobs.options import usual_soc
from codl.measure.dataset import Dataset
from codl.measure.tasks import load_ops
from codl.plan.build_plan import default_plan

assert Path() == HOME, "these tests work in folders of their own"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CODL_SOC", raising=False)
    return tmp_path


def describe(name: str, *, measured: float | None = None) -> None:
    """A SoC of this machine, with a dataset of some age where it was measured."""
    Path("socs").mkdir(exist_ok=True)
    for suffix in (".yaml", ".local.yaml"):
        Path("socs", name + suffix).write_text("")
    if measured is not None:
        dataset = Dataset.of(name)
        dataset.write_manifest({"source": "measured", "runs": {}})
        os.utime(dataset.manifest_path, (measured, measured))


def test_the_usual_soc_is_the_one_measured_last(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CodlError, match="`codl soc detect` describes this machine"):
        usual_soc(runs=True)
    assert usual_soc(runs=False)[0] == "epyc2", "which comes with codl"
    describe("rock")
    assert (usual_soc(runs=True)[0], usual_soc(runs=False)[0]) == ("rock", "rock")
    describe("board")
    with pytest.raises(CodlError, match=r"Name one .* board, rock"):
        usual_soc(runs=True)
    describe("host")
    assert usual_soc(runs=True)[0] == "host"
    describe("rock", measured=1000)
    describe("board", measured=2000)
    assert usual_soc(runs=True)[0] == "board"
    describe("rock", measured=3000)
    assert usual_soc(runs=True)[0] == "rock"
    monkeypatch.setenv("CODL_SOC", "host")
    assert usual_soc(runs=True)[1] == "as CODL_SOC says"


def test_a_command_says_which_soc_it_took(home: Path) -> None:
    done = command_line.run(home, "dataset", "info", "--json")
    assert json.loads(done.stdout)["soc"] == "epyc2"
    assert "SoC epyc2: it comes with codl" in done.stderr
    named = command_line.run(home, "dataset", "info", "--soc", "epyc2", "--json")
    assert "it comes with codl" not in named.stderr


def test_models_say_what_is_known_of_them_here(home: Path) -> None:
    b = ModelBuilder("net")
    x = b.relu(b.conv(b.input("image", (1, 3, 8, 8)), 4, 3, pad=1))
    b.output(b.fully_connected(b.flatten(x), 10))
    (home / "net.onnx").write_bytes(b.build().SerializeToString())
    done = command_line.run(home, "models", "net.onnx", "matmul", "--soc", "epyc2", "--json")
    net, matmul = json.loads(done.stdout)["models"]
    assert (net["parameters"], net["inputs"]) == (b.parameters, {"image": [1, 3, 8, 8]})
    assert (net["ops"], net["kinds"]) == (2, {"conv2d": 1, "fc": 1})
    assert matmul["ops"] == len({to_text(op) for op in load_ops(["matmul"])})
    every = json.loads(command_line.run(home, "models", "--json").stdout)["models"]
    assert {"vgg16", "bert"} <= {model["name"] for model in every}


#: A process that ends with the modules that it has imported.
CODE = """
import atexit, sys
atexit.register(lambda: print("modules", *sys.modules))
from codl.cli import main
sys.argv[0] = "codl"
main()
"""
#: What completion asks for, as bash does.
COMPLETE = {"_CODL_COMPLETE": "complete_bash"}


def ended(*words: str, **variables: str) -> tuple[list[str], set[str]]:
    """What is printed, and the modules that were imported for it."""
    *lines, last = command_line.python(CODE, *words, env=variables).stdout.splitlines()
    return lines, set(last.split())


def completed(line: str) -> tuple[list[str], set[str]]:
    words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    return ended(**COMPLETE, **words)


def test_help_lists_commands_by_their_own_words() -> None:
    top: Any = typer.main.get_command(app)
    groups = [top, *(c for c in top.commands.values() if hasattr(c, "commands"))]
    for group in some(groups):
        listed = group._listed().commands
        assert [*listed] == [*group.commands]
        for name, command in some(group.commands.items()):
            assert listed[name].name == command.name == name
            is_plugin = listed[name].help.startswith("Command of the plugin")
            assert is_plugin or command.help.startswith(listed[name].help)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("codl e", ["eval", "explain"]),
        ("codl bench ", ["ops", "stream", "ui"]),
        ("codl eval --mo", ["--models"]),
        ("codl soc show --js", ["--json"]),
    ],
)
def test_completion_knows_every_command(line: str, words: list[str]) -> None:
    assert completed(line)[0] == words


def test_what_lists_commands_imports_none() -> None:
    for lines, modules in some((ended("--help"), ended("--version"), completed("codl e"))):
        assert lines
        assert not {"numpy", "codl.ir", "codl.jobs.model"} & modules


def test_completion_knows_options() -> None:
    for command in some(("eval", "run", "search yolov2", "collect", "validate")):
        assert "--serial" in completed(f"codl {command} --s")[0]


def test_an_unknown_command_is_told_the_closest() -> None:
    run = subprocess.run([sys.executable, "-m", "codl", "evl"], capture_output=True, text=True)
    assert run.returncode == 2
    assert "Did you mean 'eval'" in run.stderr


def shown(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["show", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def executable_file(tmp_path: Path) -> Path:
    file = tmp_path / "small.json"
    file.write_bytes(encoded(small_executable())[0])
    return file


def test_an_executable_is_listed_command_by_command(executable_file: Path) -> None:
    executable = small_executable()
    listing = json.loads(shown(executable_file, "--json"))
    assert listing["kind"] == "executable"
    assert listing["digest"] == executable.digest()
    assert sum(own["bytes"] for own in listing["memory"]) == sum(
        b.bytes for b in executable.buffers
    )
    lines = [one for stage in listing["stages"] for one in stage["commands"]]
    assert len(lines) == len(list(executable.commands))
    assert {one["side"] for one in lines} == {"cpu", "gpu"}
    launches = [one for one in lines if one["kind"] == "launch"]
    assert sum(own["launches"] for own in listing["programs"]) == len(launches)
    assert {own["library"] for own in listing["nets"]} == {"ncnn", "ONNX Runtime"}


def test_a_plan_is_shown_and_lowered(tmp_path: Path) -> None:
    network = load_network("op_chain")
    plan = default_plan(network, SOC, "gpu").save(tmp_path / "plan.json")
    assert json.loads(shown(plan, "--json"))["kind"] == "plan"
    assert "gpu" in shown(plan)
    soc = tmp_path / "simulated.yaml"
    soc.write_text(yaml.safe_dump(SOC.to_dict()))
    kept = tmp_path / "executable.json"
    lowered = json.loads(shown(plan, "--soc", soc, "--executable", kept, "--json"))
    again = json.loads(shown(kept, "--json"))
    assert lowered["kind"] == "executable"
    assert (lowered["digest"], lowered["stages"]) == (again["digest"], again["stages"])


@pytest.mark.parametrize("text", ["", "{}", "\xff"])
def test_what_is_none_of_the_three_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(InvalidFileError, match=str(file)):
        shown(file)


def bundle_of(executable: Executable, file: Path) -> Path:
    """A bundle with what can be shown of one."""
    write_archive(file, {}, {EXECUTABLE: encoded(executable)[0]})
    return file


def test_the_executable_of_a_bundle_is_listed(executable_file: Path, tmp_path: Path) -> None:
    bundle = bundle_of(small_executable(), tmp_path / "small.codl")
    answers = [json.loads(shown(file, "--json")) for file in (bundle, executable_file)]
    for own in answers:
        del own["created"]
    assert answers[0] == answers[1]
    assert "What runs, in order" in shown(bundle)
    kept = tmp_path / "kept.json"
    shown(bundle, "--executable", kept)
    assert kept.read_bytes() == executable_file.read_bytes()


RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
EXAMPLES = re.compile(r"\[dim\]Examples?:\[/dim\]")
#: Commands of which an example takes no device and little time, where its files are there.
QUICK = ("soc list", "soc show", "dataset info", "models", "cache show", "compare", "runs",
         "report", "show", "trace")  # fmt: skip
#: What the files of examples hold.
FILES = {
    "before.json": "eval-host.json",
    "now.json": "eval-host.json",
    "eval.json": "eval-host.json",
    "train.json": "train-host.json",
}


def commands(group: Any = None, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every command that does something, by its words."""
    group = typer.main.get_command(app) if group is None else group
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}".strip(), command


def examples(command: Any) -> list[str]:
    """The lines of examples of a command's help, those that `&&` joins apart."""
    _, *parts = EXAMPLES.split(command.help or "")
    lines = "\n".join(parts).strip().splitlines()
    return [part.strip() for line in lines for part in line.split("&&") if line.strip()]


ALL = dict(commands())
LINES = [(name, line) for name, command in ALL.items() for line in examples(command)]


@pytest.mark.parametrize("name", ALL)
def test_every_command_has_examples(name: str) -> None:
    lines = examples(ALL[name])
    assert lines, f"codl {name} --help has no example"
    shown = CliRunner().invoke(app, [*name.split(), "--help"])
    assert shown.exit_code == 0
    assert "Usage" in shown.output
    assert "Example" in shown.output
    assert any(line.startswith(f"codl {name}") for line in lines)


@pytest.mark.parametrize("line", [line for _, line in LINES])
def test_every_example_can_be_parsed(line: str) -> None:
    words = shlex.split(line.partition(" > ")[0])[1:]
    name = next(name for name in sorted(ALL, key=len, reverse=True)
                if words[: len(name.split())] == name.split())  # fmt: skip
    command = ALL[name]
    command.make_parser(typer.Context(command)).parse_args(words[len(name.split()) :])


@pytest.mark.parametrize("line", [line for name, line in LINES if name in QUICK])
def test_quick_examples_run(line: str, tmp_path: Path) -> None:
    words = shlex.split(line.partition(" > ")[0])[1:]
    for name, source in FILES.items():
        shutil.copy(RESULTS / source, tmp_path / name)
    missing = [word for word in words if re.search(r"\.(json|onnx|codl|yaml)$", word)
               if not (tmp_path / word).exists()]  # fmt: skip
    if missing or "host" in words:
        pytest.skip(f"needs {', '.join(missing) or 'a SoC of this machine'}")
    (tmp_path / "results").mkdir()
    done = command_line.run(tmp_path, *words)
    assert done.code == 0, done.stderr
    assert done.stdout or "report" in words
