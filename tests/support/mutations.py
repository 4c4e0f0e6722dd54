"""Ways to change bytes, numbers in texts, and what JSON or YAML says."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, TypeAlias

import yaml

#: Makes other content of some.
Maker: TypeAlias = Callable[[random.Random, bytes], bytes]
#: A container in some JSON, and a key in it.
Place: TypeAlias = tuple[Any, Any]
#: Changes some JSON at a place, with that of another one.
Change: TypeAlias = Callable[[random.Random, Place, Place], None]

#: What stands in the place of a value, and of bytes.
NUMBERS = (0, 1, -1, 2, 3, 7, 64, 255, 1 << 31, 1 << 40, -(1 << 63), 1 << 63, 1 << 70, 0.5, 1e308)
VALUES = (
    *(*NUMBERS, None, True, "", "x", "../x", "/etc/passwd", "9" * 300),
    *([], {}, [0], {"a": 1}, {"type": "Launch"}),
)
PIECES = (
    *(b"", b"0", b"null", b'"', b"[", b"-1e999", b"NaN", b"{}", b"\xff", b"\0", b"[" * 2000),
    *(b"&a [*a]", b"!!python/object:os.system x", b"1970-99-99", b": ", b"- ", b",", b"\n"),
    *(b"9" * 5000, "\u0663".encode()),
)
#: Places of larger JSON, or deeper ones, are not changed.
MOST_PLACES, MOST_DEPTH = 5000, 50


def _flipped(dice: random.Random, content: bytes) -> bytes:
    data = bytearray(content)
    for _ in range(min(len(data), dice.randrange(1, 4))):
        data[dice.randrange(len(data))] = dice.getrandbits(8)
    return bytes(data)


def _cut(dice: random.Random, content: bytes) -> bytes:
    return content[: dice.randrange(len(content) + 1)]


def _spliced(dice: random.Random, content: bytes) -> bytes:
    at, end = (dice.randrange(len(content) + 1) for _ in range(2))
    piece = dice.choice([*PIECES, content[end : end + 40]])
    return content[:at] + piece + content[at + dice.choice([0, 0, 1, 4]) :]


def _random(dice: random.Random, content: bytes) -> bytes:
    return dice.randbytes(dice.randrange(200))


def _renumbered(dice: random.Random, content: bytes) -> bytes:
    """Another number in the place of one that is written there."""
    places = list(re.finditer(rb"-?\d+(\.\d+)?", content[: 1 << 16]))
    if not places:
        return content
    one = dice.choice(places)
    return content[: one.start()] + str(dice.choice(NUMBERS)).encode() + content[one.end() :]


def _changed(change: Change, *kinds: type) -> Maker:
    """JSON, or YAML, with one to three values changed, of some types or of any."""

    def make(dice: random.Random, content: bytes) -> bytes:
        value, write = _parsed(content)
        every = list(_places(value))
        places = [place for place in every if not kinds or type(place[0][place[1]]) in kinds]
        if not places:
            return content
        for _ in range(dice.choice([1, 1, 1, 2, 3])):
            # What was changed before may not be there any more.
            with suppress(KeyError, IndexError, TypeError, ValueError, OverflowError):
                change(dice, dice.choice(places), dice.choice(places))
        try:
            return write(value).encode()
        except (ValueError, RecursionError, yaml.YAMLError):
            return content

    return make


def _parsed(content: bytes) -> tuple[Any, Callable[[Any], str]]:
    """What a text says, and how it is written; None for what is neither JSON nor YAML."""
    try:
        return json.loads(content), json.dumps
    except (ValueError, RecursionError):
        if content[:1] in (b"{", b"["):  # JSON that was damaged: YAML's reader is slow
            return None, json.dumps
    try:
        return yaml.safe_load(content), yaml.safe_dump
    except Exception:  # of many unrelated types
        return None, json.dumps


def _places(value: Any) -> Iterator[Place]:
    """Every container with each of its keys."""
    left, count = [(value, 0)], 0
    while left and count < MOST_PLACES:
        one, depth = left.pop()
        if isinstance(one, dict | list) and depth < MOST_DEPTH:
            for key in one if isinstance(one, dict) else range(len(one)):
                yield one, key
                left.append((one[key], depth + 1))
                count += 1


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


#: Of anything; of texts that people write; and of what has a structure.
BYTES: tuple[Maker, ...] = (_flipped, _cut, _spliced, _spliced, _random)
TEXT: tuple[Maker, ...] = (*BYTES, _renumbered, _renumbered)
TREE: tuple[Maker, ...] = (
    *TEXT,
    _changed(_delete),
    _changed(_duplicate),
    _changed(_replace),
    _changed(_replace, int),
    *(_changed(_renumber, int, float),) * 3,
    *(_changed(_reword, str),) * 2,
    _changed(_swap),
    _changed(_swap, int),
    _changed(_swap, dict, list),
)
