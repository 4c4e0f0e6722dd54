"""A peer as the evaluation sees it: a process of its own on the cores of both processors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib.util import find_spec
from select import select
from tempfile import TemporaryFile
from typing import Any

import numpy as np

from codl.errors import CodlError, DeviceError, UnknownNameError
from codl.ir.soc import Soc
from codl.runtime import threads
from codl.strategies.peers import PEERS
from codl.strategies.peers.base import Job, Tensors
from codl.strategies.peers.opencl_all import OpenClAll

#: Converting and compiling a large model takes its time; a run does not.
START_S, RUN_S = 300.0, 60.0
#: What other libraries read from the environment. A peer gets its threads by its own options.
VARIABLES = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "DPCPP_CPU_", "CL_CONFIG_", "POCL_")


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
    own = [OpenClAll.name] if names and soc.gpu.is_cpu else []
    return list(dict.fromkeys([*names, *own]))


def cores_of(soc: Soc) -> tuple[int, ...]:
    """The cores that both processors have together."""
    return tuple(sorted({*soc.cpu.cores, *soc.gpu.cores}))


class PeerProcess:
    """Starts a peer's process, which inherits the cores from the start, and talks to it.

    All methods raise `DeviceError` with what the library said, or how the process ended.
    `observed_cores` are those on which its threads were seen at work, `busy_cores` how many of them
    it kept busy in the mean.
    """

    def __init__(self, name: str, job: Job) -> None:
        self.name, self.job = name, job
        self._errors = TemporaryFile("w+")  # noqa: SIM115 (as long as the process)
        described = json.dumps(asdict(job), default=str)
        command = [sys.executable, "-m", f"{__package__}.child", name, described]
        with threads.pinned(job.cores):
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=environment(job.threads),
                text=True,
            )
        try:
            self.version = str(self._answer(START_S)["version"])
        except DeviceError:
            self.close()
            raise
        self.observed_cores: tuple[int, ...] = ()
        self.busy_cores = 0.0

    @property
    def threads(self) -> int:
        return self.job.threads

    def feed(self, inputs: Tensors) -> None:
        """Hand inputs over, run once, and see on which cores."""
        path = self.job.folder / "inputs.npz"
        np.savez(path, *inputs.values())
        self._ask("feed", str(path), list(inputs))
        self._ask("run", 0)
        seen = self._ask("observe")
        self.observed_cores, self.busy_cores = tuple(seen["cores"]), float(seen["busy"])

    def run(self, lead_in: int = 0) -> float:
        """Run `lead_in` times and once more; the seconds of the last run, measured over there.

        This process must be idle, and that one is when it answers. Raises `DeviceError` where its
        threads go on spinning, which would disturb all others.
        """
        threads.wait_until_idle()
        answer = self._ask("run", lead_in)
        if not answer["idle"]:
            raise DeviceError(f"The threads of {self.name} do not stop after a run.")
        return float(answer["seconds"])

    def outputs(self) -> Tensors:
        path = self.job.folder / "outputs.npz"
        names = self._ask("outputs", str(path))["names"]
        with np.load(path) as content:
            return dict(zip(names, content.values(), strict=True))

    def close(self) -> None:
        """End the process: it stops where its input does."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        try:
            self._process.wait(RUN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()

    def _ask(self, *command: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise DeviceError(f"{self.name} {self._end()}.") from None
        return self._answer(RUN_S)

    def _answer(self, limit_s: float) -> dict[str, Any]:
        stdout = self._process.stdout
        assert stdout is not None
        if not select([stdout], [], [], limit_s)[0]:
            self._process.kill()
            raise DeviceError(f"{self.name} gave no answer within {limit_s:g} s.")
        line = stdout.readline()
        if not line:
            raise DeviceError(f"{self.name} {self._end()}.")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise DeviceError(f"{self.name}: {answer['error']}")
        return answer

    def _end(self) -> str:
        """How the process ended, and the last line that it wrote."""
        code = self._process.wait(RUN_S)
        self._errors.seek(0)
        lines = self._errors.read().strip().splitlines()
        last = f": {lines[-1]}" if lines else ""
        if code < 0:
            return f"crashed (signal {-code}){last}"
        return f"ended with code {code}{last}"


def environment(count: int) -> dict[str, str]:
    """This process's environment without what would tell a library how many threads to have."""
    kept = {name: v for name, v in os.environ.items() if not name.startswith(VARIABLES)}
    kept.pop("OCL_ICD_VENDORS", None)  # a folder of this process's, gone by now
    return {**kept, "OMP_NUM_THREADS": str(count), "OPENBLAS_NUM_THREADS": "1"}
