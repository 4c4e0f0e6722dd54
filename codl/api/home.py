"""What lies in the folder that codl works in (CODL_HOME, or the current one)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePath
from typing import Any

from codl.errors import CodlError
from codl.files import read_json
from codl.measure import dataset as datasets
from codl.measure.dataset import Dataset
from codl.predict import FOLDER as PREDICTORS
from codl.provenance import shipped
from codl.records import soc as socs
from codl.records.profile import FOLDER as PROFILES
from codl.runtime.placement import SUFFIX, beside

#: Names the SoC of commands that name none.
VARIABLE = "CODL_SOC"
#: `codl soc detect` calls a machine this where no name is given.
HOST = "host"
#: Of a result so many models are named.
MOST_NAMES = 5
#: A file of more bytes is no result of codl's.
MOST_BYTES = 64 << 20


@dataclass(frozen=True)
class UsualSoc:
    """The SoC of a command that names none, and why it is that one."""

    name: str
    reason: str


def usual_soc(*, runs: bool) -> UsualSoc:
    """What CODL_SOC names, or the SoC described here that was measured last.

    Where none was measured it is `host`, or the only one described here. Where none is described
    and nothing `runs` on it, it is one that comes with codl. Raises `CodlError` without any.
    """
    if name := os.environ.get(VARIABLE):
        return UsualSoc(name, f"as {VARIABLE} says")
    here = [path.stem for path in sorted(socs.FOLDER.glob("*.yaml")) if beside(path).is_file()]
    if measured := {name: at for name in here if (at := _measured_at(name)) is not None}:
        last = max(measured, key=lambda name: measured[name])
        day = datetime.fromtimestamp(measured[last]).strftime("%Y-%m-%d %H:%M")
        return UsualSoc(last, f"measured here last ({day})")
    if HOST in here or len(here) == 1:
        return UsualSoc(HOST if HOST in here else here[0], "described here")
    if here:
        raise CodlError(f"Name one of the SoCs described here by --soc: {', '.join(here)}.")
    coming = sorted(path.name for path in shipped(PREDICTORS).iterdir() if path.is_dir())
    if not runs and coming:
        return UsualSoc(coming[0], "it comes with codl, nothing was measured here")
    raise CodlError(
        f"No SoC is described in {socs.FOLDER.absolute()}: `codl soc detect` describes this "
        "machine, then `codl collect` measures it and `codl train` learns from that. --soc names "
        "another."
    )


def _measured_at(name: str) -> float | None:
    """When a SoC's dataset was written last, in seconds since 1970; None without one."""
    manifest = Dataset(datasets.FOLDER / name).manifest_path
    return manifest.stat().st_mtime if manifest.is_file() else None


@dataclass(frozen=True, kw_only=True)
class HomeItem:
    """Something that lies in a folder: `when` it was made (ISO 8601), and by which commit of codl.

    What a file does not say is empty. `problem` says why it cannot be read.
    """

    kind: str
    path: str
    soc: str = ""
    when: str = ""
    commit: str = ""
    about: str = ""
    problem: str = ""


def home_items(folder: Path | None = None) -> tuple[HomeItem, ...]:
    """SoCs, datasets, predictors and profiles of codl's home, and files of a folder.

    Those are plans, bundles, executables, traces and results, in the folder itself and in folders
    in it; by default it is the home. What cannot be read has a problem, and is no error.
    """
    root = datasets.FOLDER.parent if folder is None else folder
    of_home = {**_HOMES} if folder is None else {}
    items = [_read(path, of) for of, pattern in of_home.items() for path in _paths(*pattern)]
    items += [_read(path, _FILES[path.suffix]) for path in _files(root)]
    return tuple(item for item in items if item.kind)


def result_files(folder: Path | None, command: str) -> tuple[str, ...]:
    """The result files of a command in a folder, as `home_items` finds them."""
    root = datasets.FOLDER.parent if folder is None else folder
    items = [_read(path, _json) for path in _files(root) if path.suffix == ".json"]
    return tuple(item.path for item in items if item.kind == command)


def _files(root: Path) -> list[Path]:
    """Those that may be codl's, in a folder and in folders in it."""
    ours = {parent.resolve() for parent, _ in _HOMES.values()}
    folders = sorted(
        path for path in root.glob("*") if path.is_dir() and path.resolve() not in ours
    )
    return [
        path
        for place in (root, *folders)
        for path in sorted(place.glob("*"))
        if path.suffix in _FILES and path.is_file()
    ]


def _paths(parent: Path, pattern: str) -> list[Path]:
    return sorted(parent.glob(pattern))


