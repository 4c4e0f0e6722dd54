"""Measures the facts of a device in agents of their own: a driver may crash or hang at each."""

from __future__ import annotations

from collections.abc import Sequence

from codl.errors import CodlError
from codl.measure.facts import FACTS, Fact
from codl.targets.client import AgentClient
from codl.targets.measure_messages import FactMeasured, MeasureFact


def measure_apart(driver: str, device: str, keys: Sequence[str] = ()) -> list[Fact]:
    """The facts of a device, or those of these keys.

    One that takes its process down, or takes too long, has no value, and says so.
    """
    return [_measure(MeasureFact(driver, device, key)) for key in keys or FACTS]


def _measure(request: MeasureFact) -> Fact:
    agent = AgentClient(name="the process that measured")
    try:
        answer, _ = agent.ask(request, FactMeasured)
        return answer.fact
    except CodlError as error:
        return Fact(request.key, None, str(error))
    finally:
        agent.close()
