"""The page in a real browser: nothing is asked for, told, or wider than a phone."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.some import some

from codl.report.html import write_report

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
AXE = ROOT / "node_modules" / "axe-core" / "axe.min.js"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
#: What each page of a phone and of a desk is looked at with.
WIDTHS, SCHEMES = (400, 1280), ("light", "dark")
OPENED = "document.querySelectorAll('details').forEach(details => details.open = true)"
#: What stands out of the page at either side, but for what scrolls in a box of its own.
OUTSIDE = """() => [...document.querySelectorAll('body *')]
  .filter(one => !one.closest('.scroll') && !one.closest('title'))
  .filter(one => { const box = one.getBoundingClientRect();
                   return box.width && (box.left < -0.5 || box.right > innerWidth + 0.5); })
  .map(one => one.outerHTML.slice(0, 120))"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright, which steers a browser, is not installed"
    )
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip(f"there is no browser here: none of {', '.join(BROWSERS)}")
    with playwright.sync_playwright() as running:
        started = running.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """All kinds of files that docs/results has."""
    kinds = ("eval-host", "eval-split-host", "curve-h100", "train-host")
    files = [path for kind in kinds for path in RESULTS.glob(f"{kind}.json")]
    files += sorted(RESULTS.glob("paper-fig*.json"))[:4]
    out = tmp_path_factory.mktemp("report") / "report.html"
    return write_report(files, out, apart=True).as_uri()


def test_a_page_asks_for_nothing_and_is_no_wider_than_a_phone(browser: Any, page: str) -> None:
    for width in some(WIDTHS):
        shown = browser.new_page(viewport={"width": width, "height": 800})
        told: list[str] = []
        asked: list[str] = []
        shown.on("console", lambda message, told=told: told.append(message.text))
        shown.on("pageerror", lambda error, told=told: told.append(str(error)))
        shown.on("request", lambda request, asked=asked: asked.append(request.url))
        shown.goto(page)
        shown.evaluate(OPENED)
        assert (told, asked) == ([], [page])
        assert shown.evaluate("document.documentElement.scrollWidth") == width
        assert shown.evaluate(OUTSIDE) == []
        shown.close()


def test_axe_finds_no_serious_fault(browser: Any, tmp_path: Path) -> None:
    if not AXE.is_file():
        pytest.skip("axe-core is not here: `npm install axe-core` in the repository brings it")
    page = write_report([RESULTS / "eval-host.json"], tmp_path / "report.html")
    for scheme in some(SCHEMES):
        shown = browser.new_page(color_scheme=scheme)
        shown.goto(page.as_uri())
        shown.evaluate(AXE.read_text(encoding="utf-8"))
        faults = shown.evaluate("axe.run()")["violations"]
        shown.close()
        assert [f["help"] for f in faults if f["impact"] in ("serious", "critical")] == []
