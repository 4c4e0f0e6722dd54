"""First check of a plan against ONNX Runtime, before an engine hands out a result.

A plan and ONNX Runtime run on the same seeded inputs. The plan is right if every output differs by
no more than its kernels round, with NaN and infinities in the same places; that costs three
inferences. Otherwise the reference runs on inputs that are 1e-6 larger, to find outputs that
rounding decides. The references of ops find elements on which the model is not defined. Then each
op runs alone, as in `codl validate`, to tell a wrong op from a model that drifts.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codl.engine.engine import Engine
from codl.errors import CodlWarning, NoKernelError, WrongResultError
from codl.evaluation.closeness import Closeness, is_right, kinds, worst
from codl.frontend.convert import Source
from codl.ir import Network
from codl.ir.executable import Executable, GpuOp
from codl.ir.ops.eltwise import Eltwise
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
from codl.validate.references import BY_OPS, ModelAndSource, Values, outputs_by_ops
from codl.validate.remedy import find_remedy
from codl.validate.validation import (
    COSINE,
    ModelUnderTest,
    Outputs,
    closeness_of,
    usual_cosine,
    validate,
    variants_of,
)

#: Seconds for ops one by one, and for what stands in for those that are wrong.
BUDGET_S = 300.0
#: How much larger the inputs are that show the effect of rounding, and how many times that effect a
#: plan's outputs may be off.
NUDGE, SPREAD = 1e-6, 10.0
#: The reference holds the weights once more, and reading a file takes as much again.
MEMORY = 3
#: Modes of `eltwise` that are not defined on all numbers.
PARTIAL = ("acos", "acosh", "asin", "atanh", "div", "log", "pow", "reciprocal", "sqrt")


@dataclass
class EngineBuilder:
    """Builds engines of a plan, again where ops are to run in other variants.

    A layer of which the device refuses every kernel goes to the CPU, with a `CodlWarning`; of a
    plan that is to be `strict` that is an error.
    """

    network: Network
    plan: Plan
    target: Target
    tuning: Tuning = Tuning()
    recovers: bool = False
    strict: bool = False
    _moved: list[OpFallback] = field(default_factory=list)

    def build(self, fallbacks: Sequence[OpFallback] = ()) -> Engine:
        """The engine of the plan with these fallbacks."""
        network = self.network
        while True:
            chosen = self.plan
            if changes := (*fallbacks, *self._moved):
                chosen = with_fallbacks(network, chosen, changes)
            try:
                return Engine(network, chosen, self.target, self.tuning, recovers=self.recovers)
            except NoKernelError as error:
                move = _to_cpu(network, error, self.target.soc)
                if self.strict or move is None or move in self._moved:
                    raise
                self._moved.append(move)
                warnings.warn(f"{move}.", CodlWarning, stacklevel=3)


def checked_engine(
    network: Network,
    plan: Plan,
    target: Target,
    tuning: Tuning = Tuning(),
    *,
    source: Source | None,
    recovers: bool = False,
    strict: bool = False,
) -> Engine:
    """An engine of a plan, compared with its source where there is one; see `first_check`."""
    builder = EngineBuilder(network, plan, target, tuning, recovers, strict)
    engine = builder.build()
    return engine if source is None else first_check(engine, builder, source)


def first_check(engine: Engine, builder: EngineBuilder, source: Source) -> Engine:
    """The engine, or one in its place whose outputs are right; `checked` says how close they are.

    The network was read from `source`. Verdicts are cached. If the plan is wrong, ops run in other
    variants, with one `CodlWarning`. Raises `WrongResultError` if that does not help, or at once if
    the builder is `strict`.
    """
    network, target, begin = builder.network, builder.target, perf_counter()
    with _closed_on_error(engine):
        slot = verdicts.slot_of(source.digest, [engine.executable], target)
        checked = remembered = verdicts.load(slot)
        if checked is None and (reason := why_not(network)):
            checked = Checked("", reason=reason)
        elif checked is not None and checked.fallbacks and builder.strict:
            raise wrong(network, str(checked.fallbacks[0]))
        if checked is None:
            check_order(engine.executable)
    if checked is None:
        engine, checked = _Comparison(
            ModelAndSource.again(source, network), builder, engine.plan
        ).run(engine)
        if not engine.gpu_failure:
            verdicts.store(slot, checked)
        checked = replace(checked, ms=1e3 * (perf_counter() - begin))
    elif checked.fallbacks:
        engine.close()
        engine = builder.build(checked.fallbacks)
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
    """Compares a model's plan with its reference, and finds fallbacks if they disagree."""

    def __init__(self, model: ModelAndSource, builder: EngineBuilder, plan: Plan) -> None:
        self._model, self._builder = model, builder
        self._samples, self._right, self._by = _references(model)
        self._cosine = usual_cosine(builder.network, variants_of(plan))
        #: How far rounding moves the reference, by sample that looked wrong and by output.
        self._noise: dict[int, Mapping[str, Closeness]] = {}
        #: Outputs that chance decides.
        self._ignored: frozenset[str] = frozenset()
        #: The error that is allowed once every op was found right by itself.
        self._least = 0.0
        #: The largest error that counted as right so far.
        self._taken = 0.0

    def run(self, engine: Engine) -> tuple[Engine, Checked]:
        """The engine, or one with fallbacks that is right, and the verdict."""
        fallbacks: tuple[OpFallback, ...] = ()
        while True:
            with _closed_on_error(engine):
                close, miss = self._compare(engine)
                while miss is not None and miss[1] not in self._noise:
                    self._look_at(miss[1])
                    close, miss = self._compare(engine)
                if miss is not None and self._least:
                    raise wrong(self._model.network, close)
            if miss is None:
                return engine, self._verdict(close, fallbacks)
            engine.close()
            fallbacks = (*fallbacks, *self._remedy(*miss))
            engine = self._builder.build(fallbacks)

    def _verdict(self, close: Closeness, fallbacks: tuple[OpFallback, ...]) -> Checked:
        compared = {name for right in self._right for name in right} - self._ignored
        if not compared:
            return Checked("", reason="chance or rounding decides its outputs", fallbacks=fallbacks)
        return Checked(
            self._by,
            close.cosine,
            close.max_rel_err,
            reason=self._model.doubt(self._by),
            fallbacks=fallbacks,
            limit=max(self._taken, self._least),
            ignored=tuple(sorted(self._model.network.outputs.keys() - compared)),
        )

    def _compare(self, engine: Engine) -> tuple[Closeness, tuple[Plan, int, float] | None]:
        """How close outputs are; and for a miss the plan, the sample and the limit."""
        seen: list[Closeness] = []
        limit = max(self._least, limit_of(engine.executable))
        # What a run gave must be there after the next.
        results = [engine(sample) for sample in self._samples]
        for number, (got, right) in enumerate(zip(results, self._right, strict=True)):
            for name in right.keys() - self._ignored:
                seen.append(closeness_of(got[name], right[name]))
                if not self._is_right(number, name, seen[-1], limit):
                    return seen[-1], (engine.plan, number, limit)
        return worst(seen), None

    def _is_right(self, number: int, name: str, close: Closeness, limit: float) -> bool:
        cosine, noise = self._cosine, self._noise.get(number, {}).get(name)
        if noise is not None:
            limit = max(limit, SPREAD * noise.max_rel_err)
            cosine = min(cosine, 1 - SPREAD * (1 - noise.cosine))
        self._taken = max(self._taken, limit)
        return is_right(close, cosine, limit)

    def _look_at(self, number: int) -> None:
        """Find the undefined elements of a sample's outputs, and the effect of rounding.

        Outputs that differ between two runs of the reference are ignored.
        """
        sample, right = self._samples[number], self._right[number]
        self._noise[number] = {}
        if self._by == BY_OPS:
            return
        self._right[number] = right = self._defined(sample, right)
        again = self._model.outputs(sample)
        if again is None:
            return
        self._ignored |= {
            name
            for name, value in right.items()
            if not is_right(closeness_of(again[name], value), self._cosine, OF_OTHERS)
        }
        random = np.random.default_rng(SEED)

        def nudged(value: NDArray[Any]) -> NDArray[Any]:  # as float32 that is in the last bits
            return value * (1 + NUDGE * random.choice((-1.0, 1.0), value.shape))

        others = (
            self._model.outputs(_with_floats(sample, nudged)),
            self._model.outputs(sample, optimised=True),
        )
        self._noise[number] = {
            name: worst(closeness_of(other[name], value) for other in others if other is not None)
            for name, value in right.items()
        }

    def _leave_out_chaos(self) -> None:
        """Leave out outputs, by sample, whose value rounding decides."""
        for number in range(len(self._samples)):
            if number not in self._noise:
                self._look_at(number)
            noise = self._noise[number]
            self._right[number] = {
                name: value
                for name, value in self._right[number].items()
                if name not in noise or is_right(noise[name], COSINE, OF_HALVES)
            }

    def _defined(self, sample: Values, right: Outputs) -> Outputs:
        """Reference outputs, masked where ONNX does not define them.

        There an op made NaN, which a maximum behind it may drop. ONNX Runtime does so for some
        positions in a tensor.
        """
        network = self._model.network
        is_partial = any(isinstance(x.op, Eltwise) and x.op.mode in PARTIAL for x in network.layers)
        if not is_partial and all(np.isfinite(value).all() for value in right.values()):
            return right
        kept, dropped = (
            outputs_by_ops(network, sample, drops_nan=drops_nan) for drops_nan in (False, True)
        )

        def masked(name: str, value: NDArray[Any]) -> NDArray[Any]:
            found = [kinds(other[name]).reshape(value.shape) for other in (kept, dropped)]
            return np.ma.array(value, mask=(found[0] != kinds(value)) | (found[0] != found[1]))

        return {name: masked(name, value) for name, value in right.items()}

    def _remedy(self, plan: Plan, number: int, limit: float) -> tuple[OpFallback, ...]:
        """The fallbacks that make the plan right; none if every op is right by itself.

        Raises `WrongResultError` if they are not enough.
        """
        network = self._model.network
        self._least = OF_HALVES if limit > OF_WINOGRAD else OF_WINOGRAD
        self._leave_out_chaos()
        order = sorted(range(len(self._samples)), key=lambda place: place != number)
        samples = [self._samples[place] for place in order]
        target, tuning = self._builder.target, self._builder.tuning
        tested = ModelUnderTest(self._model, target, tuning, samples, self._ignored)
        tested.expect([self._right[place] for place in order])
        time = Budget(BUDGET_S)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CodlWarning)
            checked = validate(tested, plan, limit=self._least, budget=time)
            if not checked.is_wrong:
                # Where ops are right and what one reads is not, that is lost on its way there.
                so_far = checked.ops.accumulated.values()
                if all(is_right(close, -1.0, OF_HALVES) for close in so_far):
                    return ()
                checked = replace(checked, limit=limit)
            if self._builder.strict:
                raise wrong(network, checked.diagnosis)
            remedy = find_remedy(tested, checked, budget=time)
        if not remedy.is_right or any(check.verdict != "imprecise" for check in remedy.unmet):
            raise wrong(network, checked.diagnosis)
        return remedy.fallbacks


