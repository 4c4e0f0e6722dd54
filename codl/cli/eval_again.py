"""An evaluation in a file, which `codl eval --repro` runs again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from codl.cli.output import warn
from codl.errors import CodlError, InvalidFileError, MismatchError
from codl.ir import Network
from codl.ir.environment import ALL, Difference, Environment, check_alike, differences
from codl.ir.plan import Plan, read_plan
from codl.ir.results import Digests, EvalRequest
from codl.report.agreement import Figure, compare
from codl.report.load import load_result
from codl.report.results import SINGLES, EvalResult
from codl.strategies import Context, Strategy, ideal

WRITTEN = "`codl eval -o FILE` of this version writes one that has it."
DESPITE = "--other-environment runs it again all the same."
NOW = "this machine now"
#: What is known before anything is measured.
SETTINGS = tuple(key for key in ALL if key != "clocks_mhz")


@dataclass(frozen=True)
class Earlier:
    """An evaluation that can be run again; `plans` are those that ran, by model and strategy."""

    path: Path
    result: EvalResult
    asked: EvalRequest
    digests: Digests
    environment: Environment
    plans: Mapping[tuple[str, str], Plan]

    @classmethod
    def read(cls, path: Path) -> Earlier:
        """Read a file of `codl eval`; raises `InvalidFileError` where it cannot be run again."""
        result = load_result(path)
        if not isinstance(result, EvalResult):
            raise InvalidFileError(path, f"holds a result of codl {result.command}.", fix=WRITTEN)
        if result.asked is None or result.digests is None or result.environment is None:
            problem = "does not say what was asked, of what, or in which environment."
            raise InvalidFileError(path, problem, fix=WRITTEN)
        for model in result.models:
            if not any(row.strategy in SINGLES and row.latency_ms for row in result.of(model)):
                problem = f"of {model} there is no processor alone, which others are held against."
                raise InvalidFileError(path, problem, fix="Evaluate with --strategies cpu,gpu,...")
        plans = {
            (row.model, row.strategy): _plan(path, result, row.plan)
            for row in result.rows
            if row.plan
        }
        return cls(path, result, result.asked, result.digests, result.environment, plans)

    def strategies(self) -> list[Strategy]:
        """Those of the file, each with the plan that ran."""
        names = [name for name in self.asked.strategies if name != ideal.NAME]
        return [self._strategy(name) for name in names]

    def _strategy(self, name: str) -> Strategy:
        def plan(network: Network, context: Context) -> Plan:
            known = [own for (_, strategy), own in self.plans.items() if strategy == name]
            same = [own for own in known if own.digest == network.digest]
            if not same:
                raise CodlError(f"{self.path} has no plan of {name} for {network.name!r}.")
            same[0].check(network, context.soc.name)
            return replace(same[0], strategy=name)

        return Strategy(name, plan)

    def check_before(
        self, environment: Environment | None, digests: Digests, *, despite: bool
    ) -> tuple[Difference, ...]:
        """What is other than it was before anything is measured.

        Raises `MismatchError` with it, unless somebody wants to go on `despite` it.
        """
        if environment is None:
            raise MismatchError("An evaluation is run again on a machine, and this is a replay.")
        found = differences(self.environment, environment, SETTINGS)
        found += tuple(
            Difference(f"digest of the {key}", was, now)
            for key in ("dataset", "tuning")
            if (was := getattr(self.digests, key)) != (now := getattr(digests, key))
        )
        return self._told(found, despite=despite)

    def check_clocks(self, environment: Environment, *, despite: bool) -> tuple[Difference, ...]:
        """Clocks that were others meanwhile; raises as `check_before`."""
        found = differences(self.environment, environment, ("clocks_mhz",))
        return self._told(found, despite=despite)

    def _told(self, found: tuple[Difference, ...], *, despite: bool) -> tuple[Difference, ...]:
        try:
            check_alike(found, self.path, NOW, fix=DESPITE)
        except MismatchError as error:
            if not despite:
                raise
            warn(str(error).removesuffix(f" {DESPITE}"))
        return found

    def check_model(self, model: str, digest: str) -> None:
        """Raise `MismatchError` for a model that is another one now."""
        was = self.digests.models.get(model, "")
        if was != digest:
            raise MismatchError(
                f"{model} is another model than in {self.path}: its structure and weights have the "
                f"digest {digest}, there {was or 'none'}."
            )

    def check_figures(self, figures: tuple[Figure, ...]) -> None:
        """Raise `CodlError` where one does not agree."""
        wrong = [f"{own.strategy} on {own.model}" for own in figures if not own.agrees]
        if wrong:
            raise CodlError(
                f"{len(wrong)} of {len(figures)} figures of {self.path} do not agree with this "
                f"run: {', '.join(wrong)}."
            )

    def figures(self, now: EvalResult) -> tuple[Figure, ...]:
        return compare(self.result, now)

    def to_json(self, figures: tuple[Figure, ...], found: tuple[Difference, ...]) -> dict[str, Any]:
        """What --json holds of it."""
        return {
            "file": str(self.path),
            "agrees": all(own.agrees for own in figures),
            "figures": [asdict(own) for own in figures],
            "differences": [asdict(own) for own in found],
        }


def _plan(path: Path, result: EvalResult, fingerprint: str) -> Plan:
    """A plan of a file; raises `InvalidFileError` where it is not there, or another one."""
    where = f"plans.{fingerprint}"
    if fingerprint not in result.plans:
        raise InvalidFileError(path, "there is no such plan.", where=where, fix=WRITTEN)
    plan = read_plan(dict(result.plans[fingerprint]), path)
    if plan.fingerprint != fingerprint:
        problem = f"holds a plan of another fingerprint, {plan.fingerprint}."
        raise InvalidFileError(path, problem, where=where)
    return plan
