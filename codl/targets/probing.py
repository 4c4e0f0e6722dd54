"""Looks at drivers in agents of their own, so that one that crashes takes only its agent down."""

from __future__ import annotations

from codl.errors import CodlError
from codl.runtime.probe import ProbeResult
from codl.targets.client import AgentClient
from codl.targets.measure_messages import Look, Looked


def look_at(driver: str) -> ProbeResult:
    """The devices of a driver; a crash or a time-out becomes the result's error."""
    agent = AgentClient(name="the driver's process")
    try:
        answer, _ = agent.ask(Look(driver), Looked)
        return ProbeResult(driver, answer.devices)
    except CodlError as error:
        return ProbeResult(driver, error=str(error))
    finally:
        agent.close()
