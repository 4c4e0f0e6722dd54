"""Wheels for a device: found by pip on this machine for the device's Python, and packed to be sent.

Nothing is installed on the device: packages lie in the agent's own folder, and count only where the
device has none of their name.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

LIMIT_S = 600.0
#: The oldest platforms that wheels of today are made for, and the older name of the first.
OLDEST_GLIBC, OLDEST_NAME = 17, "manylinux2014"
MUSL = ("musllinux_1_2", "musllinux_1_1")
#: Pure and compiled modules that a wheel keeps apart; other data of a wheel is for a system.
APART = re.compile(r"[^/]+\.data/(purelib|platlib)/(?P<path>.+)|(?P<data>[^/]+\.data)/.*")
#: What a package needs that Termux compiles, but for NumPy, of which it has one.
COMPILERS = "`pkg install clang cmake ninja`"


@dataclass(frozen=True)
class Python:
    """A device's Python: `version` as in 3.11.2, `libc` as in `glibc 2.36`, `abi` as in cpython."""

    version: str
    machine: str
    libc: str
    abi: str

    @property
    def short(self) -> str:
        return ".".join(self.version.split(".")[:2])

    @property
    def platforms(self) -> tuple[str, ...]:
        """The tags of wheels that run there, the best first; none where there are no wheels."""
        is_usual = self.abi == "cpython" and re.fullmatch(r"3\.\d{1,2}", self.short, re.ASCII)
        if not is_usual or re.fullmatch(r"\w{1,16}", self.machine, re.ASCII) is None:
            return ()
        if self.libc == "musl":
            return tuple(f"{tag}_{self.machine}" for tag in MUSL)
        found = re.fullmatch(r"glibc 2\.(\d{1,2})", self.libc, re.ASCII)
        if found is None or int(found[1]) < OLDEST_GLIBC:
            return ()
        tags = [f"manylinux_2_{minor}" for minor in range(int(found[1]), OLDEST_GLIBC - 1, -1)]
        return tuple(f"{tag}_{self.machine}" for tag in (*tags, OLDEST_NAME))


def termux_fix(package: str) -> str:
    """How a package gets on a phone with Termux, for which there are no wheels."""
    if package == "numpy":
        return "`pkg install python-numpy`."
    return f"{COMPILERS}, then `pip install {package}`."


def fetch(package: str, python: Python, folder: Path, *, wheels: Path | None = None) -> str:
    """Put the wheels of a package and of what it needs in a folder; what was wrong, "" for nothing.

    With `wheels`, a folder with wheels, nothing else is asked.
    """
    if not python.platforms:
        if python.libc == "bionic":
            return f"There are no wheels for Termux: {termux_fix(package)}"
        where = f"{python.abi} {python.version} on {python.machine} ({python.libc or 'no glibc'})"
        return f"There are no wheels for {where}: `pip install {package}` there."
    missing = f"No wheel for Python {python.short} on {python.machine} was found"
    if wheels is not None and package not in {own_name(own.name) for own in wheels.glob("*.whl")}:
        return f"{missing} in {wheels}: `pip install {package}` there."
    if find_spec("pip") is None:
        return "This Python has no pip to find wheels with: `python -m ensurepip`."
    try:
        done = subprocess.run(
            _command(package, python, folder, wheels), capture_output=True, timeout=LIMIT_S
        )
    except subprocess.TimeoutExpired:
        return f"pip took longer than {LIMIT_S:g} s over it; name a folder of wheels by --wheels."
    if not done.returncode:
        return ""
    said = done.stderr.decode(errors="replace").strip().splitlines()
    errors = [line for line in said if line.startswith("ERROR")] or said or ["it said nothing"]
    source = f"in {wheels}" if wheels else "by pip"
    problem = errors[-1].removeprefix("ERROR: ")
    return f"{missing} {source} ({problem}): `pip install {package}` there."


def _command(package: str, python: Python, folder: Path, wheels: Path | None) -> list[str]:
    source = ["--no-index", "--find-links", str(wheels)] if wheels else []
    tags = [part for tag in python.platforms for part in ("--platform", tag)]
    fixed = ["--quiet", "--no-input", "--disable-pip-version-check", "--only-binary", ":all:"]
    wanted = ["--implementation", "cp", "--python-version", python.short, *tags]
    command = [sys.executable, "-m", "pip", "download", *fixed, *source, *wanted]
    return [*command, "--dest", str(folder), package]


def named(wheel: Path) -> tuple[str, str]:
    """Name and version of a wheel's package; the name as indices write it."""
    _, version, *_ = wheel.name.split("-")
    return own_name(wheel.name), version


def own_name(file: str) -> str:
    """The name of the package in a wheel's file, as indices write it."""
    return re.sub(r"[-_.]+", "-", file.partition("-")[0]).lower()


def packed(wheels: Iterable[Path]) -> bytes:
    """An archive with a folder `name==version` of each package, ready to be imported from."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for wheel in wheels:
            name, version = named(wheel)
            with zipfile.ZipFile(wheel) as content:
                for path, member in _modules(content.namelist()):
                    archive.writestr(f"{name}=={version}/{path}", content.read(member))
    return stream.getvalue()


def _modules(members: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Where the files of a wheel that can be imported lie, and their names in it."""
    for member in members:
        found = APART.fullmatch(member)
        if not member.endswith("/") and (found is None or found["data"] is None):
            yield (found["path"] if found else member), member


def lacking(wheels: Iterable[Path], there: Mapping[str, str | None]) -> list[Path]:
    """Those of one version each that a device lacks, where `there` are versions by name."""
    found: dict[str, Path] = {}
    for wheel in sorted(wheels):
        if there.get(named(wheel)[0]) is None:
            found[named(wheel)[0]] = wheel
    return list(found.values())
