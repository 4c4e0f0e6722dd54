"""Programs and libraries of 64-bit Linux and Android: what one needs, and one that starts Python.

Python's builds for Android are a library without a program. The program here is made without a
compiler: it calls `Py_BytesMain` with its arguments, and `exit` with what that returns. Both C
libraries are ready before the first instruction of a program runs, so nothing else is needed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate

from codl.errors import UnsupportedError

#: The program, and what it calls.
MAIN, EXIT = "Py_BytesMain", "exit"
#: Where a program looks for libraries: beside the folder that it is in.
RUNPATH = "$ORIGIN/../lib"
#: Kernels have pages of 4, 16 or 64 KiB; what is aligned to the last fits all.
PAGE = 0x10000
#: Sizes of headers, and kinds of segments, sections and entries by their names in ELF.
HEADER, SEGMENT, SECTION, SYMBOL, RELOCATION = 64, 56, 64, 24, 24
LOAD, DYNAMIC, INTERPRETER, PROGRAM_HEADERS, STACK = 1, 2, 3, 6, 0x6474E551
NEEDED, HASH, STRINGS, SYMBOLS, RELA, SONAME = 1, 4, 5, 6, 7, 14
RELA_SIZE, RELA_ENTRY, STRINGS_SIZE, SYMBOL_ENTRY = 8, 9, 10, 11
RUNPATH_TAG, FLAGS, FLAGS_1 = 29, 30, 0x6FFFFFFB
BIND_NOW, NOW_AND_PIE = 8, 0x8000001


@dataclass(frozen=True)
class Machine:
    """A kind of core: its number in ELF, its relocation of an address, and its loaders by libc."""

    number: int
    address: int
    loaders: Mapping[str, str]


MACHINES: Mapping[str, Machine] = {
    "aarch64": Machine(
        183, 1025, {"bionic": "/system/bin/linker64", "glibc": "/lib/ld-linux-aarch64.so.1"}
    ),
    "x86_64": Machine(
        62, 6, {"bionic": "/system/bin/linker64", "glibc": "/lib64/ld-linux-x86-64.so.2"}
    ),
}
#: The file of each C library.
LIBC = {"bionic": "libc.so", "glibc": "libc.so.6"}
CODE_SIZE = 64


@dataclass(frozen=True)
class SharedLibrary:
    """What a library says of itself: `machine` and `libc` are keys of the tables above."""

    machine: str
    libc: str
    soname: str


def read_library(content: bytes) -> SharedLibrary:
    """What a shared library is for; raises `UnsupportedError` where codl has no program for it."""
    try:
        machine = _machine_of(content)
        entries = list(_dynamic(content))
        strings = _offset(content, next(value for tag, value in entries if tag == STRINGS))
        texts = [(tag, _text(content, strings + value)) for tag, value in entries if tag in NAMED]
    except (struct.error, StopIteration, ValueError) as error:
        raise UnsupportedError(f"It is no shared library of 64 bits: {error or 'cut'}.") from error
    needed = {text for tag, text in texts if tag == NEEDED}
    libc = next((name for name, file in LIBC.items() if file in needed), None)
    if libc is None:
        raise UnsupportedError(f"It needs none of {', '.join(LIBC.values())}, but {needed}.")
    return SharedLibrary(machine, libc, next((t for tag, t in texts if tag == SONAME), ""))


NAMED = (NEEDED, SONAME)


def _machine_of(content: bytes) -> str:
    if content[:6] != b"\x7fELF\x02\x01":
        raise ValueError(f"it begins with {content[:6]!r}")
    (number,) = struct.unpack_from("<H", content, 18)
    for name, machine in MACHINES.items():
        if machine.number == number:
            return name
    raise UnsupportedError(f"It is for machine {number} of ELF, not for {' or '.join(MACHINES)}.")


def _segments(content: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Kind, offset, address and size in the file of each."""
    (start,) = struct.unpack_from("<Q", content, 32)
    (count,) = struct.unpack_from("<H", content, 56)
    for index in range(count):
        kind, _, offset, address, _, size = struct.unpack_from(
            "<IIQQQQ", content, start + index * SEGMENT
        )
        yield kind, offset, address, size


def _dynamic(content: bytes) -> Iterator[tuple[int, int]]:
    """Tag and value of each entry for the loader."""
    offset, size = next((o, s) for kind, o, _, s in _segments(content) if kind == DYNAMIC)
    for at in range(offset, offset + size, 16):
        tag, value = struct.unpack_from("<QQ", content, at)
        if not tag:
            return
        yield tag, value


def _offset(content: bytes, address: int) -> int:
    """Where in the file an address lies."""
    return next(
        offset + address - begin
        for kind, offset, begin, size in _segments(content)
        if kind == LOAD and begin <= address < begin + size
    )


def _text(content: bytes, at: int) -> str:
    return content[at : content.index(b"\0", at)].decode()


