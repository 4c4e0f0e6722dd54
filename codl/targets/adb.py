"""Phones over adb: a serial as `adb devices` prints it, or adb:SERIAL.

The client is the system's `adb` in raw mode, which needs Android 7 or later. It reads variables of
its own, such as ADB_SERVER_SOCKET.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

from codl.errors import CodlError, DeviceError
from codl.targets.checks import Check, CheckResult
from codl.targets.client import Fix
from codl.targets.device_shell import DeviceShell, client_check, said_by, shell_check

PREFIX = "adb:"
PATTERN = "ADB_SERIAL"
#: Serials of devices, of emulators, and of phones in the network. Each has a digit, no word has.
SERIAL = re.compile(r"(?=.*\d)[A-Za-z0-9][\w.:-]*|\[[0-9A-Fa-f:.]+\]:\d+", re.ASCII)
#: Those of phones in the network, which have to be connected first.
ADDRESS = re.compile(r".+:\d{1,5}")
#: Where the shell's user may write.
FOLDER = "/data/local/tmp/codl"
AWAY = "The device went away, or was started anew: is it still plugged in, and on?"
#: What is done where the client says so. A client that loses the device ends with code 0.
FIXES = {
    "unauthorized": "Unlock the device's screen and allow this computer to debug.",
    "still authorizing": "Unlock the device's screen and allow this computer to debug.",
    "offline": "Plug it in again, or `adb reconnect offline`.",
    "no permissions": "This user may not open its USB device: add adb's udev rules.",
    "permissions for device": "This user may not open its USB device: add adb's udev rules.",
    "supports allocating a pty": "codl needs Android 7 or later.",
    "connect to daemon": "The adb server does not start: `adb start-server` says why.",
    "error: closed": AWAY,
    "ended with code 0": AWAY,
    "crashed (signal": "The adb client on this machine was ended.",
}
ABSENT = "' not found"
#: How the client ends that did not get there, or that lost the device.
CUTS = ("ended with code 0", "crashed (signal", "error: closed", "error: device ")


def matches(serial: str) -> bool:
    return serial.startswith(PREFIX) or SERIAL.fullmatch(serial) is not None


def shell_of(serial: str) -> DeviceShell:
    """The shell of a phone; raises `CodlError` for what cannot be a serial."""
    name = serial.removeprefix(PREFIX)
    if SERIAL.fullmatch(name) is None:
        raise CodlError(f"The serial must be as `adb devices` prints it, got {serial!r}.")
    client = ("adb", "-s", name, "shell", "-T")
    fixes: dict[str, Fix] = {ABSENT: partial(absent, name), **FIXES}
    return DeviceShell(serial, client, FOLDER, fixes, CUTS, is_silent=True)


def absent(name: str) -> str:
    """What to do about a device that the server does not know: which ones it knows."""
    connect = f"`adb connect {name}` reaches it. " if ADDRESS.fullmatch(name) else ""
    listed = ""
    with suppress(DeviceError):
        listed = ", ".join(f"{serial} ({state})" for serial, state in devices().items())
    if not listed:
        return f"{connect}`adb devices` lists none: plug one in, and turn on its USB debugging."
    return f"{connect}`adb devices` lists {listed}."


def devices() -> dict[str, str]:
    """The state of every device that the server knows, by serial; raises `DeviceError`."""
    lines = (line.split(maxsplit=1) for line in said_by(["adb", "devices"]).splitlines())
    return {
        words[0]: words[1].strip()
        for words in lines
        if len(words) == 2 and SERIAL.fullmatch(words[0])
    }


def checks_of(serial: str) -> tuple[Check, ...]:
    """What `codl doctor` looks at on the way to a phone."""
    client = "Install it: Android's platform tools, or your distribution's package `adb`."
    plugged = "Plug it in, turn on USB debugging in its developer options, and allow this computer."
    return (
        client_check(["adb"], ["version"], client),
        Check("adb device", lambda under_test: _state(serial), plugged, "nothing", decides=True),
        shell_check("adb shell", lambda: shell_of(serial), "Plug it in again, or `adb reconnect`."),
    )


def _state(serial: str) -> Iterator[CheckResult]:
    """What `adb devices` says of a phone: `device` where this computer may use it."""
    name = serial.removeprefix(PREFIX)
    states = devices()
    state = states.get(name)
    if state is None:
        others = ", ".join(states) or "none"
        yield CheckResult(False, f"`adb devices` does not list {name} (it lists {others})")
    elif state != "device":
        fix = next((fix for key, fix in FIXES.items() if state.startswith(key)), "")
        yield CheckResult(False, f"{name} is {state}", fix=fix)
    else:
        yield CheckResult(True, f"{name} is there, and this computer may use it")
