"""Every OpenCL device of this machine, with their drivers loaded into the tests' process.

Imported only once a test asks for a device.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from codl.machine import threads
from codl.machine.driver_search import find_driver
from codl.machine.placement import LocalSoc, ProbedDevice, describe
from codl.runtime import drivers
from codl.runtime.drivers import cl_module
from codl.runtime.opencl import OpenClDevice
from codl.targets.local import LocalTarget


@cache
def probed() -> tuple[ProbedDevice, ...]:
    """The devices whose drivers survive a child process; the first is what codl would choose."""
    return tuple(device for result in LocalTarget().probe() for device in result.devices)


@cache
def opened() -> tuple[ProbedDevice, ...]:
    """The same, with all of their drivers loaded: OpenCL's loader looks only once in a process."""
    devices = probed()
    if devices:
        wanted = [find_driver(name) for name in dict.fromkeys(d.icd for d in devices)]
        soc = describe("test", devices[0])
        cores = soc.placement.gpu_cores
        with drivers.loaded(wanted, cores=cores), threads.pinned(cores):
            cl_module().get_platforms()
    return devices


@cache
def here(soc: LocalSoc) -> LocalTarget:
    """This process as the target of a SoC: all tests of it share one device."""
    return LocalTarget(soc)


def taken_for_gpu(soc: LocalSoc) -> OpenClDevice:
    """A device as if it were a real GPU: vectors of four, and work-groups that share memory."""
    like = replace(soc.gpu, type="gpu", vector_width=4, compute_units=16, local_mem_bytes=48 << 10)
    return here(replace(soc, gpu=like)).device
