"""Scripts import what there is: nothing else runs most of them."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted((ROOT / "scripts").rglob("*.py"))


def imported(script: Path) -> Iterator[tuple[str, str]]:
    """Modules of codl, its plugins or beside a script, and the names imported from each."""
    for node in ast.walk(ast.parse(script.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_script_imports_what_there_is(script: Path) -> None:
    beside = {path.stem for path in script.parent.glob("*.py")}
    names = list(imported(script))
    assert names or script.name == "__init__.py"
    for module, name in names:
        if module.startswith("codl") and name and not hasattr(import_module(module), name):
            import_module(f"{module}.{name}")
        elif module in beside and name:
            tree = ast.parse((script.parent / f"{module}.py").read_text())
            assert name in ast.unparse(tree), f"{script}: {module} has no {name}"


def test_bootstrap_leaves_what_a_link_leads_to(tmp_path: Path) -> None:
    shared, link = tmp_path / "shared", tmp_path / ".venv"
    shared.mkdir()
    (shared / "kept").write_text("of somebody else")
    link.symlink_to(shared)
    command = [sys.executable, str(ROOT / "scripts" / "bootstrap.py"), str(link)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert f"{link} is a link to {shared}" in ran.stderr
    assert f"rm {link}" in ran.stderr
    assert (shared / "kept").read_text() == "of somebody else"
