"""The program of an agent's file, which holds codl: unpacks itself beside itself, and serves.

It runs on a device before anything of codl is there, on a Python that may be too old: standard
library alone. With --check it prints what is there, and serves nothing.
"""

from __future__ import annotations

import time

BEGIN = time.perf_counter()

import json  # noqa: E402 (the clock is read first)
import os  # noqa: E402
import platform  # noqa: E402
import sys  # noqa: E402
import zipfile  # noqa: E402
from hashlib import sha256  # noqa: E402

OLDEST = (3, 10)
#: Without the first the agent cannot speak or compute; without the others, a processor is missing.
NEEDED = ("msgspec", "numpy")
#: The folder of an agent that may not write beside its file.
HIDDEN = ".codl"
USEFUL = ("ncnn", "pyopencl", "onnxruntime")


def versions() -> dict[str, str | None]:
    """The version of every package that counts, None for what is not installed."""
    from importlib.metadata import PackageNotFoundError, version

    found: dict[str, str | None] = {}
    for name in NEEDED + USEFUL:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def check(archive: str) -> dict[str, object]:
    """What is here, as JSON."""
    with open(archive, "rb") as file:
        digest = sha256(file.read()).hexdigest()
    return {
        "sha256": digest,
        "python": platform.python_version(),
        "executable": sys.executable,
        "machine": platform.machine(),
        "system": platform.system(),
        "libc": " ".join(platform.libc_ver()).strip(),
        "packages": versions() if sys.version_info >= OLDEST else {},
    }


def room(archive: str) -> str:
    """Where the agent may write: beside its file, or else where an app's user may (Termux's)."""
    beside = os.path.dirname(archive)
    for folder in (beside, os.path.join(os.path.expanduser("~"), HIDDEN), os.path.abspath(HIDDEN)):
        try:
            os.makedirs(folder, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            return folder
    return beside


def unpacked(archive: str, place: str) -> tuple[str, str]:
    """The folder in `place` with the archive's modules; made whole or not at all."""
    with zipfile.ZipFile(archive) as content:
        build = content.read("BUILD").decode()
        folder = os.path.join(place, "codl-" + build)
        if not os.path.isdir(folder):
            partial = f"{folder}.{os.getpid()}.part"
            content.extractall(partial)
            try:
                os.rename(partial, folder)
            except OSError:  # another agent was faster
                if not os.path.isdir(folder):
                    raise
    return folder, build


def main() -> int:
    archive = os.path.dirname(os.path.abspath(__file__))
    if "--check" in sys.argv[1:]:
        print(json.dumps(check(archive)))
        return 0
    if sys.version_info < OLDEST:
        print(
            "codl needs Python 3.10 or later, this is " + platform.python_version(), file=sys.stderr
        )
        return 1
    found = versions()
    missing = [name for name in NEEDED if found[name] is None]
    if missing:
        print("packages are missing there: " + ", ".join(missing), file=sys.stderr)
        return 1
    place = room(archive)
    folder, build = unpacked(archive, place)
    # Processes that the agent starts find codl there too.
    rest = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = folder + (os.pathsep + rest if rest else "")
    sys.path[0] = folder
    # A phone's shell has no home: settings are noted, and compiled kernels kept, in this place.
    os.environ.setdefault("CODL_STATE", place)
    if not os.access(os.path.expanduser("~"), os.W_OK):
        os.environ.setdefault("CODL_CACHE", os.path.join(place, "cache"))
    from codl.targets.agent import main as serve

    return serve(BEGIN, build)


if __name__ == "__main__":
    sys.exit(main())
