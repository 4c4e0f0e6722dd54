"""Checks of the machine: cores, clocks, memory, room on disks, temperatures, and a steady pace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from codl.measure import dataset
from codl.measure.cool_down import held, tolerance
from codl.measure.tuner import TOGETHER_BYTES
from codl.runtime.cache import LIMIT_BYTES
from codl.runtime.examination import WAIT_POLICY, Governor, Room, room
from codl.targets.checks import Check, CheckResult, DeviceUnderTest

#: Bytes of a full dataset, several times over.
DATASET_BYTES = 64 << 20
#: Seconds that one core is kept busy.
PACE_S = 2.0
#: Battery level below which phones slow down.
LEAST_PERCENT = 20.0
#: Drivers that change clocks under the governor powersave, too; with others it is the lowest clock.
SELF_GOVERNED = ("intel_pstate", "amd-pstate-epp", "amd_pstate_epp")


def cores(under_test: DeviceUnderTest) -> Iterator[CheckResult]:
    machine = under_test.examination
    listed = f"{_listed(machine.cores)} may be used"
    if machine.physical_cores != machine.cores:
        listed += f", of which {_listed(machine.physical_cores)} share no physical core"
    if machine.confinement:
        yield CheckResult(False, machine.confinement, fix=machine.release)
    if machine.quota:
        fix = "Give the container the time of all its cores (docker run --cpus), or fewer cores."
        yield CheckResult(False, machine.quota, fix=fix)
    if machine.refused_cores:
        yield CheckResult(
            False, f"{listed}; threads cannot be pinned to {_listed(machine.refused_cores)}"
        )
    elif not (machine.confinement or machine.quota):
        yield CheckResult(True, f"{listed}; threads can be pinned to each")


def waiting(under_test: DeviceUnderTest) -> Iterator[CheckResult]:
    """Check that ncnn's threads spin before they sleep: layers are short."""
    policy = under_test.examination.wait_policy
    if policy == "passive":
        detail = f"{WAIT_POLICY} is passive: after every layer they sleep, and have to be woken"
        yield CheckResult(False, detail)
    else:
        yield CheckResult(True, f"{WAIT_POLICY} is {policy}" if policy else "as OpenMP has it")


def governors(under_test: DeviceUnderTest) -> Iterator[CheckResult]:
    for governor in under_test.examination.governors:
        detail, problem = f"{governor.name} ({governor.driver})", _slowness(governor)
        detail += f", up to {governor.allowed_mhz:.0f} MHz" if governor.allowed_mhz else ""
        of = f"of cores {_listed(governor.cores)}"
        yield CheckResult(not problem, f"{detail}{problem and f': {problem}'}", of=of)
    if not under_test.examination.governors:
        yield CheckResult(True, "the system does not tell how it chooses clocks")


def _slowness(governor: Governor) -> str:
    if governor.name == "powersave" and governor.driver not in SELF_GOVERNED:
        return "it keeps the lowest clock"
    if governor.allowed_mhz < governor.highest_mhz:
        return f"the cores could reach {governor.highest_mhz:.0f} MHz"
    return ""


def memory(under_test: DeviceUnderTest) -> Iterator[CheckResult]:
    free, total = under_test.examination.available_bytes, under_test.examination.memory_bytes
    if not total:
        yield CheckResult(True, "the system does not tell")
        return
    detail = f"{_size(free)} of {_size(total)} are available; tuning holds up to "
    yield CheckResult(free >= TOGETHER_BYTES, f"{detail}{_size(TOGETHER_BYTES)} at once")


def cache_room(under_test: DeviceUnderTest) -> Iterator[CheckResult]:
    yield _room(under_test.examination.cache, LIMIT_BYTES, "compiled kernels")


def dataset_room(under_test: DeviceUnderTest) -> Iterator[CheckResult]:
    """Datasets are written on this machine, whatever device they are of."""
    yield _room(room(Path.cwd() / dataset.FOLDER), DATASET_BYTES, "datasets")


def _room(space: Room, wanted: int, purpose: str) -> CheckResult:
    if space.problem:
        return CheckResult(False, f"{space.folder}, for {purpose}: {space.problem}")
    detail = f"{_size(space.free_bytes)} are free in {space.folder}, for {purpose}"
    return CheckResult(space.free_bytes >= wanted, f"{detail}, which take up to {_size(wanted)}")


def temperature(under_test: DeviceUnderTest) -> Iterator[CheckResult]:
    """Check whether heat lowers a clock, or is about to."""
    zones, held = under_test.examination.zones, under_test.examination.conditions.throttled
    if held:
        yield CheckResult(False, f"heat holds the clock of the {' and the '.join(held)} down")
    elif not zones:
        yield CheckResult(True, "the system tells no temperature")
    hot = [zone for zone in zones if zone.slows_at is not None and zone.celsius >= zone.slows_at]
    for zone in hot:
        detail = f"{zone.celsius:.0f} °C; from {zone.slows_at:.0f} °C on the system slows down"
        yield CheckResult(False, detail, of=zone.name)
    if zones and not hot and not held:
        highest = max(zones, key=lambda zone: zone.celsius)
        limits = sum(zone.slows_at is not None for zone in zones)
        detail = (
            f"at most {highest.celsius:.0f} °C ({highest.name}); {limits} of {len(zones)} zones"
        )
        yield CheckResult(True, f"{detail} have a limit, none has reached it")


def battery(under_test: DeviceUnderTest) -> Iterator[CheckResult]:
    """Check the battery of a device that has one."""
    now = under_test.examination.conditions
    if now.battery_percent is None:
        return
    state = "charging" if now.is_charging else "not charging"
    is_enough = now.battery_percent >= LEAST_PERCENT or bool(now.is_charging)
    yield CheckResult(is_enough, f"{now.battery_percent:.0f} %, {state}")


def _listed(cores: Iterable[int]) -> str:
    return ", ".join(map(str, cores))


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


def pace(under_test: DeviceUnderTest) -> Iterator[CheckResult]:
    with under_test.apart() as target:
        samples = target.pace(PACE_S)
    ratio, limit = held(samples), tolerance(samples)
    detail = f"at the end of {PACE_S:g} s one core works at {ratio:.2f} of its pace at the start"
    yield CheckResult(ratio >= 1 - limit, f"{detail}; {1 - limit:.2f} or more is steady")


CHECKS = (
    Check(
        "cores",
        cores,
        "Let this process use its cores: look at `taskset -p $$`, cpusets and containers' limits.",
        "system",
    ),
    Check(
        "waiting threads",
        waiting,
        f"Unset {WAIT_POLICY}, unless other programs need the same cores.",
        "system",
    ),
    Check(
        "governor",
        governors,
        "As root, write `performance` to scaling_governor and cpuinfo_max_freq's value to "
        "scaling_max_freq, in /sys/devices/system/cpu/cpu*/cpufreq.",
        "system",
    ),
    Check("memory", memory, "Close other programs.", "system"),
    Check(
        "space for kernels",
        cache_room,
        "Make room there, or name another folder by the variable CODL_CACHE.",
        "system",
    ),
    Check("space for datasets", dataset_room, "Make room there, or collect with -o.", "nothing"),
    Check("battery", battery, "Plug the device in.", "system"),
    Check("temperature", temperature, "Let the device cool down, and look again.", "system"),
    Check(
        "pace",
        pace,
        "Let the device cool down, end what else runs, and keep it plugged in; then look again.",
    ),
)
