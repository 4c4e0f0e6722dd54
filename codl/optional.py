"""Extras: packages that only a part of codl needs, and the one sentence where one is missing.

The base is what an engine on a device needs. Code behind an extra imports its packages as usual;
where a user comes in (the functions of `codl`, the command line, a package that is built on an
extra) `explained` turns a missing one into an error that names the command to install it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from codl.errors import CodlError

#: The oldest Python that codl runs on.
PYTHON = (3, 10)
#: The modules of the base, and the names that they are installed by.
BASE: Mapping[str, str] = {
    "msgspec": "msgspec",
    "ncnn": "ncnn",
    "numpy": "numpy",
    "platformdirs": "platformdirs",
    "pyopencl": "pyopencl",
    "threadpoolctl": "threadpoolctl",
    "yaml": "pyyaml",
}
#: Those of the base that one part of codl alone needs, which a device may lack.
OF_PARTS: Mapping[str, str] = {"ncnn": "the CPU", "pyopencl": "the GPU"}
#: What each extra of the wheel is for.
PURPOSES: Mapping[str, str] = {
    "cli": "the command line",
    "onnx": "reading ONNX models and operators that codl has none for",
    "quantize": "packing a model's matrices",
    "report": "reports",
    "images": "reading images",
    "train": "predictors and tables of data",
    "peers": "comparing with other libraries",
    "dask": "sharing work with a Dask cluster",
}
#: Extras that `codl[all]` does not bring.
OPTIONAL = ("dask", "peers")
#: The modules that an extra brings, and the names that they are installed by.
PACKAGES: Mapping[str, Mapping[str, str]] = {
    "cli": {"rich": "rich", "typer": "typer"},
    "onnx": {"onnx": "onnx", "onnxruntime": "onnxruntime", "safetensors": "safetensors"},
    "quantize": {"onnx_ir": "onnx-ir"},
    "report": {"jinja2": "jinja2", "matplotlib": "matplotlib"},
    "images": {"PIL": "pillow"},
    "train": {
        "joblib": "joblib",
        "lightgbm": "lightgbm",
        "pandas": "pandas",
        "scipy": "scipy",
        "sklearn": "scikit-learn",
    },
    "peers": {"MNN": "MNN", "openvino": "openvino"},
    "dask": {"dask": "dask", "distributed": "dask"},
}


class MissingPackageError(CodlError):
    """A package that is not installed, of an extra or of a part of codl.

    The message has the command that installs it.
    """

    def __init__(self, package: str, purpose: str, wanted: str) -> None:
        super().__init__(
            f"{package} is not installed; it is needed for {purpose}: `pip install {wanted}`."
        )


@contextmanager
def explained() -> Iterator[None]:
    """Raise `MissingPackageError` for a missing module of an extra or a part; also a decorator."""
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module in OF_PARTS:
            raise MissingPackageError(module, OF_PARTS[module], module) from error
        if module in BASE:
            raise CodlError(
                f"{BASE[module]} is not installed, and codl does nothing without it: "
                "`pip install codl`."
            ) from error
        extra = next((extra for extra, own in PACKAGES.items() if module in own), None)
        if extra is None:
            raise
        package, wanted = PACKAGES[extra][module], f"'codl[{extra}]'"
        raise MissingPackageError(package, PURPOSES[extra], wanted) from error
