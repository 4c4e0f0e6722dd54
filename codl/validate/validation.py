"""What a check of a plan comes to: which op is wrong first, or where a model drifts away."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import inf
from typing import Any

from codl.ir import Network
from codl.ir.plan import Plan
from codl.measure.budget import Budget, Progress, nobody
from codl.plan import op_placement
from codl.plan.op_placement import OpPlacement
from codl.records.soc import Soc
from codl.validate.closeness import Closeness, closeness, is_right, worst
from codl.validate.op_checks import OpCheck, first_bad
from codl.validate.plan_check import Bench, OpsCheck, WholeCheck, check_ops, check_whole

#: The lowest cosine of outputs that counts as right, and that of a network that rounds: there the
#: last bit of a float decides, layer by layer, what becomes of some numbers. ONNX Runtime itself is
#: so far from what it makes of an input that is 1e-7 larger.
COSINE, COSINE_OF_ROUNDED = 0.9999, 0.999
#: An error that grows by more than this factor at one layer is told of.
GROWTH = 4.0


@dataclass(frozen=True)
class Validation:
    """A plan that was checked.

    `reference` is what made the right outputs, and `references` how close the references of ops are
    to it: where they are not, the model was not read as it is meant. It is None where not all ops
    were reached; `samples_left` are samples on which the plan did not run. Outputs are right from
    `cosine` on, off by `limit` of the largest value at most, and the references from `usual`, which
    is the network's own.
    """

    plan: Plan
    whole: WholeCheck
    ops: OpsCheck
    placed: tuple[OpPlacement, ...]
    reference: str
    references: Closeness | None
    cosine: float = COSINE
    usual: float = COSINE
    samples_left: int = 0
    limit: float = inf

    @property
    def is_right(self) -> bool:
        """Whether the outputs are."""
        return is_right(self.whole.worst, self.cosine, self.limit)

    @property
    def is_wrong(self) -> bool:
        """Whether the outputs, or an op that was reached, are not right."""
        return not self.is_right or self.first_bad is not None

    @property
    def ok(self) -> bool:
        """Whether the outputs and every op are right, and were all reached."""
        return not (self.is_wrong or self.left)

    @property
    def bad(self) -> tuple[OpCheck, ...]:
        return tuple(one for one in self.ops.checks if one.is_bad)

    @property
    def left(self) -> str:
        """What there was no time for; empty where all was reached."""
        ops = sum(not one.is_reached for one in self.ops.checks)
        counts = ((ops, "parts of ops"), (self.samples_left, "samples"))
        return " and ".join(f"{count} {what}" for count, what in counts if count)

    @property
    def first_bad(self) -> OpCheck | None:
        return first_bad(self.ops.checks)

    @property
    def diagnosis(self) -> str:
        """In a sentence, whether an op is wrong or the model drifts, and what was not reached."""
        return f"{self._found} Not reached in time: {self.left}." if self.left else self._found

    @property
    def _found(self) -> str:
        if self.references is not None and self.references.cosine < self.usual:
            return (
                "The references of its ops do not give what ONNX Runtime gives: codl reads this "
                f"model wrongly (cosine {self.references.cosine:.6f})."
            )
        if self.bad:
            names = ", ".join(dict.fromkeys(one.use.label for one in self.bad))
            right = "right" if self.is_right else "wrong"
            return f"Wrong by themselves: {names}. The outputs are {right}."
        if self.is_right:
            return f"Every op {'reached ' if self.left else ''}and the outputs are right."
        grown = ", ".join(self.steepest) or "no layer more than others"
        return f"The model drifts: every op is right by itself, and errors add up (at {grown})."

    @property
    def steepest(self) -> tuple[str, ...]:
        """The layers at which the error that has added up grows most, at most three."""
        found: list[tuple[float, str]] = []
        before = 0.0
        for name, one in self.ops.accumulated.items():
            if one.max_rel_err > GROWTH * before > 0:
                found.append((one.max_rel_err - before, name))
            before = max(before, one.max_rel_err)
        return tuple(name for _, name in sorted(found, reverse=True)[:3])

    def rows(self) -> list[dict[str, Any]]:
        """Every part as JSON has it: how close it is, what it runs in, and why there."""
        reasons = {(one.op, one.processor): one.reason for one in self.placed}
        return [
            self._row(one, reasons.get((one.use.layer.name, one.use.processor)))
            for one in self.ops.checks
        ]

    def _row(self, one: OpCheck, placed: str | None) -> dict[str, Any]:
        use = one.use
        so_far = self.ops.accumulated.get(use.result.name)
        return {
            "op": use.layer.name,
            "with": None if use.add is None else use.add.name,
            "kind": use.layer.op.kind,
            "processor": use.processor,
            "part": str(use.region),
            "variant": use.variant,
            "layout": use.layout,
            "precision": precision(use.stored),
            "placed": placed,
            **asdict(one.closeness),
            "limit": one.limit,
            "ok": one.ok if one.is_reached else None,
            "verdict": one.verdict,
            "reason": one.reason,
            "accumulated_cosine": None if so_far is None else so_far.cosine,
            "accumulated_max_rel_err": None if so_far is None else so_far.max_rel_err,
        }


def precision(stored: str) -> dict[str, str]:
    """What tensors are stored, computed and accumulated in."""
    return {"stored": stored, "computed": "float32", "accumulated": "float32"}


def usual_cosine(network: Network) -> float:
    """From which cosine on a network's outputs usually count as right."""
    return COSINE_OF_ROUNDED if any(one.op.rounds for one in network.layers) else COSINE


def validate(
    bench: Bench,
    plan: Plan,
    *,
    cosine: float | None = None,
    limit: float = inf,
    progress: Progress = nobody,
    budget: Budget | None = None,
) -> Validation:
    """Check a plan's ops and outputs, as far as there is time; `progress` hears of every op.

    Outputs are right from `cosine` on, without one from the usual one, and off by `limit` at most.
    """
    usual = usual_cosine(bench.network)
    cosine = usual if cosine is None else cosine
    whole = check_whole(bench, plan, budget=budget)
    is_wrong = not is_right(whole.worst, cosine, limit)
    ops = check_ops(bench, plan, whole, progress, budget=budget, is_wrong=is_wrong)
    right = bench.expected(0)
    compared = [closeness(ops.outputs[name], right[name]) for name in right if ops.outputs]
    return Validation(
        plan=plan,
        whole=whole,
        ops=ops,
        placed=placement(bench.network, plan, bench.target.soc, whole),
        reference=bench.reference,
        references=worst(compared) if compared else None,
        cosine=cosine,
        usual=usual,
        samples_left=len(bench.samples) - len(whole.samples),
        limit=limit,
    )


def placement(network: Network, plan: Plan, soc: Soc, whole: WholeCheck) -> tuple[OpPlacement, ...]:
    """Where every op runs, with what stands in for kernels that the device refused."""
    planned = op_placement.predicted(network, plan, soc, None)
    return tuple(op_placement.standing_in(planned, whole.refused))
