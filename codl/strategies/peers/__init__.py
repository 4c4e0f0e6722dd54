"""Peers: other libraries that get all the cores that both processors have together.

They are no strategies: nothing is split, and each runs in a process of its own.
"""

from codl.strategies.peers.base import Job, Peer
from codl.strategies.peers.mnn import Mnn
from codl.strategies.peers.ncnn import Ncnn
from codl.strategies.peers.opencl_all import OpenClAll
from codl.strategies.peers.openvino import OpenVino
from codl.strategies.peers.ort import OnnxRuntime

PEERS: dict[str, type[Peer]] = {
    peer.name: peer for peer in (OnnxRuntime, Ncnn, OpenVino, Mnn, OpenClAll)
}

__all__ = ["PEERS", "Job", "Peer"]
