"""First check of a plan against ONNX Runtime, before an engine hands out a result.

A plan runs on seeded inputs, beside ONNX Runtime. Where every output is as close as the kernels of
the plan round, it is right; that costs three inferences. Anything else is looked at with care: what
the reference makes of inputs that are 1e-6 larger says which outputs rounding decides, and each op
is run alone, as `codl validate` does. So an op that is wrong is told from a model that drifts.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from math import inf
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codl.engine.engine import Engine
from codl.errors import CodlWarning, NoKernelError, WrongResultError
from codl.evaluation.closeness import Closeness, closeness, is_right, worst
from codl.ir import Network
from codl.ir.executable import Executable, GpuOp
from codl.ir.plan import OpFallback, Plan
from codl.ir.types import arithmetic_of
from codl.kernels import registry
from codl.kernels.tuning import Tuning
from codl.measure.budget import Budget
from codl.measure.check_variants import OF_HALVES, OF_OTHERS, OF_WINOGRAD
from codl.measure.inputs import SEED, random_inputs
from codl.plan.build_plan import with_fallbacks
from codl.records.results import Checked
from codl.records.soc import Soc
from codl.runtime.examination import memory_of
from codl.runtime.numpy_interpreter import check_order
from codl.targets.base import Target
from codl.validate import verdicts
from codl.validate.references import ModelAndSource, Source, Values, outputs_by_ops
from codl.validate.remedy import find_remedy
from codl.validate.validation import (
    COSINE,
    ModelUnderTest,
    Outputs,
    usual_cosine,
    validate,
    variants_of,
)

#: Seconds for ops one by one, and for what stands in for those that are wrong.
BUDGET_S = 300.0
#: How much larger inputs are for a reference that shows what rounding makes of a model, and how
#: many times farther than that a plan's outputs may be.
NUDGE, SPREAD = 1e-6, 10.0
#: The reference holds the weights once more, and reading a file takes as much again.
MEMORY = 3
#: What nothing can be compared with.
NOTHING = Closeness(cosine=0.0, max_rel_err=inf)


def checked_engine(
    network: Network,
    plan: Plan,
    target: Target,
    tuning: Tuning = Tuning(),
    *,
    source: Source | None,
    adaptive: bool = False,
    recovers: bool = False,
    strict: bool = False,
) -> Engine:
    """An engine whose outputs were found to be those of its model; `checked` says how close.

    `source` is what the network was read from; without one nothing is compared. What was found once
    is remembered. Where the plan is wrong, ops run in other variants, with one `CodlWarning`.
    Raises `WrongResultError` where that does not help; of one that is to be `strict`, at once.

    A layer of which the device refuses every kernel goes to the CPU, with a `CodlWarning`.
    """
    moved: list[OpFallback] = []

    def build(fallbacks: Sequence[OpFallback] = ()) -> Engine:
        while True:
            chosen = plan
            if changes := (*fallbacks, *moved):
                written, applied = plan.applied(network)
                chosen = with_fallbacks(written, applied, changes).restored(network, plan.sums)
            try:
                return Engine(network, chosen, target, tuning, adaptive=adaptive, recovers=recovers)
            except NoKernelError as error:
                move = _to_cpu(plan.applied(network)[0], error, target.soc)
                if strict or move is None or move in moved:
                    raise
                moved.append(move)
                warnings.warn(f"{move}.", CodlWarning, stacklevel=3)

    engine = build()
    if source is None:
        return engine
    begin = perf_counter()
    with _closed_on_error(engine):
        executables = [engine.executable for _ in engine.each_plan()]
        slot = verdicts.slot_of(source.digest, executables, target)
        checked = remembered = verdicts.load(slot)
        if checked is None and (reason := why_not(network)):
            checked = Checked("", reason=reason)
        elif checked is not None and checked.fallbacks and strict:
            raise wrong(network, str(checked.fallbacks[0]))
    if checked is None:
        with _closed_on_error(engine):
            for executable in executables:
                check_order(executable)
        cosine = usual_cosine(network, variants_of(engine.plan))
        comparison = _Comparison(
            source.again(network), target, tuning, build, cosine=cosine, strict=strict
        )
        engine, checked = comparison.run(engine)
        if not engine.gpu_failure:
            verdicts.store(slot, checked)
        checked = replace(checked, ms=1e3 * (perf_counter() - begin))
    elif checked.fallbacks:
        engine.close()
        engine = build(checked.fallbacks)
    engine.checked = checked
    tell(network.name, checked, is_new=remembered is None)
    return engine


def _to_cpu(network: Network, error: NoKernelError, soc: Soc) -> OpFallback | None:
    """The layer on the CPU, in its usual variant there; None where it has none."""
    layer = next((layer for layer in network.layers if layer.name == error.layer), None)
    variants = registry.variants(layer.op, "cpu", soc) if layer else ()
    if not variants:
        return None
    return OpFallback(
        error.layer, "gpu", error.variant, variants[0].name, error.reasons.rstrip(".")
    )


class _Comparison:
    """A model's plan beside its reference, and what helps where they disagree."""

    def __init__(
        self,
        model: ModelAndSource,
        target: Target,
        tuning: Tuning,
        build: Callable[[Sequence[OpFallback]], Engine],
        *,
        cosine: float,
        strict: bool,
    ) -> None:
        self._model, self._target, self._tuning = model, target, tuning
        self._build, self._strict = build, strict
        self._samples, self._right, self._by = _references(model)
        self._cosine = cosine
        #: How far the reference is from itself, by output; None before anything looked wrong.
        self._noise: Mapping[str, Closeness] | None = None
        #: Outputs that rounding decides, or chance.
        self._ignored: frozenset[str] = frozenset()
        #: What is right of any kernels, once all ops were found right by themselves.
        self._least = 0.0
        #: The largest error that counted as right so far.
        self._taken = 0.0

    def run(self, engine: Engine) -> tuple[Engine, Checked]:
        """The engine, or one in its place that is right, and what was found."""
        fallbacks: tuple[OpFallback, ...] = ()
        while True:
            with _closed_on_error(engine):
                close, miss = self._compare(engine)
                if miss is not None and self._noise is None:
                    self._noise = self._measured_noise()
                    close, miss = self._compare(engine)
                if miss is not None and self._least:
                    raise wrong(self._model.network, close)
            if miss is None:
                return engine, self._verdict(close, fallbacks)
            engine.close()
            fallbacks = (*fallbacks, *self._remedy(*miss))
            engine = self._build(fallbacks)

    def _verdict(self, close: Closeness, fallbacks: tuple[OpFallback, ...]) -> Checked:
        if self._ignored >= self._model.network.outputs.keys():
            return Checked("", reason="chance or rounding decides its outputs", fallbacks=fallbacks)
        return Checked(
            self._by,
            close.cosine,
            close.max_rel_err,
            fallbacks=fallbacks,
            limit=max(self._taken, self._least),
            ignored=tuple(sorted(self._ignored)),
        )

    def _compare(self, engine: Engine) -> tuple[Closeness, tuple[Plan, int, float] | None]:
        """How close outputs are; by which plan, on which sample and by which limit they miss."""
        seen: list[Closeness] = []
        for plan in engine.each_plan():
            limit = max(self._least, limit_of(engine.executable))
            # What a run gave must be there after the next.
            results = [engine(sample) for sample in self._samples]
            for number, (got, right) in enumerate(zip(results, self._right, strict=True)):
                for name in right.keys() - self._ignored:
                    seen.append(_closeness(got[name], right[name]))
                    if not self._is_right(name, seen[-1], limit):
                        return seen[-1], (plan, number, limit)
        return worst(seen), None

    def _is_right(self, name: str, close: Closeness, limit: float) -> bool:
        cosine, noise = self._cosine, (self._noise or {}).get(name)
        if noise is not None:
            limit = max(limit, SPREAD * noise.max_rel_err)
            cosine = min(cosine, 1 - SPREAD * (1 - noise.cosine))
        self._taken = max(self._taken, limit)
        return is_right(close, cosine, limit)

    def _measured_noise(self) -> dict[str, Closeness]:
        """How far the reference is from itself: on inputs a little larger, and rearranged.

        An output of which another run has other values is never looked at.
        """
        (sample, *_), (right, *_) = self._samples, self._right
        again = self._model.outputs(sample)
        if again is None:
            return {}
        self._ignored = frozenset(
            name
            for name, value in right.items()
            if not is_right(_closeness(again[name], value), self._cosine, OF_OTHERS)
        )
        random = np.random.default_rng(SEED)

        def nudged(value: NDArray[Any]) -> NDArray[Any]:  # as float32 that is in the last bits
            return value * (1 + NUDGE * random.choice((-1.0, 1.0), value.shape))

        others = (
            self._model.outputs(_with_floats(sample, nudged)),
            self._model.outputs(sample, optimised=True),
        )
        return {
            name: worst(_closeness(other[name], value) for other in others if other is not None)
            for name, value in right.items()
        }

    def _remedy(self, plan: Plan, number: int, limit: float) -> tuple[OpFallback, ...]:
        """What is to run otherwise, nothing where every op is right by itself.

        Raises `WrongResultError` where that is not enough.
        """
        network = self._model.network
        self._least = OF_HALVES if limit > OF_WINOGRAD else OF_WINOGRAD
        noise = (self._noise or {}).items()
        self._ignored |= {name for name, close in noise if not is_right(close, COSINE, OF_HALVES)}
        written, applied = plan.applied(network)
        samples = [self._samples[number], *self._samples[:number], *self._samples[number + 1 :]]
        model = replace(self._model, network=written)
        tested = ModelUnderTest(model, self._target, self._tuning, samples, self._ignored)
        time = Budget(BUDGET_S)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CodlWarning)
            checked = validate(tested, applied, limit=self._least, budget=time)
            if not checked.is_wrong:
                # Where ops are right and what one reads is not, that is lost on its way there.
                so_far = checked.ops.accumulated.values()
                if all(is_right(close, -1.0, OF_HALVES) for close in so_far):
                    return ()
                checked = replace(checked, limit=limit)
            if self._strict:
                raise wrong(network, checked.diagnosis)
            remedy = find_remedy(tested, checked, budget=time)
        if not remedy.is_right or any(check.verdict != "imprecise" for check in remedy.unmet):
            raise wrong(network, checked.diagnosis)
        return remedy.fallbacks


