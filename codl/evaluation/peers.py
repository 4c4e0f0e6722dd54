"""Peers in an evaluation: which may be named, and those of one model, started on its target."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from codl.engine.opencl_peer import OpenClAll
from codl.errors import CodlError, UnknownNameError
from codl.ir import Network
from codl.measure.peers import PEERS, Tensors
from codl.records.soc import Soc
from codl.strategies import STRATEGIES
from codl.strategies.base import Context
from codl.targets.base import Started, Target

if TYPE_CHECKING:
    import onnx


def check(names: Sequence[str], soc: Soc) -> None:
    """Raise `CodlError` for a peer that is unknown, not installed, or nothing for this SoC."""
    for name in names:
        if name not in PEERS:
            raise UnknownNameError("peer", name, PEERS)
        missing = [package for package in PEERS[name].packages if find_spec(package) is None]
        if missing:
            raise CodlError(
                f"The peer {name!r} needs {', '.join(missing)}, which is not installed: "
                "`pip install codl[peers]`."
            )
        if name == OpenClAll.name and not soc.gpu.is_cpu:
            raise CodlError(
                f"opencl-all is our kernels on every core of a CPU; the OpenCL device of "
                f"{soc.name!r} is a {soc.gpu.type}: the strategy is called gpu."
            )


def with_opencl_all(names: Sequence[str], soc: Soc) -> list[str]:
    """Beside other libraries on every core of a host, our own kernels on every core."""
    added = [OpenClAll.name] if names and soc.gpu.is_cpu else []
    return list(dict.fromkeys([*names, *added]))


@contextmanager
def started(
    names: Sequence[str],
    model: onnx.ModelProto,
    network: Network,
    inputs: Tensors,
    context: Context,
    target: Target,
) -> Iterator[Mapping[str, Started | CodlError]]:
    """Peers of a model on a target, fed and warm, or why they cannot be; they end with the context.

    `model` has fixed sizes, and `network` is what codl made of it.
    """
    peers: dict[str, Started | CodlError] = {}
    try:
        for name in names:
            context.note(f"{network.name}: starting {name}")
            try:
                is_ours = name == OpenClAll.name
                plan = STRATEGIES["gpu"].plan(network, context) if is_ours else None
                peers[name] = target.start_peer(name, model.SerializeToString(), inputs, plan)
            except CodlError as error:
                peers[name] = error
        yield peers
    finally:
        for peer in peers.values():
            if not isinstance(peer, CodlError):
                peer.close()
