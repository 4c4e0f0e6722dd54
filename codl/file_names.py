"""Names that become file names: the one way from a name that codl was told to a path."""

from __future__ import annotations

from pathlib import Path

from codl.errors import CodlError

#: What file systems take as a name, in bytes.
MOST_BYTES = 255


def inside(folder: Path, name: str) -> Path:
    """The file or folder of a name, right inside `folder`, wherever the name comes from.

    Raises `CodlError` for what is no plain name: a path, one that is hidden or looks like an
    option, or one with letters that cannot be seen.
    """
    is_plain = name.isprintable() and not set(name) & {"/", "\\"} and name.strip() == name
    if not name or not is_plain or name[0] in ".-" or len(name.encode()) > MOST_BYTES:
        raise CodlError(
            f"{name!r} cannot be the name of a file in {folder}: it must be a plain name, such as "
            "sdm865."
        )
    return folder / name
