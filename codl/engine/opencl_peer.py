"""The OpenCL peer of evaluations: codl's kernels on all cores of a host, the CPU side's too.

It runs the plan of the strategy `gpu`. Only for an OpenCL device that is a CPU.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from codl.engine.engine import Engine
from codl.errors import CodlError
from codl.measure.peers import PeerJob, Tensors
from codl.records.gpu_limits import UNLIMITED
from codl.runtime.placement import require_local
from codl.targets.local import LocalTarget


class OpenClAll:
    name: ClassVar[str] = "opencl-all"
    packages: ClassVar[tuple[str, ...]] = ()

    def __init__(self, job: PeerJob) -> None:
        soc = require_local(job.soc)
        if job.plan is None:
            raise CodlError(f"The peer {self.name!r} needs a plan to run by.")
        place = replace(soc.placement, cpu_cores=job.cores, gpu_cores=job.cores, limits=UNLIMITED)
        soc = replace(soc, gpu=replace(soc.gpu, compute_units=job.threads), placement=place)
        from codl.frontend.convert import load_network  # only its name is needed elsewhere

        network = load_network(str(job.model))
        self._engine = Engine(network, job.plan, LocalTarget(soc))
        self.version = soc.gpu.driver

    def feed(self, inputs: Tensors) -> None:
        self._engine.feed(inputs)

    def run(self) -> None:
        self._engine.run()

    def outputs(self) -> Tensors:
        return self._engine.outputs

    def close(self) -> None:
        self._engine.close()
