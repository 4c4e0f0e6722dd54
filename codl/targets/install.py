"""Installation of the agent on a device: one file, and packages missing there.

The agent is a zip archive that Python runs, with codl and small modules it needs. NumPy and the
libraries of both processors are the device's own. Pip on this machine downloads wheels of missing
packages for the device's Python into the agent's folder; the device's own packages take precedence.
Nothing else changes on the device.
"""

from __future__ import annotations

import io
import re
import shlex
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from importlib.metadata import files
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from codl.errors import DeviceError
from codl.targets import agent_archive
from codl.targets.agent_archive import BROUGHT, NEEDED
from codl.targets.device_shell import REFUSED, DeviceShell, ShellError
from codl.targets.python_build import bring, is_file_of_build
from codl.targets.remote import RemoteTarget

if TYPE_CHECKING:
    from codl.ir.records.soc import Soc
    from codl.targets.client import Fix


# The agent's file.

#: The folder of codl's modules and OpenCL sources.
CODL = Path(__file__).parents[1]
#: Packages for the host only, and its command.
HOST_ONLY = ("cli/", "jobs/", "plan/", "predict/", "report/", "validate/", "__main__.py")
#: Distributions of pure Python in the archive.
ALONG = ("platformdirs", "PyYAML", "threadpoolctl")
#: Length of a build id, the first hexadecimal digits of a digest.
DIGITS = 16
#: Fixed timestamp of all files in the archive, so equal content gives equal bytes.
LONG_AGO = (1980, 1, 1, 0, 0, 0)


@cache
def build() -> str:
    """Build id of this codl; an agent of another build is refused."""
    whole = sha256()
    for name, content in _members():
        whole.update(f"{name} {len(content)}\n".encode())
        whole.update(content)
    return whole.hexdigest()[:DIGITS]


@cache
def agent_file() -> bytes:
    """The agent's archive for this codl."""
    stream, members = io.BytesIO(), [*_members(), ("BUILD", build().encode())]
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, content in members:
            archive.writestr(zipfile.ZipInfo(name, LONG_AGO), content, zipfile.ZIP_DEFLATED, 9)
    return stream.getvalue()


def _digest() -> str:
    return sha256(agent_file()).hexdigest()


def _members() -> list[tuple[str, bytes]]:
    """Name and content of every file in the archive, sorted."""
    found = [("__main__.py", Path(agent_archive.__file__).read_bytes()), *_along()]
    for path in CODL.rglob("*"):
        name = path.relative_to(CODL).as_posix()
        # Kernels read tables; those of ops to measure, and datasets in a wheel, stay on the host.
        is_needed = path.suffix in (".py", ".cl") or path.match("kernels/*/*.csv")
        if is_needed and not name.startswith(HOST_ONLY):
            found.append((f"codl/{name}", path.read_bytes()))
    return sorted(found)


def _along() -> Iterator[tuple[str, bytes]]:
    """Modules of the distributions in `ALONG`."""
    for name in ALONG:
        for file in files(name) or ():
            if file.suffix == ".py" and ".." not in file.parts:
                yield file.as_posix(), file.read_binary()


# Installing.

#: Commands that start Python: from the shell's path, and Termux's for root or a debuggable Termux.
PYTHONS = (
    ("python3",),
    ("/data/data/com.termux/files/usr/bin/python3",),
    ("run-as", "com.termux", "files/usr/bin/python3"),
)
ARCHIVE, LAUNCHER = "agent.pyz", "agent"
#: Script that starts the agent with its Python, whatever the shell's path. The shell reports the
#: signal that ended Python; ssh alone would end as after a lost connection.
LAUNCH = '#!/bin/sh\n{python} "${{0%/*}}/{archive}" "$@"\nexit $?\n'
#: Exit codes that mean no Python: not permitted, not executable, not found.
NONE_THERE = (1, REFUSED, 127)
#: Parts of errors that mean a missing agent or agent file.
ABSENT = ("No such file", "can't open", "cannot open")
#: Exit codes of clients that did not reach the device: none, and ssh's own.
UNREACHED = (-1, 255)
#: Removes files of older agents.
CLEAR = 'rm -rf "$0"/codl-*'
#: Time limits in seconds for a check and for unpacking, on a slow card.
CHECK_S, UNPACK_S = 120.0, 600.0
#: Purposes of packages that may be missing, for messages.
PURPOSES: Mapping[str, str] = {
    "numpy": "everything",
    "ncnn": "the CPU side",
    "msgspec": "speed of reading and writing messages",
    "pyopencl": "speed of the GPU side",
    "onnxruntime": "the CPU's side of transformers and of Fast Style Transfer, and other operators "
    "that ncnn has none for",
    "onnx": "measuring ops in ONNX Runtime",
}
#: Fix for a missing package that the agent has a stand-in for.
STANDS_IN = "The agent has a stand-in for it."
STAND_INS = ("msgspec", "pyopencl")
Python: TypeAlias = Sequence[str]


