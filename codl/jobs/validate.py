"""Whether a plan computes what it should: its inputs, the check, and what mends it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from numpy.typing import NDArray

from codl.boundary import explained
from codl.errors import CodlError
from codl.evaluation.closeness import Agreement, agreement, read_labels
from codl.frontend.models.deployment import SUFFIXES, Deployment, Preprocessing
from codl.ir import Network
from codl.ir.plan import OpFallback, Plan
from codl.ir.types import PROCESSORS, Processor
from codl.jobs import options as opt
from codl.jobs.job import Reporter
from codl.jobs.model import ModelJob, digests_of, read_inputs, recorded
from codl.jobs.options import option
from codl.lower import lower
from codl.measure import SEED
from codl.measure.budget import Budget
from codl.measure.inputs import random_inputs
from codl.plan.build_plan import for_soc, preferring
from codl.plan.price import price
from codl.records import soc as socs
from codl.strategies import Context
from codl.validate.references import InputSamples, ModelAndSource, Reader, Values
from codl.validate.remedy import Remedy, find_remedy
from codl.validate.validation import ModelUnderTest, Validation, to_precision, validate

NPZ = ".npz"


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


#: What `half` is short for.
HALF = "half_storage"
InputsOption = Annotated[
    Path | None,
    option(
        "--inputs",
        help="Inputs by name in an .npz file, an image, or a folder of files of either; random "
        "ones by default. A deployment file says how images are preprocessed.",
    ),
]
LabelsOption = Annotated[
    Path | None,
    option("--labels", help="Classes of the files of --inputs: lines of name and number."),
]
SeedOption = Annotated[int, option("--seed", least=0, help="Of random inputs.")]
CosineOption = Annotated[
    float | None,
    option(
        "--cosine",
        least=-1.0,
        most=1.0,
        help="Outputs are right from this cosine on: {codl.validate.validation:COSINE}, or "
        "{codl.validate.validation:COSINE_OF_ROUNDED} of a model that rounds what it multiplies to "
        "8 bits, if not given.",
    ),
]
HalfOption = Annotated[
    bool,
    option(
        "--half",
        help="Store the GPU's tensors as halves, and find the ops that must stay in float32: "
        "--precision half_storage.",
    ),
]
KernelPrecisionOption = Annotated[
    str | None,
    option(
        "--precision",
        help="Take every kernel of the plan's at this precision, of {codl.ir.types:PRECISIONS}, "
        "and find the ops that must stay in float32. By default as they are planned.",
    ),
]
StrictOption = Annotated[
    bool, option("--strict", help="Look for no fallback: a wrong op is an error.")
]
WritePlanOption = Annotated[
    Path | None,
    option(
        "--write-plan",
        help="Write the plan, with its fallbacks, to a file.",
        read=lambda text: opt.writable(Path(text)),
    ),
]
WriteSocOption = Annotated[bool, option("--write-soc", help="Add the fallbacks to the SoC file.")]


@dataclass(frozen=True, kw_only=True)
class Validate(ModelJob):
    """Check that every op of a plan, and the whole of it, computes what it should.

    `inputs` and `labels` are files; random inputs are drawn from the `seed`. With a
    `kernel_precision` every kernel is taken at that. Where the plan is wrong, remedies are looked
    for, unless it is `strict`. Without a budget everything is checked. Raises `CodlError` where
    the model, the plan, its inputs or the device is not there.
    """

    precision: str | None = field(default=None, init=False)
    inputs: InputsOption = None
    labels: LabelsOption = None
    seed: SeedOption = SEED
    cosine: CosineOption = None
    kernel_precision: KernelPrecisionOption = None
    half: HalfOption = False
    strict: StrictOption = False
    budget_s: opt.BudgetOption = None
    write_plan: WritePlanOption = None
    write_soc: WriteSocOption = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.half and self.kernel_precision not in (None, HALF):
            raise CodlError(
                f"--half is --precision {HALF}, got --precision {self.kernel_precision} beside it."
            )

    def run(self) -> tuple[dict[str, Any], CheckedPlan]:
        """What `codl validate --json` holds, and all else: load, plan, compile, check, remedy."""
        _ = self.context  # whose errors come before a model is read, which takes longer
        loaded = ModelAndSource.load(str(self.model), self.batch, self.shapes)
        files = files_of(self.inputs, self.reporter)
        labels = None if self.labels is None else read_labels(self.labels, [f.name for f in files])
        samples = samples_of(loaded, files, self.deployment, self.seed, self.reporter)
        done = self._checked(loaded, samples)
        if self.write_plan is not None:
            self.reporter.note(f"Wrote {done.kept.save(self.write_plan)}")
        if self.write_soc and done.remedy is not None and done.remedy.fallbacks:
            path = add_to_soc(str(self.soc), for_soc(done.written, done.remedy.fallbacks))
            self.reporter.note(f"Wrote {path}")
        result = {
            "serial": self.serial,
            "soc": self.described.name,
            "batch": self.batch,
            "input": None if self.inputs is None else str(self.inputs),
            "seed": None if self.inputs is not None else self.seed,
            **result_of(done.validation, done.remedy),
            "lowest": lowest_sample(done.validation, files),
            "agreement": None if len(files) < 2 else asdict(done.agreement(labels)),
            **done.origin,
        }
        return result, done

    def _checked(self, loaded: ModelAndSource, samples: InputSamples) -> CheckedPlan:
        """Check the plan on a loaded model; where it is wrong, look for remedies."""
        budget = None if self.budget_s is None else Budget(self.budget_s)
        network, precision = loaded.network, HALF if self.half else self.kernel_precision
        with self.connected() as context:
            chosen = self._plan(network, context)
            if precision is not None:
                chosen = to_precision(network, chosen, self.described, precision)
            bench = ModelUnderTest(loaded, context.device, context.tuning, samples)
            with self.reporter.progress(f"Ops of {network.name}") as update:
                found = validate(
                    bench,
                    chosen,
                    cosine=self.cosine,
                    progress=update,
                    budget=budget or Budget(),
                )
            if found.doubt:
                self.reporter.warn(f"{found.doubt}. The reference is {found.reference}.")
            remedy = None
            if found.is_wrong and not self.strict:
                self.reporter.note(found.diagnosis)
                self.reporter.stage("Looking for the smallest change with which it is right")
                remedy = find_remedy(bench, found, budget=budget)
                remedy = replace(remedy, plan=_priced(remedy.plan, chosen, network, context))
            of = digests_of(context, network, plans={network.name: chosen})
            protocol = {"cosine": found.cosine, "precision": precision, "seed": self.seed}
            origin = recorded(context.device, of, **protocol)
        kept = replace(remedy.plan if remedy else chosen, origin=context.origin())
        return CheckedPlan(bench, found, remedy, network, kept, origin)

    def _plan(self, network: Network, context: Context) -> Plan:
        """The plan that is asked for.

        Where nothing was trained one processor is preferred, in default variants: that of the
        strategy `cpu` or `gpu`, and the GPU where nothing is asked for.
        """
        asked = self.strategy or (self.deployment.strategy if self.deployment else "")
        is_named = self.plan is not None or asked not in ("", *PROCESSORS)
        if is_named or context.default_cost(network) is not None:
            return self.plan_of(network, context)
        processor: Processor = "cpu" if asked == "cpu" else "gpu"
        self.reporter.note(
            f"No predictors are trained for {context.soc.name!r}: all ops are checked on the "
            f"{processor.upper()} that it has kernels for, in their default variants."
        )
        return preferring(network, context.soc, processor)


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
