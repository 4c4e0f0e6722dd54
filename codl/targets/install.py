"""Puts the agent on a device as one file, and packages that are missing there.

The agent is a zip archive that Python runs, with codl and small modules it needs; NumPy and the
libraries of both processors are the device's own. Pip on this machine finds wheels of missing
packages for the device's Python. Nothing is installed there: packages lie in the agent's folder,
and a package of the device itself goes before them.
"""

from __future__ import annotations

import io
import re
import shlex
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from importlib import resources
from importlib.metadata import files
from pathlib import Path, PurePosixPath
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
    missing_wheels,
    name_of_wheel,
    packed_wheels,
)

if TYPE_CHECKING:
    from importlib.abc import Traversable

# The agent's file.

#: Imports of codl's modules, with the imported names.
IMPORT = re.compile(r"^\s*from (codl[\w.]*) import (\([^)]*\)|.+)|^\s*import (codl[\w.]*)", re.M)
#: Calls by which a package registers its modules: all of them are needed.
REGISTERING = ("import_modules(", "add_lazy(")
#: A module that imports others lazily, for the host only.
ROOT = "codl/__init__.py"
#: Distributions of pure Python in the archive.
ALONG = ("platformdirs", "PyYAML", "threadpoolctl")
#: Digits of a build, which is the beginning of a digest.
DIGITS = 16
#: Time of all files in the archive: equal content has equal bytes.
LONG_AGO = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class AgentFile:
    """The archive, and its build: a digest of the modules in it."""

    content: bytes
    build: str

    @property
    def sha256(self) -> str:
        return sha256(self.content).hexdigest()


@cache
def build() -> str:
    """The build of this codl: an agent of another build is refused."""
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
    modules = ("__main__.py", program.read_bytes()), *_needed().items()
    return sorted([*modules, *_along()])


def _needed() -> dict[str, bytes]:
    """Files of codl that an agent needs: the modules that it imports, directly or not."""
    every = dict(_codl(resources.files("codl"), "codl"))
    found = {name: own for name, own in every.items() if name.endswith(".cl")}
    left = ["codl.targets.agent", *(n for n in every if n.startswith("codl/targets/pure/"))]
    while left:
        path = PurePosixPath(left.pop().removesuffix(".py").replace(".", "/"))
        for place in (path, *path.parents):  # a module's packages are imported with it
            for name in (f"{place}.py", f"{place}/__init__.py"):
                if name in every and name not in found:
                    found[name] = every[name]
                    left += _imports(name, every)
    return found


def _imports(name: str, every: Mapping[str, bytes]) -> Iterator[str]:
    """Names that may be modules which a file imports, at any time."""
    text = every[name].decode()
    for owner, names, module in IMPORT.findall(text if name != ROOT else ""):
        yield owner or module
        yield from (f"{owner}.{word}" for word in re.findall(r"\w+", names))
    if name.endswith("__init__.py") and any(call in text for call in REGISTERING):
        folder = name.removesuffix("__init__.py")
        yield from (other for other in every if other.startswith(folder))


def _codl(folder: Traversable, name: str) -> Iterator[tuple[str, bytes]]:
    """Sources in a package of codl, by path: Python and OpenCL C."""
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

#: Commands of Python: in the shell's path; Termux's for root, and for a debuggable Termux.
PYTHONS = (
    ("python3",),
    ("/data/data/com.termux/files/usr/bin/python3",),
    ("run-as", "com.termux", "files/usr/bin/python3"),
)
ARCHIVE, LAUNCHER = "agent.pyz", "agent"
#: Starts the agent by its Python, whatever the shell's path. The shell reports the signal that
#: ended Python: ssh alone would end as if the connection was cut.
LAUNCH = '#!/bin/sh\n{python} "${{0%/*}}/{archive}" "$@"\nexit $?\n'
#: Exit codes where there is no Python: not found, not executable, or not permitted.
NONE_THERE = (1, REFUSED, 127)
#: Removes the files of older agents.
CLEAR = 'rm -rf "$0"/codl-*'
#: Bytes of an agent: its file, its modules, and their compiled form.
ROOM = 10_000_000
#: Seconds of a check and of unpacking, on a slow card.
CHECK_S, UNPACK_S = 120.0, 600.0
#: Uses of the packages that may be missing.
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
#: Fix for a missing package that the agent can do without.
STANDS_IN = "The agent has a stand-in for it."
STAND_INS = ("msgspec", "pyopencl")
Python: TypeAlias = Sequence[str]


