"""Puts codl on a device, and says what is missing there: the agent as one file, and packages.

The agent is a zip archive that Python runs, with codl and small modules it needs; NumPy
and the libraries of both processors are the device's own. Wheels of what it lacks are found by pip
on this machine, for the device's Python. Nothing is installed there: packages lie in the agent's
own folder, and count only where the device has none of their name.
"""

from __future__ import annotations

import io
import shlex
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from importlib import resources
from importlib.metadata import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from codl.errors import DeviceError
from codl.targets import agent_archive
from codl.targets.agent_archive import BROUGHT
from codl.targets.device_shell import REFUSED, DeviceShell, ShellError
from codl.targets.python_build import bring, is_file_of_build
from codl.targets.wheels import (
    DevicePython,
    fetch_wheels,
    lacking_wheels,
    name_of_wheel,
    packed_wheels,
)

if TYPE_CHECKING:
    from importlib.abc import Traversable

# The agent's file.

#: What only the host needs: packages and modules of codl.
HOST_ONLY = (
    *("__main__", "api", "bundle", "cli", "doctor", "engine", "evaluation", "frames"),
    *("frontend.models", "measure.collector", "measure.dataset_writer"),
    *("measure.devices_at_work", "measure.images", "measure.inputs"),
    *("plan", "predict", "records.profile", "records.waterfall"),
    *("report", "strategies", "targets.adb", "targets.agent_archive", "targets.checks"),
    *("targets.connect", "targets.detect", "targets.device_shell", "targets.elf"),
    *("targets.environment", "targets.install", "targets.python_build"),
    *("targets.ssh", "targets.wheels", "validate", "workers"),
)
#: Pure Python that is taken along: distributions of the base, by their names.
ALONG = ("platformdirs", "PyYAML", "threadpoolctl")
#: The build is the first 16 digits of a digest.
DIGITS = 16
#: The archive's content alone decides on its bytes.
LONG_AGO = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class AgentFile:
    """Its bytes, and its build: a digest of the modules in it."""

    content: bytes
    build: str

    @property
    def sha256(self) -> str:
        return sha256(self.content).hexdigest()


@cache
def build() -> str:
    """That of this codl: an agent with another must not serve it."""
    whole = sha256()
    for name, content in _members():
        whole.update(f"{name} {len(content)}\n".encode())
        whole.update(content)
    return whole.hexdigest()[:DIGITS]


@cache
def agent_file() -> AgentFile:
    """The agent of this codl."""
    stream, members = io.BytesIO(), [*_members(), ("BUILD", build().encode())]
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, content in members:
            archive.writestr(zipfile.ZipInfo(name, LONG_AGO), content, zipfile.ZIP_DEFLATED, 9)
    return AgentFile(stream.getvalue(), build())


def _members() -> list[tuple[str, bytes]]:
    """Every file of the archive by its name, in order."""
    program = resources.files("codl.targets").joinpath(
        f"{agent_archive.__name__.split('.')[-1]}.py"
    )
    host_only = {f"codl/{name.replace('.', '/')}" for name in HOST_ONLY}
    sources = _codl(resources.files("codl"), "codl")
    modules = [
        ("__main__.py", program.read_bytes()),
        *(file for file in sources if not _within(file[0], host_only)),
    ]
    return sorted([*modules, *_along()])


def _within(path: str, places: Collection[str]) -> bool:
    """Whether a file is one of some modules, or in one of some packages."""
    parts = path.removesuffix(".py").split("/")
    return any("/".join(parts[:end]) in places for end in range(1, len(parts) + 1))


def _codl(folder: Traversable, name: str) -> Iterator[tuple[str, bytes]]:
    """Sources of a package of codl: Python and OpenCL C."""
    for entry in folder.iterdir():
        path = f"{name}/{entry.name}"
        if entry.is_file() and entry.name.endswith((".py", ".cl")):
            yield path, entry.read_bytes()
        elif entry.is_dir():
            yield from _codl(entry, path)


def _along() -> Iterator[tuple[str, bytes]]:
    """The modules of the distributions that are taken along."""
    for name in ALONG:
        for file in files(name) or ():
            if file.suffix == ".py" and ".." not in file.parts:
                yield file.as_posix(), file.read_binary()


# Installing.

