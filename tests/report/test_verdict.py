"""What to use for a model: the fastest right way of an evaluation, its sentence, its lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from codl.errors import InvalidFileError
from codl.ir.records.verdicts import ModelVerdict, remember, remembered
from codl.report.results import EvalResult, parse_as
from codl.report.verdict import model_verdicts


def row(strategy: str, ms: float | None, spread: float = 0.01, **values: Any) -> dict[str, Any]:
    latency = ms and {"median": ms, "p20": ms, "p80": (1 + spread) * ms, "runs": 9}
    failed = {} if ms else {"status": "failed", "reason": "no layer"}
    named = {"model": "net", "strategy": strategy, "latency_ms": latency, "predicted_ms": None}
    return {**named, "source": "measured", **failed, **values}


def peer(name: str, ms: float | None, **values: Any) -> dict[str, Any]:
    ran = {"version": "1.2", "threads": 2, "busy_cores": 1.9}
    return row(name, ms, peer=ran if ms else None, **values)


def verdicts(*rows: dict[str, Any], **values: Any) -> tuple[ModelVerdict, ...]:
    soc = {"name": "pc", "cpu": {"name": "A"}, "gpu": {"name": "B"}}
    return model_verdicts(
        parse_as(EvalResult, {"command": "eval", "soc": soc, "rows": [*rows], **values})
    )


def test_another_library_is_named_with_the_margin_over_the_next() -> None:
    (found,) = verdicts(row("cpu", 9.0), row("codl", 6.0), peer("ort", 5.0), peer("mnn", None))
    assert (found.use, found.kind, found.latency_ms) == ("ort", "library", 5.0)
    assert (found.next, found.next_ms, found.margin) == ("codl", 6.0, pytest.approx(0.2))
    assert found.is_clear
    assert found.sentence == (
        "For net on pc use ort 1.2 on 2 cores: 5.00 ms; the next, codl's plan (codl), takes "
        "6.00 ms, 20.0 % longer."
    )


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        (
            [row("cpu", 5.0), row("codl", 5.0, same_as="cpu"), row("gpu", 8.0)],
            "use codl on one processor alone (cpu): 5.00 ms; the next, codl on one processor alone "
            "(gpu), takes 8.00 ms, 60.0 % longer.",
        ),
        (
            [row("codl", 5.0, spread=0.1), peer("ort", 5.2)],
            "use codl's plan (codl): 5.00 ms; the next, ort 1.2 on 2 cores, takes 5.20 ms, 4.0 % "
            "longer, and their spreads overlap.",
        ),
        (
            [row("codl", 5.0), peer("ncnn", 1.0, cosine=0.5), row("ideal", 1.0, source="computed")],
            "use codl's plan (codl): 5.00 ms; nothing else ran with right outputs.",
        ),
        (
            [row("codl", 1.0, source="simulated"), row("cpu", 5.0)],
            "use codl on one processor alone (cpu): 5.00 ms; nothing else ran with right outputs.",
        ),
    ],
)
def test_a_sentence_says_what_to_use(rows: list[dict[str, Any]], sentence: str) -> None:
    (found,) = verdicts(*rows)
    assert found.sentence == f"For net on pc {sentence}"


def test_lines_of_python_have_the_options_of_the_evaluation() -> None:
    asked = {"models": ["net"], "strategies": ["codl"], "seconds": 1.0, "batch": 4}
    limits = {"max_kernel_ms": 1.0, "gpu_duty": 0.7}
    (found,) = verdicts(row("codl", 5.0), asked={**asked, "limits": limits}, serial="process")
    assert found.snippet.splitlines()[2] == (
        "engine = codl.compile('net', soc='pc', strategy='codl', serial='process', batch=4, "
        "max_kernel_ms=1.0, gpu_duty=0.7)"
    )
    (usual,) = verdicts(row("codl", 5.0), asked=asked | {"batch": None}, serial="local")
    assert usual.snippet.splitlines()[2] == (
        "engine = codl.compile('net', soc='pc', strategy='codl')"
    )


def test_verdicts_are_kept_by_model(tmp_path: Path) -> None:
    first, second = (
        verdicts(row(name, ms), row(name, ms, model="other"))
        for name, ms in (("cpu", 9.0), ("codl", 5.0))
    )
    assert remembered("pc", tmp_path) == {}
    remember(first, {"net": "d1", "other": "d2"}, "pc", tmp_path)
    remember(second[:1], {"net": "d3"}, "pc", tmp_path)
    found = remembered("pc", tmp_path)
    assert (found["net"].verdict, found["net"].digest) == (second[0], "d3")
    assert (found["other"].verdict, found["other"].digest) == (first[1], "d2")
    assert (
        remember(verdicts(row("cpu", 1.0, source="simulated")), {"net": ""}, "pc", tmp_path) is None
    )
    assert remembered("pc", tmp_path) == found


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"version": 1, "models": []}', "models: expected object"),
        ("{", "not JSON"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "pc.json").write_text(content)
    with pytest.raises(InvalidFileError, match=message):
        remembered("pc", tmp_path)
