"""Checks of Python, of the agent, and of the packages that codl needs."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter

from codl.boundary import BASE, OPTIONAL, PACKAGES, PURPOSES, PYTHON
from codl.errors import CodlError
from codl.targets.base import Target
from codl.targets.checks import Check, Outcome, Patient
from codl.targets.install import termux_fix

#: What tells whether it can be imported itself, by opening the loader of OpenCL.
LOADER = "pyopencl"
WANTED = ".".join(map(str, PYTHON))


def python(patient: Patient) -> Iterator[Outcome]:
    found = patient.examination
    version, system = ".".join(map(str, found.python)), f"{found.system} {found.machine}"
    place = f"{system}, Termux" if found.is_termux else system
    yield Outcome(found.python >= PYTHON, f"{version} on {place}; codl needs {WANTED} or later")


def agent(patient: Patient) -> Iterator[Outcome]:
    """Start a process that answers: what codl measures and runs by."""
    begin = perf_counter()
    try:
        with patient.apart() as target:
            cpu = target.describe().cpu
    except CodlError as error:
        there = f"`codl agent install --serial {patient.serial}` puts it there."
        yield Outcome(False, str(error), fix="" if patient.is_here else there)
    else:
        yield Outcome(True, f"answers after {perf_counter() - begin:.1f} s: {cpu.name}")


def base(patient: Patient) -> Iterator[Outcome]:
    """Every package of the base is installed and can be imported."""
    with patient.apart() as target:
        for package in BASE.values():
            version, problem = _found(patient, target, package)
            fix = termux_fix(package) if patient.examination.is_termux else ""
            yield Outcome(not problem, problem or version, of=package, fix=fix)


def extras(patient: Patient) -> Iterator[Outcome]:
    """The extras, on the machine where plans are made; a device needs none."""
    if not patient.is_here:
        return
    with patient.apart() as target:
        for extra, packages in PACKAGES.items():
            found = {name: _found(patient, target, name) for name in packages.values()}
            problems = "; ".join(problem for _, problem in found.values() if problem)
            listed = ", ".join(f"{name} {version}" for name, (version, _) in found.items())
            purpose = f"for {PURPOSES[extra]}"
            if problems and extra in OPTIONAL:
                yield Outcome(True, f"{problems}; wanted only {purpose}", of=extra)
            else:
                detail = f"{problems or listed}; {purpose}"
                yield Outcome(not problems, detail, of=extra, fix=f"`pip install 'codl[{extra}]'`.")


def _found(patient: Patient, target: Target, package: str) -> tuple[str, str]:
    """The version of a package, and what is wrong with it, "" for nothing.

    An agent's file brings some that are not installed.
    """
    version = patient.examination.packages.get(package, "")
    if package == LOADER:
        return version, "" if version else f"{package} is not installed"
    try:
        target.import_package(package)
    except CodlError as error:
        problem = f"{package} {version}: {error}" if version else f"{package} is not installed"
        return version, problem
    return version or "comes with the agent", ""


CHECKS = (
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
)
