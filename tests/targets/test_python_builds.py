"""Python for a device that has none: its program, what is sent, and what is said where it fails."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import sys
import tarfile
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from support import python_builds
from typer.testing import CliRunner

from codl.cli.agent import agent_app
from codl.errors import CodlError, DeviceError, InvalidFileError, UnsupportedError
from codl.targets import python_build
from codl.targets.device_shell import DeviceShell
from codl.targets.python_build import (
    BRING,
    PROGRAM,
    PROGRAMS,
    Published,
    PythonBuild,
    bring,
    launcher,
)
from scripts import launchers
from scripts.launchers import MACHINES

needs_library = pytest.mark.skipif(
    python_builds.library() is None, reason="this Python has no shared library"
)
KINDS = [(machine, libc) for machine in MACHINES for libc in MACHINES[machine].loaders]


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return python_builds.make(tmp_path_factory.mktemp("build") / "python.tar")


def read_build(path: Path) -> PythonBuild:
    """A build for this machine."""
    return python_build.read_build(path, PROGRAMS / f"{platform.machine()}-glibc")


def shell_in(folder: Path, path: str = "") -> DeviceShell:
    """This machine's shell; with a folder of programs that come before all others."""
    client = ("env", f"PATH={path}:/usr/bin:/bin", "sh", "-c") if path else ("sh", "-c")
    return DeviceShell("here", client, str(folder))


def tool(folder: Path, name: str, text: str) -> str:
    """A program of a device; the folder that it is in."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)
    return str(folder)


# The program.


@pytest.mark.skipif(shutil.which("readelf") is None, reason="there are no binutils here")
@pytest.mark.parametrize(("machine", "libc"), KINDS)
def test_others_read_the_program_as_it_is_meant(machine: str, libc: str, tmp_path: Path) -> None:
    path = tmp_path / "python3"
    path.write_bytes(launcher(PROGRAMS / f"{machine}-{libc}", "libpython3.14.so"))
    done = subprocess.run(["readelf", "-aW", str(path)], capture_output=True, text=True)
    assert done.stderr == ""
    said = done.stdout
    assert f"[Requesting program interpreter: {MACHINES[machine].loaders[libc]}]" in said
    for word in ("libpython3.14.so", launchers.LIBC[libc], launchers.RUNPATH):
        assert f"[{word}]" in said
    assert re.search(r"Type: +DYN", said)
    loads = [line.split() for line in said.splitlines() if line.split()[:1] == ["LOAD"]]
    assert [line[-1] for line in loads] == [hex(launchers.PAGE)] * 2
    assert ["".join(line[6:-1]) for line in loads] == ["RE", "RW"]
    moves = subprocess.run(["readelf", "-DrW", str(path)], capture_output=True, text=True).stdout
    kind = "R_AARCH64_GLOB_DA" if machine == "aarch64" else "R_X86_64_GLOB_DAT"
    assert [re.split(r"\W+", line)[4] for line in moves.splitlines() if kind in line] == [
        launchers.MAIN,
        launchers.EXIT,
    ]


@pytest.mark.parametrize(("machine", "libc"), KINDS)
def test_the_programs_are_those_of_the_script(machine: str, libc: str) -> None:
    file = python_build.PROGRAMS / f"{machine}-{libc}"
    assert file.read_bytes() == launchers.program(machine, libc)


@needs_library
def test_the_program_is_python(archive: Path, tmp_path: Path) -> None:
    build = read_build(archive)
    for name in build.files:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(build.files[name])
    (tmp_path / PROGRAM).chmod(0o755)
    script = "import sys; print(sys.argv, sys.executable, sys.prefix); sys.exit(7)"
    done = subprocess.run(
        [str(tmp_path / PROGRAM), "-I", "-S", "-c", script, "a b"], capture_output=True, text=True
    )
    assert done.stdout.strip() == f"{['-c', 'a b']} {tmp_path / PROGRAM} {tmp_path}"
    assert (done.returncode, done.stderr) == (7, "")


# What is sent.


@needs_library
def test_what_is_there_is_not_sent_again(archive: Path, tmp_path: Path) -> None:
    shell, old = shell_in(tmp_path), tmp_path / "python-3.9-0"
    old.mkdir()
    folder = tmp_path / read_build(archive).name
    assert bring(shell, str(archive)) == (str(folder / PROGRAM),)
    assert not old.exists()
    node = (folder / PROGRAM).stat().st_ino
    assert bring(shell, str(archive)) == (str(folder / PROGRAM),)
    assert (folder / PROGRAM).stat().st_ino == node
    assert [path.name for path in tmp_path.glob("python-*")] == [folder.name]


@needs_library
def test_other_roots_and_what_no_agent_needs(archive: Path, tmp_path: Path) -> None:
    build = read_build(archive)
    assert read_build(python_builds.make(tmp_path / "other.tar", root="a/b/")).files == build.files
    modules = f"lib/python{build.version}"
    more = tmp_path / "more.tar"
    shutil.copy(archive, more)
    with tarfile.open(more, "a") as file:
        for name in ("test/x.py", "idlelib/x.py", "lib-dynload/_ssl.so", "a/__pycache__/x.pyc"):
            file.addfile(tarfile.TarInfo(f"prefix/{modules}/{name}"))
        file.addfile(tarfile.TarInfo(f"prefix/{modules}/needed.py"))
        link = tarfile.TarInfo(f"prefix/{modules}/sitecustomize.py")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/python3/sitecustomize.py"
        file.addfile(link)
    assert {*read_build(more).files} - {*build.files} == {f"{modules}/needed.py"}


# What is said where it fails.


def test_a_file_that_is_no_build(tmp_path: Path) -> None:
    path = tmp_path / "python.tar.gz"
    with pytest.raises(CodlError, match=r"There is no file '.*python\.tar\.gz'"):
        bring(shell_in(tmp_path), str(path))
    path.write_bytes(b"<html>not found</html>")
    with pytest.raises(InvalidFileError, match="it is no archive of a build of Python"):
        read_build(path)
    with tarfile.open(path, "w") as file:
        file.add(__file__, "prefix/bin/python3")
    with pytest.raises(InvalidFileError, match=r"it has no lib/libpython3\.x\.so"):
        read_build(path)
    with tarfile.open(path, "w") as file:
        file.add(__file__, "prefix/lib/libpython3.14.so")
    with pytest.raises(InvalidFileError, match=r"it has no prefix/lib/python3\.14/os\.py"):
        read_build(path)


@pytest.mark.parametrize("text", ["python.tar", BRING])
def test_a_device_without_builds(text: str, tmp_path: Path) -> None:
    shell = shell_in(tmp_path, tool(tmp_path / "bin", "uname", "echo riscv64"))
    with pytest.raises(UnsupportedError, match="on aarch64 and x86_64, and 'here' is riscv64"):
        bring(shell, text)


def test_nothing_is_fetched_for_what_is_no_android(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="without /system/bin/linker64: name the command"):
        bring(shell_in(tmp_path), BRING)


@needs_library
@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("tar", "cat > /dev/null; echo 'tar: No space left on device' >&2; exit 1", "No space"),
        (
            "tar",
            'shift 3; /bin/tar -x -f - "$@"; chmod -x "$2"/bin/python3',
            r"refuses to execute .*bin/python3 \(.*ermission denied\): .* must let programs run",
        ),
        (
            "tar",
            'shift 3; /bin/tar -x -f - "$@"; echo "no libpython >&2" > "$2"/bin/python3',
            r"does not start on 'here' \(.*\): name another build by --python",
        ),
    ],
    ids=["full", "refuses to execute", "does not start"],
)
def test_devices_that_do_not_take_it(
    archive: Path, tmp_path: Path, name: str, text: str, said: str
) -> None:
    """Doubles of such devices: one program of theirs does as theirs would. Nothing stays there."""
    shell = shell_in(tmp_path / "to", tool(tmp_path / "bin", name, text))
    (tmp_path / "to").mkdir()
    with pytest.raises(DeviceError, match=said) as error:
        bring(shell, str(archive))
    assert "\n" not in str(error.value)
    assert not [*(tmp_path / "to").iterdir()]


# Builds of python.org.


@pytest.fixture
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Published:
    """One in the place of python.org's, on this disk."""
    file = tmp_path / "site" / "python-3.14-android.tar.gz"
    file.parent.mkdir()
    file.write_bytes(b"a build")
    made = Published(file.as_uri(), sha256(b"a build").hexdigest())
    monkeypatch.setattr(python_build, "PUBLISHED", {"aarch64": made})
    monkeypatch.setattr(python_build, "user_cache_dir", lambda name: str(tmp_path / "cache"))
    return made


