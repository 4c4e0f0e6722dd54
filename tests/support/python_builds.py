"""Builds of Python like python.org's for Android, made of this machine's; made-up wheels."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tarfile
import zipfile
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


def wheel(folder: Path, name: str, version: str, needs: str = "", **modules: str) -> Path:
    """A wheel for any Python, as pip takes it; double underscores in names are folders."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", f"version = {version!r}\n")
        for member, text in modules.items():
            archive.writestr(member.replace("__", "/"), text)
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        metadata += f"Requires-Dist: {needs}\n" if needs else ""
        archive.writestr(f"{info}/METADATA", metadata)
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path
