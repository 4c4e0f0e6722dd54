"""What stands in for pyopencl: every way into a driver, and the tests of whatever runs on it."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from support.command_line import python
from support.some import some

from codl.machine import cache
from codl.machine.driver_search import VENDORS, find_driver
from codl.machine.hardware import STAND_IN
from codl.machine.placement import LocalSoc
from codl.runtime.cl_ctypes import DEVICE
from codl.runtime.drivers import BINDING
from codl.targets.base import environment_of
from codl.targets.client import COMMAND
from codl.targets.remote import RemoteTarget

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.device
#: A library in front of a driver that shows one way in alone.
STUB = """
#include <dlfcn.h>
static void *of(const char *name) { return dlsym(dlopen(DRIVER, RTLD_NOW), name); }
"""
WAYS = {
    "loader": """
    void *clGetExtensionFunctionAddress(const char *name) {
        return ((void *(*)(const char *))of("clGetExtensionFunctionAddress"))(name);
    }""",
    "pixel": """
    void enableOpenCL(void) {}
    void *loadOpenCLPointer(const char *name) { return of(name); }""",
}
LOOK = """
import sys
from codl.runtime import probe
print(len(probe.look(sys.argv[1])), probe.cl_module().__name__)
"""


def stub(folder: Path, way: str, driver: str) -> Path:
    """A driver that is entered in this way; the test is skipped where there is no C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("this machine has no C compiler")
    source, library = folder / f"{way}.c", folder / f"lib{way}.so"
    source.write_text(STUB + WAYS[way])
    command = [compiler, "-shared", "-fPIC", f'-DDRIVER="{driver}"', "-o", str(library)]
    subprocess.run([*command, str(source), "-ldl"], check=True)
    return library


@pytest.mark.parametrize("way", ["functions", *WAYS])
def test_a_kernel_runs_whatever_the_way_into_a_driver(
    way: str, first_soc: LocalSoc, tmp_path: Path
) -> None:
    driver = find_driver(first_soc.placement.icd)
    if way == "functions" and not hasattr(ctypes.CDLL(driver.library), "clGetPlatformIDs"):
        pytest.skip("this machine's driver has no functions of its own")
    is_stub = way in WAYS
    library = stub(tmp_path, way, driver.library) if is_stub else Path(driver.library)
    preload = "".join(f"ctypes.CDLL({p!r}, ctypes.RTLD_GLOBAL)\n" for p in driver.preload)
    # pyopencl, which no Pixel's driver is for, is left by itself.
    wanted = {} if way == "pixel" else {BINDING: "ctypes"}
    code = f"import ctypes\n{preload}{LOOK}"
    done = python(code, library, ends=None, env={VENDORS: str(library), **wanted})
    assert done.stdout.split()[1:] == ["codl.runtime.cl_ctypes"], done.stderr
    assert int(done.stdout.split()[0]) > 0


def test_results_name_what_called_opencl(first_soc: LocalSoc) -> None:
    command = ("env", f"{BINDING}=ctypes", *COMMAND)
    with closing(RemoteTarget("process", command, first_soc)) as target:
        environment = environment_of(target, {})
    assert environment is not None
    assert STAND_IN in environment.libraries
    assert "pyopencl" not in environment.libraries


def test_a_device_tells_all_that_codl_asks() -> None:
    pyopencl = pytest.importorskip("pyopencl")
    asked = {
        name
        for file in some(sorted((ROOT / "codl").rglob("*.py")))
        for name in re.findall(r"\bdevice\.(\w+)", file.read_text())
        if isinstance(getattr(pyopencl.Device, name, None), property)
    }
    assert {"compute_capability_major_nv", "max_compute_units"} < asked
    assert asked <= {*DEVICE, "platform", "int_ptr"}


#: Memory of every kind, profiles, failing calls, several threads, engines.
TESTS = (
    "runtime/test_failing_driver.py",
    "runtime/test_run_options.py",
    "runtime/test_batches.py",
    "kernels/test_storages.py",
)


@pytest.mark.long
def test_the_tests_of_the_runtime_pass_on_the_stand_in(tmp_path: Path) -> None:
    # Its own notes of what failed, and the kernels that this run has compiled.
    (tmp_path / "d").mkdir()
    (tmp_path / "d/codl").symlink_to(os.environ[cache.VARIABLE])
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-o", f"cache_dir={tmp_path}"]
    done = subprocess.run(
        [*command, *(f"tests/{name}" for name in TESTS)],
        cwd=ROOT,
        env={**os.environ, BINDING: "ctypes"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
