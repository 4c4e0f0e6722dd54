"""First check of a plan against ONNX Runtime, before an engine hands out a result.

A plan and ONNX Runtime run on the same seeded inputs. The plan is right if every output differs by
no more than its kernels round, with NaN and infinities in the same places; that costs three
inferences. Otherwise the reference runs on inputs that are 1e-6 larger, to find outputs that
rounding decides. The references of ops find elements on which the model is not defined. Then each
op runs alone, as in `codl validate`, to tell a wrong op from a model that drifts.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from math import inf
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codl.engine.engine import Engine
from codl.errors import CodlWarning, NoKernelError, WrongResultError
from codl.frontend.convert import Source
from codl.ir import Network
from codl.ir.executable import Executable, GpuOp
from codl.ir.ops.eltwise import Eltwise
from codl.ir.plan import OpFallback, Plan
from codl.ir.records.results import Checked
from codl.ir.types import arithmetic_of
from codl.kernels import registry
from codl.kernels.tuning import Tuning
from codl.machine.examination import memory_of
from codl.measure.budget import Budget
from codl.measure.closeness import (
    OF_HALVES,
    OF_OTHERS,
    OF_WINOGRAD,
    Closeness,
    closeness,
    is_right,
    kinds,
    worst,
)
from codl.measure.inputs import SEED, random_inputs
from codl.plan.build_plan import with_fallbacks
from codl.targets.base import Target
from codl.validate import verdicts
from codl.validate.references import BY_OPS, ModelAndSource, Values, outputs_by_ops
from codl.validate.validation import COSINE, ModelUnderTest, Outputs, usual_cosine, validate

#: Seconds to check ops one by one, and to search fallbacks for wrong ones.
BUDGET_S = 300.0
#: Relative change of inputs that shows the effect of rounding, and the factor of this effect that
#: counts as rounding.
NUDGE, SPREAD = 1e-6, 10.0
#: Memory over that of weights: the reference holds them once more, and reading takes as much.
MEMORY = 3
#: Modes of `eltwise` that are not defined on all numbers.
PARTIAL = ("acos", "acosh", "asin", "atanh", "div", "log", "pow", "reciprocal", "sqrt")


@dataclass
class _Builder:
    """Builds engines of a plan, each with some ops moved to other variants."""

    network: Network
    plan: Plan
    target: Target
    tuning: Tuning
    recovers: bool
    strict: bool
    _moved: list[OpFallback] = field(default_factory=list)

    def build(self, fallbacks: Sequence[OpFallback] = ()) -> Engine:
        network = self.network
        while True:
            chosen = self.plan
            if changes := (*fallbacks, *self._moved):
                chosen = with_fallbacks(network, chosen, changes)
            try:
                return Engine(network, chosen, self.target, self.tuning, recovers=self.recovers)
            except NoKernelError as error:
                layer = next((x for x in network.layers if x.name == error.layer), None)
                usual = registry.variants(layer.op, "cpu", self.target.soc)[:1] if layer else ()
                reason = error.reasons.rstrip(".")
                moves = [
                    OpFallback(error.layer, "gpu", error.variant, x.name, reason) for x in usual
                ]
                if self.strict or not moves or moves[0] in self._moved:
                    raise
                (move,) = moves
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
    """A plan's engine, checked against the `source` of its network, if any.

    `checked` of the engine has the verdict, which is cached. If the plan is wrong, ops run in other
    variants, with one `CodlWarning`; a layer whose kernels the device all refuses goes to the CPU,
    with another. Raises `WrongResultError` if that does not help. If `strict`, every error is
    raised at once.
    """
    builder = _Builder(network, plan, target, tuning, recovers, strict)
    engine = builder.build()
    if source is None:
        return engine
    begin = perf_counter()
    with ExitStack() as on_error:
        on_error.callback(engine.close)
        slot = verdicts.slot_of(source.digest, [engine.executable], target)
        checked = remembered = verdicts.load(slot)
        if checked is None and (reason := why_not(network)):
            checked = Checked("", reason=reason)
        elif checked is not None and checked.fallbacks and strict:
            raise wrong(network, str(checked.fallbacks[0]))
        on_error.pop_all()
    if checked is None:
        model = ModelAndSource(network, source.read())
        engine, checked = _Comparison(model, builder, engine.plan).run(engine)
        if not engine.gpu_failure:
            verdicts.store(slot, checked)
        checked = replace(checked, ms=1e3 * (perf_counter() - begin))
    elif checked.fallbacks:
        engine.close()
        engine = builder.build(checked.fallbacks)
    engine.checked = checked
    tell(network.name, checked, is_new=remembered is None)
    return engine


class _Comparison:
    """Compares a model's plan with its reference, and finds fallbacks if they disagree."""

    def __init__(self, model: ModelAndSource, builder: _Builder, plan: Plan) -> None:
        self._model, self._builder = model, builder
        self._samples, self._right, self._by = _references(model)
        self._cosine = usual_cosine(builder.network, plan)
        #: Effect of rounding on the reference, by number of a suspicious sample and by output.
        self._noise: dict[int, Mapping[str, Closeness]] = {}
        #: Names of outputs that rounding decides.
        self._ignored: frozenset[str] = frozenset()
        #: The allowed error once every op was found right alone.
        self._least = 0.0
        #: The largest error that counted as right so far.
        self._taken = 0.0

    def run(self, engine: Engine) -> tuple[Engine, Checked]:
        """A right engine, with fallbacks if needed, and the verdict."""
        fallbacks: tuple[OpFallback, ...] = ()
        while True:
            with ExitStack() as on_error:
                on_error.callback(engine.close)
                close, miss = self._compare(engine)
                while miss is not None and miss[1] not in self._noise:
                    self._find_noise(miss[1])
                    close, miss = self._compare(engine)
                if miss is not None and self._least:
                    raise wrong(self._model.network, close)
                on_error.pop_all()
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
            reason=self._model.doubt,
            fallbacks=fallbacks,
            limit=max(self._taken, self._least),
            ignored=tuple(sorted(self._model.network.outputs.keys() - compared)),
        )

    def _compare(self, engine: Engine) -> tuple[Closeness, tuple[Plan, int, float] | None]:
        """Closeness of the outputs; for a miss also the plan, the sample's number and the limit."""
        seen: list[Closeness] = []
        limit = max(self._least, limit_of(engine.executable))
        # The next run overwrites outputs, so they are copied.
        results = [engine(sample) for sample in self._samples]
        for number, (got, right) in enumerate(zip(results, self._right, strict=True)):
            for name in right.keys() - self._ignored:
                seen.append(closeness(got[name], right[name]))
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

    def _find_noise(self, number: int) -> None:
        """Find a sample's undefined elements and effect of rounding; ignore unstable outputs."""
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
            if not is_right(closeness(again[name], value), self._cosine, OF_OTHERS)
        }
        random = np.random.default_rng(SEED)

        def nudged(value: NDArray[Any]) -> NDArray[Any]:  # in float32, the last bits
            return value * (1 + NUDGE * random.choice((-1.0, 1.0), value.shape))

        others = (
            self._model.outputs(_with_floats(sample, nudged)),
            self._model.outputs(sample, optimised=True),
        )
        self._noise[number] = {
            name: worst(closeness(other[name], value) for other in others if other is not None)
            for name, value in right.items()
        }

    def _ignore_unstable(self) -> None:
        """Ignore outputs whose value rounding decides, by sample."""
        for number in range(len(self._samples)):
            if number not in self._noise:
                self._find_noise(number)
            noise = self._noise[number]
            self._right[number] = {
                name: value
                for name, value in self._right[number].items()
                if name not in noise or is_right(noise[name], COSINE, OF_HALVES)
            }

    def _defined(self, sample: Values, right: Outputs) -> Outputs:
        """Reference outputs, masked where ONNX leaves their value undefined.

        An op made NaN there, which a later maximum may drop, as ONNX Runtime does at some
        positions.
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
        """Fallbacks for wrong ops, if any; raises `WrongResultError` if they do not suffice."""
        network = self._model.network
        self._least = OF_HALVES if limit > OF_WINOGRAD else OF_WINOGRAD
        self._ignore_unstable()
        order = sorted(range(len(self._samples)), key=lambda place: place != number)
        samples = [self._samples[place] for place in order]
        target, tuning = self._builder.target, self._builder.tuning
        tested = ModelUnderTest(self._model, target, tuning, samples)
        right = [self._right[place] for place in order]
        tested.expect([{k: v for k, v in x.items() if k not in self._ignored} for x in right])
        time = Budget(BUDGET_S)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CodlWarning)
            checked = validate(tested, plan, limit=self._least, budget=time)
            if not checked.is_wrong:
                # Right ops with a wrong tensor between them: a transfer or a copy loses it.
                so_far = checked.accumulated.values()
                if all(is_right(close, -1.0, OF_HALVES) for close in so_far):
                    return ()
                checked = replace(checked, limit=limit)
            if self._builder.strict:
                raise wrong(network, checked.diagnosis)
            from codl.validate.remedy import find_remedy

            remedy = find_remedy(tested, checked, budget=time)
        if not remedy.is_right or any(check.verdict != "imprecise" for check in remedy.unmet):
            raise wrong(network, checked.diagnosis)
        return remedy.fallbacks


def _references(model: ModelAndSource) -> tuple[list[Values], list[Outputs], str]:
    """Samples, their reference outputs, and the name of the reference.

    The first sample is non-negative like images, the second has both signs, and the third the
    opposite signs. Operators differ for negative numbers, and every element is negative once.
    """
    usual = random_inputs(model.network)
    samples: list[Values] = [model.shaped(usual)]
    if any(value.dtype.kind == "f" for value in usual.values()):
        both = _with_floats(usual, lambda value: 4 * (value - 0.5))
        samples += [model.shaped(both), model.shaped(_with_floats(both, np.negative))]
    right = [model.outputs(sample) for sample in samples]
    if right[0] is None:
        return samples[:1], [outputs_by_ops(model.network, samples[0])], BY_OPS
    pairs = [(x, y) for x, y in zip(samples, right, strict=True) if y is not None]
    return [x for x, _ in pairs], [y for _, y in pairs], model.reference


def _with_floats(sample: Values, change: Callable[[NDArray[Any]], NDArray[Any]]) -> Values:
    """A sample with changed floats of the same type."""
    return {
        name: change(value).astype(value.dtype) if value.dtype.kind == "f" else value
        for name, value in sample.items()
    }


def limit_of(executable: Executable) -> float:
    """The largest error of right outputs, relative to the largest value.

    It is smaller than the limit of the least exact kernel: no whole model exceeded it, and later
    ops shrink the error of a wrong op.
    """
    on_gpu = {step.variant for step in executable.steps if isinstance(step, GpuOp)}
    if "float16" in map(arithmetic_of, on_gpu):  # two to four times the rounding of storage
        return 3 * OF_HALVES
    if any(tensor.storage.element == "float16" for tensor in executable.tensors):
        return OF_HALVES / 2
    on_cpu = {layer.variant for net in executable.nets for layer in net.layers}
    if any("winograd" in name for name in on_gpu | on_cpu):
        return OF_WINOGRAD / 10
    return OF_OTHERS / 2


def why_not(network: Network) -> str:
    """The reason why the network cannot be compared here; empty if it can."""
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
