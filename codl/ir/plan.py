"""Plans: the chains of a model on a SoC, with variants, dimension and ratio."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from codl import files
from codl.errors import InvalidFileError, MismatchError
from codl.ir import yaml_file
from codl.ir.constants import digest
from codl.ir.environment import Environment
from codl.ir.network import Layer, Network
from codl.ir.ops.base import Dim
from codl.ir.types import Processor


@dataclass(frozen=True)
class OpFallback:
    """A replacement of a kernel variant: an op with wrong results in `variant` runs in `instead`.

    If `instead` is a variant of the other processor, the whole op runs there. `op` is a layer's
    name.
    """

    op: str
    processor: Processor
    variant: str
    instead: str
    reason: str = ""

    def __str__(self) -> str:
        why = f": {self.reason}" if self.reason else ""
        return f"{self.op!r} runs in {self.instead} and not in {self.variant}{why}"


VERSION = 1
FIX = "`codl search MODEL --soc SOC -o plan.json` makes one."
Sharing = Literal["gather", "missing"]
#: At most 1e12 milliseconds (thirty years), to reject corrupt files.
Predicted: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
#: The GPU's part of a split: 0 for the CPU alone, 1 for the GPU alone.
Ratio: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1)]


@dataclass(frozen=True)
class Chain:
    """Layers, by name, at one dimension and ratio without data sharing inside.

    `gpu_ratio` is 0 for the CPU alone and 1 for the GPU alone. `variants` names each layer's kernel
    variant on each processor with a part of it.
    """

    ops: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    dim: Dim
    gpu_ratio: Ratio
    variants: Mapping[str, Mapping[str, str]]

    @property
    def label(self) -> str:
        """Names of the first and the last layer."""
        return self.ops[0] if len(self.ops) == 1 else f"{self.ops[0]} ... {self.ops[-1]}"


@dataclass(frozen=True, kw_only=True)
class PlanOrigin:
    """Provenance of a plan: codl's version and commit, digests of dataset and tuning.

    `environment` is the environment in which plans ran, None if none ran.
    """

    codl: str
    commit: str
    dataset: str = ""
    tuning: str = ""
    environment: Environment | None = None


@dataclass(frozen=True)
class Plan:
    """Chains of a model with their variants, and the prediction behind them.

    `sharing` is "gather" if each processor gets whole tensors (the paper's way), or "missing" if
    only missing regions move. `predicted_ms` is None without a prediction. `digest` identifies the
    model's structure, `source` the latencies behind the prediction. `not_counted` lists layers and
    directions of data sharing priced at 0. `estimated` lists layers priced by rates of computing
    and moving bytes, for want of a predictor. `method` is the search method, with `exact` if no
    better plan of these chains exists. `predicted_mj` is set if energy counted. `fallbacks` replace
    variants with wrong results.
    """

    model: str
    digest: str
    soc: str
    strategy: str
    predictor: str
    sharing: Sharing
    predicted_ms: Predicted | None
    chains: tuple[Chain, ...]
    source: str = "measured"
    not_counted: tuple[str, ...] = ()
    method: str = ""
    estimated: tuple[str, ...] = ()
    predicted_mj: Predicted | None = None
    fallbacks: tuple[OpFallback, ...] = ()
    #: Set for plans from files.
    origin: PlanOrigin | None = None

    @property
    def fingerprint(self) -> str:
        """Digest of a plan's chains, variants, sharing, model and SoC."""
        running = {"chains": [asdict(chain) for chain in self.chains], "sharing": self.sharing}
        return digest({"model": self.digest, "soc": self.soc, **running})[:16]

    @property
    def is_split(self) -> bool:
        """Whether both processors compute."""
        return {chain.gpu_ratio for chain in self.chains} not in ({0.0}, {1.0}, set())

    def check(self, network: Network, soc: str) -> None:
        """Raise `MismatchError` for another model or SoC than the plan's."""
        if self.digest != network.digest:
            raise MismatchError(
                f"The plan is for the model {self.model!r} (structure {self.digest}), not for "
                f"{network.name!r} (structure {network.digest}). `codl search {network.name} "
                f"--soc {soc} -o plan.json` makes one."
            )
        if self.soc != soc:
            raise MismatchError(f"The plan is for the SoC {self.soc!r}, not for {soc!r}.")

    def layers(self, network: Network) -> list[tuple[Chain, tuple[Layer, ...]]]:
        """Chains with their layers; raises `MismatchError` unless each layer is in one chain."""
        by_name = {layer.name: layer for layer in network.layers}
        planned = [name for chain in self.chains for name in chain.ops]
        if planned != list(by_name):
            raise MismatchError(
                f"The plan's chains must hold the {len(by_name)} layers of {network.name!r} in "
                f"order, each once; they hold {len(planned)}, "
                f"{', '.join(planned[:3])}, ..."
            )
        return [(chain, tuple(by_name[name] for name in chain.ops)) for chain in self.chains]

    def to_json(self) -> dict[str, Any]:
        return {"version": VERSION, **asdict(self)}

    def save(self, path: str | Path) -> Path:
        return files.write(Path(path), json.dumps(self.to_json(), indent=1) + "\n")


def load_plan(path: str | Path) -> Plan:
    """Read a plan; raises `InvalidFileError` with the missing, unknown or wrong key."""
    return read_plan(files.read_json(Path(path), fix=FIX), Path(path))


def read_plan(content: Any, path: Path) -> Plan:
    """A plan from the content of the file `path`; raises as `load_plan` does."""
    if not isinstance(content, dict) or content.get("version") != VERSION:
        raise InvalidFileError(path, f"expected a plan of version {VERSION}.", where="version")
    fields = {key: value for key, value in content.items() if key != "version"}
    return yaml_file.convert(fields, Plan, path)
