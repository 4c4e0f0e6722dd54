"""Text from files and devices, as it is shown to people."""

from __future__ import annotations

from typing import Any


def printable(text: Any) -> str:
    """Text without control characters, which neither a terminal nor XML should get from elsewhere.

    Lines and tabs stay.
    """
    return "".join(
        c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in str(text)
    )
