"""The parameters of a kernel in OpenCL text, as a compiler sees them under some macros."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

WORD = re.compile(r"[A-Za-z_]\w*")
DEFINE = re.compile(r"(\w+)(?:\(([\w, ]*)\))?\s*(.*)")
#: What says nothing of a parameter's type.
QUALIFIERS = ("const", "restrict", "__global", "__read_only", "__write_only")


@dataclass(frozen=True)
class Parameter:
    """`type` is such as "int", "half *" or "image2d_t"."""

    type: str
    name: str
    is_const: bool


@dataclass(frozen=True)
class Macro:
    parameters: tuple[str, ...] | None
    body: str


class Preprocessor:
    """As much of C's as the sources use."""

    def __init__(self, defines: Mapping[str, object]) -> None:
        self.macros = {name: Macro(None, str(value)) for name, value in defines.items()}

    def lines(self, text: str) -> Iterator[str]:
        """The lines that are compiled, with their macros as they are."""
        text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", text.replace("\\\n", " "), flags=re.DOTALL)
        taken: list[list[bool]] = []  # of every #if around: whether its branch is, or one was
        for line in text.splitlines():
            if not line.lstrip().startswith("#"):
                if all(branch[0] for branch in taken):
                    yield line
                continue
            word, _, rest = line.strip().removeprefix("#").strip().partition(" ")
            around = all(branch[0] for branch in (taken if word[:2] == "if" else taken[:-1]))
            if word in ("if", "ifdef", "ifndef"):
                holds = around and self.holds(word, rest)
                taken.append([holds, holds])
            elif word in ("elif", "else"):
                holds = around and not taken[-1][1] and (word == "else" or self.holds("if", rest))
                taken[-1] = [holds, holds or taken[-1][1]]
            elif word == "endif":
                taken.pop()
            elif all(branch[0] for branch in taken):
                self.define(word, rest)

    def define(self, word: str, rest: str) -> None:
        if word == "undef":
            self.macros.pop(rest.strip(), None)
        elif word == "define" and (match := DEFINE.match(rest)):
            names = None if match[2] is None else tuple(n.strip() for n in match[2].split(","))
            is_call = rest[len(match[1]) :].startswith("(")
            body = match[3] if is_call or match[2] is None else rest[len(match[1]) :]
            self.macros[match[1]] = Macro(names if is_call else None, body)

    def holds(self, word: str, condition: str) -> bool:
        if word != "if":
            return (condition.strip() in self.macros) == (word == "ifdef")
        condition = re.sub(
            r"defined\s*\(?\s*(\w+)\s*\)?", lambda m: str(int(m[1] in self.macros)), condition
        )
        condition = WORD.sub("0", self.expanded(condition))
        python = condition.replace("&&", " and ").replace("||", " or ")
        return bool(eval(re.sub(r"!(?!=)", " not ", python)))

    def expanded(self, text: str) -> str:
        for _ in range(20):
            before, text = text, WORD.sub(self._plain, text)
            text = re.sub(r"\b(\w+)\(([^()]*)\)", self._call, text)
            text = re.sub(r"\s*##\s*", "", text)
            if text == before:
                break
        return text

    def _plain(self, match: re.Match[str]) -> str:
        macro = self.macros.get(match[0])
        return match[0] if macro is None or macro.parameters is not None else macro.body

    def _call(self, match: re.Match[str]) -> str:
        macro = self.macros.get(match[1])
        if macro is None or macro.parameters is None:
            return match[0]
        values = dict(zip(macro.parameters, map(str.strip, match[2].split(",")), strict=True))
        return WORD.sub(lambda word: values.get(word[0], word[0]), macro.body)


def parameters(text: str, defines: Mapping[str, object], kernel: str) -> list[Parameter]:
    """Of a kernel with all that is included before it."""
    preprocessor, head = Preprocessor(defines), ""
    for line in preprocessor.lines(text):
        if head or re.search(rf"\bvoid\s+{kernel}\b", line):
            head += preprocessor.expanded(line) + " "  # now: macros may change below
        if "{" in head:
            break
    assert head, f"there is no kernel {kernel}"
    inside = re.split(rf"\bvoid\s+{kernel}\s*\(", head)[1].partition("{")[0].rpartition(")")[0]
    return [_parameter(part) for part in inside.split(",") if part.strip()]


def _parameter(text: str) -> Parameter:
    *words, name = re.findall(r"\w+|\*", text)
    kept = [word for word in words if word not in QUALIFIERS]
    return Parameter(" ".join(kept), name, "const" in words)
