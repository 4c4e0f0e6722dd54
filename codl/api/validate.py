"""Whether a plan computes what it should: its inputs, the check, and what mends it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from codl.api.job import Job, digests_of, read_inputs, recorded
from codl.api.reporter import Reporter
from codl.boundary import explained
from codl.errors import CodlError
from codl.evaluation.closeness import Agreement, agreement, read_labels
from codl.frontend.models.deployment import SUFFIXES, Deployment, Preprocessing
from codl.ir import Network
from codl.ir.plan import OpFallback, Plan
from codl.ir.types import PROCESSORS, Processor
from codl.lower import lower
from codl.measure import SEED
from codl.measure.budget import Budget
from codl.measure.inputs import random_inputs
from codl.plan.build_plan import preferring
from codl.plan.price import price
from codl.records import soc as socs
from codl.strategies import Context
from codl.validate.references import InputSamples, ModelAndSource, Reader, Values
from codl.validate.remedy import Remedy, find_remedy
from codl.validate.validation import ModelUnderTest, Validation, to_precision, validate

NPZ = ".npz"


@dataclass(frozen=True, kw_only=True)
class Checking:
    """How a plan is checked: on which inputs, how near it must be, and what is looked for.

    `inputs` and `labels` are files as those of `codl validate`, random inputs are drawn from the
    `seed`. With a `precision` every kernel is taken at that. Where the plan is wrong, `remedies`
    are looked for. Without a budget everything is checked.
    """

    inputs: Path | None = None
    labels: Path | None = None
    seed: int = SEED
    cosine: float | None = None
    precision: str | None = None
    remedies: bool = True
    budget: Budget | None = None


@dataclass(frozen=True)
class CheckedPlan:
    """A plan that was checked, as it is `written` in its kernels' precisions, and its remedy.

    `kept` is the plan to run from now on, with its fallbacks; `origin` is where and how it was
    checked, as results have it.
    """

    bench: ModelUnderTest
    validation: Validation
    remedy: Remedy | None
    written: Network
    kept: Plan
    origin: Mapping[str, Any]

    def agreement(self, labels: Sequence[int] | None) -> Agreement:
        """How often classes are the reference's, of the model's first output."""
        name = next(iter(self.bench.network.outputs))
        got = [output[name] for output in self.validation.whole.outputs]
        right = [self.bench.expected(number)[name] for number in range(len(got))]
        return agreement(got, right, None if labels is None else labels[: len(got)])


def check_model(job: Job, how: Checking) -> tuple[dict[str, Any], CheckedPlan]:
    """Check the plan of a job, op by op and whole: what `codl validate --json` holds, and all else.

    Raises `CodlError` where the model, the plan, its inputs or the device is none.
    """
    job.check()
    loaded = ModelAndSource.load(job.model, job.batch, job.shapes)
    files = files_of(how.inputs, job.reporter)
    labels = None if how.labels is None else read_labels(how.labels, [file.name for file in files])
    samples = samples_of(loaded, files, job.deployment, how.seed, job.reporter)
    done = check_plan(job, loaded, samples, how)
    result = {
        "serial": job.serial,
        "soc": job.described.name,
        "batch": job.batch,
        "input": None if how.inputs is None else str(how.inputs),
        "seed": None if how.inputs is not None else how.seed,
        **result_of(done.validation, done.remedy),
        "lowest": lowest_sample(done.validation, files),
        "agreement": None if len(files) < 2 else asdict(done.agreement(labels)),
        **done.origin,
    }
    return result, done


def check_plan(
    job: Job, loaded: ModelAndSource, samples: InputSamples, how: Checking
) -> CheckedPlan:
    """Check the plan of a job on a model that is loaded; where it is wrong, look for remedies."""
    time, network, reporter = how.budget or Budget(), loaded.network, job.reporter
    with job.connected() as context:
        chosen = _plan(job, network, context)
        if how.precision is not None:
            chosen = to_precision(network, chosen, job.described, how.precision)
        bench = ModelUnderTest(loaded, context.device, context.tuning, samples)
        with reporter.progress(f"Ops of {network.name}") as update:
            found = validate(bench, chosen, cosine=how.cosine, progress=update, budget=time)
        if found.doubt:
            reporter.warn(f"{found.doubt}. The reference is {found.reference}.")
        remedy = None
        if found.is_wrong and how.remedies:
            reporter.note(found.diagnosis)
            reporter.stage("Looking for the smallest change with which it is right")
            remedy = find_remedy(bench, found, budget=how.budget)
            remedy = replace(remedy, plan=_priced(remedy.plan, chosen, network, context))
        of = digests_of(context, network, plans={network.name: chosen})
        protocol = {"cosine": found.cosine, "precision": how.precision, "seed": how.seed}
        origin = recorded(context.device, of, **protocol)
    kept = replace(remedy.plan if remedy else chosen, origin=context.origin())
    return CheckedPlan(bench, found, remedy, network, kept, origin)


def result_of(validation: Validation, remedy: Remedy | None) -> dict[str, Any]:
    bad = validation.first_bad
    return {
        "model": validation.plan.model,
        "strategy": validation.plan.strategy,
        "ok": validation.ok,
        "diagnosis": validation.diagnosis,
        "left": {
            "ops": [check.part.label for check in validation.ops.checks if not check.is_reached],
            "samples": validation.samples_left,
        },
        "first_bad": None if bad is None else bad.part.layer.name,
        "fallback": [] if remedy is None else [asdict(fallback) for fallback in remedy.fallbacks],
        "remedy": None if remedy is None else _remedy(remedy),
        "reference": validation.reference,
        "doubt": validation.doubt,
        "references": None if validation.references is None else asdict(validation.references),
        "outputs": asdict(validation.whole.worst),
        "cosine": validation.whole.worst.cosine,
        "max_rel_err": validation.whole.worst.max_rel_err,
        "accumulated_lost": validation.ops.lost,
        "fallbacks": [asdict(refused) for refused in validation.whole.refused],
        "placement": [asdict(op) for op in validation.placed],
        "ops": validation.rows(),
    }


def _remedy(remedy: Remedy) -> dict[str, Any]:
    """How right the plan is with its fallbacks."""
    return {
        "ok": remedy.ok,
        "outputs": None if remedy.whole is None else asdict(remedy.whole),
        "unmet": [check.part.layer.name for check in remedy.unmet],
        "plans_tried": remedy.tried,
        "predicted_ms": remedy.plan.predicted_ms,
    }


def files_of(path: Path | None, reporter: Reporter) -> list[Path]:
    """The files of inputs: those of a folder by name, the one that is given, or none.

    Raises `CodlError` for a folder without any, and for one that holds arrays and images.
    """
    if path is None or not path.is_dir():
        return [] if path is None else [path]
    kinds = {NPZ: [NPZ], "image": list(SUFFIXES)}
    files = sorted(file for file in path.iterdir() if file.is_file())
    by_kind = {
        name: [file for file in files if file.suffix.lower() in kind]
        for name, kind in kinds.items()
    }
    arrays, images = by_kind.values()
    if not (arrays or images):
        raise CodlError(
            f"--inputs names the folder {path}, in which there is no {NPZ} file and no image "
            f"({', '.join(SUFFIXES)})."
        )
    if arrays and images:
        raise CodlError(
            f"--inputs names the folder {path}, in which there are {len(arrays)} {NPZ} files and "
            f"{len(images)} images: keep them in folders of their own."
        )
    if left := len(files) - len(arrays) - len(images):
        reporter.note(f"{left} other files in {path} are left out.")
    return arrays or images


def samples_of(
    model: ModelAndSource,
    files: Sequence[Path],
    deployed: Deployment | None,
    seed: int,
    reporter: Reporter,
) -> InputSamples:
    """Inputs from files; without any those that a deployment names, or random ones.

    Each file is read once now, so that a broken one ends nothing that has taken hours.
    """
    network = model.network
    readers = _readers(network, files, deployed, seed, reporter)
    samples = InputSamples([partial(_shaped, model, reader) for reader in readers])
    for sample in samples:
        assert sample
    return samples


def _shaped(model: ModelAndSource, reader: Reader) -> Values:
    return model.shaped(reader())


def _readers(
    network: Network,
    files: Sequence[Path],
    deployed: Deployment | None,
    seed: int,
    reporter: Reporter,
) -> list[Reader]:
    if files and files[0].suffix.lower() in SUFFIXES:
        return _image_readers(network, files, deployed, reporter)

    def usual(network: Network) -> Mapping[str, NDArray[Any]]:
        return random_inputs(network, seed)

    wanted: list[Path | None] = [*files] or [None]
    return [partial(read_inputs, network, file, deployed, usual) for file in wanted]


@explained()
def _image_readers(
    network: Network, files: Sequence[Path], deployed: Deployment | None, reporter: Reporter
) -> list[Reader]:
    from codl.measure.images import ImageReader

    how = deployed.preprocessing if deployed else None
    if how is None:
        how = Preprocessing()
        reporter.note(
            "No deployment file says how images are preprocessed: they are stretched to the size "
            "of the input, in rgb (or gray) from 0 to 1."
        )
    read = ImageReader(network, how)
    return [partial(read, file) for file in files]


def _plan(job: Job, network: Network, context: Context) -> Plan:
    """The plan that is asked for.

    Where nothing was trained one processor is preferred, in default variants: that of the strategy
    `cpu` or `gpu`, and the GPU where nothing is asked for.
    """
    asked = job.strategy or (job.deployment.strategy if job.deployment else "")
    is_named = job.plan is not None or asked not in ("", *PROCESSORS)
    if is_named or context.default_cost(network) is not None:
        return job.plan_of(network, context)
    processor: Processor = "cpu" if asked == "cpu" else "gpu"
    job.reporter.note(
        f"No predictors are trained for {context.soc.name!r}: all ops are checked on the "
        f"{processor.upper()} that it has kernels for, in their default variants."
    )
    return preferring(network, context.soc, processor)


def _priced(plan: Plan, before: Plan, network: Network, context: Context) -> Plan:
    """The plan with what is predicted of it, where that was predicted of the one before."""
    cost = context.default_cost(network)
    if cost is None or before.predicted_ms is None:
        return plan
    executable = lower(network, plan, context.soc, context.tuning)
    return replace(plan, predicted_ms=price(executable, cost).latency_ms)


def add_to_soc(name: str, fallbacks: Sequence[OpFallback]) -> Path:
    """Write a SoC file with more fallbacks, those of before included."""
    facts = socs.load(name)
    by_variant = {
        (fallback.op, fallback.processor, fallback.variant): fallback
        for fallback in (*facts.fallbacks, *fallbacks)
    }
    return replace(facts, fallbacks=tuple(by_variant.values())).save(socs.own_path_of(name))


def lowest_sample(validation: Validation, files: Sequence[Path]) -> dict[str, Any]:
    """The sample whose outputs are farthest from right; its file, where it is of one."""
    cosines = [sample.cosine for sample in validation.whole.samples]
    place = cosines.index(min(cosines))
    return {"file": files[place].name if files else None, "cosine": cosines[place]}
