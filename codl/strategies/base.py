"""What a strategy is: a way to make a plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Protocol

from codl.errors import InvalidFileError, UnsupportedError
from codl.ir import Network
from codl.ir.plan import Plan
from codl.ir.soc import Soc
from codl.kernels.tuning import Tuning
from codl.measure import dataset
from codl.measure.dataset import Dataset
from codl.plan.cost_model import CostModel
from codl.plan.coverage import WithoutWinograd, covered
from codl.plan.objective import LATENCY, Objective
from codl.plan.op_costs import LatencyPredictors
from codl.plan.single_processor import default_plan, one_processor
from codl.predict.names import DEFAULT, FOLDER


@dataclass(frozen=True)
class Context:
    """What a strategy may use: the SoC, its tuned kernels, its predictors, and what was measured.

    `predictor` overrides the predictor that the strategy would take; `method` is how `codl`
    searches, one of `codl.plan.search.METHODS`, and `objective` what for. Without `winograd`,
    kernel variants that use it are as if nobody had measured them.
    """

    soc: Soc
    tuning: Tuning = Tuning()
    predictors_folder: Path = FOLDER
    dataset_root: Path = dataset.FOLDER
    predictor: str | None = None
    method: str = "dp"
    objective: Objective = LATENCY
    winograd: bool = True
    #: Told what goes on where planning takes long.
    note: Callable[[str], None] = field(default=lambda text: None, repr=False, compare=False)
    #: Predictors that were loaded, which takes longer than a search.
    _loaded: dict[tuple[Soc, str, Path, str], LatencyPredictors] = field(
        default_factory=dict, repr=False, compare=False
    )

    def cost(self, default: str, *, by_op: bool = False) -> CostModel:
        """The cost model; raises where the predictors are not trained."""
        from codl.predict.model_set import load

        name = self.predictor or default
        key = (self.soc, self.tuning.fingerprint, self.predictors_folder, name)
        if key not in self._loaded:
            self._loaded[key] = load(self.soc, name, self.predictors_folder, self.tuning)
        found = self._loaded[key]
        predictors = found if self.winograd else WithoutWinograd(found)
        return CostModel(self.soc, predictors, by_op, tuning=self.tuning)

    def default_cost(self, network: Network) -> CostModel | None:
        """That by which any plan of a network is timed, with estimates of what has no predictor.

        None where the default predictor is not trained.
        """
        try:
            return covered(self.cost(DEFAULT), network)
        except InvalidFileError:
            return None

    def with_memory(self, memory: str) -> Context:
        """The same with a GPU whose tensors lie in one of `MEMORY_TYPES` only."""
        gpu = replace(self.soc.gpu, memory_types=(memory,))
        return replace(self, soc=replace(self.soc, gpu=gpu))

    @property
    def dataset(self) -> Dataset:
        return Dataset.of(self.soc.name, self.dataset_root)


class Strategy(Protocol):
    """Makes a plan of a network; `default_predictor` is what it is usually used with.

    `runs_plans` where it runs plans on the device to find the best.
    """

    name: ClassVar[str]
    default_predictor: ClassVar[str] = DEFAULT
    runs_plans: ClassVar[bool] = False

    def plan(self, network: Network, context: Context) -> Plan: ...


def one_memory(network: Network, context: Context, strategy: str, memory: str) -> Plan:
    """Everything on the GPU with its tensors in one of `MEMORY_TYPES`.

    In the fastest variants where the SoC's dataset has that memory, otherwise in the default ones.
    Raises `UnsupportedError` where the device has no images.
    """
    restricted, gpu = context.with_memory(memory), context.soc.gpu
    if memory == "image2d" and not gpu.max_image_width:
        raise UnsupportedError(
            f"{strategy} needs images, and {gpu.name!r} of the SoC {context.soc.name!r} has none "
            "(max_image_width is 0)."
        )
    if memory in gpu.memory_types:
        return one_processor(network, restricted.cost(DEFAULT), "gpu", strategy=strategy)
    return replace(default_plan(network, restricted.soc, "gpu"), strategy=strategy)
