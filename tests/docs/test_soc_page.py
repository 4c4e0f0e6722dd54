"""docs/reference/soc.md has a line for each key of a SoC's files, and for nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

from codl.ir.records.soc import Soc
from codl.machine.placement import Placement

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "soc.md").read_text()
ROW = re.compile(r"^\| `([\w.]+)` \|", re.MULTILINE)


def keys(kind: Any, prefix: str = "") -> Iterator[str]:
    """The keys of a class, and those of the classes that it holds, lists or not."""
    hints = get_type_hints(kind)
    for own in fields(kind):
        if kind is not Soc or own.name not in ("cpu", "gpu"):
            yield prefix + own.name
        hint = hints[own.name]
        for inner in filter(is_dataclass, (hint, *get_args(hint))):
            yield from keys(inner, f"{prefix}{own.name}.")


def listed(heading: str) -> list[str]:
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    return ROW.findall(section)


def test_every_key_of_a_file_has_its_line() -> None:
    assert sorted(listed("Keys of NAME.yaml")) == sorted(keys(Soc))
    assert sorted(listed("Keys of NAME.local.yaml")) == sorted(keys(Placement))
