"""The report, from result files written by hand: every number here is test data."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from markdown_tables import markdown
from rich.console import Console, RenderableType

from codl.errors import CodlError, InvalidFileError
from codl.report.html import write_report
from codl.report.results import (
    COMMANDS,
    EvalResult,
    TrainResult,
    load_result,
    parse_as,
    parse_result,
)
from codl.report.tables import best_content, eval_content, train_content
from codl.report.text_table import (
    NONE,
    Column,
    TextRow,
    TextSection,
    TextTable,
    digits,
    nearness,
    spread,
)
from codl.report.verdict import findings

JsonObject = dict[str, Any]
HOSTILE = '<script>alert("x")</script>&[bold]$a_b$\x1b[31m\x00'
#: What is shown of characters that steer a terminal.
CONTROL = dict.fromkeys((0, 27), "\N{REPLACEMENT CHARACTER}")
#: How to write here what the page prints.
PLAIN = str.maketrans(
    {"\N{EN DASH}": "-", "\N{MULTIPLICATION SIGN}": "x", "\N{HORIZONTAL ELLIPSIS}": "..."}
)
VOID = {"wbr", "meta", "link", "br", "hr", "img", "input"}


def soc(type_: str = "cpu") -> JsonObject:
    cores = [1] if type_ == "cpu" else []
    gpu = {"name": "Test GPU", "platform": "Test OpenCL", "driver": "9.9", "type": type_}
    return {
        "name": "testhost",
        "description": "Test data, no machine",
        "cpu": {"name": "Test CPU", "cores": [0]},
        "gpu": {**gpu, "cores": cores},
    }


def row(strategy: str, median: float | None, **values: Any) -> JsonObject:
    latency = None
    if median is not None:
        latency = {"median": median, "p20": 0.9 * median, "p80": 1.05 * median, "runs": 15}
    found = {"model": "testnet", "strategy": strategy, "latency_ms": latency}
    return {**found, "predicted_ms": None, "source": "measured", "status": "ok", **values}


def span(processor: str, kind: str, start: float, end: float) -> JsonObject:
    return {
        "processor": processor,
        "kind": kind,
        "label": "conv1",
        "start_ms": start,
        "end_ms": end,
    }


SPANS = [
    span("cpu", "copy", 0.0, 1.5),
    span("cpu", "net", 1.5, 10.5),
    span("gpu", "kernel", 1.5, 9.75),
    span("cpu", "sync", 10.5, 11.0),
]
FAILED = row("ort", None, status="failed", reason="no kernel for op Foo", predicted_ms=777.0)
IDEAL = {"median": 50.0, "p20": 50.0, "p80": 50.0, "runs": 0}


def evaluation(**values: Any) -> JsonObject:
    rows = [
        row("cpu", 123.456, speedup=1.0, of_ideal=0.405),
        row("gpu", 234.567, speedup=0.526),
        row("codl", 61.728, predicted_ms=60.06, speedup=2.0, cosine=0.9999991, max_rel_err=3.2e-6),
        FAILED,
        {**row("ideal", 50.0, source="computed", of_ideal=1.0), "latency_ms": IDEAL},
    ]
    timeline = {"model": "testnet", "strategy": "codl", "spans": SPANS}
    found = {"command": "eval", "version": 1, "codl": "0.1.0", "commit": "abc1234"}
    return {**found, "soc": soc(), "rows": rows, "timelines": [timeline], **values}


def training() -> JsonObject:
    predictor = {"target": "cpu_gemm", "processor": "cpu", "n_train": 2000, "n_test": 500}
    sizes = {"bytes": 12345, "us_per_prediction": 2.3456}
    rows = [
        {"name": name, **predictor, **sizes, "split": split, "acc10": acc, "acc5": None, "mape": 5}
        for name in ("linear", "gbdt")
        for split, acc in (("row", 91.234), ("shape", 81.234))
    ]
    return {"command": "train", "soc": "testhost", "predictors": rows, "train_s": 12.345}


def search() -> JsonObject:
    both = {"cpu": "cpu_winograd", "gpu": "gpu_direct"}
    chains = [
        {"ops": ["a", "b"], "dim": "H", "gpu_ratio": 0.55, "variants": {"a": both, "b": both}},
        {"ops": ["c"], "dim": "OC", "gpu_ratio": 0, "variants": {"c": {"cpu": "cpu_gemm"}}},
    ]
    found = {"command": "search", "model": "testnet", "soc": "testhost", "strategy": "codl"}
    times = {"predicted_ms": 43.21, "search_ms": 8.765}
    return {**found, "predictor": "linear", **times, "chains": chains}


def running(**values: Any) -> JsonObject:
    found = {"command": "run", "model": "testnet", "data_sharing_ms": 1.5, "spans": SPANS}
    return {**found, "latency_ms": {"median": 11.11, "p20": 11, "p80": 12, "runs": 9}, **values}


class Page(HTMLParser):
    """What a reader finds on a page; asserts that tags are balanced and ids unique."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.html = html
        self.open: list[str] = []
        self.tags: list[tuple[str, Mapping[str, str | None]]] = []
        self.rows: list[list[str]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(html)
        self.close()
        assert not self.open
        ids = [values["id"] for _, values in self.tags if "id" in values]
        assert len(ids) == len(set(ids))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        data = data.translate(PLAIN)
        if self.open:
            self.texts.append((self.open[-1], data))
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data

    def text(self, *tags: str) -> str:
        return " ".join(data for tag, data in self.texts if not tags or tag in tags)

    def starting(self, name: str) -> list[list[str]]:
        return [row for row in self.rows if row and row[0] == name]

    @property
    def svgs(self) -> list[ElementTree.Element]:
        """The pictures; samples of legends are none."""
        found = re.findall(r'<svg class="picture plot".*?</svg>(?=\n)', self.html, re.DOTALL)
        return [ElementTree.fromstring(text) for text in found]


def write(folder: Path, content: Any, name: str = "result.json") -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def page(folder: Path, *contents: JsonObject) -> Page:
    paths = [write(folder, content, f"{i}.json") for i, content in enumerate(contents)]
    out = write_report(paths, folder / "new" / "report.html")
    assert [path.name for path in out.parent.iterdir()] == ["report.html"]
    return Page(out.read_text())


def terminal(table: RenderableType) -> str:
    console = Console(width=160)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def test_eval_rows_say_numbers_and_sources(tmp_path: Path) -> None:
    found = page(tmp_path, evaluation())
    cpu, codl, ideal = (found.starting(name)[-1] for name in ("cpu", "codl", "ideal"))
    assert cpu[1:6] == ["111", "123-130", "-", "1.00", "45.0"]
    assert codl[1:5] == ["55.6", "61.7-64.8", "60.1", "2.00"]
    assert codl[6:] == ["0.999999", "3.20e-06", "measured"]
    assert ideal[1:3] == ["50.0", "-"]
    assert ideal[-1] == "computed"


def test_the_page_says_what_was_measured_where_and_how(tmp_path: Path) -> None:
    ran = {"version": "1.2", "threads": 2, "busy_cores": 1.94}
    rows = [row("cpu", 20.0, doubts=["p80 is 1.40 times p20"]), row("ort", 15.0, peer=ran)]
    found = page(tmp_path, evaluation(rows=rows))
    for words in (
        "Test data, no machine",
        "Test GPU (Test OpenCL, 9.9; host cores 1)",
        "by cpu: p80 is 1.40 times p20. Measure again",
        "ort 1.2 (2 threads, 1.94 cores busy)",
        "one CPU, divided",
    ):
        assert words in found.text("li")
    captions = re.findall("<figcaption>.*?</figcaption>", found.html, re.DOTALL)
    assert captions
    assert all("one CPU, divided" in caption for caption in captions)
    assert "commit abc1234" in found.text("p")
    assert str(tmp_path) not in found.html


def test_the_conclusion_is_first_and_a_mean_over_models(tmp_path: Path) -> None:
    ran = {"version": "1.2", "threads": 2, "busy_cores": 1.94}
    wide = {"median": 10.0, "p20": 9.0, "p80": 20.0, "runs": 9}
    rows = [
        *(row("cpu", 20.0), row("gpu", 40.0), row("codl", 10.0, latency_ms=wide)),
        *(row("ort", 15.0, peer=ran), row("ncnn", 12.5, peer=ran)),
        *(row(name, ms, model="nets/other.onnx") for name, ms in (("cpu", 8.0), ("codl", 5.0))),
    ]
    *_, conclusion = findings(parse_as(EvalResult, evaluation(rows=rows)))
    assert conclusion == (
        "codl is 1.79 times as fast as the better processor alone in the geometric mean of 2 "
        "models, from 1.60 to 2.00, and 1.25 times as fast as the best library on all cores."
    )
    found = page(tmp_path, training(), evaluation(rows=rows))
    assert found.html.index("1.79 times as fast") < found.html.rindex("Predictors for")


def test_a_failed_row_has_a_reason_and_no_number(tmp_path: Path) -> None:
    found = page(tmp_path, evaluation())
    assert found.starting("ort")[-1] == ["ort", "failed: no kernel for op Foo"]
    assert "777" not in found.text()
    printed = terminal(eval_content(parse_as(EvalResult, evaluation())))
    assert "ort on testnet failed: no kernel for op Foo" in printed
    assert "777" not in printed


@pytest.mark.parametrize("source", ["simulated", "replayed"])
def test_unmeasured_rows_are_labelled_everywhere(tmp_path: Path, source: str) -> None:
    rows = [row("cpu", 100.0), row("codl", 50.0, source=source)]
    found = page(tmp_path, evaluation(rows=rows))
    assert "Not all of these numbers were measured:" in found.text("strong")
    assert source in found.text("p")
    timeline, latency = found.starting("codl")
    assert latency[-1] == timeline[-1] == source
    assert found.starting("cpu")[-1][-1] == "measured"
    assert f'<span class="chip warn">{source}</span>' in found.html
    assert source in terminal(eval_content(parse_as(EvalResult, evaluation(rows=rows))))


def test_the_page_is_self_contained_and_accessible(tmp_path: Path) -> None:
    found = page(tmp_path, evaluation(), training())
    assert found.html.startswith("<!DOCTYPE html>")
    assert ("html", {"lang": "en"}) in found.tags
    assert all("scope" in values for tag, values in found.tags if tag == "th")
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in found.tags}
    for _, values in found.tags:
        assert "src" not in values
        assert (values.get("href") or "#").startswith("#")


