"""Phones over adb, with serials as in `adb devices`, or adb:SERIAL.

The client is the system's `adb` in raw mode, which needs Android 7 or later. It reads its own
variables, such as ADB_SERVER_SOCKET.
"""

from __future__ import annotations

import re
from contextlib import suppress
from functools import partial

from codl.errors import CodlError, DeviceError
from codl.targets.checks import Check
from codl.targets.client import Fix
from codl.targets.device_shell import DeviceShell, client_check, output_of, shell_check

PREFIX = "adb:"
#: Serials that `adb devices` may print: serials of mDNS have spaces and brackets, addresses have
#: scopes. The client takes a serial as one word, which must not look like an option.
SERIAL = re.compile(r"(?!-)[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?")
#: Texts that count as a serial: with a digit, or an address. Other texts need to be listed by the
#: server, or the prefix `adb:`.
USUAL = re.compile(r"(?=.*\d)[A-Za-z0-9][\w.:-]*|\[[0-9A-Fa-f:.]+(%[\w.-]+)?\]:\d+", re.ASCII)
#: Serials of phones in the network, which need `adb connect` first.
ADDRESS = re.compile(r".+:\d{1,5}")
#: Folder where the shell's user may write.
FOLDER = "/data/local/tmp/codl"
AWAY = "The device went away, or was started anew: is it still plugged in, and on?"
SEVERAL = (
    "Several devices have this serial: name one by its place, such as --serial adb:usb:1-2, as "
    "`adb devices -l` lists it."
)
#: Remedies by parts of the client's errors. A client that loses the device ends with code 0.
FIXES = {
    "unauthorized": "Unlock the device's screen and allow this computer to debug.",
    "still authorizing": "Unlock the device's screen and allow this computer to debug.",
    "offline": "Plug it in again, or `adb reconnect offline`.",
    "no permissions": "This user may not open its USB device: add adb's udev rules.",
    "permissions for device": "This user may not open its USB device: add adb's udev rules.",
    "supports allocating a pty": "codl needs Android 7 or later.",
    "more than one device": SEVERAL,
    "connect to daemon": "The adb server does not start: `adb start-server` says why.",
    "error: closed": AWAY,
    "ended with code 0": AWAY,
    "crashed (signal": "The adb client on this machine was ended.",
}
ABSENT = "' not found"
#: Errors of a client that did not reach the device, or lost it.
CUTS = ("ended with code 0", "crashed (signal", "error: closed", "error: device ")


def matches(serial: str) -> bool:
    if serial.startswith(PREFIX) or USUAL.fullmatch(serial) is not None:
        return True
    return serial in listed()


def shell_of(serial: str) -> DeviceShell:
    """The shell of a phone; raises `CodlError` for an impossible serial."""
    name = serial.removeprefix(PREFIX)
    if SERIAL.fullmatch(name) is None:
        raise CodlError(f"The serial must be as `adb devices` prints it, got {serial!r}.")
    client = ("adb", "-s", name, "shell", "-T")
    fixes: dict[str, Fix] = {ABSENT: partial(absent, name), **FIXES}
    return DeviceShell(serial, client, FOLDER, fixes, CUTS, is_silent=True)


def absent(name: str) -> str:
    """The remedy for an unknown device, with the known ones."""
    connect = f"`adb connect {name}` reaches it. " if ADDRESS.fullmatch(name) else ""
    known: list[tuple[str, str]] = []
    with suppress(DeviceError):
        known = devices()
    listed = ", ".join(f"{serial} ({state})" for serial, state in known)
    if not listed:
        return f"{connect}`adb devices` lists none: plug one in, and turn on its USB debugging."
    return f"{connect}`adb devices` lists {listed}."


def devices() -> list[tuple[str, str]]:
    """Serial and state of every known device; raises `DeviceError`. Serials may be equal."""
    lines = (line.partition("\t") for line in output_of(["adb", "devices"]).splitlines())
    return [(serial.strip(), state.strip()) for serial, tab, state in lines if tab]


def listed() -> list[str]:
    """Serials of the known devices; empty if the server does not answer."""
    with suppress(DeviceError):
        return [serial for serial, _ in devices()]
    return []


def checks_of(serial: str) -> tuple[Check, ...]:
    """Checks of the connection to a phone, for `codl doctor`."""
    client = "Install it: Android's platform tools, or your distribution's package `adb`."
    return (
        client_check(["adb"], ["version"], client),
        shell_check("adb shell", lambda: shell_of(serial), "Plug it in again, or `adb reconnect`."),
    )
