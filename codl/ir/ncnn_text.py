"""ncnn's text of a net, as strictly as ncnn should read it: its own reader trusts every number."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection

MAGIC = "7767517"
WORD = re.compile(r"[A-Za-z_]\w{0,200}")
#: `key=value`, of a number, or of several with their count in front.
PARAMETER = re.compile(r"(-?\d{1,5})=(-?[\d.]\S{0,40}(?:,-?[\d.]\S*)*)")
NUMBER = re.compile(r"-?(\d{1,10}|\d*\.\d+|\d+\.?\d*e[+-]?\d{1,2}|\d+\.\d*(e[+-]?\d{1,2})?)")
#: Keys of one number, and of several at `ARRAYS - key`, as ncnn has them.
KEYS, ARRAYS = 32, -23300


class NcnnTextError(ValueError):
    """What of a text is no net."""


def check_text(text: str, inputs: Collection[str], outputs: Collection[str]) -> None:
    """Raise `NcnnTextError` unless every blob is made once, before what reads it, and read once.

    `inputs` are the blobs that are fed, each of which an Input layer makes, and `outputs` those
    that are taken out. Layers read no files, so any type will do: ncnn refuses what it has not.
    """
    lines = text.split("\n")
    if len(lines) < 4 or lines[0] != MAGIC or lines[-1]:
        raise NcnnTextError(f"a text that begins with {text[:20]!r}")
    layers = [line.split(" ") for line in lines[2:-1]]
    made: set[str] = set()
    fed: set[str] = set()
    reads: Counter[str] = Counter(outputs)
    for words in layers:
        sources, targets = _blobs(words)
        missing, twice = set(sources) - made, made.intersection(targets)
        if missing or twice or len(set(targets)) < len(targets):
            raise NcnnTextError(f"blobs of the layer {' '.join(words[:8])!r}")
        reads.update(sources)
        made.update(targets)
        if words[0] == "Input":
            fed.update(targets)
    if lines[1] != f"{len(layers)} {len(made)}":
        raise NcnnTextError(f"{len(layers)} layers and {len(made)} blobs are said {lines[1]!r}")
    if not set(inputs) == fed:
        raise NcnnTextError(f"inputs {sorted(fed)} that are fed {sorted(inputs)}")
    if not set(outputs) <= made:
        raise NcnnTextError(f"outputs {sorted(set(outputs) - made)}")
    if max(reads.values(), default=0) > 1:
        raise NcnnTextError(f"several readers of the blob {reads.most_common(1)[0][0]!r}")


def _blobs(words: list[str]) -> tuple[list[str], list[str]]:
    """The blobs that a layer reads and makes."""
    line = " ".join(words)[:80]
    if len(words) < 4 or not all(one.isdecimal() and len(one) < 6 for one in words[2:4]):
        raise NcnnTextError(f"the layer {line!r}")
    count, results = int(words[2]), int(words[3])
    names, parameters = words[4 : 4 + count + results], words[4 + count + results :]
    if len(names) < count + results or not all(WORD.fullmatch(n) for n in (*words[:2], *names)):
        raise NcnnTextError(f"names of the layer {line!r}")
    keys = [_key(parameter) for parameter in parameters]
    if len(set(keys)) < len(keys):
        raise NcnnTextError(f"parameters of the layer {line!r}")
    return names[:count], names[count:]


def _key(parameter: str) -> int:
    """The key of a parameter that ncnn can read."""
    match = PARAMETER.fullmatch(parameter)
    values = match[2].split(",") if match else []
    if match is None or not all(NUMBER.fullmatch(value) for value in values):
        raise NcnnTextError(f"the parameter {parameter[:40]!r}")
    key = int(match[1])
    is_array = key <= ARRAYS
    own = ARRAYS - key if is_array else key
    fits = values[0] == str(len(values) - 1) if is_array else len(values) == 1
    if not 0 <= own < KEYS or not fits:
        raise NcnnTextError(f"the parameter {parameter[:40]!r}")
    return own
