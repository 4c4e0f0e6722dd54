"""Where the time of a plan goes, from the lossless bound of a model to its run."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any

from codl.engine.engine import Engine
from codl.evaluation.explain import Explanation, explain_measured, explain_predicted
from codl.ir import Network
from codl.ir.plan import Plan
from codl.jobs import options as opt
from codl.jobs.devices import soc_content
from codl.jobs.model import ModelJob, digests_of, recorded
from codl.jobs.options import option

PredictedOption = Annotated[
    bool, option("--predicted", help="Run nothing: end at the predicted latency.")
]


@dataclass(frozen=True, kw_only=True)
class Explain(ModelJob):
    """Say where the time of a plan goes; a `predicted` explanation ends at the predicted latency.

    Raises `CodlError` where something is missing or unknown.
    """

    predicted: PredictedOption = False
    rounds: Annotated[int, opt.rounds_option("Timed runs.")] = 20

    @property
    def device(self) -> bool:
        return not self.predicted

    def run(self) -> dict[str, Any]:
        """What `codl explain --json` holds."""
        network = self.load()
        if self.predicted:
            plan = self.plan_of(network, self.context)
            explained = explain_predicted(network, plan, self.context)
            return explained_result(self, network, plan, explained)
        with self.connected() as context:
            plan = self.plan_of(network, context)
            self.reporter.stage(f"Loading {network.name}, and measuring it {self.rounds} times")
            with Engine(network, plan, context.device, context.tuning) as engine:
                explained = explain_measured(engine, context, rounds=self.rounds)
            of = digests_of(context, network, plans={network.name: plan})
            origin = recorded(context.device, of, rounds=self.rounds)
        return {**explained_result(self, network, plan, explained), **origin}


def explained_result(
    job: Explain, network: Network, plan: Plan, explained: Explanation
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
