"""Runs the notebooks and keeps the first picture of each, which it opens with.

    python scripts/notebook_pictures.py                      # notebooks/pictures/*.png
    python scripts/notebook_pictures.py 03_your_own_model

Notebooks are kept without outputs; this is how a page that shows them has a picture all the same.
"""

from __future__ import annotations

import argparse
from base64 import b64decode
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).resolve().parent.parent / "notebooks"


def first_picture(path: Path) -> bytes:
    """The first PNG that a notebook draws."""
    notebook = nbformat.read(path, as_version=4)
    with TemporaryDirectory() as folder:
        where = {"metadata": {"path": folder}}
        NotebookClient(notebook, timeout=300, resources=where).execute()
    outputs = (out for cell in notebook.cells for out in cell.get("outputs", []))
    pictures = (out["data"]["image/png"] for out in outputs if "image/png" in out.get("data", {}))
    return b64decode(next(pictures))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="notebooks without .ipynb; by default all")
    names = parser.parse_args().names or sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb"))
    for name in names:
        picture = NOTEBOOKS / "pictures" / f"{name}.png"
        picture.parent.mkdir(exist_ok=True)
        picture.write_bytes(first_picture(NOTEBOOKS / f"{name}.ipynb"))
        print(picture.relative_to(NOTEBOOKS.parent))


if __name__ == "__main__":
    main()
