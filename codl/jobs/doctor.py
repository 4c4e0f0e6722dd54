"""Checks of `codl doctor`: requirements of codl on a device, and right results.

Plugins register checks by the same call as this module. Checks need only the base packages and the
command line.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from time import perf_counter

from codl.errors import BASE, OPTIONAL, PACKAGES, PURPOSES, PYTHON, CodlError
from codl.ir import to_text
from codl.ir.types import PROCESSORS, Processor
from codl.jobs.options import SILENT, Reporter
from codl.kernels import registry
from codl.machine.cache import LIMIT_BYTES
from codl.machine.driver_search import INSTALL_HINT
from codl.machine.examination import Governor
from codl.machine.placement import LocalSoc, ProbedDevice, ProbeResult, describe
from codl.measure.budget import Budget
from codl.measure.check_variants import IMPRECISE, CheckRun, CheckTask, VariantCheck, check_tasks
from codl.measure.cool_down import low_battery
from codl.measure.tuner import TOGETHER_BYTES
from codl.targets.base import Target
from codl.targets.checks import CHECKS, Check, CheckResult, DeviceUnderTest, Finding, register
from codl.targets.connect import connect, machine_of, prepare
from codl.targets.install import termux_fix
from codl.targets.kernel_runs import check_kernels

#: Package whose import loads the OpenCL loader; it has its own check.
LOADER = "pyopencl"
WANTED = ".".join(map(str, PYTHON))
#: Packages of the CPU's libraries.
LIBRARY_PACKAGES = {"ncnn": "ncnn", "ort": "onnxruntime", "openvino": "openvino"}


def python(under_test: DeviceUnderTest) -> Iterator[CheckResult]:
    machine = under_test.examination
    version, system = ".".join(map(str, machine.python)), f"{machine.system} {machine.machine}"
    place = f"{system}, Termux" if machine.is_termux else system
    yield CheckResult(
        machine.python >= PYTHON, f"{version} on {place}; codl needs {WANTED} or later"
    )


def agent(under_test: DeviceUnderTest) -> Iterator[CheckResult]:
    """Check that an agent starts and answers."""
    begin = perf_counter()
    try:
        under_test.prepare()
        with under_test.apart() as target:
            cpu = target.describe().cpu
    except CodlError as error:
        install = f"`codl agent install --serial {under_test.serial}` puts it there."
        yield CheckResult(False, str(error), fix="" if under_test.is_here else install)
    else:
        yield CheckResult(True, f"answers after {perf_counter() - begin:.1f} s: {cpu.name}")


def base(under_test: DeviceUnderTest) -> Iterator[CheckResult]:
    """Check that every package of the base can be imported."""
    with under_test.apart() as target:
        for package in sorted({*BASE.values()} - {LOADER}):
            version, problem = _state(under_test, target, package)
            fix = termux_fix(package) if under_test.examination.is_termux else ""
            yield CheckResult(not problem, problem or version, of=package, fix=fix)


def extras(under_test: DeviceUnderTest) -> Iterator[CheckResult]:
    """Check the extras on the machine that makes plans; a device needs none."""
    if not under_test.is_here:
        return
    with under_test.apart() as target:
        for extra, packages in PACKAGES.items():
            states = {name: _state(under_test, target, name) for name in packages.values()}
            problems = "; ".join(problem for _, problem in states.values() if problem)
            listed = ", ".join(f"{name} {version}" for name, (version, _) in states.items())
            purpose = f"for {PURPOSES[extra]}"
            if problems and extra in OPTIONAL:
                yield CheckResult(True, f"{problems}; wanted only {purpose}", of=extra)
            else:
                detail = f"{problems or listed}; {purpose}"
                yield CheckResult(
                    not problems, detail, of=extra, fix=f"`pip install 'codl[{extra}]'`."
                )


def _state(under_test: DeviceUnderTest, target: Target, package: str) -> tuple[str, str]:
    """Version of a package, and its problem or ""; an agent's archive includes some packages."""
    version = under_test.examination.packages.get(package, "")
    if package == LOADER:
        return version, "" if version else f"{package} is not installed"
    try:
        target.import_package(package)
    except CodlError as error:
        problem = f"{package} {version}: {error}" if version else f"{package} is not installed"
        return version, problem
    return version or "comes with the agent", ""


