"""The agent as one file: a zip archive that Python runs, with codl and small modules it needs.

NumPy, msgspec and the libraries of both processors are the device's own.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib import resources
from importlib.metadata import files
from typing import TYPE_CHECKING

from codl.targets import agent_archive

if TYPE_CHECKING:
    from importlib.abc import Traversable

#: What only the host needs.
HOST_ONLY = (
    *("cli", "doctor", "report", "strategies", "validate", "bundle", "backend", "predict", "plan"),
)
#: Pure Python that is taken along: distributions of the base, by their names.
ALONG = ("platformdirs", "PyYAML", "threadpoolctl")
#: The build is so many digits of a digest.
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
    own = [("__main__.py", program.read_bytes()), *_codl(resources.files("codl"), "codl")]
    return sorted([*own, *_along()])


def _codl(folder: Traversable, name: str) -> Iterator[tuple[str, bytes]]:
    """Sources of a package of codl: Python and OpenCL C."""
    for entry in folder.iterdir():
        path = f"{name}/{entry.name}"
        if entry.is_file() and entry.name.endswith((".py", ".cl")):
            yield path, entry.read_bytes()
        elif entry.is_dir() and path not in {f"codl/{own}" for own in HOST_ONLY}:
            yield from _codl(entry, path)


def _along() -> Iterator[tuple[str, bytes]]:
    """The modules of the distributions that are taken along."""
    for name in ALONG:
        for file in files(name) or ():
            if file.suffix == ".py" and ".." not in file.parts:
                yield file.as_posix(), file.read_binary()
