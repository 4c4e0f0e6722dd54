"""The site of these pages: `make docs` builds it with Sphinx, MyST and furo into build/site."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from docutils import nodes

ROOT = Path(__file__).resolve().parents[1]

project = "codl"
copyright = "the authors of codl; Apache-2.0"
_version = re.search(r'^VERSION = "(.+)"', (ROOT / "codl/files.py").read_text(), re.MULTILINE)
release = version = _version[1] if _version else ""

extensions = ["myst_parser", "sphinx_copybutton"]
root_doc = "index"
exclude_patterns = ["_build"]
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
#: Only what is typed is copied: no prompt, no output.
copybutton_prompt_text = "$ "
#: Options and keys are words of their own, not typography.
smartquotes = False
#: Blocks of these pages may hold several languages' fragments: what is not valid stays plain.
suppress_warnings = ["misc.highlighting_failure"]

html_theme = "furo"
html_title = f"codl {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_copy_source = False
html_show_sphinx = False

#: Words of the glossary that pages tell when the mouse is on their first use.
TOLD = re.compile(
    r"\b(agent|anchors?|bound|bundles?|chains?|data sharing|drift|exchanges?|executables?|halo|"
    r"held out|kernel variants?|peers?|profile|regret|replayed|shards?)\b"
)
GLOSSARY = "concepts/glossary"


def meanings(text: str) -> dict[str, str]:
    """What each word of the glossary's tables means, without Markdown."""
    rows = re.findall(r"^\| ([^|`]+) \| (.+) \|$", text, re.MULTILINE)
    return {word.strip(): re.sub(r"[`*]", "", meaning) for word, meaning in rows}


def tell_words(app: Any, tree: nodes.document, page: str) -> None:
    """Put the glossary's meaning behind the first use of each of its words in a page's text."""
    if page == GLOSSARY:
        return
    known = meanings((ROOT / "docs" / f"{GLOSSARY}.md").read_text(encoding="utf-8"))
    told = {strong.astext().lower() for strong in tree.findall(nodes.strong)}  # the page says it
    address = app.builder.get_relative_uri(page, GLOSSARY)
    for text in list(tree.findall(nodes.Text)):
        if not isinstance(text.parent, nodes.paragraph):
            continue
        parts: list[nodes.Node] = []
        end = 0
        for match in TOLD.finditer(text):
            word = match[0] if match[0] in known else match[0].removesuffix("s")
            if word not in known or word in told:
                continue
            told.add(word)
            tip = nodes.reference("", match[0], refuri=address, reftitle=known[word])
            tip["classes"].append("word")
            parts += [nodes.Text(text[end : match.start()]), tip]
            end = match.end()
        if parts:
            text.parent.replace(text, [*parts, nodes.Text(text[end:])])


def setup(app: Any) -> None:
    app.connect("doctree-resolved", tell_words)