def launcher(library: SharedLibrary) -> bytes:
    """A program that is Python: it needs the library, in `lib` beside the folder that it is in."""
    machine = MACHINES[library.machine]
    strings = _Strings()
    needed = [strings.at(name) for name in (library.soname, LIBC[library.libc])]
    runpath = strings.at(RUNPATH)
    symbols = bytes(SYMBOL) + b"".join(
        struct.pack("<IBBHQQ", strings.at(name), 0x12, 0, 0, 0, 0) for name in (MAIN, EXIT)
    )
    # No symbol is defined here, so nothing is ever found by this table; loaders insist on one.
    table = struct.pack("<6I", 1, 3, 0, 0, 0, 0)
    loader = machine.loaders[library.libc].encode() + b"\0"
    headers = HEADER + 6 * SEGMENT
    parts = [loader, table, symbols, strings.content, bytes(2 * RELOCATION), bytes(CODE_SIZE)]
    at_loader, at_table, at_symbols, at_strings, at_moves, at_code, end = accumulate(
        map(_padded, parts), initial=headers
    )
    # The second segment begins where the first ends in the file, one page later in memory.
    slots = end + PAGE
    moves = b"".join(
        struct.pack("<QQq", slots + 8 * i, (i + 1) << 32 | machine.address, 0) for i in range(2)
    )
    code = CODE[library.machine](at_code, slots)
    entries = [
        *((NEEDED, at) for at in needed),
        (RUNPATH_TAG, runpath),
        *((HASH, at_table), (STRINGS, at_strings), (SYMBOLS, at_symbols)),
        *((STRINGS_SIZE, len(strings.content)), (SYMBOL_ENTRY, SYMBOL)),
        *((RELA, at_moves), (RELA_SIZE, len(moves)), (RELA_ENTRY, RELOCATION)),
        *((FLAGS, BIND_NOW), (FLAGS_1, NOW_AND_PIE), (0, 0)),
    ]
    dynamic = b"".join(struct.pack("<QQ", *entry) for entry in entries)
    at_dynamic = end + 16
    names = b"\0.dynstr\0.dynamic\0.shstrtab\0"
    at_names = at_dynamic + len(dynamic)
    at_sections = _up(at_names + len(names))
    data = (slots, 16 + len(dynamic))
    segments = [
        (PROGRAM_HEADERS, 4, HEADER, HEADER, headers - HEADER, 8),
        (INTERPRETER, 4, at_loader, at_loader, len(loader), 1),
        (LOAD, 5, 0, 0, end, PAGE),
        (LOAD, 6, end, *data, PAGE),
        (DYNAMIC, 6, at_dynamic, at_dynamic + PAGE, len(dynamic), 8),
        (STACK, 6, 0, 0, 0, 16),
    ]
    sections = [
        (0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
        (1, 3, 2, at_strings, at_strings, len(strings.content), 0, 0, 1, 0),
        (9, 6, 3, at_dynamic + PAGE, at_dynamic, len(dynamic), 1, 0, 8, 16),
        (18, 3, 0, 0, at_names, len(names), 0, 0, 1, 0),
    ]
    head = struct.pack(
        "<16sHHIQQQIHHHHHH",
        b"\x7fELF\x02\x01\x01",
        *(3, machine.number, 1, at_code, HEADER, at_sections, 0),
        *(HEADER, SEGMENT, len(segments), SECTION, len(sections), len(sections) - 1),
    )
    for kind, flags, offset, address, size, align in segments:
        head += struct.pack("<IIQQQQQQ", kind, flags, offset, address, address, size, size, align)
    parts[-2:] = [moves, code.ljust(CODE_SIZE, b"\0")]
    body = b"".join(part.ljust(_padded(part), b"\0") for part in parts)
    text = head + body + bytes(16) + dynamic + names
    return text.ljust(at_sections, b"\0") + b"".join(
        struct.pack("<IIQQQQIIQQ", *section) for section in sections
    )


class _Strings:
    """Texts one behind the other, each ended by a zero."""

    def __init__(self) -> None:
        self.content = b"\0"

    def at(self, text: str) -> int:
        at = len(self.content)
        self.content += text.encode() + b"\0"
        return at


def _up(size: int) -> int:
    return -(-size // 8) * 8


def _padded(part: bytes) -> int:
    return _up(len(part))


def _arm_code(at: int, slots: int) -> bytes:
    """For a stack with the number of arguments, and then their addresses."""

    def call(place: int, slot: int) -> tuple[int, int]:
        return 0x58000010 | (slot - at - 4 * place) // 4 << 5, 0xD63F0200  # ldr x16, slot; blr x16

    return struct.pack(
        "<9I",
        *(0xAA1F03FD, 0xAA1F03FE),  # mov x29, xzr; mov x30, xzr
        *(0xF94003E0, 0x910023E1),  # ldr x0, [sp]; add x1, sp, 8
        *(*call(4, slots), *call(6, slots + 8), 0xD4200000),  # brk 0
    )


def _intel_code(at: int, slots: int) -> bytes:
    begin = b"\x31\xed\x48\x8b\x3c\x24\x48\x8d\x74\x24\x08"  # xor ebp, ebp; mov rdi, [rsp]; lea
    first = begin + b"\xff\x15" + struct.pack("<i", slots - at - len(begin) - 6)
    second = first + b"\x89\xc7"  # mov edi, eax
    jump = struct.pack("<i", slots + 8 - at - len(second) - 6)
    return second + b"\xff\x15" + jump + b"\xf4"


CODE = {"aarch64": _arm_code, "x86_64": _intel_code}