def _references(model: ModelAndSource) -> tuple[list[Values], list[Outputs], str]:
    """Samples, their reference outputs, and the name of the reference.

    The first sample has values as images have, the second both signs, and the third the opposite
    signs: operators differ for negative numbers, and every element is negative once.
    """
    usual = random_inputs(model.network)
    samples: list[Values] = [model.shaped(usual)]
    if any(value.dtype.kind == "f" for value in usual.values()):
        for factor in (4, -4):
            spread = _with_floats(usual, partial(_around_zero, factor))
            samples.append(model.shaped(spread))
    right = [model.outputs(sample) for sample in samples]
    if right[0] is None:
        return samples[:1], [outputs_by_ops(model.network, samples[0])], BY_OPS
    pairs = [(x, y) for x, y in zip(samples, right, strict=True) if y is not None]
    return [x for x, _ in pairs], [y for _, y in pairs], model.reference


def _around_zero(factor: float, value: NDArray[Any]) -> NDArray[Any]:
    spread: NDArray[Any] = factor * (value - 0.5)
    return spread


def _with_floats(sample: Values, change: Callable[[NDArray[Any]], NDArray[Any]]) -> Values:
    """A sample with changed floats of the same type."""
    return {
        name: change(value).astype(value.dtype) if value.dtype.kind == "f" else value
        for name, value in sample.items()
    }