#: Where a Python may be: in the shell's path, or Termux's, which root may start, and others where
#: Termux was built so that it may be debugged.
PYTHONS = (
    ("python3",),
    ("/data/data/com.termux/files/usr/bin/python3",),
    ("run-as", "com.termux", "files/usr/bin/python3"),
)
ARCHIVE, LAUNCHER = "agent.pyz", "agent"
#: An agent that is put there now finds its Python again by this, whatever the shell's path.
#: The shell stays and tells which signal ended Python: ssh by itself would end as of a cut way.
LAUNCH = '#!/bin/sh\n{python} "${{0%/*}}/{archive}" "$@"\nexit $?\n'
#: Codes of what is not there, may not be started, or is not let in.
NONE_THERE = (1, REFUSED, 127)
#: Takes away what older agents unpacked.
CLEAR = 'rm -rf "$0"/codl-*'
#: Bytes of an agent: its file, its modules, and those compiled.
ROOM = 10_000_000
#: Unpacking codl and asking for packages, on a slow card.
CHECK_S, UNPACK_S = 120.0, 600.0
#: What each package that may be missing is for.
PURPOSES: Mapping[str, str] = {
    "numpy": "everything",
    "ncnn": "the CPU side",
    "msgspec": "speed of reading and writing messages",
    "pyopencl": "speed of the GPU side",
    "onnxruntime": "the CPU's side of transformers and of Fast Style Transfer, and other operators "
    "that ncnn has none for",
    "onnx": "measuring ops in ONNX Runtime",
}
REQUIRED = ("numpy",)
#: What is said of a package that is missing and that the agent has something in the place of.
STANDS_IN = "What stands in for it comes with the agent."
STAND_INS = ("msgspec", "pyopencl")
Python: TypeAlias = Sequence[str]


class AgentCheck(msgspec.Struct, frozen=True):
    """What an agent's file says of where it is: `packages` are versions, None for a missing one.

    `brought` are those that came with an agent and lie in its folder.
    """

    sha256: str
    python: str
    executable: str
    machine: str
    system: str
    libc: str
    abi: str
    packages: dict[str, str | None]
    brought: tuple[str, ...]

    @property
    def missing(self) -> dict[str, str]:
        """What each missing package is for; those that codl does not need do not count."""
        return {p: use for p, use in PURPOSES.items() if self.packages.get(p, "") is None}

    @property
    def can_serve(self) -> bool:
        return all(self.packages.get(name) for name in REQUIRED)


@dataclass(frozen=True)
class Installed:
    """An agent on a device; `is_new` where it was not there before.

    `brought` are the packages that were put in its folder now, `fixes` what to do about those that
    are missing all the same.
    """

    path: str
    bytes: int
    build: str
    is_new: bool
    checked: AgentCheck
    brought: tuple[str, ...] = ()
    fixes: Mapping[str, str] = field(default_factory=dict)


def launcher(shell: DeviceShell) -> tuple[str, ...]:
    """The command that starts the agent which was put on a device."""
    return ("sh", f"{shell.folder}/{LAUNCHER}")


def install(
    shell: DeviceShell,
    python: Python | None = None,
    *,
    packages: bool = True,
    wheel_folder: Path | None = None,
) -> Installed:
    """Put this codl's agent on a device, unless it is there, and `packages` that are missing.

    `python` starts Python 3.10 or later there, or is the file of a build that is put there (see
    `codl.targets.python_build`); by default it is looked for. Wheels come from a folder, or from
    where pip finds them. Raises `DeviceError` where there is no Python, where the device has no
    room, or where a file is not what was sent.
    """
    file, path = agent_file(), f"{shell.folder}/{ARCHIVE}"
    chosen = _brought_python(shell, python) or _python(shell, python)
    shell.run(["mkdir", "-p", shell.folder])
    checked, is_new = _checked(shell, chosen, path), False
    if checked is None or checked.sha256 != file.sha256:
        checked, is_new = _put(shell, chosen, path), True
    text = LAUNCH.format(python=shlex.join(chosen), archive=ARCHIVE)
    shell.write(f"{shell.folder}/{LAUNCHER}", text.encode())
    brought: tuple[str, ...] = ()
    fixes = {name: f"`pip install {name}` there." for name in checked.missing}
    if packages and checked.missing:
        brought, fixes = _bring(shell, chosen, checked, wheel_folder)
        checked = _checked(shell, chosen, path) or checked
    fixes |= {name: STANDS_IN for name in STAND_INS if name in fixes}
    return Installed(path, len(file.content), file.build, is_new, checked, brought, fixes)


