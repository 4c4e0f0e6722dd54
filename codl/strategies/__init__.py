"""Strategies: ways to make a plan, one file each."""

from codl.errors import UnknownNameError
from codl.strategies import ideal
from codl.strategies.base import Context, Strategy
from codl.strategies.codl import Codl
from codl.strategies.codl_buffer import CodlBuffer
from codl.strategies.codl_paper import CodlPaper
from codl.strategies.codl_refined import CodlRefined
from codl.strategies.cpu import Cpu
from codl.strategies.gpu import Gpu
from codl.strategies.gpu_buffer import GpuBuffer
from codl.strategies.gpu_image import GpuImage
from codl.strategies.mulayer import MuLayer

STRATEGIES: dict[str, Strategy] = {
    strategy.name: strategy
    for strategy in (
        Cpu(), Gpu(), GpuBuffer(), GpuImage(), MuLayer(), CodlBuffer(), CodlPaper(), Codl(),
        CodlRefined(),
    )
}  # fmt: skip
#: What plans where nobody says how.
DEFAULT = "codl"


def find(name: str) -> Strategy:
    """A strategy by name; `ideal` is a bound and cannot be planned."""
    if name not in STRATEGIES:
        raise UnknownNameError("strategy", name, STRATEGIES)
    return STRATEGIES[name]


__all__ = ["DEFAULT", "STRATEGIES", "Context", "Strategy", "find", "ideal"]