def test_names_are_never_markup(tmp_path: Path) -> None:
    rows = [row(HOSTILE, 10.0, model=HOSTILE), {**FAILED, "reason": HOSTILE, "model": HOSTILE}]
    timelines = [{"model": HOSTILE, "strategy": HOSTILE, "spans": SPANS}]
    content = evaluation(rows=rows, timelines=timelines, soc={**soc(), "name": HOSTILE})
    found = page(tmp_path, content, {**search(), "model": HOSTILE, "predictor": HOSTILE})
    assert not re.search("<script|\x1b|\x00", found.html)
    assert found.starting(HOSTILE.translate(CONTROL))
    assert found.svgs
    assert "[bold]$a_b$" in terminal(eval_content(parse_as(EvalResult, content)))


def test_training_stands_split_beside_split(tmp_path: Path) -> None:
    found = page(tmp_path, training())
    rows, shapes = found.starting("linear")
    assert rows[1:6] == ["rows", "2,000/500", "91.2", "-", "5.00"]
    assert shapes[1:6] == ["shapes", "2,000/500", "81.2", "-", "5.00"]
    assert shapes[6:] == ["12,345", "2.35", "not recorded"]
    assert found.starting("cpu_gemm (cpu)")
    every = terminal(train_content(parse_as(TrainResult, training())))
    assert "81.2" in every
    assert "gbdt" in every


