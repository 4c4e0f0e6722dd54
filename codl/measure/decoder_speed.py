"""How many tokens a second decoders take in, and make: in turns, in the words of llama.cpp."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from codl.measure.budget import Budget
from codl.measure.timing import Effort, TimedRun, Turns, interleave
from codl.records.results import Latency


class Decodes(Protocol):
    """A language model with a cache; logits are those of the next token, until the next call."""

    def prefill(self, tokens: Sequence[int]) -> NDArray[Any]: ...
    def decode(self, token: int) -> NDArray[Any]: ...
    def reset(self) -> None: ...


@dataclass(frozen=True)
class Workload:
    """`prompt` tokens at once (`pp512`), and `generated` one after the other (`tg128`).

    Both begin with an empty cache. `words` is the size of the vocabulary, from which tokens are
    drawn: which they are makes no difference to the time.
    """

    prompt: int
    generated: int
    words: int

    @property
    def tokens(self) -> list[int]:
        count = max(self.prompt, self.generated)
        drawn: list[int] = np.random.default_rng(0).integers(0, self.words, count).tolist()
        return drawn


@dataclass(frozen=True)
class Speed:
    """A number of tokens, and how long all take together."""

    tokens: int
    latency: Latency

    @property
    def tokens_per_s(self) -> float:
        return 1e3 * self.tokens / self.latency.level


@dataclass(frozen=True)
class DecoderSpeed:
    prefill: Speed
    decode: Speed


def time_decoders(
    decoders: Mapping[str, Decodes],
    workload: Workload,
    effort: Effort,
    budget: Budget | None = None,
) -> dict[str, DecoderSpeed]:
    """By name; everybody has turns of both, and what the first run of a turn takes counts too.

    Ctrl-C behind the first round ends it with what there is.
    """
    runs: dict[str, TimedRun] = {}
    every: dict[str, Turns] = {}
    rounds: list[float] = []
    budget = budget or Budget()
    for name, decoder in decoders.items():
        runs[f"{name} prefill"] = _timed(decoder, workload, _prefill)
        runs[f"{name} decode"] = _timed(decoder, workload, _decode)
    with budget.keeping(rounds):
        interleave(runs, effort, turns=every, after_round=lambda: rounds.append(budget.spent_s))

    def speed(name: str, tokens: int) -> Speed:
        turns = every[name]
        return Speed(tokens, Latency.of([*turns.cold, *turns.warm]))

    return {
        name: DecoderSpeed(
            speed(f"{name} prefill", workload.prompt), speed(f"{name} decode", workload.generated)
        )
        for name in decoders
    }


def greedy(decoder: Decodes, prompt: Sequence[int], count: int) -> list[int]:
    """`count` tokens behind a prompt, each the likeliest."""
    decoder.reset()
    logits, chosen = decoder.prefill(prompt), []
    for _ in range(count):
        chosen.append(int(logits.argmax()))
        logits = decoder.decode(chosen[-1])
    return chosen


def _timed(
    decoder: Decodes, workload: Workload, work: Callable[[Decodes, Workload], None]
) -> TimedRun:
    def run(runs: int) -> list[float]:
        seconds = []
        for _ in range(runs):
            decoder.reset()
            start = perf_counter()
            work(decoder, workload)
            seconds.append(perf_counter() - start)
        return seconds

    return run


def _prefill(decoder: Decodes, workload: Workload) -> None:
    decoder.prefill(workload.tokens[: workload.prompt])


def _decode(decoder: Decodes, workload: Workload) -> None:
    for token in workload.tokens[: workload.generated]:
        decoder.decode(token)
