"""Names for what a dataset holds, by which results say what they rest on."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from codl.ir.digest import digest
from codl.measure.dataset import Dataset

#: Read at once.
CHUNK = 1 << 20


def dataset_digest(dataset: Dataset) -> str:
    """Identifies the tables, the manifest and the tuning of a dataset; empty where there is none.

    Raises `OSError` where a file cannot be read.
    """
    paths = [*dataset.folder.glob("*.csv"), *dataset.folder.glob("*.json")]
    lines = [f"{path.name} {_of_file(path)}" for path in sorted(paths)]
    return digest("\n".join(lines))[:16] if lines else ""


def _of_file(path: Path) -> str:
    found = sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            found.update(chunk)
    return found.hexdigest()