class AgentCheck(msgspec.Struct, frozen=True):
    """Output of `--check`: versions of `packages`, None if missing, and `brought` ones.

    `python` is a version as 3.11.2, `abi` as cpython. `libc` is the C library, as in `glibc 2.36`
    or, with Android's API level, `bionic 34`.
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
        """Purposes of codl's packages that are missing on the device, by name."""
        return {p: use for p, use in PURPOSES.items() if self.packages.get(p, "") is None}

    @property
    def can_serve(self) -> bool:
        return all(self.packages.get(name) for name in NEEDED)

    @property
    def is_termux(self) -> bool:
        return "com.termux" in self.executable

    @property
    def short(self) -> str:
        return ".".join(self.python.split(".")[:2])

    @property
    def is_android(self) -> bool:
        return self.libc.startswith("bionic")

    @property
    def platforms(self) -> tuple[str, ...]:
        """Platform tags of wheels that run there, the best first; empty without any."""
        is_usual = self.abi == "cpython" and re.fullmatch(r"3\.\d{1,2}", self.short, re.ASCII)
        if not is_usual or re.fullmatch(r"\w{1,16}", self.machine, re.ASCII) is None:
            return ()
        if self.is_android:
            return self._android_platforms()
        if self.libc == "musl":
            return tuple(f"{tag}_{self.machine}" for tag in MUSL)
        glibc = re.fullmatch(r"glibc 2\.(\d{1,2})", self.libc, re.ASCII)
        if glibc is None or int(glibc[1]) < OLDEST_GLIBC:
            return ()
        tags = [f"manylinux_2_{minor}" for minor in range(int(glibc[1]), OLDEST_GLIBC - 1, -1)]
        return tuple(f"{tag}_{self.machine}" for tag in (*tags, OLDEST_NAME))

    def _android_platforms(self) -> tuple[str, ...]:
        level = re.fullmatch(r"bionic (\d{1,3})", self.libc, re.ASCII)
        abi = ANDROID_ABIS.get(self.machine)
        is_young = tuple(map(int, self.short.split("."))) >= ANDROID_PYTHON
        if level is None or abi is None or not is_young:
            return ()
        return tuple(f"android_{n}_{abi}" for n in range(int(level[1]), OLDEST_LEVEL - 1, -1))

    def fix(self, package: str) -> str:
        """How to install a package there without a wheel."""
        if self.is_termux:
            return termux_fix(package)
        if self.is_android:
            return "name a folder with a wheel for it by PIP_FIND_LINKS, or use Termux's Python."
        return f"`pip install {package}` there."


@dataclass(frozen=True)
class Installed:
    """An installed agent; `is_new` if this call copied it to the device.

    `brought` are packages added by this call, `fixes` remedies for packages still missing.
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


def problem_of(shell: DeviceShell) -> str:
    """Why an agent cannot serve this codl, or ""; raises `DeviceError` if not reached."""
    try:
        checked = _check(shell, *launcher(shell))
    except ShellError as error:
        if error.code in UNREACHED:
            raise
        is_absent = any(word in error.problem for word in ABSENT)
        reason = error.problem.rstrip(".")
        return "has no agent" if is_absent else f"has an agent that does not start ({reason})"
    except DeviceError:
        return "has a damaged agent"
    if checked.sha256 != _digest():
        return "has an agent of another codl"
    return "" if checked.can_serve else f"has an agent without {', '.join(NEEDED)}"


def python_of(shell: DeviceShell) -> Python | None:
    """The Python command in the launcher of a device's agent; None without an agent."""
    try:
        lines = shell.run(["cat", f"{shell.folder}/{LAUNCHER}"]).decode().splitlines()
        *command, _, _ = shlex.split(lines[1])
    except (ShellError, UnicodeDecodeError, ValueError, IndexError):
        return None
    return command or None


def install(
    shell: DeviceShell,
    python: Python | None = None,
    *,
    packages: bool = True,
) -> Installed:
    """Copy this codl's agent to a device if needed, and with `packages` the missing ones.

    `python` is a command of Python 3.10 or later on the device, or the file of a Python build to
    copy there (see `codl.targets.python_build`); by default it is searched for.
    Raises `DeviceError` for a device without Python or room, and for a damaged file.
    """
    path = f"{shell.folder}/{ARCHIVE}"
    shell.run(["mkdir", "-p", shell.folder])
    if python is not None and is_file_of_build(python[0]):
        chosen: Python = bring(shell, python[0])
    else:
        chosen = _python(shell, python)
    checked, is_new = _checked(shell, chosen, path), False
    if checked is None or checked.sha256 != _digest():
        checked, is_new = _put(shell, chosen, path), True
    text = LAUNCH.format(python=shlex.join(chosen), archive=ARCHIVE)
    shell.write(f"{shell.folder}/{LAUNCHER}", text.encode())
    brought: tuple[str, ...] = ()
    fixes = {name: f"`pip install {name}` there." for name in checked.missing}
    if packages and checked.missing:
        brought, fixes = _bring(shell, chosen, checked)
        checked = _checked(shell, chosen, path) or checked
    fixes |= {name: STANDS_IN for name in STAND_INS if name in fixes}
    return Installed(path, len(agent_file()), build(), is_new, checked, brought, fixes)


