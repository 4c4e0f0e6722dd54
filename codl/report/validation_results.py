"""What `codl validate` writes, and what is made of several such files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from codl.ir.plan import OpFallback
from codl.ir.types import Processor
from codl.records.results import Amount, Count
from codl.report.result_file import ResultFile, SocSummary


@dataclass(frozen=True, kw_only=True)
class CheckedOp:
    """One part of an op; one that was not reached has no figures, and nobody knows if it is ok."""

    op: str
    processor: Processor
    variant: str
    verdict: str
    ok: bool | None = None
    cosine: float | None = None
    max_rel_err: Amount | None = None
    limit: Amount | None = None
    layout: str = ""
    precision: Mapping[str, str] = field(default_factory=dict)
    placed: str | None = None
    accumulated_max_rel_err: Amount | None = None
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class ValidateResult(ResultFile):
    """What `codl validate` wrote of one plan."""

    command: ClassVar[str] = "validate"
    model: str
    soc: SocSummary
    ok: bool
    diagnosis: str
    ops: tuple[CheckedOp, ...]
    strategy: str = ""
    cosine: float | None = None
    max_rel_err: Amount | None = None
    fallback: tuple[OpFallback, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ValidatedModel:
    """A model's ops on one processor of a SoC, and the whole of it, in a line.

    `parts` were checked, in so many `variants`; `wrong` are those that are not ok and `left` those
    that were not reached. `op_cosine` is the lowest of a part, `op_err` the largest error of one
    over what is rounding in its variant. `reason` says why there is nothing but that.
    """

    model: str
    processor: Processor
    stored: str
    parts: Count = 0
    variants: Count = 0
    wrong: tuple[str, ...] = ()
    left: Count = 0
    op_cosine: float | None = None
    op_err: Amount | None = None
    cosine: float | None = None
    max_rel_err: Amount | None = None
    ok: bool = False
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class ValidationsResult(ResultFile):
    """What `scripts/validate_models.py` wrote of many models on one device."""

    command: ClassVar[str] = "validations"
    soc: SocSummary
    gpu: str
    driver: str
    rows: tuple[ValidatedModel, ...]
