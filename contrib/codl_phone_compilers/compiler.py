"""Runs the compilers in their folder, and keeps their results."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from platformdirs import user_cache_dir

from codl.errors import CodlError, UnsupportedError
from codl.measure.budget import Progress, no_progress
from codl_phone_compilers import disassembly
from codl_phone_compilers.gpus import Family, PhoneGpu
from codl_phone_compilers.programs import Program

#: Names the folder of the compilers; by default it is in the user's cache.
VARIABLE = "CODL_MOBILE"
#: The script that makes the folder, and the two files that run in it.
SCRIPT, INSIDE = "compilers.sh", ("building.py", "disassembly.py")
#: The commands that make it.
COMMANDS: Mapping[Family, str] = {
    "adreno": "codl kernels --setup",
    "mali": "codl kernels --setup --mali",
}
#: Packages of the compilers beside Mesa's.
COMPILING = ("libllvm19", "libclc-19", "libllvmspirvlib19.1")
#: Seconds of a core after which a compiler counts as hung, and the error then.
MOST_SECONDS, HUNG = 120, "the compiler hung"


def folder() -> Path:
    """Where the compilers lie; it may not exist yet."""
    return Path(os.environ.get(VARIABLE) or user_cache_dir("codl-mobile")).absolute()


def is_installed(family: Family) -> bool:
    """Whether the compilers of a family of GPUs are there."""
    file = "root/mali/rusticl.icd" if family == "mali" else "root/etc/OpenCL/vendors/rusticl.icd"
    return (folder() / file).is_file()


def packages(family: Family) -> dict[str, str]:
    """Versions of the installed Debian packages that compile, by name."""
    versions, documents = {}, folder() / "root/usr/share/doc"
    for name in COMPILING if family == "mali" else ("mesa-opencl-icd", *COMPILING):
        with suppress(OSError), gzip.open(documents / name / "changelog.Debian.gz", "rt") as file:
            versions[name] = file.readline().split("(")[1].split(")")[0]
    with suppress(OSError):
        if family == "mali":
            versions["mesa (source)"] = (folder() / "root/mali/version").read_text().strip()
    return versions


def check_installed(family: Family) -> None:
    """Raise `UnsupportedError` with the command that installs them where they are not."""
    if not is_installed(family):
        raise UnsupportedError(
            f"The compilers of {family.capitalize()} GPUs are not in {folder()}: "
            f"`{COMMANDS[family]}` makes that folder from Debian's packages."
        )


def set_up(family: Family) -> None:
    """Make the folder, by Debian's `mmdebstrap`; takes seconds, for Malis minutes.

    Raises `UnsupportedError` where a tool or the network is missing.
    """
    if is_installed(family):
        return
    _check_tools()
    try:
        folder().mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UnsupportedError(
            f"The folder {folder()} cannot be made: {error.strerror}; {VARIABLE} names another."
        ) from error
    with _script() as script:
        reached = _call(script, "reach", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        if reached.returncode:
            raise UnsupportedError(
                f"Debian's packages cannot be fetched from {reached.stdout.strip()}: it needs the "
                "network, and `DEBIAN_MIRROR` may name another mirror."
            )
        made = _call(script, "make-mali" if family == "mali" else "make", stdout=sys.stderr)
        if made.returncode:
            raise CodlError(f"The compilers could not be set up in {folder()}; the log is above.")


def _call(script: Path, action: str, **streams: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["sh", str(script), action, str(folder())], text=True, **streams)


def _check_tools() -> None:
    packages = {"mmdebstrap": "mmdebstrap", "apt-get": "apt", "unshare": "util-linux"}
    if os.geteuid():
        packages["newuidmap"] = "uidmap"
    for tool, package in packages.items():
        if shutil.which(tool) is None:
            raise UnsupportedError(
                f"`{tool}` is needed to unpack Debian's packages, and it is not installed: "
                f"`apt-get install --no-install-recommends {package}` does."
            )


@contextmanager
def _script() -> Iterator[Path]:
    with resources.as_file(resources.files(__package__).joinpath(SCRIPT)) as path:
        yield path


@dataclass
class Compilation:
    """Results of programs by their keys, and the compiler's version."""

    version: str
    results: dict[str, dict[str, Any]] = field(default_factory=dict)


def compile_all(
    gpu: PhoneGpu, programs: Iterable[Program], *, progress: Progress = no_progress
) -> Compilation:
    """Compile programs for a GPU; results of earlier runs are read from a file.

    A program has an `error` where it does not build, or the compiler crashes or hangs. Raises
    `UnsupportedError` where the compiler is not installed.
    """
    check_installed(gpu.family)
    version = f"Mesa {json.loads(next(_run(gpu, [], 1)))['version']}"
    name = f"{gpu.number}-{version}-{disassembly.VERSION}.jsonl".replace("/", "_")
    path, every = folder() / "kept" / name, list(programs)
    kept = _read(path)
    results = {p.key: kept[p.key] for p in every if p.key in kept}
    missing = [program for program in every if program.key not in kept]
    progress(len(results), len(every), 0.0)
    if missing:
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = _run(gpu, missing, os.cpu_count() or 1)
        next(lines)
        with path.open("a") as file:
            for line in lines:
                result = json.loads(line)
                results[result["key"]] = result
                if result["error"] != HUNG:
                    print(line.rstrip("\n"), file=file, flush=True)
                progress(len(results), len(every), 0.0)
    return Compilation(version, results)


def _read(path: Path) -> dict[str, dict[str, Any]]:
    """Results of earlier runs by the keys of their programs; each is a line of JSON."""
    results = {}
    with suppress(OSError):
        for line in path.read_text().splitlines():
            with suppress(ValueError, KeyError):  # a kill may have cut a line short
                result = json.loads(line)
                results[result["key"]] = result
    return results


def _run(gpu: PhoneGpu, programs: Iterable[Program], jobs: int) -> Iterator[str]:
    """The lines that `building.py` writes for programs."""
    with tempfile.TemporaryDirectory(prefix="codl-") as work, _script() as script:
        for name in INSIDE:
            text = resources.files(__package__).joinpath(name).read_text()
            Path(work, name).write_text(text)
        asked = Path(work, "programs.jsonl")
        asked.write_text("".join(json.dumps(asdict(program)) + "\n" for program in programs))
        arguments = ["run", str(folder()), work, gpu.family, gpu.number, str(jobs)]
        with asked.open() as file, tempfile.TemporaryFile("w+") as errors:
            command = ["sh", str(script), *arguments, str(MOST_SECONDS)]
            process = subprocess.Popen(
                command, stdin=file, stdout=subprocess.PIPE, stderr=errors, text=True
            )
            assert process.stdout is not None
            try:
                yield from process.stdout
            finally:
                process.kill()
                process.wait()
            if process.returncode > 0:
                errors.seek(0)
                said = " ".join(errors.read().split())[-500:]
                raise CodlError(f"The compilers in {folder()} do not run here: {said}")