TERMUX_LOADER = "`pip uninstall pyopencl`: codl loads drivers by ctypes where it is not there."
WORKING = "codl uses the drivers that work."
ANDROID_DRIVER = (
    "The phone's maker ships no OpenCL, or lets no other program have it: see "
    "docs/tutorial/phone.md. From `adb shell` more drivers work than in Termux."
)


def loader(under_test: DeviceUnderTest) -> Iterator[CheckResult]:
    version = under_test.examination.packages.get(LOADER, "")
    if not version:
        yield CheckResult(True, f"{LOADER} is not installed; codl loads drivers by ctypes instead")
        return
    try:
        with under_test.apart() as target:
            target.import_package(LOADER)
    except Exception as error:
        fix = TERMUX_LOADER if under_test.examination.is_termux else ""
        yield CheckResult(False, str(error), fix=fix)
    else:
        yield CheckResult(True, f"loaded by {LOADER} {version}")


def drivers(under_test: DeviceUnderTest) -> Iterator[CheckResult]:
    """Check each driver; a guessed one may fail if another works."""
    seen = under_test.examination
    fix = ANDROID_DRIVER if seen.is_android else INSTALL_HINT
    if not under_test.drivers:
        yield CheckResult(False, f"none was found. {'; '.join(seen.driver_places)}", fix=fix)
    for result in under_test.drivers:
        names = ", ".join(device.name for device in result.devices)
        if result.error and result.is_guess and under_test.devices:
            yield CheckResult(True, f"{result.error} Another driver works.", of=result.icd)
        elif result.error:
            is_makers = result.is_guess and seen.is_android
            again = fix if is_makers else f"{WORKING} {_removal(result)}"
            yield CheckResult(False, result.error, of=result.icd, fix=again)
        elif result.devices:
            yield CheckResult(True, f"answers with {names}", of=result.icd)
        elif under_test.devices:
            yield CheckResult(True, "has no device here; another driver has", of=result.icd)
        else:
            yield CheckResult(False, "loads, and has no device", of=result.icd, fix=fix)


def _removal(result: ProbeResult) -> str:
    is_named = result.file.endswith(".icd")
    return f"Install this one again, or remove {result.file if is_named else 'its package'}."


def devices(under_test: DeviceUnderTest) -> Iterator[CheckResult]:
    """List the devices, on each of which probing ran a kernel."""
    for device in under_test.devices:
        yield CheckResult(True, f"built and ran a kernel: {_described(device)}", of=title(device))


def title(device: ProbedDevice) -> str:
    """A device with its driver, as the name of a finding."""
    return f"{device.name} ({device.icd})"


def _described(device: ProbedDevice) -> str:
    facts = (
        device.version,
        f"driver {device.driver}",
        f"{device.compute_units} compute units",
        f"work-groups of up to {device.max_work_group_size}",
        f"vectors of {device.vector_width} floats",
        " and ".join(device.memory_types),
    )
    return ", ".join(facts)


#: Most failed ops to name per variant.
NAMED = 2


def kernels(under_test: DeviceUnderTest) -> Iterator[CheckResult]:
    """Check the kernels of each device, and on the first one also the CPU's variants."""
    processors: Sequence[Processor] = PROCESSORS
    devices, limit = under_test.devices, Budget(under_test.budget_s)
    for at, device in enumerate(devices):
        share = replace(under_test, budget_s=limit.share(len(devices) - at).limit_s)
        yield from _on(share, device, processors)
        processors = ("gpu",)