def _references(model: ModelAndSource) -> tuple[list[Values], list[Outputs], str]:
    """Samples, their right outputs, and what those are by.

    Values are those of images, then of both signs, and these turned: operators differ where numbers
    are negative, and so every element is once.
    """
    usual = random_inputs(model.network)
    samples: list[Values] = [model.shaped(usual)]
    if any(value.dtype.kind == "f" for value in usual.values()):
        for factor in (4, -4):
            spread = _with_floats(usual, partial(_around_zero, factor))
            samples.append(model.shaped(spread))
    right = [model.outputs(sample) for sample in samples]
    if right[0] is None:
        return samples[:1], [outputs_by_ops(model.network, samples[0])], "references of ops"
    pairs = [(x, y) for x, y in zip(samples, right, strict=True) if y is not None]
    return [x for x, _ in pairs], [y for _, y in pairs], "ONNX Runtime"


def _around_zero(factor: float, value: NDArray[Any]) -> NDArray[Any]:
    spread: NDArray[Any] = factor * (value - 0.5)
    return spread


def _with_floats(sample: Values, change: Callable[[NDArray[Any]], NDArray[Any]]) -> Values:
    """A sample whose floats are others, of the same type."""
    return {
        name: change(value).astype(value.dtype) if value.dtype.kind == "f" else value
        for name, value in sample.items()
    }


