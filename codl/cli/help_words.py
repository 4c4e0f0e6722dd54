"""What the help of options names and no registry holds as it is told; imported to show help."""

from __future__ import annotations


def models() -> str:
    from codl.frontend.models import BUILT_IN

    return ", ".join(sorted(BUILT_IN))


def serials() -> str:
    from codl.targets.connect import TRANSPORTS

    machines_first = sorted(TRANSPORTS.values(), key=lambda transport: not transport.is_machine)
    return ", ".join(f"{transport.pattern} ({transport.help})" for transport in machines_first)


def compared() -> str:
    """Strategies, and the bound that stands beside them."""
    from codl.strategies import STRATEGIES, ideal

    return ", ".join([*STRATEGIES, ideal.NAME])


def run_plans() -> str:
    """The strategies that run plans on a device."""
    from codl.strategies import STRATEGIES

    return ", ".join(name for name, strategy in STRATEGIES.items() if strategy.runs_plans)


def shares() -> str:
    """All shares, and those of a short collection."""
    from codl.measure.tasks import FEW_SHARES, SHARES

    return ", or ".join(",".join(map(str, shares)) for shares in (SHARES, FEW_SHARES))


def elements() -> str:
    """What tensors may be stored as."""
    from codl.records.soc import ELEMENT_NAMES

    return " or ".join(ELEMENT_NAMES)