def _read(path: Path, reader: Callable[[Path], HomeItem]) -> HomeItem:
    try:
        return reader(path)
    except (CodlError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return HomeItem(kind="unreadable", path=str(path), problem=str(error))


def _written(path: Path) -> str:
    return datetime.fromtimestamp(path.stat().st_mtime).astimezone().isoformat(timespec="seconds")


def _soc(path: Path) -> HomeItem:
    if path.name.endswith(SUFFIX):
        return HomeItem(kind="", path="")
    soc = socs.read(path)
    about = f"{soc.source}, {soc.description}" if soc.description else soc.source
    return HomeItem(kind="SoC", path=str(path), soc=soc.name, when=_written(path), about=about)


def _dataset(path: Path) -> HomeItem:
    dataset = Dataset(path.parent)
    manifest = dataset.manifest()
    tables = dataset.folder.glob("t_*.csv")
    rows = sum(max(0, table.read_bytes().count(b"\n") - 1) for table in tables)
    last = [*manifest["runs"].values()][-1] if manifest["runs"] else {}
    return HomeItem(
        kind="dataset",
        path=str(dataset.folder),
        soc=dataset.folder.name,
        when=str(last.get("ended") or last.get("created") or _written(path)),
        commit=str(last.get("commit", "")),
        about=f"{manifest['source']}, {rows} rows, {len(manifest['runs'])} runs",
    )


def _predictors(path: Path) -> HomeItem:
    files = sorted(path.glob("*.json"))
    if not files:
        return HomeItem(kind="", path="")
    newest = max(files, key=lambda file: file.stat().st_mtime)
    names = ", ".join(file.stem for file in files)
    return HomeItem(
        kind="predictors", path=str(path), soc=path.name, when=_written(newest), about=names
    )


def _profiles(path: Path) -> HomeItem:
    files = [*path.glob("*.json")]
    if not files:
        return HomeItem(kind="", path="")
    newest = max(files, key=lambda file: file.stat().st_mtime)
    about = f"{len(files)} models"
    return HomeItem(
        kind="profiles", path=str(path), soc=path.name, when=_written(newest), about=about
    )


def _bundle(path: Path) -> HomeItem:
    from codl.bundle.archive import Archive

    manifest = Archive(path).manifest
    plan = manifest.get("plan") or {}
    name = str(manifest["soc"].get("name", "")) if isinstance(manifest.get("soc"), dict) else ""
    about = ", ".join(filter(None, (str(plan.get("model", "")), str(plan.get("strategy", "")))))
    return HomeItem(kind="bundle", path=str(path), soc=name, when=_written(path), about=about)


def _trace(path: Path) -> HomeItem:
    about = f"{path.stat().st_size / 1e6:.1f} MB, for https://ui.perfetto.dev"
    return HomeItem(kind="trace", path=str(path), when=_written(path), about=about)


def _json(path: Path) -> HomeItem:
    """A result, a plan or an executable; other files of this ending are none of codl's."""
    if path.stat().st_size > MOST_BYTES:
        return HomeItem(kind="", path="")
    content = read_json(path)
    if not isinstance(content, dict):
        return HomeItem(kind="", path="")
    if "command" in content:
        kind, about = str(content["command"]), _result(content)
    elif {"digest", "chains"} <= content.keys():
        kind, about = "plan", _plan(content)
    elif {"buffers", "commands"} <= content.keys():
        kind, about = "executable", ""
    else:
        return HomeItem(kind="", path="")
    soc, origin = content.get("soc", ""), content.get("origin")
    origin = origin if isinstance(origin, dict) else {}
    return HomeItem(
        kind=kind,
        path=str(path),
        soc=str(soc.get("name", "") if isinstance(soc, dict) else soc),
        when=str(content.get("created") or _written(path)),
        commit=str(content.get("commit") or origin.get("commit") or ""),
        about=about,
    )


def _plan(content: Mapping[str, Any]) -> str:
    predicted = content.get("predicted_ms")
    ms = f", {predicted:.1f} ms predicted" if isinstance(predicted, int | float) else ""
    return f"{content.get('model', '')} by {content.get('strategy', '')}{ms}"


def _result(content: Mapping[str, Any]) -> str:
    """The models of a result, and of an evaluation the largest gain of each."""
    if content["command"] == "eval":
        gains = best_gains(content)
        return _few([f"{model} {gain:.2f}" for model, gain in gains.items()])
    rows = content.get("plans") or content.get("rows")
    if isinstance(rows, int):
        return f"{rows} rows"
    named = [row.get("model") for row in rows or () if isinstance(row, dict)]
    return _few([*dict.fromkeys(str(model) for model in (content.get("model"), *named) if model)])


def _few(names: Sequence[str]) -> str:
    left = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f", and {left} more" if left > 0 else "")


def best_gains(content: Mapping[str, Any]) -> dict[str, float]:
    """By model, the largest speedup over the better processor alone, of a strategy of codl's."""
    gains: dict[str, float] = {}
    for row in content.get("rows", ()):
        gain = row.get("speedup")
        if gain and not row.get("peer") and row.get("source") != "computed":
            model = PurePath(row["model"]).name.removesuffix(".onnx")
            gains[model] = max(gain, gains.get(model, 0.0))
    return gains


#: Of the home: where things of a kind lie.
_HOMES: Mapping[Callable[[Path], HomeItem], tuple[Path, str]] = {
    _soc: (socs.FOLDER, "*.yaml"),
    _dataset: (datasets.FOLDER, "*/manifest.json"),
    _predictors: (PREDICTORS, "*"),
    _profiles: (PROFILES, "*"),
}
_FILES: Mapping[str, Callable[[Path], HomeItem]] = {
    ".json": _json,
    ".codl": _bundle,
    ".pftrace": _trace,
}
