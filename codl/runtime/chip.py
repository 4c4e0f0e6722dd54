"""What the system calls its chip and its board: device tree, Android's properties, or firmware."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable

from codl.records.soc_facts import Chip
from codl.runtime.system_files import SYSTEM, SystemFiles

#: The device tree, the kernel's word on the SoC, and the firmware of PCs.
TREE, SOC, FIRMWARE = "proc/device-tree", "sys/devices/soc0", "sys/class/dmi/id"
#: Longer names are no names.
MOST_CHARACTERS, MOST_ENTRIES = 100, 16
GETPROP_S = 2.0


def read_chip(files: SystemFiles = SYSTEM, property_of: Callable[[str], str] | None = None) -> Chip:
    """Chip and board of this machine, as far as the system tells.

    `property_of` gives a property of Android by its name, empty where there is none.
    """
    android = property_of or read_property
    # Ends are stripped by `text`; entries of the device tree are separated by zero bytes.
    entries = files.text(f"{TREE}/compatible").split("\0")[:MOST_ENTRIES]
    compatible = tuple(filter(None, map(_name, entries)))
    told = (
        android("ro.soc.model"),
        files.text(f"{SOC}/machine"),
        files.text(f"{SOC}/soc_id") if not files.text(f"{SOC}/soc_id").isdigit() else "",
        compatible[-1] if compatible else "",
        android("ro.board.platform"),
    )
    maker = _name(files.text(f"{FIRMWARE}/sys_vendor"))
    product = _name(files.text(f"{FIRMWARE}/product_name"))
    boards = (
        android("ro.product.model"),
        files.text(f"{TREE}/model"),
        f"{maker} {product}".strip(),
    )
    return Chip(_first(told), _first(boards), compatible)


def read_property(name: str) -> str:
    """A property of Android; empty elsewhere, or where the program does not answer."""
    program = shutil.which("getprop")
    if program is None:
        return ""
    try:
        done = subprocess.run(
            [program, name],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=GETPROP_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace") if done.returncode == 0 else ""


def _first(candidates: tuple[str, ...]) -> str:
    return next(filter(None, map(_name, candidates)), "")


def _name(text: str) -> str:
    """A text as a name: one line that can be printed, not too long."""
    line = text.strip().splitlines()[0].strip() if text.strip() else ""
    return "".join(own for own in line if own.isprintable())[:MOST_CHARACTERS]
