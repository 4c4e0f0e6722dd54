"""A real ssh server on this machine's loopback, with keys of its own."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
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


@dataclass
class Server:
    """A server that may be stopped with all its sessions, and started again at its port."""

    folder: Path
    port: int
    process: subprocess.Popen[str] | None = None

    @property
    def serial(self) -> str:
        """This machine, by this server."""
        return f"ssh://{getpass.getuser()}@127.0.0.1:{self.port}"

    @property
    def client(self) -> str:
        """The ssh command that it lets in."""
        return f"ssh -F {self.folder / 'client'}"

    def start(self) -> None:
        assert SERVER is not None
        config = str(self.folder / "server")
        command = [SERVER, "-D", "-e", "-f", config, "-p", str(self.port)]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        _await(self.port, self.process)

    def session(self) -> int:
        """The process of the connection that was made last."""
        assert self.process is not None
        return max(_children(self.process.pid))

    def stop(self) -> None:
        """As a device that loses its power: no session ends by itself."""
        assert self.process is not None
        for pid in [*_descendants(self.process.pid), self.process.pid]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with self.process:
            self.process.wait()


@contextmanager
def serving(folder: Path) -> Iterator[Server]:
    """A server with its files in `folder`."""
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
    server = Server(folder, port)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def _children(pid: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            if parent == pid:
                found.append(int(path.parent.name))
    return found


def _descendants(pid: int) -> list[int]:
    own = _children(pid)
    return [*own, *(deeper for child in own for deeper in _descendants(child))]


def _await(port: int, server: subprocess.Popen[str]) -> None:
    """Until the server listens."""
    end = monotonic() + START_S
    while monotonic() < end and server.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        sleep(0.02)
    server.terminate()
    raise RuntimeError(f"sshd did not start: {server.stderr.read() if server.stderr else ''}")
