"""Peers: other libraries that get all the cores that both processors have together.

They are no strategies: nothing is split, and each runs in a process of its own, which imports only
its own library.
"""

from codl.measure.peers.base import Job, Peer
from codl.registry import Registry

PEERS: Registry[type[Peer]] = Registry("peer")
PEERS.add_lazy("ort", "codl.measure.peers.ort:OnnxRuntime")
PEERS.add_lazy("ncnn", "codl.measure.peers.ncnn:Ncnn")
PEERS.add_lazy("openvino", "codl.measure.peers.openvino:OpenVino")
PEERS.add_lazy("mnn", "codl.measure.peers.mnn:Mnn")
PEERS.add_lazy("opencl-all", "codl.engine.opencl_peer:OpenClAll")

__all__ = ["PEERS", "Job", "Peer"]
