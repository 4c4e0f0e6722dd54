"""When shares move, on a simulated machine: the controller is told times and no clock runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codl.engine.adaptation import WINDOW, Controller, RunTimes
from codl.lower.alternatives import SCALES, shifted

PLAN = SCALES.index(1.0)
#: What is lost at most where the truth lies between two alternatives, and a little more.
NEAR = 1.08


@dataclass
class Machine:
    """Stages that both processors share, each with its ratio and what both take; times in ns."""

    stages: list[tuple[float, float, float]]
    noise: float
    random: Random
    #: How many times slower each processor is than when the plan was made.
    cpu: float = 1.0
    gpu: float = 1.0
    controller: Controller = field(default_factory=lambda: Controller(SCALES, PLAN))

    @classmethod
    def of(cls, stages: int, *, spread: float, noise: float, seed: int) -> Machine:
        random = Random(seed)
        made = []
        for _ in range(stages):
            own = 1e6 * random.lognormvariate(0, 0.5)
            ratio = random.uniform(0.35, 0.65)
            made.append((ratio, own, own * random.lognormvariate(0, spread)))
        return cls(made, noise, random)

    def times(self, scale: float, noise: float = 0.0) -> RunTimes:
        own = wait = 0.0
        for ratio, cpu, gpu in self.stages:
            now = shifted(ratio, scale)
            own_ns = cpu * self.cpu * (1 - now) / (1 - ratio) * self.random.lognormvariate(0, noise)
            gpu_ns = gpu * self.gpu * now / ratio * self.random.lognormvariate(0, noise)
            own, wait = own + own_ns, wait + max(0.0, gpu_ns - own_ns)
        return RunTimes(int(own + wait), int(own), int(wait))

    def runs(self, count: int) -> list[float]:
        """Run inferences: of each, what it takes over what the best alternative takes."""
        best = min(self.times(scale).total for scale in SCALES)
        found = []
        for _ in range(count):
            scale = SCALES[self.controller.active]
            found.append(self.times(scale).total / best)
            self.controller.observe(self.times(scale, self.noise))
        return found


MACHINES = st.builds(
    Machine.of,
    st.integers(6, 24),
    spread=st.floats(0.05, 0.15),
    noise=st.floats(0.0, 0.04),
    seed=st.integers(0, 1 << 16),
)


@given(machine=MACHINES, factor=st.floats(1.5, 2.0))
@settings(max_examples=15, deadline=None, derandomize=True)
def test_a_slower_cpu_gives_work_away_within_twenty_inferences(
    machine: Machine, factor: float
) -> None:
    machine.runs(40)
    machine.cpu = factor
    assert median(machine.runs(40)[20:]) < NEAR
    assert SCALES[machine.controller.active] > 1


@given(machine=MACHINES, factor=st.floats(1.5, 2.0))
@settings(max_examples=15, deadline=None, derandomize=True)
def test_a_slower_gpu_gives_work_away_and_a_faster_cpu_takes_it_back(
    machine: Machine, factor: float
) -> None:
    machine.runs(40)
    machine.gpu = factor
    assert median(machine.runs(40)[20:]) < NEAR
    assert SCALES[machine.controller.active] < 1
    machine.cpu = factor  # both as slow: the plan's own shares fit again
    assert median(machine.runs(40)[20:]) < NEAR


@given(machine=MACHINES)
@settings(max_examples=15, deadline=None, derandomize=True)
def test_nothing_is_lost_while_nothing_changes(machine: Machine) -> None:
    plan_ns = machine.times(1.0).total
    best_ns = min(machine.times(scale).total for scale in SCALES)
    taken = machine.runs(400)
    assert sum(taken) * best_ns <= 1.005 * 400 * plan_ns
    assert len(machine.controller.moves) <= 12


def test_one_move_is_enough_where_the_gpu_was_waited_for() -> None:
    """The rule: the GPU takes twice as long, so its shares are those of half its speed."""
    machine = Machine([(0.5, 1e6, 1e6)] * 3, 0.0, Random(1), gpu=2.0)
    machine.runs(WINDOW)
    (move,) = machine.controller.moves
    assert (move.previous, move.scale, move.runs) == (1.0, 0.5, WINDOW)
    # r_i / sum_j(t_i r_j / t_j) of the CPU, which takes 1 where the GPU takes 2.
    assert 1 - shifted(0.5, move.scale) == pytest.approx(0.5 / (1 * (0.5 / 1 + 0.5 / 2)))


def test_a_move_that_does_not_pay_is_taken_back_and_not_repeated_at_once() -> None:
    controller = Controller(SCALES, PLAN)
    for _ in range(60):  # the GPU is always done before, and yet more of it is no faster
        controller.observe(RunTimes(1_000_000, 1_000_000, 0))
    assert [(move.previous, move.scale) for move in controller.moves] == [
        (1.0, SCALES[PLAN + 1]),
        (SCALES[PLAN + 1], 1.0),
    ]
    assert controller.active == PLAN


def test_two_disturbed_inferences_move_nothing() -> None:
    controller = Controller(SCALES, PLAN)
    calm, disturbed = (
        RunTimes(1_050_000, 1_000_000, 50_000),
        RunTimes(9_000_000, 1_000_000, 8_000_000),
    )
    for turn in range(100):
        controller.observe(disturbed if turn % 5 in (0, 3) else calm)
    assert not controller.moves


def test_one_alternative_stays() -> None:
    controller = Controller((1.0,), 0)
    for _ in range(20):
        controller.observe(RunTimes(2_000_000, 1_000_000, 1_000_000))
    assert controller.active == 0
    assert not controller.moves


def test_scales_must_rise() -> None:
    with pytest.raises(ValueError, match="scales must rise"):
        Controller((1.0, 0.5), 0)
