"""Builds of Python as python.org's for Android are laid out, made of the Python of this machine."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

#: What a check of files, and an agent that says what is there, import.
NEEDED = (
    "__future__, hashlib, importlib.metadata, json, os, platform, shutil, struct, sysconfig, "
    "zipfile"
)
LISTED = f"""
import {NEEDED}
import encodings.utf_8, encodings.ascii, encodings.latin_1, encodings.cp437
import sys
platform.libc_ver(), sysconfig.get_config_vars(), platform.platform()
print(*filter(None, (getattr(module, "__file__", None) for module in sys.modules.values())))
"""


def library() -> Path | None:
    """The library of this Python; None where it has none that is shared."""
    config = sysconfig.get_config_vars()
    if not config.get("Py_ENABLE_SHARED"):
        return None
    names = (config["INSTSONAME"], config["LDLIBRARY"])
    paths = (Path(config["LIBDIR"]) / name for name in names)
    return next((path for path in paths if path.exists()), None)


def make(path: Path, *, root: str = "prefix/") -> Path:
    """An archive with the library and those of its modules that are needed here."""
    shared = library()
    assert shared is not None
    modules = Path(sysconfig.get_path("stdlib"))
    command = [sys.executable, "-I", "-S", "-c", LISTED]
    said = subprocess.run(command, capture_output=True, check=True)
    with tarfile.open(path, "w") as archive:
        archive.add(shared, f"{root}lib/{shared.name}")
        digests = (modules / "lib-dynload").glob("_[mbs][dlh][5a]*.so")  # in place of OpenSSL's
        for file in {*map(Path, said.stdout.decode().split()), *digests}:
            if file.is_relative_to(modules):
                archive.add(file, f"{root}lib/{modules.name}/{file.relative_to(modules)}")
    return path
