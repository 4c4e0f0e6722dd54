"""What comes with codl beside its code: SoC files, a reference dataset and its predictors.

They are found from any folder, behind those of the current one.
"""

from __future__ import annotations

from pathlib import Path

#: In codl's package, or in a checkout beside that.
ROOTS = tuple(Path(__file__).resolve().parents[1:3])


def shipped(folder: Path) -> Path:
    """The folder of that name which comes with codl; it need not be there."""
    return next((root / folder.name for root in ROOTS if (root / folder.name).is_dir()), folder)


def found(name: str, root: Path, usual: Path) -> Path:
    """`name` under `root`; where it is not there, in the `usual` one, what comes with codl."""
    own, other = root / name, shipped(usual) / name
    return other if root == usual and not own.exists() and other.exists() else own
