"""`codl` with the last word left to the device: plans run, and the next one is made of what they
took.

A predictor knows single ops; what they take between these neighbours, with the other processor at
work, shows in the network itself. So the predicted plan and each processor alone run on the device,
what every net and kernel took corrects the predictions, and the search goes again, a few times. The
plan that is fastest in runs that are interleaved with those of the others is taken. One processor
alone is among them, so a split that does not pay is found out here, whatever was predicted.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from codl.errors import CodlError, UnsupportedError
from codl.execute.engine import Engine
from codl.ops import Network
from codl.ops.plan import Plan
from codl.plan import unmeasured
from codl.plan.corrections import Corrections, Sample
from codl.plan.observed import observe
from codl.plan.optimal import search
from codl.predict.names import DEFAULT
from codl.strategies.base import Context, one_processor
from codl.strategies.inputs import random_inputs
from codl.strategies.turns import Effort, interleave, timed

#: Searches after the first one, at the most.
ROUNDS = 5
#: How long two plans are compared.
DUEL = Effort(warm_up=2, min_rounds=9, min_seconds=1.0)


class CodlRefined:
    name: ClassVar[str] = "codl-refined"
    default_predictor: ClassVar[str] = DEFAULT

    def plan(self, network: Network, context: Context) -> Plan:
        if context.soc.is_replayed:
            raise UnsupportedError(
                f"{self.name} runs plans on the device, and the latencies of the SoC "
                f"{context.soc.name!r} are other people's: plan with `codl`."
            )
        import os

        V = os.environ.get("V")
        cost = unmeasured.filled(context.cost(self.default_predictor), network)
        samples: list[Sample] = []
        best: Engine | None = None
        tried: set[str] = set()
        plans = [one_processor(network, context, self.name, r) for r in (0.0, 1.0)]
        for turn in range(ROUNDS + 1):
            corrected = cost.corrected(Corrections(samples)) if turn else cost
            plans.append(search(network, corrected, self.name))
            for plan in plans:
                key = str([(c.ops, c.dim, c.gpu_ratio, c.variants) for c in plan.chains])
                if key in tried:
                    if V:
                        print("   again")
                    continue
                tried.add(key)
                engine = Engine(network, plan, context.soc)
                engine.feed(random_inputs(network))
                for _ in range(2):
                    engine.run()
                samples += observe(engine, cost)
                if best is None:
                    best = engine
                    continue
                found = interleave({"best": timed(best.run), "new": timed(engine.run)}, DUEL)
                if V:
                    print(
                        f"   {turn} predicted {plan.predicted_ms:.2f} best {found['best'].median:.2f} new {found['new'].median:.2f} chains {len(plan.chains)}",
                        flush=True,
                    )
                if found["new"].median < found["best"].median:
                    best.close()
                    best = engine
                else:
                    engine.close()
            plans = []
        best.close()
        return best.plan
