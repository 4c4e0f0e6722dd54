"""Where OpenCL's drivers are found, below a made-up root; and what a library says that is none."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from codl.machine import driver_search
from codl.machine.driver_search import (
    ANDROID,
    ANDROID_FOLDERS,
    ANDROID_LIBRARIES,
    FILENAMES,
    MADE_BY_CODL,
    VENDOR_PATH,
    VENDORS,
    Driver,
    Search,
)
from codl.runtime.drivers import needs_stand_in
from codl.targets.local import look_at

#: Libraries as compilers make them, by what they are.
SOURCES = {
    "loader": "void clIcdGetPlatformIDsKHR(void) {}",
    "hidden": """
        static int entry(void) { return 0; }
        void *clGetExtensionFunctionAddress(const char *name) { return (void *)entry; }""",
    "functions": "void clGetPlatformIDs(void) {}",
    "pixel": "void enableOpenCL(void) {} void *loadOpenCLPointer(const char *name) { return 0; }",
    "none": "void nothing(void) {}",
    "crashing": "__attribute__((constructor)) void f(void) { *(volatile int *)0 = 1; }",
    "silent": """
        int clGetPlatformInfo(void) { return 0; }
        void *clGetExtensionFunctionAddress(const char *name) { return 0; }
        int clIcdGetPlatformIDsKHR(unsigned n, void *all, unsigned *count) {
            if (count) *count = 0;
            return 0;
        }""",
    "deadly": """
        int clGetPlatformInfo(void) { return 0; }
        int clIcdGetPlatformIDsKHR(void) { *(volatile int *)0 = 1; return 0; }
        void *clGetExtensionFunctionAddress(const char *name) { return clIcdGetPlatformIDsKHR; }""",
}


def put(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def compiled(folder: Path, kind: str) -> Path:
    """A library of this kind; the test is skipped where there is no C compiler."""
    source, library = put(folder / f"{kind}.c", SOURCES[kind]), folder / f"lib{kind}.so"
    try:
        done = subprocess.run(["cc", "-shared", "-fPIC", "-w", "-o", library, source], check=False)
    except FileNotFoundError:
        pytest.skip("no C compiler to make a library with")
    assert not done.returncode
    return library


def names(search: Search) -> list[str]:
    return [driver.name for driver in search.drivers()]


def test_icd_files_are_found_in_the_prefix_of_python_too(tmp_path: Path) -> None:
    """As in Termux and conda; a file of one name and another library is another driver."""
    system, prefix = tmp_path / "etc/OpenCL/vendors", tmp_path / "prefix"
    put(system / "b.icd", "libb.so\n")
    put(system / "a.icd", "liba.so\nsomething else\n")
    put(system / "c.txt", "libc.so\n")
    again = put(prefix / "etc/OpenCL/vendors/a.icd", "/other/liba.so")
    put(prefix / "etc/OpenCL/vendors/b.icd", "libb.so")
    for search in (Search(tmp_path, {}, prefix), Search(tmp_path, {"PREFIX": str(prefix)})):
        assert search.drivers() == [
            Driver("a", "liba.so", file=str(system / "a.icd")),
            Driver("b", "libb.so", file=str(system / "b.icd")),
            Driver(str(again), "/other/liba.so", file=str(again)),
        ]
        assert search.places()[0] == f"{system}: a.icd, b.icd"


def test_the_users_variables_are_read_as_loaders_read_them(tmp_path: Path) -> None:
    system = put(tmp_path / "etc/OpenCL/vendors/system.icd", "libs.so").parent
    own = put(tmp_path / "own/mine.icd", "libm.so").parent

    def by(**environment: object) -> list[str]:
        return names(Search(tmp_path, {k: str(v) for k, v in environment.items()}, tmp_path))

    assert by(OCL_ICD_VENDORS=own) == ["mine"]
    assert by(OCL_ICD_VENDORS=own / "mine.icd") == ["mine"]
    assert by(OCL_ICD_VENDORS="system.icd") == ["system"]
    assert by(OCL_ICD_VENDORS="mine.icd", OPENCL_VENDOR_PATH=own) == ["mine"]
    assert by(OCL_ICD_VENDORS="/some/libdriver.so") == ["/some/libdriver.so"]
    assert by(OPENCL_VENDOR_PATH=own) == ["mine"]
    assert by(OPENCL_VENDOR_PATH=own, OCL_ICD_VENDORS=system) == ["system"]
    assert by(OPENCL_VENDOR_PATH=tmp_path / "nowhere") == []
    added = "/a/liba.so:libb.so:libs.so.1:/a/libs.so"
    assert by(OCL_ICD_FILENAMES=added) == ["system", "/a/liba.so", "libb.so", "/a/libs.so"]
    assert by(OCL_ICD_VENDORS=tmp_path / f"{MADE_BY_CODL}0") == by(OCL_ICD_VENDORS="") == ["system"]
    told = Search(tmp_path, {VENDORS: str(tmp_path / "nowhere")}).places()
    assert told == [f"{VENDORS}={tmp_path / 'nowhere'}: not there"]
    assert {VENDORS, VENDOR_PATH, FILENAMES} == {
        "OCL_ICD_VENDORS",
        "OPENCL_VENDOR_PATH",
        "OCL_ICD_FILENAMES",
    }


def test_a_library_that_several_icd_files_name_is_one_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "libx.so.1"
    library.touch()
    (tmp_path / "libx.so").symlink_to(library)
    for name, named in (("a", library), ("b", library), ("c", tmp_path / "libx.so")):
        (tmp_path / f"{name}.icd").write_text(f"{named}\n")
    (tmp_path / "empty.icd").touch()
    monkeypatch.setenv(driver_search.VENDORS, str(tmp_path))
    for wheel in ("_intel_wheel", "_wheel_driver"):
        monkeypatch.setattr(driver_search, wheel, lambda *args: [])
    assert [driver.name for driver in driver_search.find_drivers()] == ["a", "empty"]
    # A SoC's placement may have any of the names.
    assert driver_search.find_driver("c").library == str(tmp_path / "libx.so")


def test_androids_drivers_are_found_by_their_paths(tmp_path: Path) -> None:
    """Once each, though Android has several paths to a library; behind those of ICD files."""
    search = Search(tmp_path, {}, tmp_path / "python")
    for path in ANDROID_LIBRARIES:
        put(tmp_path / path)
    assert names(search) == []
    put(tmp_path / ANDROID)
    every = [str(tmp_path / path) for path in ANDROID_LIBRARIES]
    assert names(search) == every
    put(tmp_path / ANDROID_FOLDERS[0] / "vendor.icd", every[0])
    assert names(search) == ["vendor", *every[1:]]
    (tmp_path / ANDROID_LIBRARIES[8]).unlink()
    (tmp_path / ANDROID_LIBRARIES[8]).symlink_to(tmp_path / ANDROID_LIBRARIES[7])
    assert names(search) == ["vendor", *every[1:8], every[9]]
    assert all(driver.is_guess == (driver.name != "vendor") for driver in search.drivers())
    assert f"{every[9]}: there" in search.places()


def test_a_library_of_the_system_that_no_icd_file_names(tmp_path: Path) -> None:
    nvidia = put(tmp_path / "usr/lib64/libnvidia-opencl.so.1")
    mali = put(tmp_path / "usr/lib/aarch64-linux-gnu/libmali.so.1")
    search = Search(tmp_path, {}, tmp_path)
    assert [(d.name, d.library) for d in search.drivers()] == [
        ("nvidia", str(nvidia)),
        ("mali", str(mali)),
    ]
    put(tmp_path / "etc/OpenCL/vendors/other.icd", "libnvidia-opencl.so.1")
    put(tmp_path / "etc/OpenCL/vendors/mali.icd", "libmali.so.1")
    assert names(search) == ["mali", "other"]


@pytest.mark.parametrize(
    ("kind", "needs"), [("loader", False), ("hidden", False), ("functions", True), ("pixel", True)]
)
def test_how_a_driver_is_entered(kind: str, needs: bool, tmp_path: Path) -> None:
    assert needs_stand_in(Driver("x", str(compiled(tmp_path, kind)))) == needs


@pytest.mark.device
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("text", "It cannot be loaded: "),
        ("silent", "was loaded and has no platform"),
        ("crashing", "The driver's process crashed (signal 11)"),
        ("deadly", "The driver's process crashed (signal 11)"),
        ("pixel", "was loaded and has no platform"),
    ],
)
def test_a_driver_that_fails_costs_a_process_of_its_own(
    kind: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is a stub that OCL_ICD_VENDORS names."""
    is_text = kind == "text"
    library = put(tmp_path / "lib.so", "no library") if is_text else compiled(tmp_path, kind)
    monkeypatch.setenv(VENDORS, str(library))
    result = look_at(str(library))
    assert result.devices == ()
    assert said in result.error
