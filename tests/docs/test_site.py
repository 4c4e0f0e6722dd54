"""The site of docs/: Sphinx builds it without a warning, and no page is left out of its index."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for package in ("sphinx", "myst_parser", "furo", "sphinx_copybutton"):
        pytest.importorskip(package, reason=f"{package} is not installed: pip install --group docs")
    folder = tmp_path_factory.mktemp("site")
    words = ["-W", "--keep-going", "-q", "-b", "html", "-d", str(folder / "doctrees")]
    run = subprocess.run(
        [sys.executable, "-m", "sphinx", *words, str(DOCS), str(folder / "html")],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    return folder / "html"


def test_it_has_every_page(site: Path) -> None:
    pages = [page.relative_to(DOCS) for page in DOCS.rglob("*.md")]
    assert len(pages) > 20
    assert [page for page in pages if not (site / page.with_suffix(".html")).is_file()] == []


def test_a_word_of_the_glossary_is_told_at_its_first_use(site: Path) -> None:
    text = (site / "concepts" / "coexecution.html").read_text()
    (halo,) = re.findall(r'<a class="word[^>]*title="([^"]*)"[^>]*>halo</a>', text)
    assert f"| halo | {halo} |" in (DOCS / "concepts" / "glossary.md").read_text()
    assert 'class="word' not in (site / "concepts" / "glossary.html").read_text()


def test_it_loads_nothing_from_elsewhere(site: Path) -> None:
    text = (site / "index.html").read_text()
    loaded = [part.split('"')[0] for part in text.split('src="')[1:]]
    loaded += [part.split('"')[0] for part in text.split('rel="stylesheet" type="text/css" href="')]
    assert len(loaded) > 2
    assert [address for address in loaded if address.startswith(("http:", "https:", "//"))] == []