def _brought_python(shell: DeviceShell, python: Python | None) -> Python | None:
    """The command of a Python that is put there now, where a build is named."""
    if python is None or not is_file_of_build(python[0]):
        return None
    shell.run(["mkdir", "-p", shell.folder])
    return bring(shell, python[0])


def _put(shell: DeviceShell, python: Python, path: str) -> AgentCheck:
    """Send the agent's file in the place of an older one; what it says there."""
    shell.run(["sh", "-c", CLEAR, shell.folder])
    shell.check_room(ROOM, "the agent")
    shell.write(path, agent_file().content)
    checked = _said_by_file(shell, python, path)
    if checked.sha256 != agent_file().sha256:
        raise DeviceError(
            f"{path} on {shell.serial!r} is not what was sent: is there room on the device?"
        )
    return checked


def _bring(
    shell: DeviceShell, python: Python, checked: AgentCheck, wheel_folder: Path | None
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Bring what is missing; what was brought, and what to do about each that was not."""
    is_termux = "com.termux" in checked.executable
    device = DevicePython(
        checked.python, checked.machine, checked.libc, checked.abi, is_termux=is_termux
    )
    with TemporaryDirectory(prefix="codl-wheels-") as name:
        folder = Path(name)
        problems = {
            package: fetch_wheels(package, device, folder, wheels=wheel_folder)
            for package in checked.missing
        }
        chosen = lacking_wheels(folder.glob("*.whl"), checked.packages)
        content = packed_wheels(chosen)
    fixes = {package: problem for package, problem in problems.items() if problem}
    if chosen:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            unpacked = sum(member.file_size for member in archive.infolist())
        shell.check_room(len(content) + unpacked, f"what it lacks ({', '.join(names(chosen))})")
        shell.write(f"{shell.folder}/{BROUGHT}", content)
        add = [*python, f"{shell.folder}/{ARCHIVE}", "--add", sha256(content).hexdigest()]
        try:
            shell.run(add, limit_s=UNPACK_S)
        finally:
            shell.run(["rm", "-f", f"{shell.folder}/{BROUGHT}"])
    return names(chosen), fixes


def names(wheels: Sequence[Path]) -> tuple[str, ...]:
    """Packages and versions, as in `ncnn==1.2`."""
    return tuple("==".join(name_of_wheel(wheel)) for wheel in wheels)


def _python(shell: DeviceShell, wanted: Python | None) -> Python:
    """The command of a Python that is there and young enough."""
    tried = []
    for command in (wanted,) if wanted else PYTHONS:
        try:
            said = shell.run([*command, "-c", "import sys; print(*sys.version_info[:2])"])
        except ShellError as error:
            if error.code not in NONE_THERE:
                raise
            refused = " (may not be executed)" if error.code == REFUSED else ""
            tried.append(f"{shlex.join(command)}{refused}")
            continue
        version = tuple(int(word) for word in said.split()[:2] if word.isdigit())
        if version >= (3, 10):
            return command
        tried.append(f"{shlex.join(command)} ({'.'.join(map(str, version)) or 'no Python'})")
    if wanted and tried[0].endswith("executed)"):
        raise DeviceError(
            f"{shell.serial!r} refuses to execute {shlex.join(wanted)}: make it executable there, "
            "put it where the system lets programs run, or use Termux's Python by its sshd."
        )
    raise DeviceError(
        f"There is no Python 3.10 or later on {shell.serial!r}; tried {', '.join(tried)}. Install "
        "one, or say how it is started by --python, which without a value brings one to Android. "
        "Where adb may not start Termux's, its sshd can."
    )


def _checked(shell: DeviceShell, python: Python, path: str) -> AgentCheck | None:
    """What the file there says; None where there is none that can say something."""
    with suppress(DeviceError):
        return _said_by_file(shell, python, path)
    return None


def _said_by_file(shell: DeviceShell, python: Python, path: str) -> AgentCheck:
    """The same; raises `DeviceError` where it says nothing."""
    said = shell.run([*python, path, "--check"], limit_s=CHECK_S)
    try:
        return msgspec.json.decode(said, type=AgentCheck)
    except msgspec.MsgspecError as error:
        raise DeviceError(
            f"{path} on {shell.serial!r} is not what was sent: it says {said[:80]!r}."
        ) from error
