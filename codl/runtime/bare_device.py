"""An OpenCL device by itself, with no SoC around it: to probe it and to measure what it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from codl.errors import UnknownNameError
from codl.runtime import drivers
from codl.runtime.cl_import import build_program, cl_module, make_kernel

if TYPE_CHECKING:
    import pyopencl as cl


def platforms_of(driver: str) -> list[cl.Platform]:
    """The platforms of a driver, which is loaded; no other can be afterwards, in this process.

    A driver may take the process down. Raises `DeviceError` where there is no such driver.
    """
    with drivers.loaded([drivers.find_driver(driver)], cores=()):
        platforms = cl_module().get_platforms()
    return [p for p in platforms if _is_meant(p.name.strip(), driver)]


def _is_meant(platform: str, driver: str) -> bool:
    """Whether a platform belongs to the driver that was asked for.

    pyopencl adds an installed Oclgrind to whatever else is loaded; a simulator is no device.
    """
    return platform != "Oclgrind" or "oclgrind" in driver


class BareDevice:
    """A device with a context, and a queue whose events tell when they ran."""

    def __init__(self, device: cl.Device) -> None:
        cl = cl_module()
        self.device = device
        self.context = cl.Context([device])
        profiling = cl.command_queue_properties.PROFILING_ENABLE
        self.queue = cl.CommandQueue(self.context, properties=profiling)

    @classmethod
    def open(cls, driver: str, name: str) -> BareDevice:
        """A device of a driver by its name; raises `UnknownNameError` where there is none."""
        found = [d for platform in platforms_of(driver) for d in platform.get_devices()]
        for device in found:
            if device.name.strip() == name:
                return cls(device)
        raise UnknownNameError("OpenCL device", name, [d.name.strip() for d in found])

    @property
    def is_cpu(self) -> bool:
        return bool(self.device.type & cl_module().device_type.CPU)

    def kernel(self, source: str, name: str, options: tuple[str, ...] = ()) -> Any:
        """A kernel of a source text."""
        program = cl_module().Program(self.context, source)
        build_program(program, options)
        return make_kernel(program, name)

    def run(self, kernel: Any, items: int, group: int | None = None) -> float:
        """Run a kernel whose arguments are set, and wait; milliseconds by the device's clock."""
        cl = cl_module()
        local = None if group is None else (group,)
        event = cl.enqueue_nd_range_kernel(self.queue, kernel, (items,), local)
        event.wait()
        return 1e-6 * float(event.profile.end - event.profile.start)
