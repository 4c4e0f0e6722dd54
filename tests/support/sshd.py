"""A real ssh server on this machine's loopback, with keys of its own."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep

#: Outside the path of ordinary users.
SERVER = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
START_S = 20.0
SERVER_CONFIG = """
ListenAddress 127.0.0.1
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
PidFile {folder}/pid
StrictModes no
UsePAM no
PasswordAuthentication no
"""
CLIENT_CONFIG = """
IdentityFile {folder}/user
IdentitiesOnly yes
UserKnownHostsFile {folder}/known
StrictHostKeyChecking accept-new
"""


@contextmanager
def running(folder: Path) -> Iterator[tuple[str, str]]:
    """A server with its files in `folder`: the serial of this machine there, and an ssh command."""
    assert SERVER is not None
    for key in ("host", "user"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key], check=True
        )
    (folder / "server").write_text(SERVER_CONFIG.format(folder=folder))
    (folder / "client").write_text(CLIENT_CONFIG.format(folder=folder))
    with suppress(PermissionError):
        Path("/run/sshd").mkdir(exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [SERVER, "-D", "-e", "-f", str(folder / "server"), "-p", str(port)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            _await(port, server)
            yield f"ssh://{getpass.getuser()}@127.0.0.1:{port}", f"ssh -F {folder / 'client'}"
        finally:
            server.terminate()


def _await(port: int, server: subprocess.Popen[str]) -> None:
    """Until the server listens."""
    end = monotonic() + START_S
    while monotonic() < end and server.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        sleep(0.02)
    server.terminate()
    raise RuntimeError(f"sshd did not start: {server.stderr.read() if server.stderr else ''}")
