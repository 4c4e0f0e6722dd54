"""Wheels of packages that a device does not have, found by pip on this machine.

They are packed as folders that Python can import from; nothing is installed there.
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

PIP_S = 600.0
#: Oldest minor version of glibc that wheels are made for, and its older platform tag.
OLDEST_GLIBC, OLDEST_NAME = 17, "manylinux2014"
MUSL = ("musllinux_1_2", "musllinux_1_1")
#: Modules in the data folder of a wheel; its other data is not needed.
APART = re.compile(r"[^/]+\.data/(purelib|platlib)/(?P<path>.+)|(?P<data>[^/]+\.data)/.*")
#: First Python with wheels for Android, and the oldest API level of their tags.
ANDROID_PYTHON, OLDEST_LEVEL = (3, 13), 21
ANDROID_ABIS = {
    "aarch64": "arm64_v8a",
    "armv7l": "armeabi_v7a",
    "x86_64": "x86_64",
    "i686": "x86",
}
#: Packages that are taken without their dependencies: those of ncnn but NumPy download models.
ALONE = ("ncnn",)
#: How to get packages without a wheel for Android into Termux. For pyopencl, pip would compile
#: NumPy once more without these options.
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


@dataclass(frozen=True)
class DevicePython:
    """A device's Python: `version` as in 3.11.2, `abi` as in cpython.

    `libc` is its C library, as in `glibc 2.36` or, with the level of Android, `bionic 34`.
    """

    version: str
    machine: str
    libc: str
    abi: str
    is_termux: bool = False

    @property
    def short(self) -> str:
        return ".".join(self.version.split(".")[:2])

    @property
    def is_android(self) -> bool:
        return self.libc.startswith("bionic")

    @property
    def platforms(self) -> tuple[str, ...]:
        """Platform tags of wheels that run there, the best first; empty where there are none."""
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
        """How to get a package there without a wheel."""
        if self.is_termux:
            return termux_fix(package)
        if self.is_android:
            return "name a folder with a wheel for it by --wheels, or use Termux's Python."
        return f"`pip install {package}` there."


def termux_fix(package: str) -> str:
    """How to get a package without a wheel into Termux."""
    return TERMUX.get(package, f"`pkg install clang cmake ninja`, then `pip install {package}`.")


def fetch_wheels(
    package: str, python: DevicePython, folder: Path, *, wheels: Path | None = None
) -> str:
    """Put the wheels of a package and its dependencies in a folder; the problem, or "".

    With `wheels`, only that folder is searched.
    """
    where = f"Python {python.short} on {'Android, ' if python.is_android else ''}{python.machine}"
    fix = python.fix(package)
    if not python.platforms:
        kind = f"{python.abi} {python.version} on {python.machine} ({python.libc or 'no glibc'})"
        return f"There are no wheels for {kind}: {fix}"
    missing = f"No wheel for {where} was found"
    files = [] if wheels is None else [f.name for f in wheels.glob("*.whl")]
    of_it = sorted(name for name in files if package_name(name) == package)
    if wheels is not None and not of_it:
        return f"{missing} in {wheels}: {fix}"
    if find_spec("pip") is None:
        return "This Python has no pip to find wheels with: `python -m ensurepip`."
    try:
        done = subprocess.run(
            _command(package, python, folder, wheels), capture_output=True, timeout=PIP_S
        )
    except subprocess.TimeoutExpired:
        return f"pip took longer than {PIP_S:g} s over it; name a folder of wheels by --wheels."
    if not done.returncode:
        return ""
    if of_it:
        return f"{missing} in {wheels}, which has {', '.join(of_it)}: {fix}"
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    errors = [line for line in lines if line.startswith("ERROR")] or lines or ["no output"]
    return f"{missing} by pip ({errors[-1].removeprefix('ERROR: ')}): {fix}"


def _command(package: str, python: DevicePython, folder: Path, wheels: Path | None) -> list[str]:
    source = ["--no-index", "--find-links", str(wheels)] if wheels else []
    tags = [part for tag in python.platforms for part in ("--platform", tag)]
    fixed = ["--quiet", "--no-input", "--disable-pip-version-check", "--only-binary", ":all:"]
    fixed += ["--no-deps"] if package in ALONE else []
    wanted = ["--implementation", "cp", "--python-version", python.short, *tags]
    command = [sys.executable, "-m", "pip", "download", *fixed, *source, *wanted]
    return [*command, "--dest", str(folder), package]


def name_of_wheel(wheel: Path) -> tuple[str, str]:
    """Name and version of a wheel's package; the name as indices write it."""
    _, version, *_ = wheel.name.split("-")
    return package_name(wheel.name), version


def package_name(file: str) -> str:
    """The name of the package in a wheel's file, as indices write it."""
    return re.sub(r"[-_.]+", "-", file.partition("-")[0]).lower()


def packed_wheels(wheels: Iterable[Path]) -> bytes:
    """An archive with a folder `name==version` of each package, ready to be imported from."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for wheel in wheels:
            name, version = name_of_wheel(wheel)
            with zipfile.ZipFile(wheel) as content:
                for path, member in _modules(content.namelist()):
                    archive.writestr(f"{name}=={version}/{path}", content.read(member))
    return stream.getvalue()


def _modules(members: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Where the files of a wheel that can be imported lie, and their names in it."""
    for member in members:
        apart = APART.fullmatch(member)
        if not member.endswith("/") and (apart is None or apart["data"] is None):
            yield (apart["path"] if apart else member), member


def missing_wheels(wheels: Iterable[Path], installed: Mapping[str, str | None]) -> list[Path]:
    """One wheel of each package that is not among the `installed` versions."""
    missing: dict[str, Path] = {}
    for wheel in sorted(wheels):
        if installed.get(name_of_wheel(wheel)[0]) is None:
            missing[name_of_wheel(wheel)[0]] = wheel
    return list(missing.values())
