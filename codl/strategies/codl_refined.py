"""`codl-refined`: `codl` with more plans that run on the device before the fastest is taken.

All of that has a budget of seconds, `Context.budget_s`. Where it is over, the best so far is taken.
"""

from __future__ import annotations

from dataclasses import replace

from codl.errors import UnsupportedError
from codl.ir import Network
from codl.ir.plan import Plan
from codl.runtime.placement import check_measured
from codl.strategies.base import Context, strategy
from codl.strategies.profiles import Profiling
from codl.strategies.rehearsal import rehearsed

NAME = "codl-refined"
#: Plans on both processors that run at most.
ROUNDS = 8


@strategy(NAME, runs_plans=True)
def codl_refined(network: Network, context: Context) -> Plan:
    """As `codl`, with up to eight plans that run before one is taken.

    That takes some seconds, and hardly more than the context's budget. Raises `UnsupportedError`
    where plans cannot run, or are to be best in something else.
    """
    if not context.objective.is_latency:
        raise UnsupportedError(
            f"{NAME} compares how long plans take, and knows neither the objective "
            f"{context.objective.goal!r} nor a memory limit: plan with `codl`."
        )
    check_measured(context.soc)
    context = replace(context, profiling=context.profiling or Profiling())
    return rehearsed(network, context, strategy=NAME, rounds=ROUNDS, seconds=context.budget_s)