def test_of_a_target_the_best_predictor_is_printed() -> None:
    content = training()
    content["predictors"][1] |= {"mape": 7.5}  # of linear, in the shape split
    table = best_content(parse_as(TrainResult, content))
    (best,) = table.sections[0].rows
    assert best.cells == ("cpu_gemm (cpu)", "2,000", "gbdt", "81.2", "5.00")
    for row in content["predictors"]:
        row |= {"mape": None, "acc10": None}
    table = best_content(parse_as(TrainResult, content))
    assert table.sections[0].rows[0].cells == ("cpu_gemm (cpu)", "2,000")
    assert "None was tried on rows held out." in table.caption


def test_three_significant_digits() -> None:
    large = {1234.5: "1230", 123.4: "123", 99.96: "100", 9.999: "10.0", 2.5e7: "2.50e+07"}
    small = {1.2: "1.20", -1.234: "-1.23", 0.012345: "0.0123", 3.2e-6: "3.20e-06"}
    edges = {0.0: "0", 0.0009999: "1.00e-03", 0.001: "0.00100"}
    wanted = {**large, **small, **edges}
    assert {value: digits(value) for value in wanted} == wanted
    assert digits(None) == spread(None, 1.0) == NONE
    assert digits(0.8764, percent=True) == "87.6"
    assert nearness(0.996) == "0.996000"


