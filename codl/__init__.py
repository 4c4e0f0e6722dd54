"""codl runs a neural network on the CPU and the GPU of a device at the same time."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from codl.errors import CodlError, boundary, check_path
from codl.files import HOME, VERSION
from codl.registry import load_installed, load_plugin

if TYPE_CHECKING:
    from codl.engine.engine import Engine
    from codl.jobs.collect import collect, tune
    from codl.jobs.evaluate import evaluate
    from codl.jobs.frames import dataset, predictions, results
    from codl.jobs.run import compile
    from codl.jobs.search import search
    from codl.jobs.train import train

__version__ = VERSION
#: Folder of SoC files, datasets and predictors: CODL_HOME, or the current folder.
home = HOME
#: Modules of the job functions, each imported at its first use.
_FUNCTIONS = {name: f"codl.jobs.{name}" for name in ("collect", "train", "search", "evaluate")}
_FUNCTIONS |= dict.fromkeys(("dataset", "predictions", "results"), "codl.jobs.frames")
_FUNCTIONS |= {"tune": "codl.jobs.collect", "compile": "codl.jobs.run"}


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
    """Load a model from a bundle of `codl package`, in a fraction of `compile`'s time.

    `soc` is the bundle's SoC with other cores, threads or hints. A bundle of another user or
    machine is refused unless `trusted`, as it may run any code. `check` compares its outputs with
    the stored ones, once on each device and driver. Raises `InvalidFileError` for a damaged file,
    `MismatchError` for another machine or author, and `WrongResultError` for other outputs.

    >>> engine = codl.load("model.codl")
    >>> y = engine(x)
    """
    from codl.jobs.bundle import load

    check_path("path", path)
    if soc is None:
        return load(path, trusted=trusted, check=check)
    from codl.targets.placed import load_local

    check_path("soc", soc)
    return load(path, soc=load_local(soc), trusted=trusted, check=check)


__all__ = [
    "CodlError",
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
