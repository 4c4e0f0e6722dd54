"""Checks of the way to a device: clients that are missing, phones in every state, odd shells."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.devices_under_test import findings, under_test

from codl.errors import DeviceError, UnknownNameError
from codl.targets import ssh
from codl.targets.checks import Finding
from codl.targets.connect import transport_of
from codl.targets.device_shell import END
from codl.targets.local import LocalTarget

PHONE = "R58M123ABC"
HELLO = "List of devices attached\\n"
#: An `adb` that says what it was made to say, and runs shell commands here.
ADB = """#!/bin/sh
case "$1" in
version) echo "Android Debug Bridge version 1.0.41" ;;
devices) printf "{listed}" ;;
-s) {shell} ;;
esac
"""
RUNS = 'sh -c "$5"'
WELCOMES = f"printf 'Welcome\\n{END.decode()}'"


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose programs come before all others."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def program(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


def of(serial: str) -> dict[str, Finding]:
    return findings(transport_of(serial).checks(serial), under_test())


def phone(path: Path, *, listed: str, shell: str = RUNS) -> dict[str, Finding]:
    program(path, "adb", ADB.format(listed=HELLO + listed, shell=shell))
    return of(PHONE)


def test_a_phone_that_is_there_passes(path: Path) -> None:
    found = phone(path, listed=f"emulator-5554\\tdevice\\n{PHONE}\\tdevice\\n")
    assert list(found) == ["adb client", "adb shell"]
    assert all(one.ok for one in found.values())
    assert "version 1.0.41" in found["adb client"].detail


@pytest.mark.parametrize(
    ("said", "fix"),
    [
        ("error: device unauthorized.", "allow this computer"),
        ("error: device offline", "adb reconnect offline"),
        ("error: insufficient permissions for device", "udev"),
        ("error: more than one device", "adb:usb:1-2"),
        (f"error: device '{PHONE}' not found", "`adb devices` lists emulator-5554 (device)"),
    ],
)
def test_a_phone_in_another_state(path: Path, said: str, fix: str) -> None:
    shell = f'echo "{said}" >&2; exit 1'
    found = phone(path, listed="emulator-5554\\tdevice\\n", shell=shell)["adb shell"]
    assert not found.ok
    assert fix in found.fix
    assert found.fix not in found.detail


@pytest.mark.parametrize("serial", ["NODIGIT", "adb-R58M (2)._adb-tls-connect._tcp"])
def test_a_serial_is_what_the_server_lists(serial: str, path: Path) -> None:
    program(path, "adb", ADB.format(listed=f"{HELLO}{serial}\\tdevice\\n", shell=RUNS))
    assert all(one.ok for one in of(serial).values())
    with pytest.raises(UnknownNameError, match="Unknown serial 'prcess'"):
        transport_of("prcess")


def test_a_shell_that_says_something_else(path: Path) -> None:
    found = phone(path, listed=f"{PHONE}\\tdevice\\n", shell=WELCOMES)["adb shell"]
    assert not found.ok
    assert "printed 'Welcome' instead of 'codl'" in found.detail


@pytest.mark.parametrize("serial", [PHONE, "ssh://board"])
def test_a_client_that_is_not_installed(
    serial: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(ssh.VARIABLE, raising=False)
    found = of(serial)
    assert not any(one.ok for one in found.values())
    (first, *_) = found.values()
    assert "is not installed on this machine" in first.detail
    assert "Install" in first.fix


def test_a_host_that_refuses(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ssh.VARIABLE, raising=False)
    script = '[ "$1" = -V ] && echo OpenSSH_9 >&2 && exit; echo "Permission denied" >&2; exit 255'
    program(path, "ssh", f"#!/bin/sh\n{script}\n")
    found = of("ssh://board")
    assert found["ssh client"].ok
    assert found["ssh client"].detail.endswith("OpenSSH_9")
    assert not found["ssh connection"].ok
    assert "Permission denied" in found["ssh connection"].detail
    assert "ssh-copy-id" in found["ssh connection"].fix


def test_only_packages_that_codl_needs_are_imported() -> None:
    target = LocalTarget()
    assert target.import_package("msgspec") >= 0
    with pytest.raises(UnknownNameError, match="Unknown package 'os'"):
        target.import_package("os")


def test_a_package_that_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(DeviceError, match="jinja2 cannot be imported: ModuleNotFoundError"):
        LocalTarget().import_package("jinja2")
