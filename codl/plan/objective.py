"""What a plan is to be best at: latency, energy, or their product; within a memory limit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias, get_args

from codl.errors import CodlError, UnknownNameError
from codl.plan.cost_model import Pair
from codl.records.soc import PowerW, Soc

Goal: TypeAlias = Literal["latency", "energy", "energy-delay"]
GOALS: tuple[str, ...] = get_args(Goal)


class Spent(NamedTuple):
    """What chains have used besides time: millijoules above idling, and bytes of weights."""

    mj: float = 0.0
    bytes: float = 0.0

    def plus(self, other: Spent) -> Spent:
        return Spent(self.mj + other.mj, self.bytes + other.bytes)


NOTHING = Spent()


@dataclass(frozen=True)
class Objective:
    """`power_w` is what the SoC's sensors said; only latency can do without.

    `memory_limit` bounds the bytes of weights on both processors together: rows split a chain's
    work but not its weights, which both then hold.
    """

    goal: Goal = "latency"
    power_w: PowerW | None = None
    memory_limit: int | None = None

    @classmethod
    def of(cls, goal: str, soc: Soc, memory_limit: int | None = None) -> Objective:
        """Raises `CodlError` where the goal needs a sensor and the SoC's power is not known."""
        if goal not in GOALS:
            raise UnknownNameError("objective", goal, GOALS)
        if goal != "latency" and soc.power_w is None:
            raise CodlError(
                f"The objective {goal!r} needs the power of {soc.name!r}, and its file has no "
                "`power_w`: it was not measured, or the machine has no energy sensor. `codl "
                f"devices` lists the sensors; `codl soc power {soc.name}` measures by them."
            )
        return cls(goal, soc.power_w, memory_limit)  # type: ignore[arg-type]

    @property
    def is_latency(self) -> bool:
        """Whether time alone decides."""
        return self.goal == "latency" and self.memory_limit is None

    def spent(self, works: Pair, weights: float) -> Spent:
        """Of a chain whose shards take `works` milliseconds and hold `weights` bytes."""
        size = weights if self.memory_limit is not None else 0.0
        if self.goal == "latency" or self.power_w is None:
            return Spent(0.0, size)
        power, (cpu_ms, gpu_ms) = self.power_w, works
        at_once = power.both - power.cpu - power.gpu + power.idle
        above = (power.cpu - power.idle) * cpu_ms + (power.gpu - power.idle) * gpu_ms
        return Spent(above + at_once * min(works), size)

    def allows(self, spent: Spent) -> bool:
        return self.memory_limit is None or spent.bytes <= self.memory_limit

    def energy_mj(self, latency_ms: float, spent: Spent) -> float | None:
        """Millijoules of a plan; None where the power is not known."""
        return None if self.power_w is None else self.power_w.idle * latency_ms + spent.mj

    def value(self, latency_ms: float, spent: Spent) -> float:
        """What is to be least: milliseconds, millijoules or their product."""
        if self.goal == "latency":
            return latency_ms
        energy_mj = self.energy_mj(latency_ms, spent)
        assert energy_mj is not None
        return energy_mj if self.goal == "energy" else energy_mj * latency_ms


LATENCY = Objective()
