"""The tables of README.md: what both processors gain together, of undisturbed runs alone.

scripts/render_docs.py fills them from `docs/results`. A model is left out where the rows that are
compared are doubtful, and the caption says so. Replayed rows are of scripts/paper/speedups.py.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean

from codl.records.results import EvalRow, doubts
from codl.report.load import load_result
from codl.report.results import CurveResult, EvalResult, SocSummary
from codl.report.text_table import Column, TextRow, TextSection, TextTable, digits, listed, words

CPU, GPU, BOTH = "cpu", "gpu", "codl"
#: A processor alone that takes so much longer than predicted makes every gain over it doubtful.
MOST_OFF = 1.2
#: Of a file of the paper's speedups.
FIGURE, REPLAYED = "speedups", "replayed"


@dataclass(frozen=True)
class Gain:
    """A model on two processors; `rival` is the fastest library that had all cores, and its ms."""

    model: str
    soc: SocSummary
    cpu_ms: float
    gpu_ms: float
    both_ms: float
    rival: tuple[str, float] | None
    doubts: tuple[str, ...]

    @property
    def gain(self) -> float:
        """Over the better processor."""
        return min(self.cpu_ms, self.gpu_ms) / self.both_ms

    @property
    def bound(self) -> float:
        """The gain of two processors that share nothing."""
        slower, faster = max(self.cpu_ms, self.gpu_ms), min(self.cpu_ms, self.gpu_ms)
        return 1 + faster / slower


def gains(evaluation: EvalResult) -> Iterator[Gain]:
    """Of every model that ran on each processor and on both."""
    for model in evaluation.models:
        rows = {row.strategy: row for row in evaluation.of(model) if row.latency_ms}
        if not {CPU, GPU, BOTH} <= {*rows}:
            continue
        cpu_ms, gpu_ms, both_ms = (_ms(rows[name]) for name in (CPU, GPU, BOTH))
        better = rows[CPU if cpu_ms < gpu_ms else GPU]
        peers = [(_ms(row), name) for name, row in rows.items() if row.peer is not None]
        rival = min(((name, ms) for ms, name in peers), key=lambda pair: pair[1], default=None)
        unsure = tuple(
            f"{row.strategy}: {doubt}" for row in (better, rows[BOTH]) for doubt in _doubts(row)
        )
        for row in (rows[CPU], rows[GPU]):
            if row.predicted_ms and _ms(row) > MOST_OFF * row.predicted_ms:
                off = digits(_ms(row) / row.predicted_ms)
                unsure += (f"{row.strategy} took {off} times its prediction",)
        yield Gain(model, evaluation.soc, cpu_ms, gpu_ms, both_ms, rival, unsure)


def _doubts(row: EvalRow) -> tuple[str, ...]:
    return doubts(row.latency_ms, row.cold_ms) if row.latency_ms else ()


def _ms(row: EvalRow) -> float:
    assert row.latency_ms is not None
    return row.latency_ms.level


def gains_content(results: Sequence[EvalResult]) -> TextTable:
    """A line a model; of several files that with libraries beside it, or else the first."""
    chosen: dict[str, Gain] = {}
    sources: dict[str, EvalResult] = {}
    for result in results:
        for gain in gains(result):
            before = chosen.get(gain.model)
            if before is None or (before.doubts, before.rival is None) > (
                gain.doubts,
                gain.rival is None,
            ):
                chosen[gain.model], sources[gain.model] = gain, result
    columns = (
        words("model"),
        Column("CPU (ms)"),
        Column("GPU (ms)"),
        Column("both (ms)"),
        Column("gain"),
        Column("bound"),
        Column("best library, all cores (ms)"),
        words("commit"),
    )
    sure = {model: gain for model, gain in chosen.items() if not gain.doubts}
    rows = tuple(
        TextRow((model, *_figures(gain), _rival(gain), _commit(sources[model])))
        for model, gain in sure.items()
    )
    used = {id(sources[model]): sources[model] for model in chosen}
    caption = [_mean(sure.values()), *_left_out(chosen.values())]
    machines = dict.fromkeys(_machine(result) for result in used.values())
    caption += [f"Measured on: {'; '.join(machines)}.", *map(_made, used.values())]
    return TextTable("Gains", columns, (TextSection("", rows),), tuple(filter(None, caption)))


def _figures(gain: Gain) -> tuple[str, ...]:
    milliseconds = map(digits, (gain.cpu_ms, gain.gpu_ms, gain.both_ms))
    return (*milliseconds, f"**{digits(gain.gain)}**", digits(gain.bound))


def _rival(gain: Gain) -> str:
    return f"{digits(gain.rival[1])} ({gain.rival[0]})" if gain.rival else "not measured"


def _mean(of: Iterable[Gain]) -> str:
    every = [gain.gain for gain in of]
    bounds = [gain.bound for gain in of]
    if not every:
        return "No run was undisturbed."
    return (
        f"Geometric mean of {len(every)}: {digits(geometric_mean(every))}, "
        f"bound {digits(geometric_mean(bounds))}."
    )


def _left_out(of: Iterable[Gain]) -> list[str]:
    told = {gain.model: gain.doubts[0] for gain in of if gain.doubts}
    listed_ = ", ".join(f"{model} ({doubt})" for model, doubt in told.items())
    return [f"Left out as doubtful: {listed_}."] if told else []


def _machine(result: EvalResult) -> str:
    cpu, gpu = result.soc.cpu, result.soc.gpu
    if cpu is None or gpu is None:
        return result.soc.name
    cores = f"{len(cpu.cores)} + {len(gpu.cores)} cores" if gpu.cores else f"{len(cpu.cores)} cores"
    return f"{cpu.name}, {cores}, {gpu.platform} {gpu.driver}"


def _commit(result: EvalResult | CurveResult) -> str:
    return f"[{result.commit[:7]}](docs/results/{result.file})"


def _made(result: EvalResult) -> str:
    """The command behind a file, and when it ran."""
    command = "codl eval"
    if asked := result.asked:
        words_of = ["--soc", result.soc.name, "--models", ",".join(asked.models)]
        words_of += ["--strategies", ",".join(asked.strategies)]
        if asked.peers:
            words_of += ["--peers", ",".join(asked.peers)]
        command = shlex.join(["codl", "eval", *words_of, "--time", f"{asked.seconds:g}s"])
    return f"`{command}` ({result.created[:10]})."


def in_part_content(results: Sequence[CurveResult]) -> TextTable:
    """A line a model: the size of the GPU, in multiprocessors, at which both are most alike."""
    closest: dict[str, Gain] = {}
    commits: dict[str, str] = {}
    unsure: list[Gain] = []
    for result in results:
        for evaluation in result.evaluations:
            if evaluation.soc.is_one_cpu:
                continue
            for gain in gains(evaluation):
                if gain.doubts:
                    unsure.append(gain)
                elif gain.model not in closest or closest[gain.model].bound < gain.bound:
                    closest[gain.model], commits[gain.model] = gain, _commit(result)
    columns = (
        words("model"),
        words("GPU"),
        Column("CPU (ms)"),
        Column("GPU (ms)"),
        Column("both (ms)"),
        Column("gain"),
        Column("bound"),
        words("commit"),
    )
    rows = tuple(
        TextRow((model, gain.soc.description.strip(" ."), *_figures(gain), commits[model]))
        for model, gain in closest.items()
    )
    beside = dict.fromkeys(gain.soc.cpu.name for gain in closest.values() if gain.soc.cpu)
    days = listed(sorted({result.created[:10] for result in results}))
    caption = [
        f"Measured beside all cores of: {', '.join(beside)}." if beside else "",
        _mean(closest.values()),
        *_left_out(gain for gain in unsure if gain.model not in closest),
        f"`python scripts/bench/stage.py` ({days}).",
    ]
    return TextTable("Gains", columns, (TextSection("", rows),), tuple(filter(None, caption)))


def replayed_content(files: Sequence[Path]) -> TextTable:
    """A line a phone: geometric means over models, of predictions from others' measurements."""
    columns = (
        words("phone"),
        Column("models"),
        Column("`codl` over the better processor"),
        Column("`codl-paper` over it"),
        words("commit"),
    )
    rows, days = [], set()
    for file in files:
        content = json.loads(file.read_text())
        if content.get("figure") != FIGURE:
            continue
        by_model: dict[str, dict[str, float]] = {}
        for row in content["rows"]:
            if REPLAYED in row["source"]:
                by_model.setdefault(row["model"], {})[row["strategy"]] = row["latency_ms"]
        whole = [of for of in by_model.values() if {CPU, GPU, BOTH} <= {*of}]
        if whole:
            soc = content["soc"]
            name = soc.get("description") or soc["name"]
            over = _over(whole, BOTH, "codl-paper")
            commit = f"[{content['commit'][:7]}](docs/results/{file.name})"
            rows.append(TextRow((name, str(len(whole)), *over, commit)))
            days.add(content["created"][:10])
    made = f"Geometric means. `python scripts/paper/{FIGURE}.py` ({listed(sorted(days))})."
    caption = (made,) if rows else ()
    return TextTable("Gains", columns, (TextSection("", tuple(rows)),), caption)


def _over(models: Sequence[Mapping[str, float]], *strategies: str) -> Iterator[str]:
    for name in strategies:
        having = [of for of in models if name in of]
        gained = [min(of[CPU], of[GPU]) / of[name] for of in having]
        yield digits(geometric_mean(gained)) if gained else "not known"


def evals(files: Sequence[Path]) -> list[EvalResult]:
    return [result for file in files if isinstance(result := load_result(file), EvalResult)]
