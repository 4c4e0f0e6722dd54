"""Kernel variants in which an op is wrong on a SoC, and what it runs in instead.

`codl validate` finds them. A plan lists those of its layers, whose chains have the stand-ins
already; a SoC file lists ops, and plans that are made for it keep to that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from codl.ir.op_text import parse
from codl.ir.ops.base import AXES, Op
from codl.ir.region import Region, Span
from codl.ir.types import Processor


@dataclass(frozen=True)
class OpFallback:
    """On `processor` an op is wrong in `variant`: there it runs in `instead` alone.

    Where that is a variant of the other processor, all of the op runs on that one. `op` is a
    layer's name in a plan. In a SoC file it is the op's text, and the op's parts are meant too.
    """

    op: str
    processor: Processor
    variant: str
    instead: str
    reason: str = ""

    def __str__(self) -> str:
        why = f": {self.reason}" if self.reason else ""
        return f"{self.op!r} runs in {self.instead} and not in {self.variant}{why}"


def those_of(fallbacks: Iterable[OpFallback], op: Op, processor: Processor) -> list[OpFallback]:
    """Of a SoC's, those that hold for an op, or a part of one, on a processor.

    Raises `CodlError` for the text of an op that cannot be read.
    """
    return [
        one
        for one in fallbacks
        if one.processor == processor
        and one.op.partition(" ")[0] == op.kind
        and _is_part(op, one.op)
    ]


@lru_cache(maxsize=4096)
def _is_part(part: Op, text: str) -> bool:
    """Whether an op is the one of a text, or what a cut of that along one dimension makes."""
    whole = parse(text)
    if part == whole:
        return True
    everything = Region.whole(whole.output)
    for dim in whole.dims:
        axis = AXES[dim]
        size, of = (getattr(Region.whole(one.output), axis).size for one in (part, whole))
        cuts = (Span(first, first + size) for first in range(of - size + 1))
        if any(whole.restrict(everything._replace(**{axis: cut})) == part for cut in cuts):
            return True
    return False
