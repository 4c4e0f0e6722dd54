"""Runs the compilers in their folder, and keeps what they said of every program."""

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
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from platformdirs import user_cache_dir

from codl.errors import CodlError, UnsupportedError
from codl.measure.budget import Progress, no_progress
from codl.phone_compilers import disassembly
from codl.phone_compilers.gpus import Family, PhoneGpu
from codl.phone_compilers.programs import Program

#: The folder of the compilers, where it is not in the user's cache.
VARIABLE = "CODL_MOBILE"
#: What sets it up, and the two files that run in there.
SCRIPT, INSIDE = "compilers.sh", ("building.py", "disassembly.py")
#: The command that a user types for it.
COMMANDS: Mapping[Family, str] = {
    "adreno": "codl kernels --setup",
    "mali": "codl kernels --setup --mali",
}
#: Packages that have a part in what is compiled, beside Mesa's.
COMPILING = ("libllvm19", "libclc-19", "libllvmspirvlib19.1")
#: What the folder takes, and the packages meanwhile among temporary files.
FOLDER_BYTES, ROOM = 600_000_000, {"adreno": 800_000_000, "mali": 3_200_000_000}
#: A compiler that takes more seconds of a core for one program hangs: what is said of it then.
MOST_SECONDS, HUNG = 120, "the compiler hung"


def folder() -> Path:
    """Where the compilers lie; it may not exist yet."""
    return Path(os.environ.get(VARIABLE) or user_cache_dir("codl-mobile")).absolute()


def is_installed(family: Family) -> bool:
    """Whether the compilers of a family of GPUs are there."""
    file = "root/mali/rusticl.icd" if family == "mali" else "root/etc/OpenCL/vendors/rusticl.icd"
    return (folder() / file).is_file()


def packages(family: Family) -> dict[str, str]:
    """Versions of the Debian packages that compile, by name; those of a folder that is there.

    Mali's Mesa is built from a source package, whose version is known where it was set up by a
    codl that wrote it down.
    """
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

    Raises `UnsupportedError` where a tool, room or the network is missing.
    """
    if is_installed(family):
        return
    _check_tools()
    _check_room(family)
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


def _check_room(family: Family) -> None:
    """Make the folder, and see what it and that of temporary files have room for."""
    try:
        folder().mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UnsupportedError(
            f"The folder {folder()} cannot be made: {error.strerror}; {VARIABLE} names another."
        ) from error
    needs = {
        folder(): (FOLDER_BYTES, VARIABLE),
        Path(tempfile.gettempdir()): (ROOM[family], "TMPDIR"),
    }
    for place, (needed, variable) in needs.items():
        free = shutil.disk_usage(place).free
        if free < needed:
            raise UnsupportedError(
                f"{place} has {free / 1e9:.1f} GB free, and the compilers need {needed / 1e9:.1f} "
                f"GB there: {variable} names another folder."
            )


@contextmanager
def _script() -> Iterator[Path]:
    with resources.as_file(resources.files(__package__).joinpath(SCRIPT)) as path:
        yield path


@dataclass
class Compilation:
    """What a compiler said of programs, by their keys, and which compiler it was."""

    device: str
    version: str
    results: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass
class _Kept:
    """Results of earlier runs: a line of JSON each, in a file of a GPU and a compiler's version."""

    path: Path

    @classmethod
    def of(cls, gpu: PhoneGpu, version: str) -> _Kept:
        name = f"{gpu.number}-{version}-{disassembly.VERSION}.jsonl".replace("/", "_")
        return cls(folder() / "kept" / name)

    def read(self) -> dict[str, dict[str, Any]]:
        results = {}
        with suppress(OSError):
            for line in self.path.read_text().splitlines():
                with suppress(ValueError, KeyError):  # a kill may have cut a line short
                    result = json.loads(line)
                    results[result["key"]] = result
        return results

    def add(self, line: str) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(line.rstrip("\n") + "\n")


def compile_all(
    gpu: PhoneGpu,
    programs: Iterable[Program],
    *,
    jobs: int | None = None,
    progress: Progress = no_progress,
) -> Compilation:
    """What a GPU's compiler makes of programs; those that it has compiled before it is not asked.

    A program that does not build has an `error`, and one at which the compiler crashes or hangs,
    too. Raises `UnsupportedError` where the compiler is not there.
    """
    check_installed(gpu.family)
    compilation = _about(gpu)
    kept = _Kept.of(gpu, compilation.version)
    before, every = kept.read(), list(programs)
    compilation.results = {p.key: before[p.key] for p in every if p.key in before}
    missing = [program for program in every if program.key not in before]
    progress(len(every) - len(missing), len(every), 0.0)
    if missing:
        lines = _run(gpu, missing, jobs or os.cpu_count() or 1)
        next(lines)
        for line in lines:
            result = json.loads(line)
            compilation.results[result["key"]] = result
            if result["error"] != HUNG:
                kept.add(line)
            progress(len(compilation.results), len(every), 0.0)
    return compilation


def _about(gpu: PhoneGpu) -> Compilation:
    """Which compiler it is, without any results."""
    told = json.loads(next(_run(gpu, [], 1)))
    return Compilation(told["device"], f"Mesa {told['version']}")


def _run(gpu: PhoneGpu, programs: Iterable[Program], jobs: int) -> Iterator[str]:
    """The lines that `building.py` writes for programs."""
    with tempfile.TemporaryDirectory(prefix="codl-") as work, _script() as script:
        for name in INSIDE:
            text = resources.files(__package__).joinpath(name).read_text()
            Path(work, name).write_text(text)
        asked = Path(work, "programs.jsonl")
        asked.write_text("".join(json.dumps(_asked(program)) + "\n" for program in programs))
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


def _asked(program: Program) -> dict[str, Any]:
    return {
        "key": program.key,
        "source": program.source,
        "options": program.options,
        "kernels": program.kernels,
    }
