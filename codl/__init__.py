"""codl runs a neural network on the CPU and the GPU of a device at the same time."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from codl.boundary import boundary, check_argument, check_path
from codl.errors import CodlError
from codl.files import HOME
from codl.plugins import load_installed, load_plugin
from codl.provenance import VERSION

if TYPE_CHECKING:
    from pandas import DataFrame

    from codl.engine.engine import Engine
    from codl.jobs.collect import collect
    from codl.jobs.evaluate import evaluate
    from codl.jobs.run import compile
    from codl.jobs.search import search
    from codl.jobs.train import train
    from codl.jobs.tune import tune

__version__ = VERSION
#: Where SoC files, datasets and predictors lie: CODL_HOME, or the current folder.
home = HOME
#: The functions of jobs by their modules: each is imported when it is first asked for.
_FUNCTIONS = {
    name: f"codl.jobs.{name}" for name in ("collect", "tune", "train", "search", "evaluate")
} | {"compile": "codl.jobs.run"}


def __getattr__(name: str) -> object:
    if name not in _FUNCTIONS:
        raise AttributeError(f"module 'codl' has no attribute {name!r}")
    with boundary():
        load_installed()
        return boundary()(getattr(import_module(_FUNCTIONS[name]), name))


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
    "tune",
]
