"""Peers: other libraries that get all the cores that both processors have together.

They are no strategies: nothing is split, and each runs in a process of its own, which imports only
its own library.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeAlias

from numpy.typing import NDArray

from codl.ir.plan import Plan
from codl.registry import Registry
from codl.runtime.placement import LocalSoc

Tensors: TypeAlias = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class PeerJob:
    """A model for a peer: an ONNX file with fixed sizes, and the cores to use.

    `folder` is where a peer may put what it converts the model to; it goes when the peer does.
    `opencl-all` runs by `plan`, which the others do not have.
    """

    model: Path
    cores: tuple[int, ...]
    folder: Path
    soc: LocalSoc
    plan: Plan | None = None

    @property
    def threads(self) -> int:
        return len(self.cores)


class Peer(Protocol):
    """A model in another library, on a process of its own that may use `PeerJob.cores` only.

    `packages` are the Python packages that must be there; the constructor imports them, converts
    the model and compiles it. float32 throughout: no bfloat16, no halves.
    """

    name: ClassVar[str]
    packages: ClassVar[tuple[str, ...]]

    def __init__(self, job: PeerJob) -> None: ...

    @property
    def version(self) -> str: ...

    def feed(self, inputs: Tensors) -> None:
        """Copy inputs by name to where `run` reads them."""
        ...

    def run(self) -> None:
        """Run once on what was fed, to the end."""
        ...

    def outputs(self) -> Tensors:
        """The outputs of the last run by the model's own names; their shapes may lack the batch."""
        ...

    def close(self) -> None: ...


PEERS: Registry[type[Peer]] = Registry("peer")
PEERS.add_lazy("ort", "codl.measure.peers.libraries:OnnxRuntime")
PEERS.add_lazy("ncnn", "codl.measure.peers.ncnn:Ncnn")
PEERS.add_lazy("openvino", "codl.measure.peers.libraries:OpenVino")
PEERS.add_lazy("mnn", "codl.measure.peers.libraries:Mnn")
PEERS.add_lazy("opencl-all", "codl.engine.opencl_peer:OpenClAll")