class AgentCheck(msgspec.Struct, frozen=True):
    """Output of an agent's `--check`: `packages` are versions, None for a missing one.

    `brought` are the packages in the agent's folder.
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
        """Uses of the missing packages, of those that codl needs."""
        return {p: use for p, use in PURPOSES.items() if self.packages.get(p, "") is None}

    @property
    def can_serve(self) -> bool:
        return all(self.packages.get(name) for name in REQUIRED)


@dataclass(frozen=True)
class Installed:
    """An agent on a device; `is_new` where it was put there now.

    `brought` are the packages that were put in its folder now, `fixes` what to do about packages
    that are still missing.
    """

    path: str
    bytes: int
    build: str
    is_new: bool
    checked: AgentCheck
    brought: tuple[str, ...] = ()
    fixes: Mapping[str, str] = field(default_factory=dict)


def launcher(shell: DeviceShell) -> tuple[str, ...]:
    """The command that starts the agent on a device."""
    return ("sh", f"{shell.folder}/{LAUNCHER}")


def install(
    shell: DeviceShell,
    python: Python | None = None,
    *,
    packages: bool = True,
    wheel_folder: Path | None = None,
) -> Installed:
    """Put this codl's agent on a device, unless it is there, and missing `packages`.

    `python` is a command of Python 3.10 or later there, or the file of a build to put there (see
    `codl.targets.python_build`); by default it is looked for. Wheels come from a folder or from
    pip. Raises `DeviceError` where there is no Python, where the device has no room, or where a
    file was damaged on its way.
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
    """Put the named build of Python there; its command, or None where no build is named."""
    if python is None or not is_file_of_build(python[0]):
        return None
    shell.run(["mkdir", "-p", shell.folder])
    return bring(shell, python[0])


def _put(shell: DeviceShell, python: Python, path: str) -> AgentCheck:
    """Replace the agent's file, and check it."""
    shell.run(["sh", "-c", CLEAR, shell.folder])
    shell.check_room(ROOM, "the agent")
    shell.write(path, agent_file().content)
    checked = _check(shell, python, path)
    if checked.sha256 != agent_file().sha256:
        raise DeviceError(
            f"{path} on {shell.serial!r} is not the file that was sent: is there room on the "
            "device?"
        )
    return checked


def _bring(
    shell: DeviceShell, python: Python, checked: AgentCheck, wheel_folder: Path | None
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Bring missing packages; those that were brought, and fixes for the others."""
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
        chosen = missing_wheels(folder.glob("*.whl"), checked.packages)
        content = packed_wheels(chosen)
    fixes = {package: problem for package, problem in problems.items() if problem}
    if chosen:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            unpacked = sum(member.file_size for member in archive.infolist())
        shell.check_room(len(content) + unpacked, f"its packages ({', '.join(names(chosen))})")
        shell.write(f"{shell.folder}/{BROUGHT}", content)
        add = [*python, f"{shell.folder}/{ARCHIVE}", "--add", sha256(content).hexdigest()]
        try:
            shell.run(add, limit_s=UNPACK_S)
        finally:
            shell.run(["rm", "-f", f"{shell.folder}/{BROUGHT}"])
    return names(chosen), fixes


def names(wheels: Sequence[Path]) -> tuple[str, ...]:
    """Packages and versions, such as `ncnn==1.2`."""
    return tuple("==".join(name_of_wheel(wheel)) for wheel in wheels)


def _python(shell: DeviceShell, wanted: Python | None) -> Python:
    """The command of a Python 3.10 or later."""
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
    """Check the agent's file; None where it does not run."""
    with suppress(DeviceError):
        return _check(shell, python, path)
    return None


def _check(shell: DeviceShell, python: Python, path: str) -> AgentCheck:
    """Check the agent's file; raises `DeviceError` where it does not run."""
    said = shell.run([*python, path, "--check"], limit_s=CHECK_S)
    try:
        return msgspec.json.decode(said, type=AgentCheck)
    except msgspec.MsgspecError as error:
        raise DeviceError(
            f"{path} on {shell.serial!r} is not the file that was sent: it printed {said[:80]!r}."
        ) from error