def limit_of(executable: Executable) -> float:
    """The error of right outputs, as a part of the largest value.

    It is smaller than the limit of the least exact kernel: whole models were never farther off, and
    later ops shrink the error of a wrong one.
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
    """Why nothing can be compared here; empty if it can."""
    held = sum(value.nbytes for layer in network.layers for value in layer.weights.values())
    wanted, left = MEMORY * held, memory_of().available or inf
    if wanted > left:
        return f"that takes {wanted / 1e6:.0f} MB of memory, and {left / 1e6:.0f} MB are free"
    return ""


def wrong(network: Network, off: Closeness | str) -> WrongResultError:
    """The error to raise if no fallback helps."""
    if isinstance(off, Closeness):
        off = f"Cosine {off.cosine:.6f}, off by {off.max_rel_err:.2g} of the largest value."
    return WrongResultError(
        f"{network.name}: by this plan its outputs are not what ONNX Runtime computes, and nothing "
        f"that may stand in helps. {off} `codl validate` tells more of it; another --strategy may "
        "be right, and --no-check, or check=False, runs it as it is."
    )


def tell(name: str, checked: Checked, *, is_new: bool) -> None:
    """Warn of fallbacks, and of models that were not compared with ONNX Runtime."""
    if told := "; ".join(map(str, checked.fallbacks)):
        text = f"{name} is right on this device only where some kernels are left out: {told}."
        warnings.warn(text, CodlWarning, stacklevel=4)
    if is_new and checked.reason:
        text = f"not compared with ONNX Runtime: {checked.reason}"
        if checked.reference:
            text = f"compared with {checked.reference}, as codl reads the model. {checked.reason}"
        warnings.warn(f"{name} was {text}.", CodlWarning, stacklevel=4)


@contextmanager
def _closed_on_error(engine: Engine) -> Iterator[None]:
    try:
        yield
    except BaseException:
        engine.close()
        raise
