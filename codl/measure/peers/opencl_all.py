"""Our own kernels on every core: the OpenCL device of a host gets the CPU side's cores too.

It runs the plan of the strategy `gpu`. Only for an OpenCL device that is a CPU.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from codl.errors import CodlError
from codl.frontend.convert import load_network
from codl.kernels.tuning import Tuning
from codl.lower import lower
from codl.measure.peers.base import Job, Tensors
from codl.runtime.engine import Engine
from codl.runtime.opencl import OpenClDevice
from codl.runtime.placement import at_hand
from codl.runtime.session import Session


class OpenClAll:
    name: ClassVar[str] = "opencl-all"
    packages: ClassVar[tuple[str, ...]] = ()

    def __init__(self, job: Job) -> None:
        own = at_hand(job.soc)
        if job.plan is None:
            raise CodlError(f"The peer {self.name!r} needs a plan to run by.")
        place = replace(own.placement, cpu_cores=job.cores, gpu_cores=job.cores)
        soc = replace(own, gpu=replace(own.gpu, compute_units=job.threads), placement=place)
        network = load_network(str(job.model))
        session = Session(lower(network, job.plan, soc, Tuning()), OpenClDevice(soc))
        self._engine = Engine.of(session, network, job.plan, soc)
        self.version = soc.gpu.driver

    def feed(self, inputs: Tensors) -> None:
        self._engine.feed(inputs)

    def run(self) -> None:
        self._engine.run()

    def outputs(self) -> Tensors:
        return self._engine.outputs

    def close(self) -> None:
        self._engine.close()
