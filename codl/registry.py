"""Registries of named entries, extensible by codl's own modules and by plugins.

Each op, converter, kernel variant, strategy and estimator is added by its own file. codl's own
entries use the same calls as plugins (see docs/howto/extending.md).

Plugins: packages outside codl that add operators, converters, strategies and more.

A plugin is an ordinary Python package. On import it adds entries to codl's registries, by the same
calls as codl's own modules (docs/howto/extending.md has a complete one). It is found in one of
three ways:

- an installed distribution has an entry point of the group `codl.plugins`;
- the environment variable CODL_PLUGINS lists its folder;
- `codl.load_plugin(folder)` or `codl --plugin FOLDER ...` loads its folder.

Plugins in `contrib/` are part of codl's distribution, as entry points. The registries below take an
entry as "module:attribute" (`add_lazy`), so that loading a plugin imports little.

Plugins are code that the user chose. A file (a model, a plan, a bundle, predictors) never causes
the import of any other code.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module, invalidate_caches
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Generic, TypeVar

from codl.errors import CodlError, DuplicateNameError, InvalidFileError, UnknownNameError

T = TypeVar("T")


class Registry(Mapping[str, T], Generic[T]):
    """Entries by name, in the order of their addition.

    `noun` names an entry in errors. A lazy entry is a place, "module:attribute" or the "module"
    that adds it, imported at the entry's first use.
    """

    _instances: ClassVar[list[Registry[Any]]] = []

    def __init__(self, noun: str) -> None:
        self.noun = noun
        self._entries: dict[str, T] = {}
        self._places: dict[str, str] = {}
        Registry._instances.append(self)

    def add(self, name: str, entry: T, *, origin: object = None, before: str | None = None) -> T:
        """Add an entry, after all others or before the entry `before`.

        `origin` is the function or class that errors name, the entry itself by default. Raises
        `DuplicateNameError` for a taken name, and `UnknownNameError` for an unknown `before`.
        """
        place = _place(entry if origin is None else origin)
        if name in self._entries or self._places.get(name) != place.partition(":")[0]:
            self._check_free(name, place)
        if before is not None and before not in self._places:
            raise UnknownNameError(self.noun, before, self)
        self._entries[name], self._places[name] = entry, place
        if before is not None:
            names = list(self._places)
            behind = names[names.index(before) : -1]
            self._places |= {other: self._places.pop(other) for other in behind}
        return entry

    def add_lazy(self, name: str, place: str) -> None:
        """Add an entry by its place, "module:attribute" or a module, without importing it."""
        self._check_free(name, place)
        self._places[name] = place

    def _check_free(self, name: str, place: str) -> None:
        if name in self._places:
            raise DuplicateNameError(self.noun, name, self._places[name], place)

    def __getitem__(self, name: str) -> T:
        if name not in self._entries:
            module, _, attribute = self._places[name].partition(":")
            imported = import_module(module)
            if attribute:
                self._entries[name] = getattr(imported, attribute)
        return self._entries[name]

    def of_group(self, word: str) -> list[T]:
        """Entries of commands whose first word is `word`, in order."""
        return [self[name] for name in self if name.startswith(f"{word} ")]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    @property
    def places(self) -> Mapping[str, str]:
        """Place of each entry's definition, as "module:attribute"."""
        return dict(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def find(self, name: str) -> T:
        """The entry of a name; raises `UnknownNameError` with the known names."""
        if name not in self:
            raise UnknownNameError(self.noun, name, self)
        return self[name]


@contextmanager
def rolled_back(*, always: bool = False) -> Iterator[None]:
    """Undo additions to all registries if the block raises, or `always` (for tests)."""
    before = [
        (instance, dict(instance._entries), dict(instance._places))
        for instance in Registry._instances
    ]
    done = False
    try:
        yield
        done = True
    finally:
        if always or not done:
            for registry, entries, places in before:
                imported = {k: v for k, v in registry._entries.items() if k in places}
                registry._entries, registry._places = {**imported, **entries}, places


def _place(entry: object) -> str:
    """The place of an entry's definition, for errors."""
    named = entry if hasattr(entry, "__qualname__") else type(entry)
    return f"{named.__module__}:{named.__qualname__}"


GROUP = "codl.plugins"
#: Functions or `Typer`s by command; in one of codl's groups by both words: "dataset import".
COMMANDS: Registry[Any] = Registry("command")
#: Kinds of devices by the form of their serials, see `codl.targets.connect.Transport`.
TRANSPORTS: Registry[Any] = Registry("serial")
#: Kernels known only by their latencies, by the `source` of SoCs without other kernels: a function
#: from an op kind to its variants.
LATENCIES: Registry[Any] = Registry("source of latencies")
#: Types of result files by the command that writes them, see `codl.report.results.PluginResult`.
RESULTS: Registry[Any] = Registry("command")
#: Variable with the folders of plugins, separated as in PATH; child processes load them too.
VARIABLE = "CODL_PLUGINS"
#: Folders of loaded plugins.
LOADED: Registry[Path] = Registry("loaded plugin")


class PluginError(CodlError):
    """A plugin that cannot be imported."""

    def __init__(self, plugin: object, error: BaseException) -> None:
        super().__init__(
            f"The plugin {plugin} cannot be loaded: {type(error).__name__}: {error}. "
            "Nothing of it was added."
        )


def load_plugin(folder: str | Path) -> ModuleType:
    """Import the package in a folder, here and in child processes of this process.

    Returns an already loaded plugin unchanged. Raises `InvalidFileError` for a folder that is no
    package, and `PluginError` for a failed import, which leaves nothing registered.
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
    """Import the plugins of installed distributions and of CODL_PLUGINS; idempotent.

    Raises `PluginError` for a failed import, and `InvalidFileError` for a folder without a plugin.
    """
    from importlib.metadata import entry_points

    for entry in entry_points(group=GROUP):
        if entry.module not in sys.modules:
            with _undone(entry.module, f"{entry.name} ({entry.value})"):
                entry.load()
    for path in listed():
        load_plugin(path)


def listed() -> list[Path]:
    """Folders of plugins in CODL_PLUGINS and of plugins loaded by folder."""
    named = [Path(folder).resolve() for folder in os.environ.get(VARIABLE, "").split(os.pathsep)
             if folder]  # fmt: skip
    return list(dict.fromkeys([*named, *LOADED.values()]))


def _import(path: Path) -> ModuleType:
    """Import the package of a folder, under the folder's name."""
    init = path / "__init__.py"
    spec = spec_from_file_location(path.name, init, submodule_search_locations=[str(path)])
    assert spec is not None
    assert spec.loader is not None
    invalidate_caches()  # the folder may have been written a moment ago
    module = module_from_spec(spec)
    with _undone(path.name, path):
        sys.modules[path.name] = module
        spec.loader.exec_module(module)
    return module


@contextmanager
def _undone(package: str, plugin: object) -> Iterator[None]:
    """Undo a failed import of a package inside, and raise `PluginError`."""
    before = set(sys.modules)
    try:
        with rolled_back():
            yield
    except Exception as error:
        for name in set(sys.modules) - before:
            if name == package or name.startswith(f"{package}."):
                del sys.modules[name]
        raise PluginError(plugin, error) from error
