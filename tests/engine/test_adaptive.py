"""Engines that adapt, on devices: outputs, memory and switches; not how fast anything is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.devices import here
from support.plans import branching_case, image, legal, make_plan, row

from codl.engine.adaptation import OverlapMonitor, OverlapSpan, overlap_spans
from codl.engine.engine import MOST_MEMORY, Engine
from codl.engine.shared_sessions import AdaptiveSession
from codl.errors import DeviceError, UnsupportedError
from codl.evaluation.closeness import max_rel_err
from codl.ir import Array, Network
from codl.lower.alternatives import SCALES, shifted
from codl.plan.build_plan import default_plan
from codl.records.results import Move
from codl.records.soc import Soc
from codl.targets.connect import connect

#: Rows, channels, one processor alone, and a branch around them.
CUTS = [(2, "H", 0.5), (1, "OC", 0.5), (1, "H", 1.0)]
Case = tuple[Network, dict[str, Array], dict[str, Array]]


@pytest.fixture(scope="module")
def case() -> Case:
    network, x, expected = branching_case()
    return network, {"image": x}, expected


def loaded(engine: Engine) -> AdaptiveSession:
    assert isinstance(engine.loaded, AdaptiveSession)
    return engine.loaded


@pytest.fixture
def engine(case: Case, first_soc: Soc) -> Iterator[Engine]:
    plan = make_plan(case[0], first_soc, legal(case[0], CUTS), "missing")
    with Engine(case[0], plan, here(first_soc), adaptive=True) as made:
        yield made


@pytest.mark.parametrize("sees_host_memory", [True, False])
def test_every_alternative_gives_the_same_outputs(
    sees_host_memory: bool, case: Case, soc: Soc
) -> None:
    """One after the other over the same arrays, to and fro, as a run after a switch meets them."""
    network, x, expected = case
    if not sees_host_memory:
        soc = replace(soc, gpu=replace(soc.gpu, fine_grained_svm=False))
    plan = make_plan(network, soc, legal(network, CUTS), "missing")
    with Engine(network, plan, here(soc), adaptive=True) as engine:
        scales = loaded(engine).scales
        assert 1.0 in scales
        assert len(scales) > 3
        for scale in (*scales, *reversed(scales), 1.0, scales[-1], scales[0]):
            loaded(engine).use(scale)
            assert loaded(engine).scale == scale
            found = engine(x)
            for name, reference in expected.items():
                assert max_rel_err(found[name], reference) <= 1e-4


def test_arrays_of_users_stay_where_they_are(engine: Engine, case: Case) -> None:
    """What was fed before a switch is read after it, and outputs appear in the same arrays."""
    _, x, expected = case
    engine.feed(x)
    outputs = dict(engine.outputs)
    for scale in loaded(engine).scales:
        loaded(engine).use(scale)
        for array in outputs.values():
            array.fill(np.nan)
        engine.run()
        for name, reference in expected.items():
            assert max_rel_err(outputs[name].reshape(reference.shape), reference) <= 1e-4


def test_what_is_active_is_what_an_engine_says(engine: Engine, case: Case) -> None:
    first = engine.plan
    loaded(engine).use(loaded(engine).scales[0])
    engine.feed(case[1])
    engine.run()
    assert engine.plan.chains[0].gpu_ratio == pytest.approx(shifted(0.5, loaded(engine).scales[0]))
    assert engine.executable is loaded(engine).executable
    assert {span.processor for span in engine.profile()} == {"cpu", "gpu"}
    found = engine.adaptation
    assert found is not None
    assert found.scale == loaded(engine).scales[0]
    assert found.runs == 1
    assert found.moves == (Move(0, 1.0, found.scale),)
    assert found.gpu_ratios[1.0] == tuple(chain.gpu_ratio for chain in first.chains)
    assert set(found.gpu_ratios) == set(loaded(engine).scales)


def test_an_engine_moves_when_its_waits_say_so(
    engine: Engine, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU that every shared stage waits for, as long as the CPU works."""
    reading = OverlapMonitor.sample

    def late(self: OverlapMonitor, start: int, marks: Any, end: int) -> Any:
        seen = reading(self, start, marks, end)
        assert 0 <= seen.work <= seen.total
        return replace(seen, total=int(1e9 * loaded(engine).scale), work=1000, wait=1000)

    monkeypatch.setattr(OverlapMonitor, "sample", late)
    for _ in range(8):
        found = engine(case[1])
        for name, reference in case[2].items():
            assert max_rel_err(found[name], reference) <= 1e-4
    assert loaded(engine).scale < 1.0
    assert engine.adaptation is not None
    assert engine.adaptation.moves[0].previous == 1.0