KERNEL = {"op": "conv", "variant": "gpu_direct", "processor": "gpu"}
BUNDLE = {"cold_start_ms": 900.0, "import_ms": 400, "load_ms": 300, "first_run_ms": 20}
CHECKED = {
    "op": "conv1", "processor": "gpu", "variant": "gpu_direct", "layout": "nchw", "cosine": 0.5,
    "max_rel_err": 0.25, "limit": 1e-4, "verdict": "wrong", "ok": False, "placed": "split on H",
    "precision": dict.fromkeys(("stored", "computed", "accumulated"), "float32"), "with": None,
}  # fmt: skip


@pytest.mark.parametrize(
    ("content", "rows"),
    [
        (search(), [["1", "a ... b", "2", "H", "0.550", "2 x cpu_winograd", "2 x gpu_direct"]]),
        (
            {"command": "search", "soc": "testhost", "plans": [{**search(), "search_ms": 2.5}],
             "failed": [{"model": "third", "reason": "no room"}]},
            [["testnet", "codl", "2", "1", "43.2", "2.50"], ["third", "failed: no room"]],
        ),
        (
            {"command": "collect", "rows": 4321, "failed": 12, "seconds": 59.87, "soc": soc(),
             "files": ["t_conv2d.csv"]},
            [["testhost", "4,321", "12"]],
        ),
        (
            running(source="replayed"),
            [["testnet", "-", "11.0", "11.1-12.0", "9", "-", "1.50", "replayed"]],
        ),
        (
            {"command": "bench", "soc": "testhost", "source": "measured",
             "ops": [{**KERNEL, "latency_ms": 0.5, "gflops": 8.0, "runs": 9}],
             "refused": [{**KERNEL, "variant": "gpu_winograd", "reason": "no 3x3"}]},
            [["gpu_direct", "gpu", "0.500", "-", "8.00"], ["gpu_winograd", "failed: no 3x3"]],
        ),
        (
            {"command": "package", "model": "testnet", "soc": "testhost", "strategy": "codl",
             "bytes": 17_300_000, **BUNDLE},
            [["testnet", "testhost", "17.3", "900", "400", "300", "20.0"]],
        ),
        (
            {"command": "validate", "model": "testnet", "soc": "testhost", "strategy": "gpu",
             "ok": False, "diagnosis": "Wrong by themselves: conv1.", "fallback": [],
             "cosine": 0.5, "max_rel_err": 0.3, "ops": [CHECKED]},
            [["conv1", "gpu", "gpu_direct", "nchw float32", "wrong", "0.500000", "0.250", "-",
              "split on H"]],
        ),
    ],
    ids=lambda value: value["command"] if isinstance(value, dict) else "",
)  # fmt: skip
def test_every_command_has_its_table(
    tmp_path: Path, content: JsonObject, rows: list[list[str]]
) -> None:
    found = page(tmp_path, content)
    for cells in rows:
        assert cells in found.rows


