"""Mutated files of every format that codl reads, for the suite and `scripts/fuzz_readers.py`.

An input that is refused for a reason that no input before was refused for becomes a seed itself: so
mutations get behind the first checks.
"""

from __future__ import annotations

import json
import random
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from codl.errors import CodlError

#: What stands in the place of a value, and of bytes.
NUMBERS = (0, 1, -1, 2, 3, 7, 64, 1 << 31, 1 << 40, -(1 << 63), 1 << 63, 1 << 70, 0.5, 1e308)
VALUES = (*NUMBERS, None, True, "", "x", "../x", "/etc/passwd", [], {}, [0], {"a": 1}, "9" * 300)
PIECES = (
    *(b"", b"0", b"null", b'"', b"[", b"-1e999", b"NaN", b"{}", b"\xff", b"\0", b"[" * 2000),
    *(b"&a [*a]", b"!!python/object:os.system x", b"1970-99-99", b": ", b"- ", b",", b"\n"),
)
#: One input must not take longer, and so many found reasons become seeds.
LIMIT_S, MOST_SEEDS = 30, 400


@dataclass
class Reader:
    """Reads files of one format: raises nothing but a `CodlError`."""

    name: str
    file: str
    seeds: list[bytes]
    read: Callable[[Path], object]
    #: Ways to change what is in such a file, beside its bytes and values.
    makers: Sequence[Callable[[random.Random, bytes], bytes]] = ()
    reasons: set[str] = field(default_factory=set)


def fuzz(reader: Reader, count: int, seed: int, folder: Path) -> tuple[int, int]:
    """Read so many mutated files: how many were read, and how many refused.

    Raises what a reader should not; the input is then left in the folder.
    """
    dice, read, path = random.Random(seed), 0, folder / reader.file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(reader.seeds[0])
    reader.read(path)  # a sound file is read, and those that it stands beside are there
    makers = (*GENERAL, *reader.makers, *reader.makers)
    for _ in range(count):
        content = dice.choice(reader.seeds)
        for _ in range(dice.choice([1, 1, 2, 4])):
            content = dice.choice(makers)(dice, content)
        path.write_bytes(content)
        there = sorted(folder.rglob("*"))
        with _limited():
            try:
                reader.read(path)
                read += 1
            except CodlError as error:
                _learn(reader, str(error), content)
        assert path.read_bytes() == content, "a reader writes nothing"
        assert sorted(folder.rglob("*")) == there, "a reader writes nothing"
    return read, count - read


def _learn(reader: Reader, message: str, content: bytes) -> None:
    assert message.strip(), "an error has a message"
    assert len(message) < 100_000, "an error can be read"
    reason = re.sub(r"\d+|'[^']*'|\"[^\"]*\"", "", message)[:160]
    if reason not in reader.reasons and len(reader.seeds) < MOST_SEEDS and len(content) < 1 << 17:
        reader.reasons.add(reason)
        reader.seeds.append(content)


@contextmanager
def _limited() -> Iterator[None]:
    def hang(*_: object) -> None:
        raise AssertionError(f"this takes more than {LIMIT_S} s")

    before = signal.signal(signal.SIGALRM, hang)
    signal.alarm(LIMIT_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


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


def _renumbered(dice: random.Random, content: bytes) -> bytes:
    """Another number in the place of one that is written there."""
    places = list(re.finditer(rb"-?\d+(\.\d+)?", content[: 1 << 16]))
    if not places:
        return content
    one = dice.choice(places)
    return content[: one.start()] + str(dice.choice(NUMBERS)).encode() + content[one.end() :]


def _revalued(dice: random.Random, content: bytes) -> bytes:
    """JSON, or YAML, with a value deleted, doubled, replaced or moved."""
    try:
        value, write = json.loads(content), json.dumps
    except (ValueError, RecursionError):
        try:
            value, write = yaml.safe_load(content), yaml.safe_dump
        except Exception:
            return content
    places = list(_places(value))[:5000]
    if not places:
        return content
    (container, key), (other, name) = dice.choice(places), dice.choice(places)
    kind = dice.randrange(4)
    if kind == 0:
        del container[key]
    elif kind == 1:
        container[key] = dice.choice(VALUES)
    elif kind == 2:
        container[key] = other[name]
    elif isinstance(container, dict):
        container[f"{key}_"] = container[key]
    else:
        container.append(container[key])
    try:
        return write(value).encode()
    except (ValueError, RecursionError, yaml.YAMLError):
        return content


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container in some JSON with each of its keys; no deeper than a file may be."""
    left = [(value, 0)]
    while left:
        one, depth = left.pop()
        if isinstance(one, dict | list) and depth < 50:
            for key in one if isinstance(one, dict) else range(len(one)):
                yield one, key
                left.append((one[key], depth + 1))


GENERAL = (_flipped, _cut, _spliced, _spliced, _renumbered, _renumbered, *(_revalued,) * 5)
