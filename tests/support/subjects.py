"""Everything that takes bytes from strangers, by name."""

from __future__ import annotations

from collections.abc import Mapping

from support.executables import executables
from support.frame_fuzz import frames, replies, requests
from support.readers import READERS, Make

SUBJECTS: Mapping[str, Make] = {
    **READERS,
    "executables": lambda folder: executables(),
    "frames": lambda folder: frames(),
    "requests": lambda folder: requests(),
    "replies": lambda folder: replies(),
}
