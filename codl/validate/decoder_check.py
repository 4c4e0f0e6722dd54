"""Check of a language model against ONNX Runtime, which `codl bench llm` makes before it measures.

A chunk of tokens, and single ones over the cache that it leaves, beside ONNX Runtime: logits must
be as close as a plan's outputs must. Where they are not, each kernel variant of the GPU's is left
out in turn, everywhere: a step alone has no cache, so its ops are not run one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codl.engine.decoder import Decoder, PlannedStep
from codl.errors import CodlError
from codl.evaluation.closeness import Closeness, closeness, is_right, worst
from codl.frontend.decoders import DecoderSource
from codl.ir.constants import digest
from codl.ir.executable import Executable, GpuOp, Refusal
from codl.ir.plan import OpFallback
from codl.kernels.tuning import Tuning
from codl.lower import lower
from codl.measure.check_variants import OF_HALVES, OF_WINOGRAD
from codl.measure.decoder_speed import Decodes
from codl.measure.inputs import SEED
from codl.measure.peers.ort_decoder import OrtDecoder
from codl.records.results import Checked
from codl.targets.local import LocalTarget
from codl.validate import verdicts
from codl.validate.first_check import SPREAD, limit_of, tell, why_not, wrong
from codl.validate.validation import usual_cosine

#: Tokens that are made one by one.
SINGLE = 2
#: What stands in for a variant that is left out everywhere.
NEXT = "the next variant"


def checked_decoder(
    steps: tuple[PlannedStep, PlannedStep],
    target: LocalTarget,
    tuning: Tuning = Tuning(),
    *,
    source: DecoderSource | None,
) -> Decoder:
    """A decoder whose logits were found to be those of its model; `checked` says how close.

    `source` is where its model is from; without one nothing is compared. Raises `WrongResultError`
    where no variant that is left out makes them right.
    """
    decoder = Decoder(*steps, target, tuning)
    if source is None:
        return decoder
    begin, network = perf_counter(), steps[1].step.network
    size = digest(f"{steps[0].step.tokens} {decoder.capacity}")
    slot = verdicts.slot_of(source.model(1, 1).digest() + size, decoder.executables, target)
    checked = remembered = verdicts.load(slot)
    if checked is None and (reason := why_not(replace(network, states={}))):
        checked = Checked("", reason=reason)
    if checked is None:
        decoder, checked = _compared(decoder, steps, target, tuning, source)
        verdicts.store(slot, checked)
        checked = replace(checked, ms=1e3 * (perf_counter() - begin))
    elif checked.fallbacks:
        decoder.close()
        decoder = _without(steps, target, tuning, checked.fallbacks)
    decoder.checked = checked
    tell(network.name, checked, is_new=remembered is None)
    return decoder


def _compared(
    decoder: Decoder,
    steps: tuple[PlannedStep, PlannedStep],
    target: LocalTarget,
    tuning: Tuning,
    source: DecoderSource,
) -> tuple[Decoder, Checked]:
    """The decoder, or another one that is right, and what the comparison says."""
    chunk, capacity, network = steps[0].step.tokens, decoder.capacity, steps[1].step.network
    random = np.random.default_rng(SEED)
    tokens = random.integers(0, steps[1].step.vocabulary, chunk + SINGLE).tolist()

    def reference(optimised: bool) -> list[NDArray[Any]]:
        cores = target.soc.placement.cores
        with closing(OrtDecoder(source, chunk, capacity, cores, optimised=optimised)) as peer:
            return _logits(peer, tokens, chunk, capacity)

    def distance(made: Sequence[NDArray[Any]]) -> Closeness:
        return worst(closeness(x, y) for x, y in zip(made, right, strict=True))

    right, executables = reference(optimised=False), decoder.executables
    limit = max(OF_WINOGRAD, *map(limit_of, executables))
    commands = (command for executable in executables for command in executable.steps)
    on_gpu = (command.variant for command in commands if isinstance(command, GpuOp))
    cosine = usual_cosine(network, on_gpu)

    def verdict(
        close: Closeness, limit: float, fallbacks: tuple[OpFallback, ...] = ()
    ) -> Checked | None:
        if not is_right(close, cosine, limit):
            return None
        by = "ONNX Runtime"
        return Checked(by, close.cosine, close.max_rel_err, fallbacks=fallbacks, limit=limit)

    first = distance(_logits(decoder, tokens, chunk, capacity))
    if checked := verdict(first, limit):
        return decoder, checked
    decoder.close()
    noise = distance(reference(optimised=True))
    limit = max(limit, SPREAD * noise.max_rel_err)
    cosine = min(cosine, 1 - SPREAD * (1 - noise.cosine))
    keys = dict.fromkeys(key for executable in executables for key, _ in _variants(executable))
    left_out = [(OpFallback(k, "gpu", v, NEXT, "wrong where it is used"),) for k, v in keys]
    for fallbacks in ((), *left_out):
        try:
            decoder = _without(steps, target, tuning, fallbacks)
        except CodlError:  # no other variant computes it
            continue
        close = distance(_logits(decoder, tokens, chunk, capacity))
        if checked := verdict(close, limit, fallbacks):
            return decoder, checked
        decoder.close()
    if checked := verdict(first, OF_HALVES):  # rounding adds up, whatever it runs in
        return Decoder(*steps, target, tuning), checked
    raise wrong(network, first)


def _logits(decoder: Decodes, tokens: list[int], chunk: int, capacity: int) -> list[NDArray[Any]]:
    """Those behind a chunk, and behind single tokens: after it, or where that fills it, anew."""
    decoder.reset()
    made = [np.array(decoder.prefill(tokens[:chunk]))]
    if capacity < chunk + SINGLE:
        decoder.reset()
    singles = tokens[chunk : chunk + min(SINGLE, capacity)]
    made += [np.array(decoder.decode(token)) for token in singles]
    decoder.reset()
    return made


def _variants(executable: Executable) -> Iterator[tuple[tuple[str, str], GpuOp]]:
    """Every op of the GPU's, with its kind and variant."""
    for step in executable.steps:
        if isinstance(step, GpuOp):
            yield (step.ops[0].partition(" ")[0], step.variant), step


def _without(
    steps: tuple[PlannedStep, PlannedStep],
    target: LocalTarget,
    tuning: Tuning,
    fallbacks: Sequence[OpFallback],
) -> Decoder:
    """The decoder without some variants; raises `DeviceError` where no other one is left."""
    left_out = {(fallback.op, fallback.variant) for fallback in fallbacks}
    refusals: list[Refusal] = []
    while True:
        made = [
            lower(planned.step.network, planned.plan, target.soc, tuning, without=refusals)
            for planned in steps
        ]
        more = [
            Refusal(step.label, step.variant, step.choice, "it computes something wrong")
            for executable in made
            for key, step in _variants(executable)
            if key in left_out
        ]
        if not more:
            return Decoder(*steps, target, tuning, without=refusals)
        refusals += more