def test_a_build_is_fetched_once_and_checked(known: Published, tmp_path: Path) -> None:
    path = python_build.fetch(known)
    assert path.read_bytes() == b"a build"
    (tmp_path / "site" / known.name).unlink()
    assert python_build.fetch(known) == path
    path.write_bytes(b"damaged")
    with pytest.raises(CodlError, match=rf"cannot be fetched \(.*by --python {known.name}\.$"):
        python_build.fetch(known)
    (tmp_path / "site" / known.name).write_bytes(b"another")
    with pytest.raises(CodlError, match=f"not the file that codl knows: .*not {known.sha256}"):
        python_build.fetch(known)


@pytest.mark.parametrize(
    ("arguments", "python"),
    [
        (["--python", BRING], [BRING]),
        (["--python", "my python.tar.gz"], ["my python.tar.gz"]),
        (["--python", "env A=1 python3"], ["env", "A=1", "python3"]),
        (["--python=python3"], ["python3"]),
        ([], None),
    ],
)
def test_python_is_a_command_a_file_or_nothing_but_the_word(
    arguments: list[str], python: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def installed(shell: DeviceShell, python: Any, **options: Any) -> None:
        asked.append(python)
        raise SystemExit(0)

    monkeypatch.setattr("codl.cli.agent.install", installed)
    CliRunner().invoke(agent_app, ["install", "--serial", "ssh://board", *arguments])
    assert asked == [python]
    assert sys.exc_info() == (None, None, None)