def wrong_eval(**values: Any) -> JsonObject:
    return evaluation(rows=[{**row("cpu", 1.0), **values}])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", ["not JSON"]),
        ({}, ["top", "the key 'command' is missing"]),
        ({"command": "evil"}, ["command", "'evil'", "Did you mean 'eval'", *COMMANDS]),
        (evaluation(rows=[{}]), ["rows[0]", "rows[0].model", "key is missing"]),
        (wrong_eval(source="guessed"), ["rows[0].source", "'guessed'", "measured", "simulated"]),
        (wrong_eval(latency_ms={"median": -1}), ["rows[0].latency_ms.median", "float >= 0", "-1"]),
        (wrong_eval(latency_ms={"median": 10**400}), ["finite", "1000"]),
        (
            wrong_eval(latency_ms={"median": 1, "p20": 2, "p80": 3, "runs": 9}),
            ["p20 <= median <= p80"],
        ),
        (wrong_eval(status="failed", reason="lost"), ["rows[0].latency_ms must be null"]),
    ],
)
def test_bad_files(tmp_path: Path, content: Any, words: list[str]) -> None:
    path = write(tmp_path, content)
    with pytest.raises(InvalidFileError) as raised:
        load_result(path)
    for part in (str(path), *words):
        assert part in str(raised.value)


def test_a_report_that_cannot_be_written(tmp_path: Path) -> None:
    path = write(tmp_path, search())
    with pytest.raises(CodlError, match="nothing to report"):
        write_report([], tmp_path / "report.html")
    with pytest.raises(CodlError, match="is a result file"):
        write_report([path], path)
    (tmp_path / "folder").mkdir()
    with pytest.raises(CodlError, match="cannot be written"):
        write_report([path], tmp_path / "folder")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder", "result.json"]


def test_markdown_keeps_cells_apart() -> None:
    rows = (TextRow(("a|b", "1")), TextRow(("c\nd",), failure="broken"))
    columns = (Column("name", numeric=False), Column("row ms"))
    text = markdown(TextTable("t", columns, (TextSection("m", rows),), ("A note.",)))
    assert text.splitlines() == [
        "| part | name | row ms |",
        "| --- | --- | ---: |",
        "| m | a\\|b | 1 |",
        "|  | c<br>d | failed |",
        "",
        "c d on m failed: broken A note.",
    ]


def places(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where the values of JSON stand, mappings and lists included."""
    yield path
    if isinstance(content, (dict, list)):
        for key in content if isinstance(content, dict) else range(len(content)):
            yield from places(content[key], (*path, key))


def changed(content: Any, path: tuple[Any, ...], value: Any) -> Any:
    """The content with another value at a place."""
    if not path:
        return value
    copy = dict(content) if isinstance(content, dict) else list(content)
    copy[path[0]] = changed(copy[path[0]], path[1:], value)
    return copy


STRANGE = (None, True, -1, 1.5, 10**30, float("inf"), "", "x\x00", [], [[]], {}, {"a": [1]})


@pytest.mark.parametrize("content", [evaluation(), training(), search(), running()])
def test_any_value_anywhere_is_read_or_refused_with_the_file(content: JsonObject) -> None:
    messages = []
    for path in places(content):
        for value in STRANGE:
            try:
                parse_result(changed(content, path, value), "some.json")
            except InvalidFileError as error:
                messages.append(str(error))
    assert len(messages) > 100
    assert all(message.startswith("some.json") for message in messages)


def test_a_narrow_terminal_has_fewer_columns_and_whole_words() -> None:
    columns = (
        Column("strategy", numeric=False),
        Column("median latency (ms)"),
        Column("first run (ms)", spare=2),
        Column("over measured"),
        Column("source", numeric=False, spare=1),
    )
    cells = ("fast_style_transfer", "123.4", "234.5", "0.98", "replayed")
    content = TextTable("Latency", columns, (TextSection("", (TextRow(cells),)),), ("A note.",))
    counts = set()
    for width in range(44, 100):
        console = Console(width=width, file=StringIO(), record=True)
        console.print(content)
        text = console.export_text()
        assert max(map(len, text.splitlines())) <= width
        left_out = re.search(r"Hidden columns: (.*?) \(widen", " ".join(text.split()))
        gone = left_out[1].split(", ") if left_out else []
        assert gone == ["source", "first run (ms)"][: len(gone)]
        grid = re.split(r"[\s\u2500-\u257f]+", text.split("No room")[0])
        for column, cell in zip(columns, cells, strict=True):
            assert ({cell, *column.header.split()} <= {*grid}) == (column.header not in gone)
        counts.add(len(gone))
    assert counts == {0, 1, 2}
