"""docs/reference/troubleshooting.md quotes messages that codl really has."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reference" / "troubleshooting.md"
#: The first cell of a row, as far as it is quoted.
QUOTED = re.compile(r"^\| `([^|]+?)`[^`|]*(?:`[^`|]*`)?[^`|]* \|", re.MULTILINE)


def _texts(tree: ast.AST) -> Iterator[str]:
    """Every text of a module; what an f-string fills in, and what follows it, is apart."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value for part in node.values if isinstance(part, ast.Constant))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_every_message_is_one_of_codls() -> None:
    files = [path for name in ("codl", "contrib") for path in (ROOT / name).rglob("*.py")]
    texts = [text for path in files for text in _texts(ast.parse(path.read_text()))]
    messages = QUOTED.findall(PAGE.read_text())
    assert len(messages) > 20
    for message in messages:
        pieces = [piece.strip() for piece in message.split("...") if piece.strip(" ;:,.")]
        assert any(all(piece in text for piece in pieces) for text in texts), message
