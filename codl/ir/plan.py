"""A plan: the chains of one model on one SoC, with variant, dimension and ratio; a JSON file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from codl.errors import InvalidFileError, MismatchError, UnknownNameError
from codl.ir.fallbacks import OpFallback
from codl.ir.network import Layer, Network
from codl.ir.ops.base import Dim

VERSION = 1
Sharing = Literal["gather", "missing"]


@dataclass(frozen=True)
class Chain:
    """Layers, by name, that run at one dimension and ratio with no data sharing inside.

    `gpu_ratio`: 0 = CPU only, 1 = GPU only. `variants` names the kernel variant of every layer on
    every processor that has a part of it.
    """

    ops: tuple[str, ...]
    dim: Dim
    gpu_ratio: float
    variants: Mapping[str, Mapping[str, str]]

    @property
    def label(self) -> str:
        """The first and the last layer, for people."""
        return self.ops[0] if len(self.ops) == 1 else f"{self.ops[0]} ... {self.ops[-1]}"


@dataclass(frozen=True)
class Plan:
    """How a model runs.

    `sharing` is "gather" where every processor gets the whole of a tensor that it reads from (the
    paper's way), "missing" where only what it lacks moves. `predicted_ms` is None where nobody
    predicted. `digest` identifies the model's structure. `source` says where the latencies come
    from that the prediction rests on; `not_counted` names the layers, and the ways of data sharing,
    that have none and count as nothing; `estimated` the layers without a predictor on a processor,
    that count by the SoC's rates of computing and moving bytes. `method` says how the chains were
    searched for, and whether that was exact. `predicted_mj` is known where energy counted.
    `fallbacks` are layers, by name, that run in another variant than the strategy chose, since that
    one was wrong.
    """

    model: str
    digest: str
    soc: str
    strategy: str
    predictor: str
    sharing: Sharing
    predicted_ms: float | None
    chains: tuple[Chain, ...]
    source: str = "measured"
    not_counted: tuple[str, ...] = ()
    method: str = ""
    estimated: tuple[str, ...] = ()
    predicted_mj: float | None = None
    fallbacks: tuple[OpFallback, ...] = ()

    def check(self, network: Network, soc: str) -> None:
        """Raise `MismatchError` where this plan was made for another model or SoC."""
        if self.digest != network.digest:
            raise MismatchError(
                f"The plan is for the model {self.model!r} (structure {self.digest}), not for "
                f"{network.name!r} (structure {network.digest}). `codl search {network.name} "
                f"--soc {soc} -o plan.json` makes one."
            )
        if self.soc != soc:
            raise MismatchError(f"The plan is for the SoC {self.soc!r}, not for {soc!r}.")

    def layers(self, network: Network) -> list[tuple[Chain, tuple[Layer, ...]]]:
        """Every chain with its layers; raises `MismatchError` unless each layer is in one chain."""
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

    def save(self, path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".tmp")
        partial.write_text(json.dumps(self.to_json(), indent=1) + "\n")
        partial.replace(path)
        return path


def load_plan(path: Path) -> Plan:
    """Read a plan; raises `InvalidFileError` with the key that is missing, unknown or wrong."""
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise InvalidFileError(path, "there is no such plan.") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InvalidFileError(path, f"not JSON: {error}.") from error
    return read_plan(content, path)


def read_plan(content: Any, path: Path) -> Plan:
    """A plan from what the file `path` holds; raises as `load_plan` does."""
    if not isinstance(content, dict) or content.pop("version", None) != VERSION:
        raise InvalidFileError(path, f"expected a plan of version {VERSION}.", where="version")
    chains = _fields(path, content, Plan, "top").pop("chains")
    if not isinstance(chains, list):
        raise InvalidFileError(path, f"expected a list, got {chains!r}.", where="chains")
    loaded = tuple(_chain(path, chain, f"chains[{i}]") for i, chain in enumerate(chains))
    lists = {key: tuple(content.pop(key, ())) for key in ("not_counted", "estimated")}
    fallbacks = _fallbacks(content.pop("fallbacks", []), path)
    return Plan(**{**content, "chains": loaded, **lists, "fallbacks": fallbacks})


def _fallbacks(content: Any, path: Path) -> tuple[OpFallback, ...]:
    try:
        return msgspec.convert(content, tuple[OpFallback, ...])
    except msgspec.ValidationError as error:
        raise InvalidFileError(path, f"{error}.", where="fallbacks") from error


def _chain(path: Path, content: Any, where: str) -> Chain:
    values = _fields(path, content, Chain, where)
    ratio = values["gpu_ratio"]
    if not isinstance(ratio, (int, float)) or not 0 <= ratio <= 1:
        raise InvalidFileError(path, f"must be 0 ... 1, got {ratio!r}.", where=f"{where}.gpu_ratio")
    if values["dim"] not in get_args(Dim):
        problem = f"must be one of {', '.join(get_args(Dim))}, got {values['dim']!r}."
        raise InvalidFileError(path, problem, where=f"{where}.dim")
    ops, variants = values["ops"], values["variants"]
    if (
        not isinstance(ops, list | tuple)
        or not ops
        or not all(isinstance(name, str) for name in ops)
    ):
        problem = f"must be a list of the names of at least one op, got {ops!r:.60}."
        raise InvalidFileError(path, problem, where=f"{where}.ops")
    if not _are_variants(variants):
        problem = f"must name variants by op and processor, got {variants!r:.60}."
        raise InvalidFileError(path, problem, where=f"{where}.variants")
    return Chain(tuple(ops), values["dim"], float(ratio), variants)


def _are_variants(content: Any) -> bool:
    return isinstance(content, dict) and all(
        isinstance(own, dict) and all(isinstance(name, str) for name in own.values())
        for own in content.values()
    )


def _fields(path: Path, content: Any, cls: type[Plan | Chain], where: str) -> dict[str, Any]:
    known = [field.name for field in fields(cls)]
    if not isinstance(content, dict):
        raise InvalidFileError(path, f"expected a mapping, got {content!r}.", where=where)
    for key in content:
        if key not in known:
            raise InvalidFileError(path, str(UnknownNameError("key", key, known)), where=where)
    for key in (field.name for field in fields(cls) if field.default is MISSING):
        if key not in content:
            raise InvalidFileError(path, f"the key {key!r} is missing.", where=where)
    return dict(content)
