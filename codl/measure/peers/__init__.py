"""Peers: other libraries that get all the cores that both processors have together.

They are no strategies: nothing is split, and each runs in a process of its own.
"""

from codl.measure.peers.base import Job, Peer
from codl.measure.peers.mnn import Mnn
from codl.measure.peers.ncnn import Ncnn
from codl.measure.peers.opencl_all import OpenClAll
from codl.measure.peers.openvino import OpenVino
from codl.measure.peers.ort import OnnxRuntime

PEERS: dict[str, type[Peer]] = {
    peer.name: peer for peer in (OnnxRuntime, Ncnn, OpenVino, Mnn, OpenClAll)
}

__all__ = ["PEERS", "Job", "Peer"]
