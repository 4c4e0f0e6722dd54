"""`codl validate`: the inputs, the check of a plan, and its remedy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from codl.errors import CodlError
from codl.frontend.models.deployment import Deployment
from codl.ir import Network
from codl.ir.plan import Plan
from codl.ir.types import PROCESSORS, Processor
from codl.jobs import options as opt
from codl.jobs.model import ModelJob, digests_of, read_inputs
from codl.jobs.options import Reporter, option, recorded
from codl.lower.lowering import lower
from codl.measure import SEED
from codl.measure.budget import Budget
from codl.measure.closeness import Agreement, agreement
from codl.measure.inputs import random_inputs
from codl.plan.build_plan import preferring
from codl.plan.price import price
from codl.plan.strategies import Context
from codl.validate.references import InputSamples, ModelAndSource, Values
from codl.validate.remedy import Remedy, find_remedy
from codl.validate.validation import ModelUnderTest, Validation, validate

NPZ = ".npz"


@dataclass(frozen=True, kw_only=True)
class Validate(ModelJob):
    """Check that every op of a plan, and the whole plan, compute the right outputs.

    `inputs` are files; random inputs come from the `seed`. A wrong plan gets a remedy, unless the
    check is `strict`. Raises `CodlError` for a missing model, plan, input or device.
    """

    inputs: Annotated[
        Path | None,
        option(
            "--inputs",
            help="An .npz file, or a folder of some; random inputs by default.",
        ),
    ] = None
    seed: Annotated[int, option("--seed", least=0, help="Seed of random inputs.")] = SEED
    cosine: Annotated[
        float | None,
        option(
            "--cosine",
            least=-1.0,
            most=1.0,
            help="The required cosine of outputs; {codl.validate.validation:COSINE} by default, or "
            "{codl.validate.validation:COSINE_OF_ROUNDED} with products rounded to 8 bits.",
        ),
    ] = None
    strict: Annotated[
        bool, option("--strict", help="Without fallbacks: a wrong op is an error.")
    ] = False
    budget_s: opt.BudgetOption = None
    write_plan: Annotated[
        Path | None,
        option(
            "--write-plan",
            help="Write the plan, with its fallbacks, to a file.",
            read=opt.writable,
        ),
    ] = None

    def run(self) -> tuple[dict[str, Any], Validation, Remedy | None]:
        """The result of `codl validate --json`, the check, and the remedy of a wrong plan."""
        _ = self.context  # whose errors come before a model is read, which takes longer
        loaded = ModelAndSource.load(str(self.model), self.batch, self.shapes)
        network, files = loaded.network, files_of(self.inputs, self.reporter)
        samples = samples_of(loaded, files, self.deployment, self.seed)
        budget = None if self.budget_s is None else Budget(self.budget_s)
        with self.connected() as context:
            plan = self._plan(network, context)
            bench = ModelUnderTest(loaded, context.device, context.tuning, samples)
            with self.reporter.progress(f"Ops of {network.name}") as update:
                found = validate(
                    bench, plan, cosine=self.cosine, progress=update, budget=budget or Budget()
                )
            if found.doubt:
                self.reporter.warn(f"{found.doubt}. The reference is {found.reference}.")
            remedy = None
            if found.is_wrong and not self.strict:
                self.reporter.note(found.diagnosis)
                self.reporter.stage("Looking for the smallest change with which it is right")
                remedy = find_remedy(bench, found, budget=budget)
                remedy = replace(remedy, plan=_priced(remedy.plan, plan, network, context))
            of = digests_of(context, network, plans={network.name: plan})
            protocol = {"cosine": found.cosine, "precision": self.precision}
            origin = recorded(context.device, of, **protocol, seed=self.seed)
        if self.write_plan is not None:
            kept = replace(remedy.plan if remedy else plan, origin=context.origin())
            self.reporter.note(f"Wrote {kept.save(self.write_plan)}")
        result = {
            "serial": self.serial,
            "soc": self.described.name,
            "batch": self.batch,
            "input": None if self.inputs is None else str(self.inputs),
            "seed": None if self.inputs is not None else self.seed,
            **result_of(found, remedy),
            "lowest": lowest_sample(found, files),
            "agreement": asdict(_agreement(bench, found)) if len(files) > 1 else None,
            **origin,
        }
        return result, found, remedy

    def _plan(self, network: Network, context: Context) -> Plan:
        """The plan to check.

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
            "ops": [check.part.label for check in validation.checks if not check.is_reached],
            "samples": validation.samples_left,
        },
        "first_bad": None if bad is None else bad.part.layer.name,
        "fallback": [] if remedy is None else [asdict(fallback) for fallback in remedy.fallbacks],
        "remedy": remedy
        and {
            "ok": remedy.ok,
            "outputs": None if remedy.whole is None else asdict(remedy.whole),
            "unmet": [check.part.layer.name for check in remedy.unmet],
            "plans_tried": remedy.tried,
            "predicted_ms": remedy.plan.predicted_ms,
        },
        "reference": validation.reference,
        "doubt": validation.doubt,
        "references": None if validation.references is None else asdict(validation.references),
        "outputs": asdict(validation.whole.worst),
        "cosine": validation.whole.worst.cosine,
        "max_rel_err": validation.whole.worst.max_rel_err,
        "accumulated_lost": validation.lost,
        "fallbacks": [asdict(refused) for refused in validation.whole.refused],
        "placement": [asdict(op) for op in validation.placed],
        "ops": validation.rows(),
    }


def _agreement(bench: ModelUnderTest, found: Validation) -> Agreement:
    """How often classes are the reference's, of the model's first output."""
    name = next(iter(bench.network.outputs))
    got = [output[name] for output in found.whole.outputs]
    return agreement(got, [bench.expected(number)[name] for number in range(len(got))])


def files_of(path: Path | None, reporter: Reporter) -> list[Path]:
    """The files of inputs: those of a folder by name, the one that is given, or none.

    Raises `CodlError` for a folder without any.
    """
    if path is None or not path.is_dir():
        return [] if path is None else [path]
    files = sorted(file for file in path.iterdir() if file.is_file())
    arrays = [file for file in files if file.suffix.lower() == NPZ]
    if not arrays:
        raise CodlError(f"--inputs names the folder {path}, in which there is no {NPZ} file.")
    if left := len(files) - len(arrays):
        reporter.note(f"{left} other files in {path} are left out.")
    return arrays


def samples_of(
    model: ModelAndSource, files: Sequence[Path], deployed: Deployment | None, seed: int
) -> InputSamples:
    """Inputs from files; without any those that a deployment names, or random ones.

    Each file is read once now, so that a broken one ends nothing that has taken hours.
    """

    def read(file: Path | None) -> Values:
        usual = partial(random_inputs, seed=seed)
        return model.shaped(read_inputs(model.network, file, deployed, usual))

    wanted: list[Path | None] = [*files] or [None]
    samples = InputSamples([partial(read, file) for file in wanted])
    for sample in samples:
        assert sample
    return samples


def _priced(plan: Plan, before: Plan, network: Network, context: Context) -> Plan:
    cost = context.default_cost(network)
    if cost is None or before.predicted_ms is None:
        return plan
    executable = lower(network, plan, context.soc, context.tuning)
    return replace(plan, predicted_ms=price(executable, cost).latency_ms)


def lowest_sample(validation: Validation, files: Sequence[Path]) -> dict[str, Any]:
    cosines = [sample.cosine for sample in validation.whole.samples]
    place = cosines.index(min(cosines))
    return {"file": files[place].name if files else None, "cosine": cosines[place]}
