"""The notebooks run from any folder, on what comes with codl, and are kept without outputs."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def test_there_are_notebooks_which_a_page_names() -> None:
    text = (ROOT / "docs" / "howto" / "python.md").read_text()
    assert [path.name[:2] for path in NOTEBOOKS] == ["01", "02", "03", "04", "05"]
    assert all(f"notebooks/{path.name}" in text for path in NOTEBOOKS)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_outputs_and_has_its_picture(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    assert f"](pictures/{path.stem}.png)" in notebook.cells[0].source
    picture = path.parent / "pictures" / f"{path.stem}.png"
    assert picture.is_file(), f"`python scripts/notebook_pictures.py {path.stem}` draws it"
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    for cell in notebook.cells:
        assert not cell.metadata
        if cell.cell_type == "code":
            assert (cell.outputs, cell.execution_count) == ([], None)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_draws(path: Path, tmp_path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    where = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=300, resources=where).execute()
    outputs = [out for cell in notebook.cells for out in cell.get("outputs", [])]
    assert sum("image/png" in out.get("data", {}) for out in outputs) >= 3
    assert not [out.text for out in outputs if out.get("name") == "stderr"]
    assert not list(tmp_path.iterdir())