def test_rows_take_no_weights_twice(first_soc: Soc) -> None:
    """Neither kernels nor nets that differ in their rows alone."""
    network = row(4)
    plan = make_plan(network, first_soc, [(4, "H", 0.5)], "missing")
    with Engine(network, plan, here(first_soc)) as alone:
        own, expected = alone.memory, alone(image(network))
    with Engine(network, plan, here(first_soc), adaptive=True) as engine:
        assert len(loaded(engine).scales) == len(SCALES)
        assert engine.memory.cpu_weight_bytes == own.cpu_weight_bytes
        assert engine.memory.gpu_weight_bytes == own.gpu_weight_bytes
        assert own.total < engine.memory.total <= MOST_MEMORY * own.total
        for scale in loaded(engine).scales:
            loaded(engine).use(scale)
            for name, value in engine(image(network)).items():
                np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("cuts", [[(4, "H", 0.5)], [(1, "H", 0.5)] * 4])
def test_memory_keeps_to_its_bound(cuts: list[tuple[int, str, float]], first_soc: Soc) -> None:
    network = row(4)
    plan = make_plan(network, first_soc, cuts, "missing")
    with Engine(network, plan, here(first_soc)) as alone:
        own = alone.memory.total
    with Engine(network, plan, here(first_soc), adaptive=True) as engine:
        assert engine.memory.total <= MOST_MEMORY * own
        assert engine.adaptation is not None
        assert engine.adaptation.runs == 0


def test_one_processor_alone_has_nothing_to_move(first_soc: Soc) -> None:
    network = row(2)
    plan = default_plan(network, first_soc, "cpu")
    with Engine(network, plan, here(first_soc), adaptive=True) as engine:
        engine(image(network))
        assert engine.adaptation is not None
        assert engine.adaptation.gpu_ratios == {1.0: (0.0,)}


def test_engines_that_do_not_adapt_say_so(first_soc: Soc) -> None:
    network = row(1)
    with Engine(network, default_plan(network, first_soc, "cpu"), here(first_soc)) as engine:
        assert engine.adaptation is None


def test_a_closed_engine_that_adapts_says_so(engine: Engine, case: Case) -> None:
    engine.close()
    with pytest.raises(DeviceError, match="engine of 'branching' is closed"):
        engine(case[1])


def test_another_process_is_refused(first_soc: Soc) -> None:
    network = row(1)
    plan = make_plan(network, first_soc, [(1, "H", 0.5)], "missing")
    target = connect("process", first_soc)
    try:
        with pytest.raises(UnsupportedError, match="Plans adapt in the process that runs them"):
            Engine(network, plan, target, adaptive=True)
    finally:
        target.close()


def test_only_what_lies_between_shared_stages_is_watched(case: Case, first_soc: Soc) -> None:
    network = row(4)
    cuts = [(1, "H", 0.5), (1, "H", 0.5), (1, "H", 1.0), (1, "H", 0.5)]
    plan = make_plan(network, first_soc, cuts, "missing")
    with Engine(network, plan, here(first_soc)) as engine:
        found = overlap_spans(engine.executable)
    # The second stage and the last exchange wait; the third is the GPU's alone.
    assert found[0] == OverlapSpan(1, True)
    assert [span.is_shared for span in found].count(True) == len(found) - 1


def test_exchanges_are_no_waiting(case: Case, first_soc: Soc) -> None:
    network = row(3)
    plan = make_plan(network, first_soc, [(1, "H", 0.5)] * 3, "missing")
    with Engine(network, plan, here(first_soc)) as engine:
        watch = OverlapMonitor(engine.executable)
    assert watch.spans == (OverlapSpan(1, True),) * 3
    watch.calibrate([(0, 7, 50, 52, 90, 93), (0, 5, 50, 53, 90, 94)])
    seen = watch.sample(0, (100, 104, 200, 232, 300, 303), 310)
    assert (seen.total, seen.work, seen.wait) == (310, 303 - 30, 30)
