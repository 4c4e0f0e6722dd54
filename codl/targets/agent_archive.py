"""Main program of an agent's archive: unpacks codl beside the archive, and serves.

It runs before codl is importable, perhaps on a Python that is too old, so it uses the standard
library only. With --check it prints facts about the device, with --add it unpacks sent packages
(see `codl.targets.install`); neither serves.
"""

from __future__ import annotations

import time

BEGIN = time.perf_counter()

import json  # noqa: E402 (the clock is read first)
import os  # noqa: E402
import platform  # noqa: E402
import shutil  # noqa: E402
import struct  # noqa: E402
import sys  # noqa: E402
import sysconfig  # noqa: E402
import zipfile  # noqa: E402
from hashlib import sha256  # noqa: E402

OLDEST = (3, 10)
#: Required packages, and useful ones. codl has stand-ins for msgspec and pyopencl.
NEEDED = ("numpy",)
USEFUL = ("ncnn", "onnxruntime", "onnx", "msgspec", "pyopencl")
#: Folder of msgspec's stand-in in an agent.
PURE = os.path.join("codl", "targets", "pure")
#: Folder of an agent that cannot write beside its file.
HIDDEN = ".codl"
#: First supported version of packages that devices may have in older versions.
FIRST = {"numpy": (2,)}
#: Archive of sent packages beside the agent's file, with a folder `name==version` for each.
BROUGHT = "packages.zip"
#: Machine of a 32-bit Python, by the machine of its kernel.
NARROW = {"aarch64": "armv7l", "x86_64": "i686"}


def installed(name: str) -> str | None:
    """Version of the device's own package; None if missing or too old."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        text = version(name)
    except PackageNotFoundError:
        return None
    numbers = tuple(int(part) for part in text.split(".")[:2] if part.isdigit())
    return text if numbers >= FIRST.get(name, ()) else None


def packages_folder(place: str) -> str:
    """Folder of sent packages for this version of Python."""
    return os.path.join(place, "packages-" + str(sys.implementation.cache_tag))


def brought(place: str) -> dict[str, tuple[str, str]]:
    """Version and folder of each sent package that is missing on the device itself."""
    folder = packages_folder(place)
    packages = {}
    for entry in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        name, is_one, version = entry.partition("==")
        if is_one and installed(name) is None:
            packages[name] = version, os.path.join(folder, entry)
    return packages


def versions(place: str) -> dict[str, str | None]:
    """Version of every required or useful package, None if missing."""
    added = brought(place)
    return {name: added[name][0] if name in added else installed(name) for name in NEEDED + USEFUL}


def digest_of(path: str) -> str:
    with open(path, "rb") as file:
        return sha256(file.read()).hexdigest()


def check(archive: str) -> dict[str, object]:
    """Facts about the device, as JSON values."""
    bits, machine = 8 * struct.calcsize("P"), platform.machine()
    place, is_young = room(archive), sys.version_info >= OLDEST
    return {
        "sha256": digest_of(archive),
        "python": platform.python_version(),
        "executable": sys.executable,
        "machine": NARROW.get(machine, machine) if bits == 32 else machine,
        "system": platform.system(),
        "libc": libc(),
        "abi": sys.implementation.name + getattr(sys, "abiflags", ""),
        "packages": versions(place) if is_young else {},
        "brought": sorted(brought(place)) if is_young else [],
    }


def room(archive: str) -> str:
    """A folder where the agent may write: beside its file, or in an app's home (Termux)."""
    beside = os.path.dirname(archive)
    for folder in (beside, os.path.join(os.path.expanduser("~"), HIDDEN), os.path.abspath(HIDDEN)):
        try:
            os.makedirs(folder, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            return folder
    return beside


def libc() -> str:
    """The C library that wheels must fit, such as `glibc 2.36`, or `bionic` with the API level."""
    if hasattr(sys, "getandroidapilevel"):
        # Before 3.13, Python knows only the level that it was compiled for.
        version = getattr(platform, "android_ver", None)
        return f"bionic {version().api_level if version else sys.getandroidapilevel()}"
    is_musl = "musl" in str(sysconfig.get_config_var("HOST_GNU_TYPE"))
    return "musl" if is_musl else " ".join(platform.libc_ver()).strip()


def add(archive: str, digest: str) -> int:
    """Unpack the sent packages, each atomically; returns the exit code."""
    path, place = os.path.join(os.path.dirname(archive), BROUGHT), packages_folder(room(archive))
    partial = f"{place}.{os.getpid()}.part"
    if digest_of(path) != digest:
        print(path + " is not what was sent", file=sys.stderr)
        return 1
    try:
        with zipfile.ZipFile(path) as content:
            content.extractall(partial)
        os.makedirs(place, exist_ok=True)
        for entry in os.listdir(partial):
            if not os.path.isdir(os.path.join(place, entry)):
                os.rename(os.path.join(partial, entry), os.path.join(place, entry))
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return 0


def unpacked(archive: str, place: str) -> tuple[str, str]:
    """Unpack the archive's modules atomically to a folder in `place`; returns it and the build."""
    with zipfile.ZipFile(archive) as content:
        build = content.read("BUILD").decode()
        folder = os.path.join(place, "codl-" + build)
        if not os.path.isdir(folder):
            partial = f"{folder}.{os.getpid()}.part"
            try:
                content.extractall(partial)
                os.rename(partial, folder)
            except OSError:
                shutil.rmtree(partial, ignore_errors=True)
                if not os.path.isdir(folder):  # else another agent was faster
                    raise
    return folder, build


def main() -> int:
    archive = os.path.dirname(os.path.abspath(__file__))
    arguments = sys.argv[1:]
    if "--check" in arguments:
        print(json.dumps(check(archive)))
        return 0
    if "--add" in arguments:
        return add(archive, arguments[-1])
    if sys.version_info < OLDEST:
        print(
            "codl needs Python 3.10 or later, this is " + platform.python_version(), file=sys.stderr
        )
        return 1
    place = room(archive)
    packages = versions(place)
    missing = [name for name in NEEDED if packages[name] is None]
    if missing:
        print("packages are missing there: " + ", ".join(missing), file=sys.stderr)
        return 1
    try:
        folder, build = unpacked(archive, place)
    except OSError as error:
        print("the agent cannot be unpacked there: " + str(error), file=sys.stderr)
        return 1
    paths = [folder, *(path for _, path in brought(place).values())]
    if packages["msgspec"] is None:
        paths.append(os.path.join(folder, PURE))
    # Processes started by the agent find codl there too.
    rest = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([*paths, *([rest] if rest else [])])
    sys.path[:1] = paths
    # A phone's shell has no home, so settings and compiled kernels are stored here.
    os.environ.setdefault("CODL_STATE", place)
    if not os.access(os.path.expanduser("~"), os.W_OK):
        os.environ.setdefault("CODL_CACHE", os.path.join(place, "cache"))
    from codl.targets.agent import main as serve

    return serve(BEGIN, build)


if __name__ == "__main__":
    sys.exit(main())
