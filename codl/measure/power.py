"""The power of a SoC while nothing works, one processor alone, and both at once."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter, sleep

from codl.errors import DeviceError
from codl.records.soc import PowerW
from codl.runtime.detect import busy_net
from codl.runtime.drivers import cl_module
from codl.runtime.opencl import OpenClDevice
from codl.runtime.sensors import Sensor, SensorScan, metered

#: How often the kernel that keeps the device busy is enqueued before somebody waits for it.
AHEAD = 16


def measure_power(gpu: OpenClDevice, scan: SensorScan, seconds: float) -> PowerW:
    """Watts over `seconds` each, of all that the sensors cover.

    The CPU side convolves on all of its threads; the GPU side computes in registers. Raises
    `DeviceError` where there is no sensor.
    """
    sensors = scan.sensors
    if not sensors:
        refused = "".join(f" {name}: {reason}." for name, reason in scan.unreadable.items())
        raise DeviceError(
            "This machine has no energy sensor that can be read (RAPL, a battery, NVML)." + refused
        )
    net, busy = busy_net(gpu.soc), gpu.busy_kernel()

    def on_gpu() -> None:
        gpu.run([busy] * AHEAD)

    def on_both() -> None:
        gpu.submit([busy] * AHEAD)
        last = busy.enqueue(gpu.queue)
        gpu.queue.flush()
        while last.command_execution_status > cl_module().command_execution_status.COMPLETE:
            net.run()

    return PowerW(
        idle=_watts(lambda: sleep(0.1), sensors, seconds),
        cpu=_watts(net.run, sensors, seconds),
        gpu=_watts(on_gpu, sensors, seconds),
        both=_watts(on_both, sensors, seconds),
        sensors=tuple(sensor.name for sensor in sensors),
    )


def _watts(work: Callable[[], object], sensors: tuple[Sensor, ...], seconds: float) -> float:
    begin = perf_counter()
    with metered(sensors) as meter:
        while perf_counter() - begin < seconds:
            work()
    total = meter.total_joules
    if total is None:
        raise DeviceError(f"No sensor of {', '.join(s.name for s in sensors)} could be read.")
    return total / meter.seconds
