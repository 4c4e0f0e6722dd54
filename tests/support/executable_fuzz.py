"""Random and mutated executables, for the suite and for `scripts/fuzz_executables.py`."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from msgspec import structs

from codl.errors import CodlError
from codl.ir.constants import Arrays, Constants
from codl.ir.executable import Executable
from codl.ir.executable_json import decode
from codl.runtime.numpy_interpreter import Interpreter
from support.executables import SOCS, encoded, small_executable

#: The keys to a value in some JSON; all of them by the value's type.
Path: TypeAlias = tuple[Any, ...]
Paths: TypeAlias = Mapping[type, Sequence[Path]]
#: A container in some JSON, and a key in it.
Place: TypeAlias = tuple[Any, Any]
#: Changes some JSON at a place, with that of another one.
Mutate: TypeAlias = Callable[[random.Random, Place, Place], None]
#: What stands in the place of a value.
NUMBERS = (0, 1, -1, 2, 3, 7, 64, 255, 1 << 31, 1 << 40, -(1 << 63), 1 << 63, 1 << 70, 0.5, 1e308)
VALUES = (*NUMBERS, None, True, "", "x", "../x", [], {}, [0], {"type": "Launch"}, "9" * 300)
#: What JSON gets in the place of something else.
PIECES = (b"", b"0", b"null", b'"', b"[", b"-1e999", b"{}", b"\xff", b"[" * 2000)


@dataclass
class Outcome:
    """How many were refused when read and when run, and how many ran to their end."""

    refused: int = 0
    refused_when_run: int = 0
    ran: int = 0


@dataclass(frozen=True)
class Seed:
    """A sound executable's JSON, and what it takes to run one that was read."""

    content: bytes
    paths: Paths
    arrays: dict[str, Any]
    weights: dict[str, Arrays | None]

    @classmethod
    def of(cls, executable: Executable) -> Seed:
        content, arrays = encoded(executable)
        weights = {own.recipe: own.weights for own in executable.constants}
        return cls(content, _paths(json.loads(content)), arrays, weights)

    def run(self, content: bytes, outcome: Outcome) -> None:
        """Read and run what may be an executable; raises nothing but what is a defect."""
        try:
            executable = decode(content, self._array)
        except CodlError:
            outcome.refused += 1
            return
        try:
            with np.errstate(all="ignore"):
                interpreter = Interpreter(self._weighted(executable))
                interpreter.run()
            outcome.ran += 1
        except CodlError:
            outcome.refused_when_run += 1

    def _array(self, digest: str) -> Any:
        if digest not in self.arrays:
            raise CodlError(f"There is no array {digest!r}.")
        return self.arrays[digest]

    def _weighted(self, executable: Executable) -> Executable:
        """With the weights that are not in a file, where the constants are still known."""
        constants = tuple(
            Constants(
                one.how,
                self.weights.get(one.recipe),
                one.arrays,
                names=one.names,
                recipe=one.recipe,
            )
            for one in executable.constants
        )
        return structs.replace(executable, constants=constants)


#: Makes another text of a seed's.
Maker: TypeAlias = Callable[[random.Random, Seed], bytes]


def fuzz(count: int, seed: int = 1) -> Outcome:
    """Read so many mutated executables, and run those that are sound."""
    dice, outcome = random.Random(seed), Outcome()
    seeds = [Seed.of(small_executable(soc)) for soc in SOCS]
    for _ in range(count):
        own = dice.choice(seeds)
        mutated = dice.choice(MAKERS)(dice, own)
        try:
            own.run(mutated, outcome)
        except Exception as error:
            error.add_note(mutated.decode(errors="replace")[:200_000])
            raise
    return outcome


def _paths(value: Any) -> Paths:
    """The keys to every value in some JSON, by the value's type."""
    paths: dict[type, list[Path]] = {}
    left: list[tuple[Path, Any]] = [((), value)]
    while left:
        path, one = left.pop()
        if isinstance(one, dict | list):
            keys = one if isinstance(one, dict) else range(len(one))
            left += [((*path, key), one[key]) for key in keys]
        if path:
            paths.setdefault(type(one), []).append(path)
    return paths


def _mutated(mutate: Mutate, *types: type) -> Maker:
    """Texts with one to three values changed, of some types or of any."""

    def make(dice: random.Random, seed: Seed) -> bytes:
        value = json.loads(seed.content)
        paths = [path for kind, own in seed.paths.items() if kind in types for path in own]
        paths = paths or [path for own in seed.paths.values() for path in own]
        for _ in range(dice.choice([1, 1, 1, 2, 3])):
            # What was changed before may not be there any more.
            with suppress(KeyError, IndexError, TypeError, ValueError):
                mutate(dice, _place(value, dice.choice(paths)), _place(value, dice.choice(paths)))
        return json.dumps(value).encode()

    return make


def _place(value: Any, path: Path) -> Place:
    for key in path[:-1]:
        value = value[key]
    return value, path[-1]


def _delete(dice: random.Random, place: Place, other: Place) -> None:
    del place[0][place[1]]


def _duplicate(dice: random.Random, place: Place, other: Place) -> None:
    container, key = place
    if isinstance(container, list):
        container.insert(dice.randrange(len(container) + 1), container[key])
    else:
        container[f"{key}_"] = container[key]


def _replace(dice: random.Random, place: Place, other: Place) -> None:
    place[0][place[1]] = dice.choice(VALUES)


def _renumber(dice: random.Random, place: Place, other: Place) -> None:
    """Another number: one near it, or out of every range."""
    container, key = place
    near = container[key] + dice.choice([-1, 1, 1, 2, 4, -4])
    container[key] = dice.choice([near, near, dice.choice(NUMBERS)])


def _reword(dice: random.Random, place: Place, other: Place) -> None:
    """A text with another character, or one that stands elsewhere."""
    container, key = place
    text = list(container[key])
    if text and dice.random() < 0.7:
        text[dice.randrange(len(text))] = dice.choice("0129 -=,x\n:.aZ_é")
        container[key] = "".join(text)
    else:
        container[key] = other[0][other[1]]


def _swap(dice: random.Random, place: Place, other: Place) -> None:
    (a, i), (b, j) = place, other
    a[i], b[j] = json.loads(json.dumps(b[j])), json.loads(json.dumps(a[i]))


def _cut(dice: random.Random, seed: Seed) -> bytes:
    return seed.content[: dice.randrange(len(seed.content))]


def _flipped(dice: random.Random, seed: Seed) -> bytes:
    data = bytearray(seed.content)
    for _ in range(dice.randrange(1, 4)):
        data[dice.randrange(len(data))] = dice.getrandbits(8)
    return bytes(data)


def _spliced(dice: random.Random, seed: Seed) -> bytes:
    content = seed.content
    at, end = (dice.randrange(len(content)) for _ in range(2))
    return content[:at] + dice.choice([*PIECES, content[end : end + 50]]) + content[at + 4 :]


def _random(dice: random.Random, seed: Seed) -> bytes:
    return dice.randbytes(dice.randrange(200))


MAKERS: tuple[Maker, ...] = (
    _mutated(_delete),
    _mutated(_duplicate),
    _mutated(_replace),
    _mutated(_replace, int),
    *(_mutated(_renumber, int),) * 2,
    *(_mutated(_reword, str),) * 2,
    _mutated(_swap),
    _mutated(_swap, int),
    _mutated(_swap, dict, list),
    _cut,
    _flipped,
    _spliced,
    _random,
)
