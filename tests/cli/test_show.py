"""`codl show` of plans, bundles and executables, without any device."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from support.executables import encoded, small_executable
from support.simulated import SOC
from typer.testing import CliRunner

from codl.cli.app import app
from codl.errors import InvalidFileError
from codl.frontend.convert import load_network
from codl.ir.executable import Executable
from codl.jobs.bundle.archive import EXECUTABLE, write_archive
from codl.plan.build_plan import default_plan


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


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"buffers": []}', '{"chains": []}', "\xff"])
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


@pytest.mark.parametrize("share", [0.001, 0.5, 0.999])
def test_a_bundle_that_is_cut_short_is_refused(share: float, tmp_path: Path) -> None:
    bundle = bundle_of(small_executable(), tmp_path / "small.codl")
    content = bundle.read_bytes()
    bundle.write_bytes(content[: int(share * len(content))])
    with pytest.raises(InvalidFileError, match=r"small.codl: the file is damaged or cut short"):
        shown(bundle)


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        ({}, "the part 'executable.json' is missing.* `codl package"),
        ({EXECUTABLE: b"{}"}, "its executable cannot be shown: This is no executable"),
    ],
)
def test_a_bundle_without_an_executable_is_refused(
    parts: dict[str, bytes | Path], problem: str, tmp_path: Path
) -> None:
    write_archive(tmp_path / "a.codl", {}, parts)
    with pytest.raises(InvalidFileError, match=f"a.codl: {problem}"):
        shown(tmp_path / "a.codl")
