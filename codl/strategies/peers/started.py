"""Starts peers for one model: each gets a folder, the model as a file, and a process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx

from codl.errors import CodlError
from codl.ir import Network
from codl.ir.soc import Soc
from codl.strategies.base import STRATEGIES, Context
from codl.strategies.peers.base import Job, Tensors
from codl.strategies.peers.opencl_all import OpenClAll
from codl.strategies.peers.process import PeerProcess, cores_of


@contextmanager
def started(
    names: Sequence[str],
    model: onnx.ModelProto,
    network: Network,
    inputs: Tensors,
    context: Context,
) -> Iterator[Mapping[str, PeerProcess | CodlError]]:
    """Peers of a model, fed and warm, or why they cannot be; they end with the context.

    `model` has fixed sizes, and `network` is what codl made of it.
    """
    running: dict[str, PeerProcess] = {}
    failed: dict[str, CodlError] = {}
    with TemporaryDirectory(prefix="codl-peers-") as folder:
        root = Path(folder)
        try:
            for name in names:
                context.note(f"{network.name}: starting {name}")
                try:
                    job = _job(name, model, root, context.soc)
                    if name == OpenClAll.name:
                        STRATEGIES["gpu"].plan(network, context).save(job.plan)
                    running[name] = PeerProcess(name, job)
                    running[name].feed(inputs)
                except CodlError as error:
                    failed[name] = error
            yield {name: failed.get(name) or running[name] for name in names}
        finally:
            for peer in running.values():
                peer.close()


def _job(name: str, model: onnx.ModelProto, root: Path, soc: Soc) -> Job:
    """The files that a peer reads, and a folder of its own."""
    path, described = root / "model.onnx", root / "soc.yaml"
    if not path.exists():
        path.write_bytes(model.SerializeToString())
        soc.save(described)
    (root / name).mkdir()
    return Job(path, cores_of(soc), root / name, described, root / "plan.json")
