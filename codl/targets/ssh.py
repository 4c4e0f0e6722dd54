"""Devices over ssh, such as boards and laptops, with serials `ssh://user@host:port`.

The client is the system's `ssh` with the user's configuration, keys and agent; the variable
CODL_SSH_COMMAND names another, as in `ssh -F file`. It never asks for a password.
"""

from __future__ import annotations

import os
import re
import shlex

from codl.errors import CodlError
from codl.targets.checks import Check
from codl.targets.device_shell import DeviceShell, client_check, shell_check

VARIABLE = "CODL_SSH_COMMAND"
#: codl's folder on the device, relative to the shell's start folder.
FOLDER = ".codl"
ADDRESS = re.compile(
    r"ssh://(?:(?P<user>[A-Za-z0-9_][\w.-]*)@)?"
    r"(?P<host>[A-Za-z0-9_][\w.-]*|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[1-9]\d{0,4}))?/?",
    re.ASCII,
)
#: Options to notice a dead connection within half a minute, and to ask nothing on a terminal.
OPTIONS = (
    "BatchMode=yes",
    "ConnectTimeout=15",
    "ServerAliveInterval=10",
    "ServerAliveCountMax=3",
    "LogLevel=ERROR",
)
CUT = "The connection was cut: is the device on, and in this network?"
FIXES = {
    "Permission denied": "Let a key in: `ssh-copy-id` to this host.",
    "Host key verification failed": "Connect once by hand to accept the host's key.",
    "Could not resolve hostname": "Is the name right, and is this machine in its network?",
    "Connection refused": "Is an ssh server running there, at this port?",
    "timed out": "Is the device on, and in this network?",
    "ended with code 255": CUT,
    "crashed (signal": "The ssh client on this machine was ended.",
}
#: Errors of a client that did not reach the device, or lost it.
CUTS = ("ended with code 255", "crashed (signal")

SERVER = "Is an ssh server running there, and does `ssh` to it work by hand without a password?"


def shell_of(serial: str) -> DeviceShell:
    """The shell at an address; raises `CodlError` for an invalid address."""
    address = ADDRESS.fullmatch(serial)
    if address is None or int(address["port"] or 22) > 65535:
        raise CodlError(f"The serial must be like ssh://pi@board.local:22, got {serial!r}.")
    host = address["host"].strip("[]")
    where = f"{address['user']}@{host}" if address["user"] else host
    port = ("-p", address["port"]) if address["port"] else ()
    settings = [part for option in OPTIONS for part in ("-o", option)]
    client = (*_client(), "-T", *settings, *port, "--", where)
    return DeviceShell(serial, client, FOLDER, FIXES, CUTS)


def checks_of(serial: str) -> tuple[Check, ...]:
    """Checks of the connection to an address, for `codl doctor`."""
    return (
        client_check(_client(), ["-V"], "Install OpenSSH's client."),
        shell_check("ssh connection", lambda: shell_of(serial), SERVER),
    )


def _client() -> list[str]:
    return shlex.split(os.environ.get(VARIABLE, "")) or ["ssh"]
