"""Plugins: packages outside codl that add operators, converters, kernel variants, strategies, ...

A plugin is an ordinary Python package. When it is imported it adds what it has to codl's
registries, by the same calls as codl's own modules (docs/howto/extending.md has a whole one). It is
found in one of three ways:

- an installed distribution names it as an entry point of the group `codl.plugins`;
- the environment variable CODL_PLUGINS lists its folder;
- it is loaded by its folder: `codl.load_plugin(folder)`, or `codl --plugin FOLDER ...`.

Those in `contrib/` come with codl's distribution, which names them as entry points. The registries
below take an entry as "module:attribute" (`add_lazy`), so that loading a plugin imports little.

Plugins are code that the user chose. Nothing else is imported because a file (a model, a plan, a
bundle, predictors) names it.
"""

from __future__ import annotations

import os
import sys
from importlib import invalidate_caches
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from codl.errors import CodlError, InvalidFileError
from codl.registry import Registry, rolled_back

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "codl.plugins"
#: Functions or `Typer`s by command; one of a group of codl's by both words: "dataset import".
COMMANDS: Registry[Any] = Registry("command")
#: Ways to reach devices by what their serials look like, see `codl.targets.connect.Transport`.
TRANSPORTS: Registry[Any] = Registry("serial")
#: Kernels that are known by their latencies alone, by the `source` of SoCs that have no others: a
#: function from a kind of op to its variants.
LATENCIES: Registry[Any] = Registry("source of latencies")
#: Types of result files by the command that writes them, see `codl.report.results.PluginResult`.
RESULTS: Registry[Any] = Registry("command")
#: Folders of plugins, separated as those of PATH are; child processes load them too.
VARIABLE = "CODL_PLUGINS"
#: Those that were loaded.
LOADED: Registry[Path] = Registry("loaded plugin")


class PluginError(CodlError):
    """A plugin that cannot be imported."""

    def __init__(self, plugin: object, error: BaseException) -> None:
        super().__init__(
            f"The plugin {plugin} cannot be loaded: {type(error).__name__}: {error}. "
            "Nothing of it was added."
        )


def load_plugin(folder: str | Path) -> ModuleType:
    """Import the package in a folder, and let child processes of this one do so too.

    One that is loaded already is returned. Raises `InvalidFileError` for a folder that is no
    package, and `PluginError` where importing it fails; then nothing of it stays registered.
    """
    path = Path(folder).resolve()
    init = path / "__init__.py"
    if not init.is_file():
        raise InvalidFileError(path, "a plugin is a folder with an __init__.py; there is none.")
    loaded = sys.modules.get(path.name)
    if loaded is not None and loaded.__file__ != str(init):
        raise InvalidFileError(
            path, f"another module is called {path.name!r} ({loaded.__file__}): rename the folder."
        )
    module = loaded or _import(path)
    if str(path) not in LOADED:
        LOADED.add(str(path), path)
    return module


def load_installed() -> None:
    """Import the plugins of installed distributions and of CODL_PLUGINS; again, it does nothing.

    Raises `PluginError` for one that fails, and `InvalidFileError` for a folder that is none.
    """
    from importlib.metadata import entry_points

    for entry in entry_points(group=GROUP):
        if entry.module not in sys.modules:
            _load(entry)
    for path in listed():
        load_plugin(path)


def listed() -> list[Path]:
    """The folders of plugins that were loaded by them, or are to be."""
    named = [Path(folder).resolve() for folder in os.environ.get(VARIABLE, "").split(os.pathsep)
             if folder]  # fmt: skip
    return list(dict.fromkeys([*named, *LOADED.values()]))


def _load(entry: EntryPoint) -> None:
    before = set(sys.modules)
    try:
        with rolled_back():
            entry.load()
    except Exception as error:
        _forget(entry.module, before)
        raise PluginError(f"{entry.name} ({entry.value})", error) from error


def _import(path: Path) -> ModuleType:
    """The package of a folder, under the folder's name."""
    init, before = path / "__init__.py", set(sys.modules)
    spec = spec_from_file_location(path.name, init, submodule_search_locations=[str(path)])
    assert spec is not None
    assert spec.loader is not None
    invalidate_caches()  # the folder may have been written a moment ago
    module = module_from_spec(spec)
    sys.modules[path.name] = module
    try:
        with rolled_back():
            spec.loader.exec_module(module)
    except Exception as error:
        _forget(path.name, before)
        raise PluginError(path, error) from error
    return module


def _forget(package: str, before: set[str]) -> None:
    """Take what a failed import left behind out of the imported modules."""
    for name in set(sys.modules) - before:
        if name == package or name.startswith(f"{package}."):
            del sys.modules[name]
