"""Checks every kernel variant against the NumPy interpreter, on every driver."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing

from codl.doctor.driver_checks import title
from codl.ir import to_text
from codl.ir.types import PROCESSORS, Processor
from codl.kernels import registry
from codl.measure.check_variants import IMPRECISE, Checked, CheckRun, CheckTask, check_tasks
from codl.runtime.detect import describe
from codl.runtime.placement import LocalSoc
from codl.runtime.probe import ProbedDevice
from codl.targets.checks import Check, Outcome, Patient
from codl.targets.connect import connect

#: Of ops on which a variant failed, so many are named.
NAMED = 2


def kernels(patient: Patient) -> Iterator[Outcome]:
    """On each device its kernels; on the first one the CPU's variants too."""
    processors: Sequence[Processor] = PROCESSORS
    for device in patient.devices:
        yield from _on(patient, device, processors)
        processors = ("gpu",)


def _on(
    patient: Patient, device: ProbedDevice, processors: Sequence[Processor]
) -> Iterator[Outcome]:
    try:
        soc = describe("doctor", device, cpu=patient.target.describe().cpu)
        tasks = check_tasks(soc, processors)
        run = _checked(patient, soc, tasks, f"Kernels on {device.name}")
    except Exception as error:  # other devices go on
        yield Outcome(False, str(error), of=f"on {title(device)}")
        return
    problems = run.problems()
    yield Outcome(not problems, _summary(run, tasks), of=f"on {title(device)}", fix="See below.")
    for name, failed in problems.items():
        yield _failure(name, failed, problems, soc, device)


def _checked(patient: Patient, soc: LocalSoc, tasks: Sequence[CheckTask], label: str) -> CheckRun:
    """Behind an agent, on this machine too: a driver that crashes costs the task that did it."""
    with (
        closing(connect(patient.serial, soc)) as target,
        closing(target.fresh()) as fresh,
        patient.progress(label) as progress,
    ):
        return fresh.check_kernels(tasks, budget_s=patient.budget_s, progress=progress)


def _summary(run: CheckRun, tasks: Sequence[CheckTask]) -> str:
    names = {one.task.name for one in run.checked}
    right = len(names) - len(run.problems())
    text = f"{right} of {len(names)} variants compute what NumPy does, in {len(run.checked)} runs"
    if not run.left:
        return text
    unmet = len({task.name for task in tasks} - names)
    return f"{text}; no time was left for {run.left} runs, and {unmet} variants had none"


def _failure(
    name: str,
    failed: Sequence[Checked],
    problems: Mapping[str, object],
    soc: LocalSoc,
    device: ProbedDevice,
) -> Outcome:
    some = [f"{to_text(one.task.op)}: {one.problem.rstrip('.')}" for one in failed[:NAMED]]
    more = f"; and {len(failed) - NAMED} more" if len(failed) > NAMED else ""
    consequence, fix = _consequence(failed, problems, soc)
    detail = f"driver {device.driver}: {'; '.join(some)}{more}. {consequence}"
    return Outcome(False, detail, of=f"{name} on {title(device)}", fix=fix)


def _consequence(
    failed: Sequence[Checked], problems: Collection[str], soc: LocalSoc
) -> tuple[str, str]:
    """What codl does about a variant that fails, and what is left to do."""
    update = "Update the driver, or choose another by `codl soc detect --device`"
    task = failed[0].task
    if task.variant.processor == "cpu":
        package = {"ncnn": "ncnn", "ort": "onnxruntime"}.get(task.variant.backend, "codl")
        fix = f"`pip install --force-reinstall {package}`."
        return "Nothing stands in for it where a plan names it.", fix
    if all(one.problem.startswith(IMPRECISE) for one in failed):
        return "codl runs it all the same.", f"{update}, or make plans without {task.name}."
    other = stand_in(task, problems, soc)
    if not other:
        return "No other variant on the GPU takes this op.", f"{update}, or plan it on the CPU."
    if any(one.is_wrong for one in failed):
        detail = f"From now on {other} stands in for it on this driver, where a plan names it."
        return detail, f"{update}; make bundles again that were made before."
    if any(one.is_lost for one in failed):
        detail = "Where the driver dies of compiling it, codl gives it up after the second time, "
        return f"{detail}and {other} stands in.", f"{update}."
    return f"Where a plan names it, {other} stands in.", f"Nothing must be done. {update}."


def stand_in(task: CheckTask, problems: Collection[str], soc: LocalSoc) -> str:
    """The variant that codl runs in the place of one that fails; "" where there is none."""
    own = registry.variants(task.op, task.variant.processor, soc)
    names = (v.name for v in own if f"{v.op_kind} {v.name}" not in problems)
    return next((name for name in names if name != task.variant.name), "")


CHECKS = (
    Check(
        "kernels",
        kernels,
        "Look at the other failed checks first; then update the driver.",
        is_long=True,
    ),
)
