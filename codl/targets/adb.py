"""Phones over adb: a serial as `adb devices` prints it, or adb:SERIAL.

The client is the system's `adb` in raw mode, which needs Android 7 or later. It reads variables of
its own, such as ADB_SERVER_SOCKET.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from codl.errors import CodlError
from codl.targets.checks import Check, Outcome
from codl.targets.device_shell import DeviceShell
from codl.targets.shell_checks import client_check, said_by, shell_check

PREFIX = "adb:"
PATTERN = "ADB_SERIAL"
#: Serials of devices, of emulators, and of phones in the network. Each has a digit, no word has.
SERIAL = re.compile(r"(?=.*\d)[A-Za-z0-9][\w.:-]*|\[[0-9A-Fa-f:.]+\]:\d+", re.ASCII)
#: Where the shell's user may write.
FOLDER = "/data/local/tmp/codl"
FIXES = {
    "unauthorized": "Unlock the device's screen and allow this computer to debug.",
    "still authorizing": "Unlock the device's screen and allow this computer to debug.",
    "offline": "Plug it in again, or `adb reconnect`.",
    "more than one device": "Name one of `adb devices`.",
    "not found": "`adb devices` lists those that are there.",
    "no permissions": "Its USB device may not be opened by this user: add adb's udev rules.",
    "closed": "The device went away: is it still plugged in?",
}


def matches(serial: str) -> bool:
    return serial.startswith(PREFIX) or SERIAL.fullmatch(serial) is not None


def shell_of(serial: str) -> DeviceShell:
    """The shell of a phone; raises `CodlError` for what cannot be a serial."""
    own = serial.removeprefix(PREFIX)
    if SERIAL.fullmatch(own) is None:
        raise CodlError(f"The serial must be as `adb devices` prints it, got {serial!r}.")
    return DeviceShell(serial, ("adb", "-s", own, "shell", "-T"), FOLDER, FIXES)


def checks_of(serial: str) -> tuple[Check, ...]:
    """What `codl doctor` looks at on the way to a phone."""
    client = "Install it: Android's platform tools, or your distribution's package `adb`."
    plugged = "Plug it in, turn on USB debugging in its developer options, and allow this computer."
    return (
        client_check(["adb"], ["version"], client),
        Check("adb device", lambda patient: _state(serial), plugged, "nothing", decides=True),
        shell_check("adb shell", lambda: shell_of(serial), "Plug it in again, or `adb reconnect`."),
    )


def _state(serial: str) -> Iterator[Outcome]:
    """What `adb devices` says of a phone: `device` where this computer may use it."""
    own = serial.removeprefix(PREFIX)
    lines = (line.split() for line in said_by(["adb", "devices"]).splitlines())
    states = {words[0]: " ".join(words[1:]) for words in lines if len(words) > 1}
    state = states.get(own)
    if state is None:
        others = ", ".join(name for name in states if SERIAL.fullmatch(name)) or "none"
        yield Outcome(False, f"`adb devices` does not list {own} (it lists {others})")
    elif state != "device":
        fix = next((fix for key, fix in FIXES.items() if state.startswith(key)), "")
        yield Outcome(False, f"{own} is {state}", fix=fix)
    else:
        yield Outcome(True, f"{own} is there, and this computer may use it")