def _closeness(got: NDArray[Any], right: NDArray[Any]) -> Closeness:
    return closeness(got, right) if got.size == right.size else NOTHING


def limit_of(executable: Executable) -> float:
    """What outputs are off by where nothing is wrong, of the largest value.

    It is less than what the least exact of its kernels may be off by: of whole models more was not
    seen, and what one op computes wrongly others behind it make smaller.
    """
    on_gpu = {step.variant for step in executable.steps if isinstance(step, GpuOp)}
    if "float16" in map(arithmetic_of, on_gpu):  # off by two to four times what storage costs
        return 3 * OF_HALVES
    if any(tensor.storage.element == "float16" for tensor in executable.tensors):
        return OF_HALVES / 2
    on_cpu = {layer.variant for net in executable.nets for layer in net.layers}
    if any("winograd" in name for name in on_gpu | on_cpu):
        return OF_WINOGRAD / 10
    return OF_OTHERS / 2


def why_not(network: Network) -> str:
    """Why nothing can be compared here; "" where it can."""
    if network.states:
        return "what it computes depends on the runs before"
    held = sum(value.nbytes for layer in network.layers for value in layer.weights.values())
    wanted, left = MEMORY * held, memory_of().available or inf
    if wanted > left:
        return f"that takes {wanted / 1e6:.0f} MB of memory, and {left / 1e6:.0f} MB are free"
    return ""


def wrong(network: Network, off: Closeness | str) -> WrongResultError:
    """The error where nothing helps, with what was seen."""
    if isinstance(off, Closeness):
        off = f"Cosine {off.cosine:.6f}, off by {off.max_rel_err:.2g} of the largest value."
    return WrongResultError(
        f"{network.name}: by this plan its outputs are not what ONNX Runtime computes, and nothing "
        f"that may stand in helps. {off} `codl validate` tells more of it; another --strategy may "
        "be right, and --no-check, or check=False, runs it as it is."
    )


def tell(name: str, checked: Checked, *, is_new: bool) -> None:
    """One warning of what runs otherwise than planned, or of what was not compared."""
    told = "; ".join(map(str, checked.fallbacks))
    if told:
        text = f"{name} is right on this device only where some kernels are left out: {told}."
    elif is_new and not checked.reference:
        text = f"{name} was not compared with ONNX Runtime: {checked.reason}."
    else:
        return
    warnings.warn(text, CodlWarning, stacklevel=4)


@contextmanager
def _closed_on_error(engine: Engine) -> Iterator[None]:
    try:
        yield
    except BaseException:
        engine.close()
        raise
