"""What every result file says of itself, and of the SoC that it is of."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath
from typing import ClassVar

from codl.ir.environment import Environment
from codl.records.results import Count


@dataclass(frozen=True, kw_only=True)
class ResultFile:
    """What every result file says of itself: which codl wrote it, and when; empty where it doesn't.

    `path` is where it was read, `environment` where and how it was measured.
    """

    #: What wrote it.
    command: ClassVar[str] = ""
    path: str = "result"
    codl: str = ""
    commit: str = ""
    created: str = ""
    environment: Environment | None = None

    @property
    def file(self) -> str:
        """The file's name alone: a page travels, its writer's folders need not."""
        return PurePath(self.path).name


@dataclass(frozen=True)
class ProcessorSummary:
    """One side of a SoC. `cores` are host cores, empty for a real GPU."""

    name: str
    cores: tuple[Count, ...] = ()
    platform: str = ""
    driver: str = ""
    type: str = ""


@dataclass(frozen=True)
class SocSummary:
    """The SoC of a result; `cpu` and `gpu` are None where the file only names it."""

    name: str
    description: str = ""
    cpu: ProcessorSummary | None = None
    gpu: ProcessorSummary | None = None

    @property
    def is_one_cpu(self) -> bool:
        """Whether the OpenCL device is a CPU, so that both sides are halves of one."""
        return self.gpu is not None and self.gpu.type == "cpu"
