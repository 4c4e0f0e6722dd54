"""Builds OpenCL programs with the only driver, each in a process of its own.

    python3 building.py FAMILY JOBS SECONDS

reads programs as lines of JSON from standard input and writes a result of each to standard output,
in the order in which they end; the first line describes the device. It needs Python alone: it runs
in the folder of the compilers, with `disassembly.py` beside it.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
import tempfile
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

import disassembly

#: OpenCL's own numbers.
ALL_DEVICES, BUILD_LOG, PRIVATE_BYTES = 0xFFFFFFFF, 0x1183, 0x11B4
DRIVER_VERSION = 0x102D
#: Letters that are kept of a compiler's output.
LETTERS = 2000
#: A child may wait for a core this many times as long as it may compute.
IDLE = 10
#: The functions of OpenCL, with the types of their arguments.
CALLS = {
    "clGetPlatformIDs": (c_uint, c_void_p, c_void_p),
    "clGetDeviceIDs": (c_void_p, c_uint64, c_uint, c_void_p, c_void_p),
    "clGetDeviceInfo": (c_void_p, c_uint, c_size_t, c_void_p, c_void_p),
    "clCreateContext": (c_void_p, c_uint, c_void_p, c_void_p, c_void_p, c_void_p),
    "clCreateProgramWithSource": (c_void_p, c_uint, c_void_p, c_void_p, c_void_p),
    "clBuildProgram": (c_void_p, c_uint, c_void_p, c_char_p, c_void_p, c_void_p),
    "clGetProgramBuildInfo": (c_void_p, c_void_p, c_uint, c_size_t, c_void_p, c_void_p),
    "clCreateKernel": (c_void_p, c_char_p, c_void_p),
    "clGetKernelWorkGroupInfo": (c_void_p, c_void_p, c_uint, c_size_t, c_void_p, c_void_p),
}


class Driver:
    """The first OpenCL device."""

    def __init__(self) -> None:
        self.cl = ctypes.CDLL("libOpenCL.so.1")
        for name, types in CALLS.items():
            call = getattr(self.cl, name)
            call.argtypes = types
            call.restype = c_void_p if "Create" in name else c_int
        platforms, count = (c_void_p * 16)(), c_uint()
        self.cl.clGetPlatformIDs(16, platforms, byref(count))
        devices = (c_void_p * 1)()
        for platform in platforms[: count.value]:
            if not self.cl.clGetDeviceIDs(platform, ALL_DEVICES, 1, devices, None):
                break
        else:
            sys.exit("no OpenCL device")
        self.device, self._devices = devices[0], devices
        self.context = self.cl.clCreateContext(None, 1, devices, None, None, None)

    def text(self, call: str, *arguments: Any) -> str:
        size = c_size_t()
        getattr(self.cl, call)(*arguments, 0, None, byref(size))
        buffer = ctypes.create_string_buffer(size.value + 1)
        getattr(self.cl, call)(*arguments, size.value, buffer, None)
        return buffer.value.decode(errors="replace")

    def build(self, source: str, options: str, kernels: list[str]) -> dict[str, Any]:
        """The figures of a program's kernels that OpenCL has."""
        text = (c_char_p * 1)(source.encode())
        program = self.cl.clCreateProgramWithSource(self.context, 1, text, None, None)
        failed = self.cl.clBuildProgram(program, 1, self._devices, options.encode(), None, None)
        log = self.text("clGetProgramBuildInfo", program, self.device, BUILD_LOG)
        asked = {} if failed else {name: self._private_bytes(program, name) for name in kernels}
        missing = [name for name, size in asked.items() if size is None]
        error = log[:LETTERS] or f"error {failed}" if failed else ""
        if missing:
            error = f"no kernel {', '.join(missing)}"
        return {"error": error, "kernels": {k: {"private_bytes": v} for k, v in asked.items()}}

    def _private_bytes(self, program: Any, name: str) -> int | None:
        kernel = self.cl.clCreateKernel(program, name.encode(), None)
        if not kernel:
            return None
        size = c_uint64()
        self.cl.clGetKernelWorkGroupInfo(kernel, self.device, PRIVATE_BYTES, 8, byref(size), None)
        return size.value


class Attempt:
    """A program that a child builds."""

    def __init__(self, driver: Driver, program: dict[str, Any], seconds: int) -> None:
        self.program = program
        self._printed, self._result = _file(), _file()
        self.pid = os.fork()
        if self.pid:
            return
        os.dup2(self._printed.fileno(), 1)
        os.dup2(self._printed.fileno(), 2)
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
        signal.alarm(IDLE * seconds)
        code = 1
        try:
            result = driver.build(program["source"], program["options"], program["kernels"])
            os.pwrite(self._result.fileno(), json.dumps(result).encode(), 0)
            code = 0
        finally:
            ctypes.CDLL(None).fflush(None)
            os._exit(code)

    def result(self, status: int, family: str) -> dict[str, Any]:
        """Its figures or its error; `status` is the child's, of `os.waitpid`."""
        self._printed.seek(0)
        self._result.seek(0)
        printed, built = self._printed.read().decode(errors="replace"), self._result.read()
        result: dict[str, Any] = json.loads(built) if built else {"error": "", "kernels": {}}
        if status:
            ended = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
            hung = ended in (signal.SIGALRM, signal.SIGXCPU, signal.SIGKILL)
            last = " ".join(printed.split())[-LETTERS // 4 :]
            result["error"] = "the compiler hung" if hung else f"the compiler crashed: {last}"
        # Each kernel is compiled twice, first for any offset of work-items: the last is what runs.
        for name, figures in disassembly.READERS[family](printed):
            if name in result["kernels"]:
                kernel = result["kernels"][name]
                private = max(kernel["private_bytes"], figures["private_bytes"])
                kernel |= figures | {"private_bytes": private}
        return {"key": self.program["key"], **result}


def _file() -> Any:
    return tempfile.TemporaryFile()


def main(family: str, jobs: int, seconds: int) -> None:
    driver = Driver()
    version = driver.text("clGetDeviceInfo", driver.device, DRIVER_VERSION)
    print(json.dumps({"version": version}), flush=True)
    running: dict[int, Attempt] = {}

    def collect() -> None:
        pid, status = os.wait()
        print(json.dumps(running.pop(pid).result(status, family)), flush=True)

    for line in sys.stdin:
        attempt = Attempt(driver, json.loads(line), seconds)
        running[attempt.pid] = attempt
        if len(running) >= jobs:
            collect()
    while running:
        collect()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
