"""codl runs a neural network on the CPU and the GPU of a device at the same time."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING

from codl.boundary import boundary, check_argument, check_path
from codl.errors import CodlError
from codl.files import HOME
from codl.plugins import load_installed, load_plugin
from codl.provenance import VERSION

if TYPE_CHECKING:
    from pandas import DataFrame

    from codl.api.collect import collect
    from codl.api.evaluate import evaluate
    from codl.api.search import search
    from codl.api.train import train
    from codl.engine.engine import Engine

__version__ = VERSION
#: Where SoC files, datasets and predictors lie: CODL_HOME, or the current folder.
home = HOME
#: What commands do, by the module that has it: each is imported when it is first asked for.
_FUNCTIONS = {name: f"codl.api.{name}" for name in ("collect", "train", "search", "evaluate")}


def __getattr__(name: str) -> object:
    if name not in _FUNCTIONS:
        raise AttributeError(f"module 'codl' has no attribute {name!r}")
    with boundary():
        load_installed()
        return boundary()(getattr(import_module(_FUNCTIONS[name]), name))


@boundary()
def compile(
    model: str | Path,
    *,
    soc: str | Path = "host",
    precision: str | None = None,
    strategy: str | None = None,
    plan: str | Path | None = None,
    batch: int | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    adaptive: bool = False,
    check: bool = True,
    profile: bool | Path = True,
    plan_time_s: float | None = None,
) -> Engine:
    """Make a model ready to run on both processors of a SoC.

    `model` is a built-in name or an `.onnx` file; `soc` a SoC file or its name in `./socs`. `plan`
    is a file of `codl search`; without one the strategy plans, `codl` where none is named, with the
    predictors that `codl train` left in `./predictors`. `precision` is what the GPU stores tensors
    as and computes in, `float32`, `half_storage` or `half`; as the SoC file says without. Kernels
    are as `codl tune` left them in `./lat_datasets`. Some plans run before the fastest is taken,
    for `plan_time_s` seconds, or as long as they gain; what they took is kept in `./profiles`.
    `profile` is a file of that, or off. `batch` is how many images a run takes, if not as many as
    the model says; `shapes`
    are those of inputs whose sizes it leaves open. An `adaptive` engine changes to a balanced plan
    where one processor becomes slower or faster; see `codl.engine.engine.Engine`. Its outputs are
    compared once with ONNX Runtime's, on inputs from a seed (`engine.checked`): ops that are wrong
    run in other kernels, with a `CodlWarning`. Without `check` nothing is compared. Raises
    `CodlError` where something is missing or unknown, and `WrongResultError` where no kernels make
    the outputs right.

    >>> engine = codl.compile("model.onnx", soc="host")
    >>> y = engine(x)
    """
    from codl.api.job import profiling
    from codl.ir.plan import load_plan
    from codl.strategies import DEFAULT, Context, find
    from codl.strategies.adapter import PlanAdapter
    from codl.targets.connect import connect
    from codl.targets.detect import load_local
    from codl.validate.first_check import checked_engine
    from codl.validate.references import read_network

    check_path("model", model)
    check_path("soc", soc)
    check_argument("precision", precision, "the name of a precision", str, NoneType)
    check_argument("strategy", strategy, "the name of a strategy", str, NoneType)
    check_argument("batch", batch, "a number of images", int, NoneType)
    check_argument("shapes", shapes, "a mapping of names to sizes", Mapping, NoneType)
    check_argument("plan_time_s", plan_time_s, "a number of seconds", int, float, NoneType)
    if plan_time_s is not None and plan_time_s <= 0:
        raise CodlError(f"plan_time_s must be above 0, got {plan_time_s!r}.")
    if plan is not None:
        check_path("plan", plan)
        if strategy is not None:
            raise CodlError(
                f"A plan is made already: leave out plan={str(plan)!r} or strategy={strategy!r}."
            )
    load_installed()
    described = load_local(soc, precision=precision)
    network, source = read_network(str(model), batch, shapes, check=check)
    target = connect("local", described)
    context = Context.of(
        described, target=target, profiling=profiling(target, profile), plan_time_s=plan_time_s
    )
    adapter = PlanAdapter(context, network) if adaptive else None
    chosen = load_plan(Path(plan)) if plan else find(strategy or DEFAULT).plan(network, context)
    engine = checked_engine(network, chosen, target, context.tuning, source=source, recovers=True)
    if adapter is not None:
        engine.adapt(adapter)
    return engine


@boundary()
def load(
    path: str | Path,
    *,
    soc: str | Path | None = None,
    trusted: bool = False,
    check: bool = True,
) -> Engine:
    """Make a model ready to run from a bundle of `codl package`, in a fraction of `compile`'s time.

    A bundle has its own SoC; `soc` is the same with other cores, threads or hints. One that this
    user has not written on this machine is refused, unless it is `trusted` as a library is: it may
    do anything. Unless `check` is off, its outputs are compared, once on each device and driver,
    with those that were right where it was made. Raises `InvalidFileError` for a file that is
    damaged or no bundle, `MismatchError` where it is for another machine or not trusted, and
    `WrongResultError` where outputs are others here.

    >>> engine = codl.load("model.codl")
    >>> y = engine(x)
    """
    from codl.bundle import load

    check_path("path", path)
    if soc is None:
        return load(path, trusted=trusted, check=check)
    from codl.targets.detect import load_local

    check_path("soc", soc)
    return load(path, soc=load_local(soc), trusted=trusted, check=check)


@boundary()
def dataset(soc: str = "host", folder: str | Path = home / "lat_datasets") -> DataFrame:
    """What was measured for a SoC, as a data frame: `codl.frames.dataset`.

    >>> codl.dataset("host").groupby("table").latency_ms.describe()
    """
    from codl import frames

    check_argument("soc", soc, "the name of a SoC", str)
    check_path("folder", folder)
    return frames.dataset(soc, folder)


@boundary()
def predictions(soc: str | Path = "host", predictor: str = "codl") -> DataFrame:
    """What the predictors in `./predictors` say of the rows in `./lat_datasets`, beside them.

    `codl.frames.predictions` has the columns, and takes other folders.

    >>> codl.predictions("host").groupby("target").error.describe()
    """
    from codl import frames

    check_path("soc", soc)
    check_argument("predictor", predictor, "the name of a predictor", str)
    return frames.predictions(soc, predictor)


@boundary()
def results(*files: str | Path) -> DataFrame:
    """Result files of `codl eval` and other commands, as a data frame: `codl.frames.results`.

    >>> codl.results("eval.json")[["model", "strategy", "latency_ms.p20"]]
    """
    from codl import frames

    if not files:
        raise CodlError("Name at least one result file, such as codl.results('eval.json').")
    for file in files:
        check_path("a result file", file)
    return frames.results(*files)


__all__ = [
    "__version__",
    "collect",
    "compile",
    "dataset",
    "evaluate",
    "home",
    "load",
    "load_plugin",
    "predictions",
    "results",
    "search",
    "train",
]
