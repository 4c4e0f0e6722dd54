"""Ops of a plan one by one: each part alone, in its variant, on the reference's inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import nan
from typing import Literal, TypeAlias

import numpy as np

from codl.errors import CodlError
from codl.ir import Array
from codl.lower import pieces
from codl.measure.check_variants import OF_HALVES, tolerance
from codl.runtime.loaded import RefusedError
from codl.targets.base import Target
from codl.validate.closeness import Closeness, closeness
from codl.validate.references import Exact
from codl.validate.uses import OpUse

#: `imprecise` is beyond rounding, and `wrong` beyond what halves would cost; `overflow` is what is
#: not finite since the type of the output is too narrow, `not a number` all else that is not;
#: `failed` is what did not run, `not reached` what there was no time for.
Verdict: TypeAlias = Literal[
    "ok", "imprecise", "wrong", "overflow", "not a number", "failed", "not reached"
]


@dataclass(frozen=True)
class OpCheck:
    """What came of one part of an op; `reason` says why it failed.

    `limit` is the largest `max_rel_err` that is rounding in its variant.
    """

    use: OpUse
    verdict: Verdict
    closeness: Closeness
    limit: float
    reason: str = ""

    @property
    def ok(self) -> bool:
        return self.verdict == "ok"

    @property
    def is_reached(self) -> bool:
        return self.verdict != "not reached"

    @property
    def is_bad(self) -> bool:
        """Whether it was found not to be ok."""
        return self.is_reached and not self.ok


def check(use: OpUse, tensors: Mapping[str, Array], expected: Exact, target: Target) -> OpCheck:
    """Run a part alone on a target; `tensors` has what it reads, `expected` is the whole output.

    Whatever cannot be run is a verdict.
    """
    limit = tolerance(use.kernel)
    wanted = expected[use.region.slices]
    try:
        got = _run(use, [tensors[name] for name in use.reads], target)
    except (CodlError, ValueError) as error:  # one that fails is a result, not the end
        nothing = closeness(np.zeros_like(wanted), wanted)
        return OpCheck(use, "failed", nothing, limit, _reason(error))
    found = closeness(got, wanted, stored=use.stored)
    return OpCheck(use, _verdict(found, limit), found, limit)


def not_reached(use: OpUse) -> OpCheck:
    """A part that there was no time for: nothing is known of it."""
    return OpCheck(use, "not reached", Closeness(nan, nan), tolerance(use.kernel))


def _reason(error: Exception) -> str:
    told = "; ".join(map(str, error.refusals)) if isinstance(error, RefusedError) else str(error)
    return " ".join(told.split())


def _verdict(found: Closeness, limit: float) -> Verdict:
    if not found.is_finite:
        return "overflow" if found.overflow else "not a number"
    if found.max_rel_err > OF_HALVES:
        return "wrong"
    return "imprecise" if found.max_rel_err > limit else "ok"


def _run(use: OpUse, inputs: Sequence[Array], target: Target) -> Array:
    """The part of the output; what nothing writes is left as not-a-numbers."""
    loaded = target.load(use.executable(target.soc))
    try:
        for arrays in (loaded.outputs, loaded.inputs):
            for array in arrays.values():
                array.fill(np.nan)
        for name, value in zip(pieces.input_names(len(inputs)), inputs, strict=True):
            np.copyto(loaded.inputs[name], value.reshape(loaded.inputs[name].shape))
        loaded.run()
        part: Array = loaded.outputs[pieces.OUTPUT][use.region.slices].copy()
        return part
    finally:
        loaded.close()


def first_bad(checks: Sequence[OpCheck]) -> OpCheck | None:
    """The first in the model's order that was found not to be ok."""
    return next((one for one in checks if one.is_bad), None)