def _on(
    under_test: DeviceUnderTest, device: ProbedDevice, processors: Sequence[Processor]
) -> Iterator[CheckResult]:
    try:
        soc = describe("doctor", device, cpu=under_test.target.describe().cpu)
        tasks = check_tasks(soc, processors)
        run = _checked(under_test, soc, tasks, f"Kernels on {device.name}")
    except Exception as error:  # other devices go on
        yield CheckResult(False, str(error), of=f"on {title(device)}")
        return
    problems = run.problems()
    yield CheckResult(
        not problems, _summary(run, tasks), of=f"on {title(device)}", fix="See below."
    )
    for name, failed in problems.items():
        yield _failure(name, failed, problems, soc, device)


def _checked(
    under_test: DeviceUnderTest, soc: LocalSoc, tasks: Sequence[CheckTask], label: str
) -> CheckRun:
    """Check tasks through an agent, as a driver may crash; only the crashing task is lost."""
    with (
        closing(connect(under_test.serial, soc)) as target,
        closing(target.fresh()) as fresh,
        under_test.progress(label) as progress,
    ):
        return check_kernels(fresh, tasks, budget_s=under_test.budget_s, progress=progress)


def _summary(run: CheckRun, tasks: Sequence[CheckTask]) -> str:
    names = {checked.task.name for checked in run.checked}
    right = len(names) - len(run.problems())
    text = f"{right} of {len(names)} variants compute what NumPy does, in {len(run.checked)} runs"
    if not run.left:
        return text
    unmet = len({task.name for task in tasks} - names)
    return f"{text}; no time was left for {run.left} runs, and {unmet} variants had none"


def _failure(
    name: str,
    failed: Sequence[VariantCheck],
    problems: Mapping[str, object],
    soc: LocalSoc,
    device: ProbedDevice,
) -> CheckResult:
    some = [
        f"{to_text(checked.task.op)}: {checked.problem.rstrip('.')}" for checked in failed[:NAMED]
    ]
    more = f"; and {len(failed) - NAMED} more" if len(failed) > NAMED else ""
    consequence, fix = _consequence(failed, problems, soc)
    detail = f"driver {device.driver}: {'; '.join(some)}{more}. {consequence}"
    return CheckResult(False, detail, of=f"{name} on {title(device)}", fix=fix)


def _consequence(
    failed: Sequence[VariantCheck], problems: Collection[str], soc: LocalSoc
) -> tuple[str, str]:
    """The effect of a failing variant on codl, and the remedy."""
    update = "Update the driver, or choose another by `codl soc detect --opencl-device`"
    task = failed[0].task
    if task.variant.processor == "cpu":
        package = LIBRARY_PACKAGES.get(task.variant.backend, "codl")
        fix = f"`pip install --force-reinstall {package}`."
        return "Nothing stands in for it where a plan names it.", fix
    if all(checked.problem.startswith(IMPRECISE) for checked in failed):
        return "codl runs it all the same.", f"{update}, or make plans without {task.name}."
    other = stand_in(task, problems, soc)
    if not other:
        return "No other variant on the GPU takes this op.", f"{update}, or plan it on the CPU."
    if any(checked.is_wrong for checked in failed):
        detail = f"From now on {other} stands in for it on this driver, where a plan names it."
        return detail, f"{update}; make bundles again that were made before."
    if any(checked.is_lost for checked in failed):
        detail = "Where the driver dies of compiling it, codl gives it up after the second time, "
        return f"{detail}and {other} stands in.", f"{update}."
    return f"Where a plan names it, {other} stands in.", f"Nothing must be done. {update}."


def stand_in(task: CheckTask, problems: Collection[str], soc: LocalSoc) -> str:
    """The variant that replaces a failing one; "" without any."""
    variants = registry.variants(task.op, task.variant.processor, soc)
    names = (v.name for v in variants if f"{v.op_kind} {v.name}" not in problems)
    return next((name for name in names if name != task.variant.name), "")


