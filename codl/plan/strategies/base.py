"""Strategies by name, and the context in which they plan.

A strategy is a function of a network and a `Context` that returns a plan; the decorator `strategy`
registers it. The context has the SoC, its predictors and dataset, and the target on which plans
run. `Profiling` reads and keeps the measurements of plans that ran.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeAlias

from codl.errors import CodlError, InvalidFileError, MismatchError
from codl.files import VERSION, commit, own_or_shipped
from codl.ir import Network, Op
from codl.ir.environment import Environment
from codl.ir.plan import Plan, PlanOrigin
from codl.ir.records import profile as profiles
from codl.ir.records.gpu_limits import UNLIMITED, GpuLimits
from codl.ir.records.profile import NetworkProfile, load_profile
from codl.ir.records.soc import Memory, Soc
from codl.ir.types import PROCESSORS, Processor
from codl.kernels.tuning import Tuning
from codl.machine.placement import limits_of, require_local, splittable
from codl.machine.threads import one_blas_thread
from codl.measure import dataset, tuning_file
from codl.measure.dataset import Dataset, dataset_digest
from codl.predict import DEFAULT, FOLDER
from codl.registry import Registry

if TYPE_CHECKING:  # a run of a given plan predicts nothing
    from codl.plan.cost_model import CostModel, LatencyPredictors, Milliseconds
    from codl.targets.base import Target


def _discard(text: str) -> None:
    pass


@dataclass(frozen=True)
class Profiling:
    """Reads, caches and writes profiles of networks, in a `folder` or in one `file`."""

    folder: Path = profiles.FOLDER
    file: Path | None = None
    _profiles: dict[str, NetworkProfile] = field(default_factory=dict, repr=False, compare=False)

    def load(self, network: Network, context: Context) -> NetworkProfile:
        """The stored profile of a network with the context's device and tuning, or an empty one.

        A named file that does not match raises `MismatchError`, and one that cannot be read
        `InvalidFileError`. A file in the folder is then ignored with a note.
        """
        soc, target = context.soc, context.device
        cpu, place = soc.cpu, require_local(soc).placement
        sides = {"cpu": cpu.name, "threads": str(place.threads), "limits": str(place.limits)}
        empty = NetworkProfile(
            model=network.name,
            network=network.digest,
            soc=soc.name,
            device={**target.open(), **sides, **target.libraries()},
            tuning=context.tuning.fingerprint,
        )
        path = self._path(empty)
        if network.digest in self._profiles or (self.file is None and not path.exists()):
            return self._profiles.get(network.digest, empty)
        try:
            profile = load_profile(path)
            profile.check(empty, path)
        except (InvalidFileError, MismatchError) as error:
            if self.file is not None:
                raise
            context.note(f"{error} A new one is made.")
            return empty
        self.remember(profile)
        return profile

    def _path(self, profile: NetworkProfile) -> Path:
        return self.file or self.folder / profile.path

    def save(self, profile: NetworkProfile) -> Path:
        """Write a profile; returns the path of its file."""
        return profile.save(self._path(profile))

    def remember(self, profile: NetworkProfile) -> None:
        """Cache a profile under the digest of its network."""
        self._profiles[profile.network] = profile

    def of(self, network: Network) -> NetworkProfile | None:
        """The cached profile of a network, if any."""
        return self._profiles.get(network.digest)


@dataclass(frozen=True)
class Context:
    """Inputs of a strategy: the SoC, its tuning, predictors and dataset, and a target.

    `predictor` overrides the strategy's default predictor. Without `winograd`, Winograd variants
    count as unmeasured. Plans run on `target`, for `plan_time_s` seconds of `clock` for each model,
    or by default for as many rounds as gain something.
    """

    soc: Soc
    tuning: Tuning = Tuning()
    predictors_folder: Path = FOLDER
    dataset_root: Path = dataset.FOLDER
    predictor: str | None = None
    winograd: bool = True
    plan_time_s: float | None = None
    clock: Callable[[], float] = field(default=perf_counter, repr=False, compare=False)
    #: GPU limits that replace the limits of the SoC's placement.
    limits: GpuLimits = UNLIMITED
    target: Target | None = field(default=None, repr=False, compare=False)
    #: The profiles of networks; None to plan by predictions alone.
    profiling: Profiling | None = field(default=None, repr=False, compare=False)
    #: Called with progress notes of long planning.
    note: Callable[[str], None] = field(default=_discard, repr=False, compare=False)
    #: Cached predictors: loading takes longer than a search.
    _loaded: dict[tuple[Soc, str, Path, str], LatencyPredictors] = field(
        default_factory=dict, repr=False, compare=False
    )

    @classmethod
    def of(cls, soc: Soc, dataset_root: Path = dataset.FOLDER, **options: Any) -> Context:
        """A context with the tuning that is stored beside the SoC's dataset."""
        tuning = tuning_file.read(Dataset.found(soc.name, dataset_root), soc)
        return cls(soc, tuning, dataset_root=dataset_root, **options)

    @property
    def device(self) -> Target:
        """The target that runs plans; raises `CodlError` without one."""
        if self.target is None:
            raise CodlError(
                f"Running a plan of {self.soc.name!r} needs a target; the context has none. Give "
                'it one: Context.of(soc, target=connect("local", soc)).'
            )
        return self.target

    def cost(self, default: str, *, by_op: bool = False) -> CostModel:
        """The cost model; raises `InvalidFileError` where the predictors are not trained."""
        from codl.plan.cost_model import CostModel
        from codl.plan.coverage import without_winograd
        from codl.predict.model_set import load

        name = self.predictor or default
        key = self.soc, self.tuning.fingerprint, self.predictors_folder, name
        if key not in self._loaded:
            self._loaded[key] = load(self.soc, name, self.predictors_folder, self.tuning)
        loaded = self._loaded[key]
        predictors = loaded if self.winograd else without_winograd(loaded)
        limits = self.limits or limits_of(self.soc)
        return CostModel(self.soc, predictors, by_op, tuning=self.tuning, limits=limits)

    def default_cost(self, network: Network, *, profiled: bool = True) -> CostModel | None:
        """The default predictor's cost model of a network, with estimates for missing predictors.

        It is corrected by the network's profile if there is one (`profiled`). None where the
        default predictor is not trained.
        """
        folder = own_or_shipped(self.soc.name, self.predictors_folder, FOLDER)
        if not self._loaded and not folder.exists():
            return None
        from codl.plan.coverage import covered

        try:
            cost = covered(self.cost(DEFAULT), network)
            for side in PROCESSORS:  # the first prediction of a target checks its predictor
                cost.prefetch([layer.op for layer in network.layers], side)
        except InvalidFileError:
            return None
        profile = self.profiling.of(network) if profiled and self.profiling else None
        if profile is None:
            return cost
        from codl.plan.corrections import Evidence, corrected

        evidence = (Evidence.of(network, run, cost, self.local) for run in profile.runs)
        by_profile = corrected(cost, evidence)

        def factors(processor: Processor, target: str, ops: Sequence[Op]) -> Milliseconds:
            assert by_profile.corrections is not None
            with one_blas_thread():
                return by_profile.corrections(processor, target, ops)

        return cost.corrected(factors, by_profile.stage_ms)

    @property
    def local(self) -> Soc:
        """The SoC that plans are lowered for; raises `UnsupportedError` where none can run."""
        return splittable(require_local(self.soc))

    def with_memory(self, memory: Memory) -> Context:
        """The context with a GPU that has only one of `MEMORY_TYPES`."""
        gpu = replace(self.soc.gpu, memory_types=(memory,))
        return replace(self, soc=replace(self.soc, gpu=gpu))

    def preload(self, *predictors: str) -> None:
        """Load predictors that are trained; a strategy that needs another one raises later."""
        for name in predictors:
            with suppress(InvalidFileError):
                self.cost(name)

    def portable(self, *predictors: str) -> Context:
        """The context as a picklable value: with loaded predictors, without target and notes."""
        of_one = map(self.with_memory, self.soc.gpu.memory_types)  # for gpu-buffer, codl-buffer
        for context in (self, *of_one):
            context.preload(*predictors)
        return replace(self, target=None, profiling=None, note=_discard)

    @property
    def dataset(self) -> Dataset:
        return Dataset.found(self.soc.name, self.dataset_root)

    def origin(self, environment: Environment | None = None) -> PlanOrigin:
        """The origin of plans made with this context; `environment` is where they ran."""
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
    """A way to make a plan; with `runs_plans`, it runs plans on a device, if any."""

    name: str
    plan: PlanMaker
    default_predictor: str = DEFAULT
    runs_plans: bool = False


#: Every strategy by name.
STRATEGIES: Registry[Strategy] = Registry("strategy")


def strategy(
    name: str, *, default_predictor: str = DEFAULT, runs_plans: bool = False
) -> Callable[[PlanMaker], PlanMaker]:
    """Decorator that registers a function as the strategy of this name."""

    def register(plan: PlanMaker) -> PlanMaker:
        made = Strategy(name, plan, default_predictor, runs_plans)
        STRATEGIES.add(name, made, origin=plan)
        return plan

    return register
