"""Registries: what can be added by name, from this package or from a plugin.

An op, a converter, a kernel variant, a strategy and an estimator are each added in one place, their
own file. Built-in ones use the same calls as those of a plugin (see docs/howto/extending.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any, ClassVar, Generic, TypeVar

from codl.errors import DuplicateNameError, UnknownNameError

T = TypeVar("T")


class Registry(Mapping[str, T], Generic[T]):
    """Entries by name, in the order in which they were added.

    `noun` is what an entry is called in errors. An entry may be added by where it is found instead,
    as "module:attribute": it is imported when somebody asks for it.
    """

    _instances: ClassVar[list[Registry[Any]]] = []

    def __init__(self, noun: str) -> None:
        self.noun = noun
        self._entries: dict[str, T] = {}
        self._places: dict[str, str] = {}
        Registry._instances.append(self)

    def add(self, name: str, entry: T, *, origin: object = None, before: str | None = None) -> T:
        """Add an entry, behind all others or before one of them.

        `origin` is the function or class that errors name, the entry itself by default. Raises
        `DuplicateNameError` where the name is taken, and `UnknownNameError` for another `before`.
        """
        place = _place(entry if origin is None else origin)
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
        """Add what lies at "module:attribute", without importing it yet."""
        self._check_free(name, place)
        self._places[name] = place

    def _check_free(self, name: str, place: str) -> None:
        if name in self._places:
            raise DuplicateNameError(self.noun, name, self._places[name], place)

    def __getitem__(self, name: str) -> T:
        if name not in self._entries:
            module, _, attribute = self._places[name].partition(":")
            self._entries[name] = getattr(import_module(module), attribute)
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    @property
    def places(self) -> Mapping[str, str]:
        """Where every entry is defined, as "module:attribute"."""
        return dict(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def find(self, name: str) -> T:
        """The entry; raises `UnknownNameError` with the known names."""
        if name not in self:
            raise UnknownNameError(self.noun, name, self)
        return self[name]


@contextmanager
def rolled_back(*, always: bool = False) -> Iterator[None]:
    """What is added to any registry inside is taken out again where an error ends the block.

    Or in any case: a test leaves nothing behind.
    """
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
                registry._entries, registry._places = entries, places


def import_modules(package: ModuleType | str) -> None:
    """Import every module of a package, so that each adds what it has."""
    owner = import_module(package) if isinstance(package, str) else package
    for module in iter_modules(owner.__path__):
        import_module(f"{owner.__name__}.{module.name}")


def _place(entry: object) -> str:
    """Where an entry is defined, as an error names it."""
    named = entry if hasattr(entry, "__qualname__") else type(entry)
    return f"{named.__module__}:{named.__qualname__}"
