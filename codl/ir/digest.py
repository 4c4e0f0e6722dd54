"""Names for contents: SHA-256 of text, bytes or a mapping that JSON can hold."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any


def digest(content: str | bytes | Mapping[str, Any]) -> str:
    """A name for some content that no other content has; the order of a mapping does not matter."""
    if isinstance(content, Mapping):
        content = json.dumps(content, sort_keys=True)
    return sha256(content if isinstance(content, bytes) else content.encode()).hexdigest()
