"""Kernel variants that computed something wrong on a driver of this machine: others stand in.

A device cannot see that while it runs, but `codl doctor` does. What it finds lies in codl's cache,
under the device and the driver's version: another driver begins with a clean slate, and so does
another version of codl.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from codl.provenance import VERSION
from codl.runtime.cache import Slot

KIND = "distrusted"
#: So many ops of a variant are kept.
MOST = 8


@dataclass(frozen=True)
class Distrust:
    """What is known of the variants of one driver; `identity` is that of its compiled programs."""

    identity: Mapping[str, str]

    def ops(self, variant: str) -> tuple[str, ...]:
        """The ops that a variant was wrong on, by its name such as `conv2d gpu_gemm`."""
        blob = self._slot(variant).load()
        try:
            known = [] if blob is None else json.loads(blob)
        except ValueError:
            return ()
        return tuple(map(str, known)) if isinstance(known, list) else ()

    def reason(self, variant: str) -> str:
        """Why a variant must not be run; "" where nothing is known against it."""
        wrong = self.ops(variant)
        if not wrong:
            return ""
        return f"`codl doctor` found it wrong on this driver, as with {wrong[0]}"

    def note(self, variant: str, op: str, *, is_wrong: bool) -> None:
        """Keep what was found of a variant on an op; what is right again is forgotten."""
        known = self.ops(variant)
        if is_wrong == (op in known):
            return
        others = [own for own in known if own != op]
        wrong = [op, *others][:MOST] if is_wrong else others
        slot = self._slot(variant)
        if wrong:
            slot.store(json.dumps(wrong).encode())
        else:
            slot.drop()

    def _slot(self, variant: str) -> Slot:
        return Slot(KIND, {**self.identity, "codl": VERSION, "variant": variant})
