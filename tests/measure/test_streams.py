"""Streams beyond the caches: how large they are, that they run, and what is told of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.devices import here
from support.simulated import SOC
from support.whole_way import QUICK

from codl.ir import parse, to_text
from codl.measure import drift
from codl.measure.dataset import AnchorRow, Dataset
from codl.measure.drift import calibration
from codl.measure.exchanges import MOST_EVICTED, evicting_op, stream_op
from codl.measure.runner import Bench
from codl.measure.timing import AnchorTime
from codl.records.soc_facts import CpuCache
from codl.runtime.examination import Memory
from codl.runtime.placement import LocalSoc
from codl.targets.measuring import check_anchors

STREAM = "pooling in=1x16x8192x64 kernel=1x1"


def test_the_pace_of_the_memory_is_told_beside_that_of_the_processors(tmp_path: Path) -> None:
    """And nothing is divided by it: neither a run by another, nor the rows of a batch."""
    dataset = Dataset.of("test", tmp_path)
    short = to_text(parse(drift.OPS[0]))
    levels = {
        "cpu": {short: 1.0, STREAM: 4.0, f"{STREAM} beside": 6.0},
        "gpu": {short: 2.0, STREAM: 5.0},
    }
    slower = {side: {op: 3 * ms for op, ms in by_op.items()} for side, by_op in levels.items()}
    slower["cpu"][short] = 1.1
    runs = {"run1": {"anchors_ms": levels}, "run2": {"anchors_ms": slower}}
    dataset.write_manifest({"source": "measured", "runs": runs})
    assert calibration(runs, "run2") == {"cpu": 1.1, "gpu": 3.0}
    now = [
        AnchorTime(short, "cpu", 1.0),
        AnchorTime(short, "gpu", 2.2),
        AnchorTime(STREAM, "cpu", 8.0),
        AnchorTime(STREAM, "gpu", 5.5),
        AnchorTime(f"{STREAM} beside", "cpu", 18.0),
    ]
    told = {"cpu": 1.0, "gpu": 1.1, "cpu memory": 2.0, "gpu memory": 1.1, "both memory": 3.0}
    assert drift.slowdown(now, drift.first_ms(dataset)) == pytest.approx(told)
    batches = drift.Anchors()
    for factor in (1.0, 3.0, 1.0):
        taken_ms = {short: 1.0, STREAM: factor}
        batches.add(
            [
                AnchorRow(op=op, processor="cpu", batch=1, latency_ms=ms)
                for op, ms in taken_ms.items()
            ]
        )
    assert batches.scatter("cpu") == 0.0


def test_streams_are_more_than_the_largest_cache_and_a_part_of_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def moved(cache: int, memory: int) -> int:
        """Of what empties caches, no more than networks move."""
        caches = (CpuCache(3, "unified", cache, 2, 1),)
        soc = replace(SOC, cpu=replace(SOC.cpu, caches=caches))
        monkeypatch.setattr("codl.measure.exchanges.memory_of", lambda: Memory(memory, memory))
        assert evicting_op(soc).bytes == min(stream_op(soc).bytes, evicting_op(large).bytes)
        return stream_op(soc).bytes

    monkeypatch.setattr("codl.measure.exchanges.memory_of", lambda: Memory(1 << 40, 1 << 40))
    large = replace(SOC, cpu=replace(SOC.cpu, caches=(CpuCache(3, "unified", 1 << 30, 2, 1),)))
    assert evicting_op(large).bytes == pytest.approx(MOST_EVICTED, rel=0.01)
    assert moved(1 << 20, 8 << 30) == pytest.approx(64 << 20, rel=0.01)
    assert moved(300 << 20, 64 << 30) == pytest.approx(600 << 20, rel=0.01)
    assert moved(300 << 20, 4 << 30) == pytest.approx(256 << 20, rel=0.01)
    assert moved(300 << 20, 0) == pytest.approx(64 << 20, rel=0.01)


def test_streams_run_on_each_processor_and_on_both(first_soc: LocalSoc) -> None:
    streams = Bench(here(first_soc).device, "run1", QUICK).streams()
    op = to_text(stream_op(first_soc))
    names = [drift.key(stream) for stream in streams]
    assert names == [(op, "cpu"), (op, "gpu"), (f"{op} beside", "cpu")]
    for stream in streams:
        stream.timed.visit()
        row = drift.row_of(stream)
        assert row.latency_ms > 0
        check_anchors([row], "run1")
