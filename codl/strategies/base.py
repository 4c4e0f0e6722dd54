"""Strategy: the protocol of ways to make a plan, and the context in which they plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Any, TypeAlias

from codl.errors import CodlError, InvalidFileError
from codl.ir import Network, Op
from codl.ir.environment import Environment
from codl.ir.plan import Plan, PlanOrigin
from codl.ir.types import Processor
from codl.kernels.tuning import Tuning
from codl.measure import dataset, tuning_file
from codl.measure.dataset import Dataset, dataset_digest
from codl.plan.beam_search import LATENCY, Objective
from codl.plan.corrections import Evidence, corrected
from codl.plan.cost_model import (
    ANYWHERE,
    CostModel,
    LatencyPredictors,
    Milliseconds,
    WeightPlaces,
)
from codl.plan.coverage import covered, without_winograd
from codl.predict import DEFAULT, FOLDER
from codl.provenance import VERSION, commit
from codl.records.gpu_limits import UNLIMITED, GpuLimits
from codl.records.soc import Soc
from codl.registry import Registry
from codl.runtime.placement import limits_of, require_local, splittable
from codl.runtime.threads import one_blas_thread
from codl.strategies.profiles import Profiling
from codl.targets.base import Target


def _tell_nobody(text: str) -> None: ...


@dataclass(frozen=True)
class Context:
    """What a strategy may use: the SoC, its tuned kernels, its predictors, and what was measured.

    Plans run on `target`; without one nothing runs.

    `predictor` overrides the predictor that the strategy would take; `method` is how `codl`
    searches, one of `codl.plan.search.METHODS`, and `objective` what for. Without `winograd`,
    kernel variants that use it count as unmeasured. Strategies that run plans go on for
    `plan_time_s` seconds for each model, by `clock`; None for as many rounds as gain something.
    """

    soc: Soc
    tuning: Tuning = Tuning()
    predictors_folder: Path = FOLDER
    dataset_root: Path = dataset.FOLDER
    predictor: str | None = None
    method: str = "dp"
    objective: Objective = LATENCY
    winograd: bool = True
    plan_time_s: float | None = None
    clock: Callable[[], float] = field(default=perf_counter, repr=False, compare=False)
    #: What the GPU is limited to, where that is not as the SoC's placement says.
    limits: GpuLimits = UNLIMITED
    #: Where plans may have weights.
    places: WeightPlaces = ANYWHERE
    target: Target | None = field(default=None, repr=False, compare=False)
    #: Where profiles of networks are; None where plans are made by predictions alone.
    profiling: Profiling | None = field(default=None, repr=False, compare=False)
    #: Told what goes on where planning takes long.
    note: Callable[[str], None] = field(default=_tell_nobody, repr=False, compare=False)
    #: Predictors that were loaded, which takes longer than a search.
    _loaded: dict[tuple[Soc, str, Path, str], LatencyPredictors] = field(
        default_factory=dict, repr=False, compare=False
    )

    @classmethod
    def of(cls, soc: Soc, dataset_root: Path = dataset.FOLDER, **options: Any) -> Context:
        """With the kernels' tuning that lies beside the SoC's dataset."""
        tuning = tuning_file.read(Dataset.found(soc.name, dataset_root), soc)
        return cls(soc, tuning, dataset_root=dataset_root, **options)

    @property
    def device(self) -> Target:
        """Where plans run and are timed; raises `CodlError` where there is no target."""
        if self.target is None:
            raise CodlError(
                f"A plan of {self.soc.name!r} is to run, and the context names no target: give it "
                'one, as in Context.of(soc, target=connect("local", soc)).'
            )
        return self.target

    def cost(self, default: str, *, by_op: bool = False) -> CostModel:
        """The cost model; raises where the predictors are not trained."""
        from codl.predict.model_set import load

        name = self.predictor or default
        key = self._key(name)
        if key not in self._loaded:
            self._loaded[key] = load(self.soc, name, self.predictors_folder, self.tuning)
        loaded = self._loaded[key]
        predictors = loaded if self.winograd else without_winograd(loaded)
        limits = self.limits or limits_of(self.soc)
        cost = CostModel(self.soc, predictors, by_op, tuning=self.tuning, limits=limits)
        return replace(cost, places=self.places)

    def with_predictors(self, predictors: LatencyPredictors) -> Context:
        """The same with predictors in the place of the stored ones of their name."""
        return replace(self, _loaded={**self._loaded, self._key(predictors.name): predictors})

    def _key(self, name: str) -> tuple[Soc, str, Path, str]:
        return self.soc, self.tuning.fingerprint, self.predictors_folder, name

    def default_cost(self, network: Network, *, profiled: bool = True) -> CostModel | None:
        """That by which any plan of a network is timed, with estimates of what has no predictor.

        Where it was profiled here, it is corrected by that. None where the default predictor is not
        trained.
        """
        try:
            cost = covered(self.cost(DEFAULT), network)
        except InvalidFileError:
            return None
        profile = self.profiling.of(network) if profiled and self.profiling else None
        if profile is None:
            return cost
        evidence = (Evidence.of(network, run, cost, self.local) for run in profile.runs)
        by_profile = corrected(cost, evidence)

        def factors(processor: Processor, target: str, ops: Sequence[Op]) -> Milliseconds:
            assert by_profile.corrections is not None
            with one_blas_thread():
                return by_profile.corrections(processor, target, ops)

        return cost.corrected(factors, by_profile.stage_ms)

    @property
    def local(self) -> Soc:
        """The SoC as plans are lowered for it to run; `UnsupportedError` where nothing can."""
        return splittable(require_local(self.soc))

    def with_memory(self, memory: str) -> Context:
        """The same with a GPU whose tensors lie in one of `MEMORY_TYPES` only."""
        gpu = replace(self.soc.gpu, memory_types=(memory,))
        return replace(self, soc=replace(self.soc, gpu=gpu))

    def preload(self, *predictors: str) -> None:
        """Load predictors, as far as they are trained: whoever needs them says which are not."""
        for name in predictors:
            with suppress(InvalidFileError):
                self.cost(name)

    def portable(self, *predictors: str) -> Context:
        """The same as a value that can be pickled, with predictors for where their files are not.

        It has no target, and nobody is told anything.
        """
        of_one = map(self.with_memory, self.soc.gpu.memory_types)  # as some strategies keep to
        for context in (self, *of_one):
            context.preload(*predictors)
        return replace(self, target=None, profiling=None, note=_tell_nobody)

    @property
    def dataset(self) -> Dataset:
        return Dataset.found(self.soc.name, self.dataset_root)

    def origin(self, environment: Environment | None = None) -> PlanOrigin:
        """What plans are made with here, and on which machine they ran."""
        return PlanOrigin(
            codl=VERSION,
            commit=commit(),
            dataset=dataset_digest(self.dataset),
            tuning=self.tuning.fingerprint,
            environment=environment,
        )


PlanMaker: TypeAlias = Callable[[Network, Context], Plan]


@dataclass(frozen=True)
class Strategy:
    """A way to make a plan.

    `default_predictor` is what it is usually used with; `runs_plans` where it runs plans on a
    device that is at hand, and predicts without one.
    """

    name: str
    plan: PlanMaker
    default_predictor: str = DEFAULT
    runs_plans: bool = False


#: Every strategy by name.
STRATEGIES: Registry[Strategy] = Registry("strategy")


def strategy(
    name: str,
    *,
    default_predictor: str = DEFAULT,
    runs_plans: bool = False,
) -> Callable[[PlanMaker], PlanMaker]:
    """Decorator: the function makes the plans of the strategy of this name."""

    def register(plan: PlanMaker) -> PlanMaker:
        made = Strategy(name, plan, default_predictor, runs_plans)
        STRATEGIES.add(name, made, origin=plan)
        return plan

    return register
