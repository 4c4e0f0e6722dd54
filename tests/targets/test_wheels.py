"""Packages that a device lacks: found as wheels, packed, and taken only where they are missing."""

from __future__ import annotations

import sys
import zipfile
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
from support.wheels import wheel

from codl.errors import DeviceError
from codl.targets import agent_archive
from codl.targets.device_shell import DeviceShell
from codl.targets.install import ARCHIVE, DevicePython, fetch_wheels, install, packed_wheels

#: A Python of this machine that sees no packages, as on a device that has none.
BARE = [sys.executable, "-S"]
PI = DevicePython("3.11.2", "aarch64", "glibc 2.36", "cpython")
ALPINE = DevicePython("3.12.1", "x86_64", "musl", "cpython")


def shell_in(folder: Path) -> DeviceShell:
    return DeviceShell("here", ("sh", "-c"), str(folder))


def only_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let pip search for wheels in this folder alone."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.mark.parametrize(
    ("python", "first", "last"),
    [
        (PI, "manylinux_2_36_aarch64", "manylinux2014_aarch64"),
        (ALPINE, "musllinux_1_2_x86_64", "musllinux_1_1_x86_64"),
    ],
)
def test_platforms_are_named_best_first(python: DevicePython, first: str, last: str) -> None:
    assert (python.platforms[0], python.platforms[-1]) == (first, last)


@pytest.mark.parametrize(
    "python",
    [
        DevicePython("3.12.1", "aarch64", "bionic 34", "cpython"),
        DevicePython("3.14.6", "aarch64", "bionic 34 --pre", "cpython"),
        DevicePython("3.14.6", "riscv64", "bionic 35", "cpython"),
        DevicePython("3.12.1", "aarch64", "glibc 2.12", "cpython"),
        DevicePython("3.12.1", "aarch64", "", "cpython"),
        DevicePython("3.13.1", "aarch64", "glibc 2.36", "cpythont"),
        DevicePython("3.11.2", "aarch64", "glibc 2.36", "pypy"),
        DevicePython("3.11.2", "--index-url=x", "glibc 2.36", "cpython"),
        DevicePython("--pre", "aarch64", "glibc 2.36", "cpython"),
        DevicePython("3.11.2", "aarch64", "glibc 2.36 --pre", "cpython"),
    ],
)
def test_what_has_no_wheels_is_asked_of_nobody(python: DevicePython, tmp_path: Path) -> None:
    assert python.platforms == ()
    problem = fetch_wheels("msgspec", python, tmp_path)
    assert problem.startswith("There are no wheels for")
    fix = "by PIP_FIND_LINKS" if python.is_android else "`pip install msgspec`"
    assert fix in problem


PHONE = DevicePython("3.14.6", "aarch64", "bionic 34", "cpython", is_termux=True)


def test_a_phone_takes_wheels_of_its_level_and_older_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of ncnn alone: it asks for packages that have no wheel for Android."""
    assert PHONE.platforms[0] == "android_34_arm64_v8a"
    assert PHONE.platforms[-1] == "android_21_arm64_v8a"
    name = "ncnn-1.2-cp314-cp314-android_24_arm64_v8a.whl"
    wheel(tmp_path / "wheels", "ncnn", "1.2", needs="tqdm").rename(tmp_path / "wheels" / name)
    only_in(tmp_path / "wheels", monkeypatch)
    assert fetch_wheels("ncnn", PHONE, tmp_path / "to") == ""
    assert [path.name for path in (tmp_path / "to").iterdir()] == [name]
    old = replace(PHONE, libc="bionic 23")
    problem = fetch_wheels("ncnn", old, tmp_path / "old")
    assert problem.startswith("No wheel for Python 3.14 on Android, aarch64 was found by pip (")
    assert problem.endswith(
        "`pkg upgrade` brings a Python for which there is one, then `pip install --no-deps ncnn`."
    )


@pytest.mark.parametrize(
    ("package", "fix"),
    [
        ("numpy", "`pkg install python-numpy`"),
        ("onnxruntime", "`pkg install python-onnxruntime`"),
        ("pyopencl", "`pip install --no-build-isolation --no-deps pyopencl`"),
        ("msgspec", "`pip install msgspec`"),
    ],
)
def test_what_has_no_wheel_for_android_says_how_termux_gets_it(
    package: str, fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_in(tmp_path, monkeypatch)
    problem = fetch_wheels(package, PHONE, tmp_path / "to")
    assert problem.startswith("No wheel for Python 3.14 on Android, aarch64 was found by pip (")
    assert fix in problem
    other = replace(PHONE, is_termux=False)
    assert "by PIP_FIND_LINKS" in fetch_wheels(package, other, tmp_path / "to")


def test_only_what_can_be_imported_is_packed(tmp_path: Path) -> None:
    members = {"a_b-1.0.data__purelib__more.py": "1", "a_b-1.0.data__scripts__run": "2"}
    archive = tmp_path / "all.zip"
    archive.write_bytes(packed_wheels([wheel(tmp_path, "a_b", "1.0", **members)]))
    names = {n for n in zipfile.ZipFile(archive).namelist() if "dist-info" not in n}
    assert names == {"a-b==1.0/a_b.py", "a-b==1.0/more.py"}


def test_missing_packages_are_brought_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel(only_in(tmp_path / "wheels", monkeypatch), "ncnn", "1.2")
    home = tmp_path / "home"
    first, again = (install(shell_in(home), BARE) for _ in range(2))
    assert (first.brought, again.brought) == (("ncnn==1.2",), ())
    for done in (first, again):
        assert done.checked.packages["ncnn"] == "1.2"
        assert done.checked.brought == ("ncnn",)
        assert not done.checked.can_serve
        assert {*done.fixes} == {*done.checked.missing} == {*done.checked.packages} - {"ncnn"}
    (packages,) = home.glob("packages-*")
    assert [own.name for own in packages.iterdir()] == ["ncnn==1.2"]
    assert not (home / agent_archive.BROUGHT).exists()


def test_packages_are_left_alone_where_that_is_asked(tmp_path: Path) -> None:
    done = install(shell_in(tmp_path), BARE, packages=False)
    assert done.brought == ()
    assert done.fixes["msgspec"] == "The agent has a stand-in for it."


def test_the_devices_own_are_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Path(agent_archive.packages_folder(str(tmp_path)))
    for name in ("numpy==99.0", "nowhere==1.0", "numpy==98.0.7.part"):
        (place / name).mkdir(parents=True)
    assert agent_archive.brought(str(tmp_path)) == {"nowhere": ("1.0", str(place / "nowhere==1.0"))}
    monkeypatch.setitem(agent_archive.FIRST, "numpy", (99,))
    assert agent_archive.versions(str(tmp_path))["numpy"] == "99.0"


def test_damaged_packages_are_not_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = packed_wheels([wheel(tmp_path / "wheels", "ncnn", "1.2")])
    home = tmp_path / "home"
    home.mkdir()
    sent = home / agent_archive.BROUGHT
    sent.write_bytes(content[:-1])
    assert agent_archive.add(str(home / ARCHIVE), sha256(content).hexdigest()) == 1
    assert "is not what was sent" in capsys.readouterr().err
    assert [*home.iterdir()] == [sent]


def test_a_device_that_cannot_take_them_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel(only_in(tmp_path / "wheels", monkeypatch), "ncnn", "1.2")
    home = tmp_path / "home"
    install(shell_in(home), BARE, packages=False)
    (home / f"packages-{sys.implementation.cache_tag}").write_text("in the way")
    with pytest.raises(DeviceError, match="File exists"):
        install(shell_in(home), BARE)
