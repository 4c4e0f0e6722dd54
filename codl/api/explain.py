"""Where the time of a plan goes, from the lossless bound of a model to its run."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from codl.api.devices import soc_content
from codl.api.job import Job, digests_of, recorded
from codl.engine.engine import Engine
from codl.evaluation.explain import Explanation, explain_measured, explain_predicted
from codl.ir import Network
from codl.ir.plan import Plan


def explain(job: Job, *, rounds: int) -> dict[str, Any]:
    """What `codl explain --json` holds; a job without a device ends at the predicted latency.

    Raises `CodlError` where something is missing or unknown.
    """
    network = job.read_network()
    if not job.device:
        plan = job.plan_of(network, job.context)
        return explained_result(job, network, plan, explain_predicted(network, plan, job.context))
    with job.connected() as context:
        plan = job.plan_of(network, context)
        job.reporter.stage(f"Loading {network.name}, and measuring it {rounds} times")
        with Engine(network, plan, context.device, context.tuning) as engine:
            explained = explain_measured(engine, context, rounds=rounds)
        of = digests_of(context, network, plans={network.name: plan})
        origin = recorded(context.device, of, rounds=rounds)
    return {**explained_result(job, network, plan, explained), **origin}


def explained_result(
    job: Job, network: Network, plan: Plan, explained: Explanation
) -> dict[str, Any]:
    soc = job.described
    return {
        "model": network.name,
        "soc": soc_content(soc),
        "batch": job.batch,
        "strategy": plan.strategy,
        **asdict(explained),
        "measured_ms": explained.measured_ms,
        "source": soc.source_of_predictions if explained.measured_ms is None else "measured",
        "not_counted": plan.not_counted,
        "estimated": plan.estimated,
    }
