"""Where a result comes from: codl's version and commit, and the time."""

from __future__ import annotations

import subprocess
from datetime import datetime, timezone
from functools import cache
from pathlib import Path

VERSION = "0.1.0"
ROOT = Path(__file__).resolve().parent.parent


def provenance() -> dict[str, str]:
    """Version, commit and time, as every result carries them."""
    return {"codl": VERSION, "commit": commit(), "created": now()}


def now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


#: Behind a commit of which the package's files have been changed since.
DIRTY = "+dirty"


@cache
def commit() -> str:
    """The commit of codl's own checkout; empty where codl does not run from one.

    `DIRTY` follows where the package is not as the commit has it.
    """
    try:
        top, revision, changed = (
            subprocess.run(
                ["git", "-C", str(ROOT), *question], capture_output=True, text=True, check=True
            ).stdout.strip()
            for question in (
                ["rev-parse", "--show-toplevel"],
                ["rev-parse", "--short", "HEAD"],
                ["--no-optional-locks", "status", "--porcelain", "--", "codl"],
            )
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    # An installed codl may lie inside somebody else's repository.
    if Path(top) != ROOT:
        return ""
    return f"{revision}{DIRTY}" if changed else revision


#: In codl's package, or in a checkout beside that.
ROOTS = tuple(Path(__file__).resolve().parents[0:2])


def shipped(folder: Path) -> Path:
    """The folder of that name which comes with codl; it need not be there."""
    return next((root / folder.name for root in ROOTS if (root / folder.name).is_dir()), folder)


def own_or_shipped(name: str, root: Path, usual: Path) -> Path:
    """`name` under `root`; where it is not there, in the `usual` one, what comes with codl."""
    folder, other = root / name, shipped(usual) / name
    return other if root == usual and not folder.exists() and other.exists() else folder
