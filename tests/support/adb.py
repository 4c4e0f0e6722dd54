"""The real adb server of the tests' own, and doubles of phones that it is connected to."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from codl.machine import cache
from codl.targets import adb
from support import adb_device

CLIENT = shutil.which("adb")
#: A user's server keeps its port; ours looks for no emulators on this machine.
PORT, MOST_PORT = "ANDROID_ADB_SERVER_PORT", "ADB_LOCAL_TRANSPORT_MAX_PORT"
LIMIT_S = 60.0
#: Says what a phone's tool of that name says; all that is asked is that it is a double.
GETPROP = """#!/bin/sh
case "$1" in
  ro.product.model) echo "{model}" ;;
  ro.product.manufacturer) echo "nobody" ;;
  ro.serialno) echo "double" ;;
  *) echo ;;
esac
"""


@dataclass
class Double:
    """A double of a phone in a folder, which is started, and may be started again."""

    folder: Path
    options: Sequence[str] = ()
    model: str = adb_device.MODEL
    environment: Mapping[str, str] = field(default_factory=dict)
    port: int = 0
    _process: subprocess.Popen[str] | None = None

    @property
    def serial(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        tools = self.folder / "bin"
        tools.mkdir(parents=True, exist_ok=True)
        (tools / "getprop").write_text(GETPROP.format(model=self.model))
        (tools / "getprop").chmod(0o755)
        given = ["--port", str(self.port), "--model", self.model, *self.options]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.adb_device", str(self.folder), *given],
            cwd=Path(__file__).parents[1],
            env={**self.environment, "PATH": os.environ.get("PATH", os.defpath)},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def stop(self) -> None:
        """It loses its power."""
        if self._process is not None:
            self._process.terminate()
            self.wait()

    def wait(self) -> None:
        """Until it is gone."""
        assert self._process is not None
        self._process.communicate(timeout=LIMIT_S)
        self._process = None


@dataclass(frozen=True)
class Server:
    """A real adb server; `environment` is what makes a client find it."""

    environment: Mapping[str, str]

    def run(self, *arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        """What the real client did."""
        return subprocess.run(
            ["adb", *arguments],
            input=given,
            capture_output=True,
            env={**os.environ, **self.environment},
            timeout=LIMIT_S,
        )

    def connect(self, double: Double) -> str:
        """What the client says; the device's state is known then."""
        self.run("disconnect", double.serial)
        return self.run("connect", double.serial).stdout.decode().strip()


@contextmanager
def serving(folder: Path) -> Iterator[Server]:
    """A server with its keys and its log in `folder`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        own = {PORT: str(free.getsockname()[1]), MOST_PORT: "5553"}
    home = {"HOME": str(folder), "ANDROID_USER_HOME": str(folder), "TMPDIR": str(folder)}
    starting = Server({**own, **home})
    done = starting.run("start-server")
    assert done.returncode == 0, done.stderr.decode()
    try:
        yield Server(own)
    finally:
        with suppress(subprocess.TimeoutExpired):
            starting.run("kill-server")


@contextmanager
def plugging(
    server: Server, folder: Path, patch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Double]]:
    """Starts doubles in a folder and connects them to the server, which codl's clients find."""
    for name, value in server.environment.items():
        patch.setenv(name, value)
    patch.setattr(adb, "FOLDER", str(folder / "phone" / "codl"))
    doubles: list[Double] = []

    def start(*options: str, name: str = "phone") -> Double:
        own = {cache.VARIABLE: os.environ[cache.VARIABLE]}
        doubles.append(Double(folder / name, options, environment=own))
        doubles[-1].start()
        server.connect(doubles[-1])
        return doubles[-1]

    yield start
    for double in doubles:
        double.stop()
        server.run("disconnect", double.serial)
