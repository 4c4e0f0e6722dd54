"""The site of these pages: `make docs` builds it with Sphinx, MyST and furo into build/site."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

project = "codl"
copyright = "the authors of codl; Apache-2.0"
_version = re.search(r'^VERSION = "(.+)"', (ROOT / "codl/provenance.py").read_text(), re.MULTILINE)
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