#: Drivers that change clocks also under the governor powersave, which elsewhere is the lowest one.
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
    space = under_test.examination.cache
    if space.problem:
        yield CheckResult(False, f"{space.folder}, for compiled kernels: {space.problem}")
        return
    detail = f"{_size(space.free_bytes)} are free in {space.folder}, for compiled kernels"
    is_enough = space.free_bytes >= LIMIT_BYTES
    yield CheckResult(is_enough, f"{detail}, which take up to {_size(LIMIT_BYTES)}")


def temperature(under_test: DeviceUnderTest) -> Iterator[CheckResult]:
    """Check whether heat reduces a clock."""
    now = under_test.examination.conditions
    celsius = now.temperature_c
    detail = "the system tells no temperature" if celsius is None else f"{celsius:.0f} °C"
    if now.throttled:
        detail = f"heat holds the clock of the {' and the '.join(now.throttled)} down ({detail})"
    yield CheckResult(not now.throttled, detail)


def battery(under_test: DeviceUnderTest) -> Iterator[CheckResult]:
    """Check the battery of a device that has one."""
    now = under_test.examination.conditions
    if now.battery_percent is not None:
        problem = low_battery(now)
        yield CheckResult(not problem, problem or f"{now.battery_percent:.0f} %")


def _listed(cores: Iterable[int]) -> str:
    return ", ".join(map(str, cores))


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


#: Seconds for checking the kernels of all OpenCL devices.
BUDGET_S = 300.0


def examine(
    serial: str = "local",
    *,
    quick: bool = False,
    budget_s: float = BUDGET_S,
    install: bool = True,
    reporter: Reporter = SILENT,
) -> Iterator[Finding]:
    """Yield each finding about a device as it is made; `quick` skips the long checks.

    `budget_s` limits the kernel checks of all OpenCL devices. A device gets this codl's agent,
    unless `install` is off.
    Raises `UnknownNameError` for an unknown serial, and `UnsupportedError` for one of no machine.
    """
    transport = machine_of(serial, "be examined")
    with closing(connect(serial)) as target:
        under_test = DeviceUnderTest(
            serial,
            target,
            is_here=transport.shell is None,
            in_process=serial == "local",
            budget_s=budget_s,
            progress=reporter.progress,
            prepare=partial(prepare, serial, install=install, tell=reporter.tell),
        )
        yield from made(transport.checks(serial), under_test)
        checks = [check for check in CHECKS.values() if not (quick and check.is_long)]
        yield from made(checks, under_test)


def made(checks: Sequence[Check], under_test: DeviceUnderTest) -> Iterator[Finding]:
    """Findings of checks; skips checks whose requirement the device does not meet."""
    for check in checks:
        if not under_test.gives(check.needs):
            continue
        findings = check.findings(under_test)
        if check.decides:
            under_test.answers = under_test.answers and all(finding.ok for finding in findings)
        yield from findings


register(
    Check(
        "agent",
        agent,
        "Install codl and what it needs again: `pip install codl`.",
        "system",
        decides=True,
    ),
    Check("python", python, f"Install Python {WANTED} or later.", "system"),
    Check("package", base, "`pip install --force-reinstall codl`."),
    Check("extra", extras, "`pip install 'codl[all]'`."),
    Check(
        "cores",
        cores,
        "Let this process use its cores: look at `taskset -p $$`, cpusets and containers' limits.",
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
    Check("battery", battery, "Plug the device in.", "system"),
    Check("temperature", temperature, "Let the device cool down, and look again.", "system"),
    Check("opencl loader", loader, f"`pip install --force-reinstall {LOADER}`."),
    Check(
        "opencl driver",
        drivers,
        f"{WORKING} Install this one again, or remove its ICD file or its package.",
    ),
    Check("opencl device", devices, ""),
    Check(
        "kernels",
        kernels,
        "Look at the other failed checks first; then update the driver.",
        is_long=True,
    ),
)