def behind(shell: DeviceShell, soc: Soc | None) -> RemoteTarget:
    """The target behind a shell, through the agent installed there."""
    missing = (*ABSENT, "of another codl", "packages are missing")
    fixes: dict[str, Fix] = {**shell.fixes, **dict.fromkeys(missing, _install_fix(shell))}
    command = shell.command(launcher(shell))
    return RemoteTarget(shell.serial, command, soc, build=build(), fixes=fixes, cuts=shell.cuts)


def _install_fix(shell: DeviceShell) -> str:
    serial = shlex.quote(shell.serial)
    return f"`codl agent install --serial {serial}` puts this codl's agent there."


def prepare(shell: DeviceShell, *, can_install: bool, tell: Callable[[str], object]) -> None:
    """See `codl.targets.connect.prepare`."""
    serial, problem = shell.serial, problem_of(shell)
    if not problem:
        return
    if not can_install:
        raise DeviceError(
            f"{serial!r} {problem}, and --no-install keeps it so. {_install_fix(shell)}"
        )
    tell(f"{serial!r} {problem}: installing the agent of this codl there")
    done = install(shell, python_of(shell))
    brought = f", with {', '.join(done.brought)}" if done.brought else ""
    tell(f"Installed the agent in {shell.folder}{brought}")
    if not done.checked.can_serve:
        fixes = [f"{name}: {done.fixes[name]}" for name in NEEDED if name in done.fixes]
        raise DeviceError(f"The agent on {serial!r} cannot work: {' '.join(fixes)}")


def _put(shell: DeviceShell, python: Python, path: str) -> AgentCheck:
    """Replace the agent's file and check it."""
    shell.run(["sh", "-c", CLEAR, shell.folder])
    shell.write(path, agent_file())
    checked = _check(shell, *python, path)
    if checked.sha256 != _digest():
        raise DeviceError(
            f"{path} on {shell.serial!r} is not the file that was sent: is there room on the "
            "device?"
        )
    return checked


