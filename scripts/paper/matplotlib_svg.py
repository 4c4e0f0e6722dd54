"""Matplotlib's pictures as SVG made small and accessible, for scripts that draw with it.

Matplotlib names every element alike in every picture, and fixes black and white. Inline in one page
the names would clash, and dark pages would hide the text. Colours are from Okabe and Ito's palette,
which colour-blind readers can tell apart; what a colour says is also said by height, by position or
in words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import StringIO
from typing import Any
from xml.etree import ElementTree

SVG = "http://www.w3.org/2000/svg"
BOX = re.compile(r"M (\S+) (\S+)" + r" L (\S+) (\S+)" * 3 + " z ?")
LINK = "{http://www.w3.org/1999/xlink}href"
#: Drawn in this colour, text and lines take the page's.
INK = "#010203"
FONT = {"font.size": 9, "axes.titlesize": 9, "font.family": "sans-serif"}
STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "codl",
    "text.parse_math": False,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    **FONT,
}


@contextmanager
def style() -> Iterator[None]:
    """Matplotlib's settings while a picture is made and written; restored afterwards."""
    from matplotlib import rc_context

    with rc_context(STYLE):
        yield


def to_svg(
    figure: Any, *, key: str, title: str, description: str, tips: Mapping[str, str] | None = None
) -> str:
    """An `<svg>` element for a page. `key` must be unique in the page.

    `tips` are what browsers show where the mouse is, by the gid of what is there.
    """
    file = StringIO()
    figure.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    root = ElementTree.fromstring(file.getvalue())
    _strip(root)
    _add_tips(root, tips or {})
    _rename(root, key)
    for element in root.iter():
        element.tag = element.tag.split("}")[1]
        if element.text and not element.text.strip():
            element.text = None
        element.tail = None
        for name, value in element.attrib.items():
            element.attrib[name] = _short(name, value)
    _describe(root, key, title, description)
    return ElementTree.tostring(root, encoding="unicode")


def stand_alone(svg: str) -> str:
    """The same as a file of its own: no page gives it colours and a font."""
    look = "color: #1f2328; background: white; font-family: sans-serif"
    return svg.replace("<svg ", f'<svg style="{look}" ', 1) + "\n"


def _strip(root: ElementTree.Element) -> None:
    """Drop the metadata, the fixed size, and the style sheet, which would style the whole page."""
    for element in root.findall(f"{{{SVG}}}metadata"):
        root.remove(element)
    for element in root.findall(f"{{{SVG}}}defs"):
        if element.find(f"{{{SVG}}}style") is not None:
            root.remove(element)
    root.set("stroke-linejoin", "round")
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    for element in root.iter():
        if element.get("transform", "").startswith("rotate(-0 "):
            del element.attrib["transform"]


def _add_tips(root: ElementTree.Element, tips: Mapping[str, str]) -> None:
    for element in root.iter(f"{{{SVG}}}g"):
        if (text := tips.get(element.get("id", ""))) is not None:
            tip = ElementTree.Element(f"{{{SVG}}}title")
            tip.text = text
            element.insert(0, tip)


def _rename(root: ElementTree.Element, key: str) -> None:
    """Keep only the ids that something refers to, and make those the picture's own."""
    text = ElementTree.tostring(root, encoding="unicode")
    used = set(re.findall(r"url\(#([^)]+)\)", text)) | set(re.findall(r'href="#([^"]+)"', text))
    for element in root.iter():
        if element.get("id") in used:
            element.set("id", f"{key}-{element.get('id')}")
        else:
            element.attrib.pop("id", None)
        if LINK in element.attrib:
            element.set("href", element.attrib.pop(LINK).replace("#", f"#{key}-"))
        for name, value in element.attrib.items():
            element.attrib[name] = value.replace("url(#", f"url(#{key}-")


def _font(match: re.Match[str]) -> str:
    """A font shorthand without its families, which the page sets."""
    weight = "; font-weight: bold" if "bold" in match[0].split("px")[0] else ""
    return f"font-size: {match[2]}{weight}"


def _short(name: str, value: str) -> str:
    if name == "d":
        value = re.sub(r"-?\d+\.\d+", lambda match: f"{float(match[0]):.1f}", value)
        return BOX.sub(_box, " ".join(value.split()))
    if name == "style":
        value = re.sub(r"font-family: [^;]*; ", "", value)  # the page's own
        value = re.sub(r"font: (bold |italic )*([\d.]+px)[^;]*", _font, value)
        return value.replace(INK, "currentColor")
    if name in ("x", "y"):
        return f"{float(value):.1f}"
    return value


def _box(match: re.Match[str]) -> str:
    """A rectangle in a third of the letters; a timeline holds hundreds."""
    x0, y0, x1, y1, x2, y2, x3, y3 = match.groups()
    if (x0, y0, x1, y2) == (x3, y1, x2, y3):
        return f"M{x0} {y0}H{x1}V{y2}H{x0}z"
    return match[0]


def _describe(root: ElementTree.Element, key: str, title: str, description: str) -> None:
    """Name the picture for those who cannot see it."""
    root.set("xmlns", SVG)
    root.set("role", "img")
    root.set("aria-labelledby", f"{key}-title {key}-desc")
    for at, (tag, text) in enumerate((("title", title), ("desc", description))):
        element = ElementTree.Element(tag, {"id": f"{key}-{tag}"})
        element.text = text
        root.insert(at, element)
