"""Decoder of a language model on a device: prompts in chunks of tokens, then token by token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from codl.engine.shared_sessions import JoinedSessions
from codl.errors import CodlError
from codl.frontend.decoders import LAST_ROW, PAST_LENGTH, POSITIONS, Step
from codl.ir.executable import Refusal
from codl.ir.ops.base import Array
from codl.ir.plan import Plan
from codl.kernels.tuning import Tuning
from codl.lower import lower
from codl.records.results import Checked
from codl.runtime.loaded import Footprint, RefusedError
from codl.runtime.memory import give_back_freed
from codl.runtime.session import Session
from codl.targets.local import LocalTarget

#: What the two steps of a decoder are called.
PREFILL, DECODE = "prefill", "decode"


@dataclass(frozen=True)
class PlannedStep:
    """A step of a decoder and how it runs."""

    step: Step
    plan: Plan


class Decoder:
    """A decoder whose cache stays where it is used.

    `prefill` takes a chunk of tokens at a time, `decode` one; both are of one model and capacity.
    `length` is how many tokens the cache holds. Raises `MismatchError` where the two plans do not
    keep the same part of a cache on each processor. It does `without` the kernels named so.

    >>> logits = decoder.prefill(prompt)
    >>> logits = decoder.decode(int(logits.argmax()))
    """

    def __init__(
        self,
        prefill: PlannedStep,
        decode: PlannedStep,
        target: LocalTarget,
        tuning: Tuning = Tuning(),
        *,
        without: Sequence[Refusal] = (),
    ) -> None:
        self.capacity, self.length = decode.step.capacity, 0
        steps, soc = {PREFILL: prefill, DECODE: decode}, target.soc
        refusals = [*without]
        while True:
            executables = {
                name: lower(planned.step.network, planned.plan, soc, tuning, without=refusals)
                for name, planned in steps.items()
            }
            try:
                self._loaded = JoinedSessions(executables, target.device, soc.placement.limits)
                break
            except RefusedError as error:
                refusals += error.refusals
        for constants in (
            constant for executable in executables.values() for constant in executable.constants
        ):
            constants.let_go()
        give_back_freed()
        self.executables = tuple(executables.values())
        #: What came of comparing it with a reference; None where nobody did.
        self.checked: Checked | None = None
        self._steps = {
            name: LoadedStep(planned.step, self._loaded[name]) for name, planned in steps.items()
        }

    @property
    def memory(self) -> Footprint:
        """What tensors, caches and weights take on either side."""
        return self._loaded.footprint

    def prefill(self, tokens: Sequence[int]) -> Array:
        """Append tokens; the logits of the one behind the last, until the next call.

        Where the last chunk is not full its rest is computed in vain, and where the cache has no
        room for a whole chunk, its tokens come one by one. Raises `CodlError` for no tokens, and
        for more than the cache has room for.
        """
        self._check(len(tokens))
        ids, step = np.asarray(tokens, np.int64), self._steps[PREFILL]
        logits = np.empty(0, np.float32)
        for start in range(0, len(ids), step.size):
            chunk = ids[start : start + step.size]
            if self.length + step.size <= self.capacity:
                logits = self._run(step, chunk)
            else:
                for at in range(len(chunk)):
                    logits = self._run(self._steps[DECODE], chunk[at : at + 1])
        return logits

    def decode(self, token: int) -> Array:
        """Append a token; the logits of the next one, until the next call."""
        self._check(1)
        return self._run(self._steps[DECODE], np.array([token]))

    def reset(self) -> None:
        """Forget all tokens."""
        self.length = 0

    def session(self, name: str) -> Session:
        """What runs as `PREFILL` or `DECODE`."""
        return self._loaded[name]

    def close(self) -> None:
        self._loaded.close()

    def __enter__(self) -> Decoder:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _check(self, count: int) -> None:
        left = self.capacity - self.length
        if not 0 < count <= left:
            raise CodlError(
                f"{count} tokens are to be appended, and of the cache's capacity of "
                f"{self.capacity} {left} are left: give 1 to {left}, or a larger capacity."
            )

    def _run(self, step: LoadedStep, tokens: NDArray[np.int64]) -> Array:
        logits = step.run(tokens, self.length)
        self.length += len(tokens)
        return logits


class LoadedStep:
    """A step, and the arrays that it reads and leaves."""

    def __init__(self, step: Step, session: Session) -> None:
        self.size, self._session = step.tokens, session
        inputs = session.inputs
        self._words = inputs[step.words].reshape(-1)
        self._length = inputs[PAST_LENGTH].reshape(-1)
        self._row, self._places = inputs.get(LAST_ROW), inputs.get(POSITIONS)
        self._logits = session.outputs[step.logits].reshape(-1, step.vocabulary)

    def run(self, tokens: NDArray[np.int64], length: int) -> Array:
        """The logits behind the last of at most `size` tokens, of which `length` came before."""
        last = len(tokens) - 1
        self._words[: last + 1] = tokens
        self._length[:] = length
        if self._row is not None:
            self._row[:] = last
        if self._places is not None:
            self._places[:] = np.arange(length, length + self.size)
        self._session.run()
        logits: Array = self._logits[last if len(self._logits) > 1 else 0]
        return logits