def _bring(
    shell: DeviceShell, python: Python, checked: AgentCheck
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Copy missing packages; returns the copied ones, and fixes for the others."""
    with TemporaryDirectory(prefix="codl-wheels-") as name:
        folder = Path(name)
        problems = {package: fetch_wheels(package, checked, folder) for package in checked.missing}
        chosen = missing_wheels(folder.glob("*.whl"), checked.packages)
        content = packed_wheels(chosen)
    fixes = {package: problem for package, problem in problems.items() if problem}
    if chosen:
        shell.write(f"{shell.folder}/{BROUGHT}", content)
        add = [*python, f"{shell.folder}/{ARCHIVE}", "--add", sha256(content).hexdigest()]
        try:
            shell.run(add, limit_s=UNPACK_S)
        finally:
            shell.run(["rm", "-f", f"{shell.folder}/{BROUGHT}"])
    return tuple("==".join(name_of_wheel(wheel)) for wheel in chosen), fixes


def _python(shell: DeviceShell, wanted: Python | None) -> Python:
    """The command of a Python 3.10 or later on the device; raises `DeviceError` without one."""
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
        f"one, or say how it is started by `codl agent install --serial {shlex.quote(shell.serial)}"
        " --python bring`, which brings one to Android. Where adb may not start "
        "Termux's, its sshd can."
    )


def _checked(shell: DeviceShell, python: Python, path: str) -> AgentCheck | None:
    """Check the agent's file; None if it does not run."""
    with suppress(DeviceError):
        return _check(shell, *python, path)
    return None


def _check(shell: DeviceShell, *agent: str) -> AgentCheck:
    """Check the agent that a command starts; raises `DeviceError` if it does not run."""
    said = shell.run([*agent, "--check"], limit_s=CHECK_S)
    try:
        return msgspec.json.decode(said, type=AgentCheck)
    except msgspec.MsgspecError as error:
        raise DeviceError(
            f"{agent[-1]} on {shell.serial!r} is not the file that was sent: it printed "
            f"{said[:80]!r}."
        ) from error


# Wheels of missing packages, packed as importable folders.

PIP_S = 600.0
#: Oldest minor version of glibc with wheels, and its older platform tag.
OLDEST_GLIBC, OLDEST_NAME = 17, "manylinux2014"
MUSL = ("musllinux_1_2", "musllinux_1_1")
#: Modules in a wheel's data folder; its other data is skipped.
APART = re.compile(r"[^/]+\.data/(purelib|platlib)/(?P<path>.+)|(?P<data>[^/]+\.data)/.*")
#: First Python with wheels for Android, and the oldest API level of their tags.
ANDROID_PYTHON, OLDEST_LEVEL = (3, 13), 21
ANDROID_ABIS = {
    "aarch64": "arm64_v8a",
    "armv7l": "armeabi_v7a",
    "x86_64": "x86_64",
    "i686": "x86",
}
#: Packages to fetch without dependencies: ncnn's, except NumPy, download models.
ALONE = ("ncnn",)
#: How to install packages without an Android wheel in Termux. Without these options, pip would
#: recompile NumPy for pyopencl.
TERMUX = {
    "numpy": "`pkg install python-numpy`.",
    "onnxruntime": "`pkg install python-onnxruntime`.",
    "msgspec": "`pkg install clang`, then `pip install msgspec`.",
    "ncnn": "`pkg upgrade` brings a Python for which there is one, then "
    "`pip install --no-deps ncnn`.",
    "pyopencl": "`pkg install python-numpy clang cmake ninja ocl-icd opencl-headers`, "
    "`pip install scikit-build-core nanobind pytools`, then "
    "`pip install --no-build-isolation --no-deps pyopencl`.",
    "onnx": "`pkg install clang cmake ninja protobuf`, then `pip install onnx`.",
}


def termux_fix(package: str) -> str:
    """How to install a package without a wheel in Termux."""
    return TERMUX.get(package, f"`pkg install clang cmake ninja`, then `pip install {package}`.")


def fetch_wheels(package: str, python: AgentCheck, folder: Path) -> str:
    """Download the wheels of a package and its dependencies to a folder; returns a problem, or "".

    pip's own variables apply, such as PIP_FIND_LINKS and PIP_NO_INDEX for a folder of wheels.
    """
    where = f"Python {python.short} on {'Android, ' if python.is_android else ''}{python.machine}"
    fix = python.fix(package)
    if not python.platforms:
        kind = f"{python.abi} {python.python} on {python.machine} ({python.libc or 'no glibc'})"
        return f"There are no wheels for {kind}: {fix}"
    if find_spec("pip") is None:
        return "This Python has no pip to find wheels with: `python -m ensurepip`."
    try:
        done = subprocess.run(_command(package, python, folder), capture_output=True, timeout=PIP_S)
    except subprocess.TimeoutExpired:
        return f"pip took longer than {PIP_S:g} s over it: {fix}"
    if not done.returncode:
        return ""
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    errors = [line for line in lines if line.startswith("ERROR")] or lines or ["no output"]
    return f"No wheel for {where} was found by pip ({errors[-1].removeprefix('ERROR: ')}): {fix}"


def _command(package: str, python: AgentCheck, folder: Path) -> list[str]:
    tags = [part for tag in python.platforms for part in ("--platform", tag)]
    fixed = ["--quiet", "--no-input", "--disable-pip-version-check", "--only-binary", ":all:"]
    fixed += ["--no-deps"] if package in ALONE else []
    wanted = ["--implementation", "cp", "--python-version", python.short, *tags]
    command = [sys.executable, "-m", "pip", "download", *fixed, *wanted]
    return [*command, "--dest", str(folder), package]


def name_of_wheel(wheel: Path) -> tuple[str, str]:
    """Normalized name and version of a wheel's package."""
    name, version, *_ = wheel.name.split("-")
    return re.sub(r"[-_.]+", "-", name).lower(), version


def packed_wheels(wheels: Iterable[Path]) -> bytes:
    """An archive with an importable folder `name==version` for each package."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for wheel in wheels:
            name, version = name_of_wheel(wheel)
            with zipfile.ZipFile(wheel) as content:
                for path, member in _modules(content.namelist()):
                    archive.writestr(f"{name}=={version}/{path}", content.read(member))
    return stream.getvalue()


def _modules(members: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Import paths of a wheel's modules, with their names in the wheel."""
    for member in members:
        apart = APART.fullmatch(member)
        if not member.endswith("/") and (apart is None or apart["data"] is None):
            yield (apart["path"] if apart else member), member


def missing_wheels(wheels: Iterable[Path], installed: Mapping[str, str | None]) -> list[Path]:
    """One wheel for each package without a version in `installed`."""
    missing: dict[str, Path] = {}
    for wheel in sorted(wheels):
        if installed.get(name_of_wheel(wheel)[0]) is None:
            missing[name_of_wheel(wheel)[0]] = wheel
    return list(missing.values())
