"""How much longer a collection takes over a transport than here, as the whole command, in turns.

    python scripts/bench/transports.py --soc host [--samples 140] [--turns 3] [--ways local,adb]

Every way measures the same tasks of this very machine: `local`, `process`, over ssh with a server
on loopback, and over adb with a double of a phone on loopback, so that nothing differs but the way.
It says nothing of how fast a cable is. A first turn, which fills the caches, is not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from support import adb as bridge
from support import sshd

from codl.records.statistic import level
from codl.runtime import cache
from codl.targets import adb, ssh
from codl.targets.device_shell import DeviceShell
from codl.targets.install import install

WAYS = ("local", "process", "ssh", "adb")
#: The command of a user, whose agents lie in folders of this script's own.
COMMAND = """
import sys
from codl.targets import adb, ssh
adb.FOLDER, ssh.FOLDER = sys.argv.pop(1), sys.argv.pop(1)
from codl.cli import main
main()
"""


@dataclass
class Way:
    """A serial, what makes its client find it, and the seconds and rows of every turn."""

    serial: str
    environment: dict[str, str] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--soc", default="host")
    parser.add_argument("--ops", default="mobilenet_v2")
    parser.add_argument("--samples", type=int, default=140, help="tasks: 200 rows and more")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--ways", default=",".join(WAYS))
    options = parser.parse_args()
    wanted = ["local", *(way for way in options.ways.split(",") if way != "local")]
    with TemporaryDirectory() as name:
        folder = Path(name)
        adb.FOLDER, ssh.FOLDER = str(folder / "phone" / "codl"), str(folder / "board")
        with ways(folder, wanted) as there:
            for turn in range(1 + options.turns):
                for way in there.values():
                    collect(way, folder, options, is_counted=turn > 0)
            tell(there)


@contextmanager
def ways(folder: Path, wanted: list[str]) -> Iterator[dict[str, Way]]:
    """Every way that there is here, with the agent at its end."""
    found: dict[str, Way] = {}
    with ExitStack() as stack:
        for name in wanted:
            if name == "ssh" and sshd.SERVER is not None:
                (folder / "sshd").mkdir()
                serial, command = stack.enter_context(sshd.running(folder / "sshd"))
                found[name] = Way(serial, {ssh.VARIABLE: command})
                put(found[name], ssh.shell_of)
            elif name == "adb" and bridge.CLIENT is not None:
                (folder / "adb").mkdir()
                server = stack.enter_context(bridge.serving(folder / "adb"))
                own = {cache.VARIABLE: str(cache.folder().parent)}
                phone = bridge.Double(folder / "phone", environment=own)
                phone.start()
                stack.callback(phone.stop)
                server.connect(phone)
                found[name] = Way(phone.serial, dict(server.environment))
                put(found[name], adb.shell_of)
            elif name in ("local", "process"):
                found[name] = Way(name)
        yield found


def put(way: Way, shell_of: Callable[[str], DeviceShell]) -> None:
    """Install the agent, which runs by this very Python."""
    os.environ.update(way.environment)
    install(shell_of(way.serial), [sys.executable])


def collect(way: Way, folder: Path, options: argparse.Namespace, *, is_counted: bool) -> None:
    """Measure by a command of its own."""
    to = folder / "datasets"
    shutil.rmtree(to, ignore_errors=True)
    given = ["--soc", options.soc, "--serial", way.serial, "--models", options.ops]
    given += ["--datasets", str(to)]
    samples = ["--samples", str(options.samples), "--json"]
    command = [sys.executable, "-c", COMMAND, adb.FOLDER, ssh.FOLDER, "collect", *given, *samples]
    begin = perf_counter()
    done = subprocess.run(command, capture_output=True)
    if done.returncode:
        raise SystemExit(done.stderr.decode())
    seconds, said = perf_counter() - begin, json.loads(done.stdout)
    failed, again = said["failed"], said["again"]
    told = f"{seconds:.1f} s, {said['rows']} rows, {failed} failed, {again} again"
    print(f"{way.serial}: {told}", flush=True)
    if is_counted:
        way.seconds.append(seconds)
        way.rows.append(said["rows"])


def tell(found: dict[str, Way]) -> None:
    local = found["local"].seconds
    print(f"{'way':10}{'rows':>6}{'s':>10}{'to local':>10}")
    for name, way in found.items():
        seconds = level(way.seconds)
        ratios = f"{seconds:10.1f}{seconds / level(local):10.3f}"
        print(f"{name:10}{way.rows[0]:6}{ratios}")


if __name__ == "__main__":
    main()
