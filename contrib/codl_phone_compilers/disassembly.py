"""Reads what Mesa's compilers print of kernels: registers, private memory, and the hot loop.

Plain Python without codl, since it also runs beside the compilers. The hot loop is the innermost
one with the most multiply-adds; where there is no loop, the whole kernel.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

#: Kept figures of another version are not read.
VERSION = 3
Figures = dict[str, Any]

NAME = re.compile(r"\bimpl (?:__wrapped_)?(\w+) \{")
#: Of Adreno's: a label, a jump, an instruction that is repeated, idle slots that follow one.
LABEL, JUMP = re.compile(r"(l\d+):"), re.compile(r"#(l\d+)")
REPEATED, IDLE = re.compile(r"\(rpt(\d)\)"), re.compile(r"\(nop(\d)\)")
MARKS = re.compile(r"\([^)]*\)")
#: Of Bifrost's: where a clause begins, and a jump to one. Of Valhall's: a jump over so many.
CLAUSE, TO_CLAUSE = re.compile(r"(clause_\d+):"), re.compile(r"(?:JUMP|BRANCH).*\b(clause_\d+)")
BY_OFFSET = re.compile(r"BRANCH.*\boffset:(-\d+)")
SHADER = re.compile(r"SHADER-DB: .* shader: (.*)")
COUNT = re.compile(r"([\d.]+(?::[\d.]+)?) ([a-z: ]+?)(?:,|$)")


class Line(NamedTuple):
    """An instruction; `private` says whether it reads or writes private memory."""

    name: str
    slots: int
    macs: int
    private: bool


def hot_loop(lines: Sequence[Line], jumps_back: Iterable[tuple[int, int]]) -> Figures:
    """Counts of the hot loop; `jumps_back` are pairs of the first and the last line of loops."""
    loops = sorted(set(jumps_back))
    inner = [
        (first, last)
        for first, last in loops
        if not any(first <= a and b <= last and (a, b) != (first, last) for a, b in loops)
    ]
    bodies = [lines[first : last + 1] for first, last in inner] or [lines]
    body = max(bodies, key=lambda body: (sum(x.macs for x in body), sum(x.slots for x in body)))
    return {
        "slots": sum(line.slots for line in body),
        "macs": sum(line.macs for line in body),
        "private": sum(line.private for line in body),
    }


# Adreno.


def adreno(dump: str) -> Iterator[tuple[str, Figures]]:
    """Each kernel's name and figures, from what `IR3_SHADER_DEBUG=cs` prints."""
    text = dump.replace("MESA: info: ", "")
    for part in text.split("NIR (final form) for ")[1:]:
        name = NAME.search(part)
        if name and " instr, " in part:
            yield name[1], _adreno(part)


def _adreno(part: str) -> Figures:
    def number(pattern: str) -> int:
        match = re.search(pattern, part)
        return int(match[1]) if match else 0

    lines, jumps = _adreno_lines(part[part.rfind("\n}\n") :])
    return {
        "instructions": number(r"(\d+) instr, ") - number(r"(\d+) preamble-instr"),
        "registers": number(r"(-?\d+) full, "),
        "half_registers": max(0, number(r"(-?\d+) half, ")),
        "private_bytes": number(r"(?m)^scratch: (\d+)"),
        "spills": sum(line.private for line in lines),
        "waves": number(r"(\d+) max_waves"),
        "wave_items": 128 if number(r"(\d+) double_threadsize") else 64,
        "barriers": sum(line.name == "bar" for line in lines),
        "loops": number(r"(\d+) loops"),
        "hot": hot_loop(lines, jumps),
    }


def _adreno_lines(body: str) -> tuple[list[Line], list[tuple[int, int]]]:
    lines: list[Line] = []
    jumps: list[tuple[int, int]] = []
    places: dict[str, int] = {}
    for text in map(str.strip, body.splitlines()):
        if label := LABEL.match(text):
            places[label[1]] = len(lines)
        elif text and not text.startswith((";", "}", "Native", "@", ".")):
            name = MARKS.sub("", text).strip().split(" ")[0]
            if not re.match(r"[a-z]", name):
                continue
            times = 1 + sum(map(int, REPEATED.findall(text)))
            base = name.split(".")[0]
            macs = times if re.match(r"mad\.f", name) else 0
            private = base in ("ldp", "stp")
            slots = times + sum(map(int, IDLE.findall(text)))
            lines.append(Line(base, slots, macs, private))
            if (jump := JUMP.search(text)) and jump[1] in places:
                jumps.append((places[jump[1]], len(lines) - 1))
    return lines, jumps


# Mali.


def mali(dump: str) -> Iterator[tuple[str, Figures]]:
    """The same from what `BIFROST_MESA_DEBUG=shaders,shaderdb` prints."""
    name, begin, text = "", 0, dump.replace("MESA: info: ", "").splitlines()
    for at, line in enumerate(text):
        if match := NAME.search(line):
            name = match[1]
        elif line.startswith("}") and " from " in line:  # machine code follows
            begin = at + 1
        elif match := SHADER.match(line):
            yield name, _mali(match[1], text[begin:at])


def _mali(counts: str, code: Sequence[str]) -> Figures:
    numbers = {key: value for value, key in COUNT.findall(counts)}
    spills, fills = map(int, numbers.get("spills:fills", "0:0").split(":"))
    is_full = numbers.get("threads") == "2"
    lines, jumps = (_bifrost if any(map(CLAUSE.match, code)) else _valhall)(code)
    return {
        "instructions": int(numbers["inst"]),
        "registers": 32 if is_full else 64,
        "half_registers": 0,
        "private_bytes": 0,
        "spills": spills + fills,
        "waves": 2 if is_full else 1,
        "wave_items": 0,
        "barriers": sum("BARRIER" in line.name for line in lines),
        "loops": int(numbers["loops"]),
        "hot": hot_loop(lines, jumps),
    }


def _mali_line(text: str) -> Line:
    name = text.split(" ")[0]
    macs = (2 if ".v2f16" in name else 1) if re.match(r"FMA\.", name) else 0
    private = ".tl" in name or "thread_local" in text
    return Line(name, 1, macs, private)


def _bifrost(code: Sequence[str]) -> tuple[list[Line], list[tuple[int, int]]]:
    lines: list[Line] = []
    jumps: list[tuple[int, int]] = []
    places: dict[str, int] = {}
    for text in code:
        if clause := CLAUSE.match(text):
            places[clause[1]] = len(lines)
        elif match := re.match(r"\s+[*+](.*)", text):
            lines.append(_mali_line(match[1]))
            if (jump := TO_CLAUSE.search(text)) and jump[1] in places:
                jumps.append((places[jump[1]], len(lines) - 1))
    return lines, jumps


def _valhall(code: Sequence[str]) -> tuple[list[Line], list[tuple[int, int]]]:
    texts = [text.strip() for text in code if re.match(r"   [A-Z]", text)]
    found = ((at, BY_OFFSET.search(text)) for at, text in enumerate(texts))
    jumps = [(max(0, at + 1 + int(jump[1])), at) for at, jump in found if jump]
    return [*map(_mali_line, texts)], jumps


READERS = {"adreno": adreno, "mali": mali}
