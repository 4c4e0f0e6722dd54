"""Phones over adb: a serial as `adb devices` prints it, or adb:SERIAL.

The client is the system's `adb` in raw mode, which needs Android 7 or later. It reads variables of
its own, such as ADB_SERVER_SOCKET.
"""

from __future__ import annotations

import re

from codl.errors import CodlError
from codl.targets.device_shell import DeviceShell

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
