"""Pages of kernels' figures."""

from __future__ import annotations

import json
from pathlib import Path

from codl.report.html import write_report


def test_a_page_has_a_row_for_every_kernel(tmp_path: Path) -> None:
    row = {"name": "conv", "variant": "v", "kernel": "k", "memory": "buffer", "op": "conv2d",
           "precision": "half", "ops": 1, "choice": {"block": 8}, "is_default": False,
           "program": "x", "error": "", "registers": 9, "spills": 7, "lanes": 0.5}  # fmt: skip
    summary = {"programs": 3, "failed": 1, "pairs": 2, "pairs_in_memory": [], "pairs_hot": [],
               "slots_per_100_macs": {"half": 123.4}}  # fmt: skip
    about = {"command": "kernels", "gpu": "adreno630", "label": "Adreno 630", "compiler": "c"}
    path = tmp_path / "kernels.json"
    path.write_text(json.dumps({**about, "summary": summary, "kernels": [row]}))
    page = write_report([path], tmp_path / "page.html").read_text()
    assert "Kernels on Adreno 630" in page
    assert "conv2d [block=8]" in page
    assert "3 programs, of which 1 do not build" in page
    assert "123 at half" in page
