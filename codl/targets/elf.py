"""Programs and libraries of 64-bit Linux and Android: what one needs, and one that starts Python.

Python's builds for Android are a library without a program. The program here is made without a
compiler: it calls `Py_BytesMain` with its arguments, and `exit` with what that returns. Both C
libraries are ready before the first instruction of a program runs, so nothing else is needed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
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
READ, WRITE, EXECUTE = 4, 2, 1
GLOBAL_FUNCTION = 0x12
#: That it is a program is no flag of older Androids, whose loader warns of what it does not know.
BIND_NOW, NOW = 8, 1
#: Names of sections, in a multiple of 8 bytes; numbers of headers; room of two addresses.
NAMES = b"\0.dynstr\0.dynamic\0.shstrtab\0".ljust(32, b"\0")
SEGMENTS, SECTIONS, SLOTS = 6, 4, 16


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
    """A program that is Python: it needs the library, in `lib` beside the folder that it is in.

    Two segments: what is read and executed; and, one page later in memory, the addresses of what is
    called, with the entries for the loader.
    """
    machine = MACHINES[library.machine]
    texts = library.soname, LIBC[library.libc], RUNPATH, MAIN, EXIT
    strings, (soname, libc, runpath, *called) = _joined(texts)
    symbols = bytes(SYMBOL) + b"".join(
        struct.pack("<IBBHQQ", name, GLOBAL_FUNCTION, 0, 0, 0, 0) for name in called
    )
    loader = machine.loaders[library.libc].encode() + b"\0"
    # No symbol is defined here, so nothing is ever found by the table; loaders insist on one.
    table = struct.pack("<6I", 1, len(called) + 1, 0, 0, 0, 0)
    parts = [loader, table, symbols, strings, bytes(2 * RELOCATION), bytes(CODE_SIZE)]
    at_loader, at_table, at_symbols, at_strings, at_moves, at_code, end = accumulate(
        (_up(len(part)) for part in parts), initial=HEADER + SEGMENTS * SEGMENT
    )
    slots = end + PAGE
    code = CODE[library.machine](at_code, slots)
    parts[-2:] = _moves(machine, slots), code.ljust(CODE_SIZE, b"\0")
    entries = [
        *((NEEDED, soname), (NEEDED, libc), (RUNPATH_TAG, runpath), (HASH, at_table)),
        *((STRINGS, at_strings), (STRINGS_SIZE, len(strings))),
        *((SYMBOLS, at_symbols), (SYMBOL_ENTRY, SYMBOL)),
        *((RELA, at_moves), (RELA_SIZE, len(parts[-2])), (RELA_ENTRY, RELOCATION)),
        *((FLAGS, BIND_NOW), (FLAGS_1, NOW), (0, 0)),
    ]
    dynamic = b"".join(struct.pack("<QQ", *entry) for entry in entries)
    segments = [
        (PROGRAM_HEADERS, READ, HEADER, HEADER, SEGMENTS * SEGMENT, 8),
        (INTERPRETER, READ, at_loader, at_loader, len(loader), 1),
        (LOAD, READ | EXECUTE, 0, 0, end, PAGE),
        (LOAD, READ | WRITE, end, slots, SLOTS + len(dynamic), PAGE),
        (DYNAMIC, READ | WRITE, end + SLOTS, slots + SLOTS, len(dynamic), 8),
        (STACK, READ | WRITE, 0, 0, 0, 16),
    ]
    body = b"".join(part.ljust(_up(len(part)), b"\0") for part in parts) + bytes(SLOTS) + dynamic
    sections = _sections((at_strings, len(strings)), (end + SLOTS, len(dynamic)))
    at_sections = end + SLOTS + len(dynamic) + len(NAMES)
    return _head(machine, at_code, segments, at_sections) + body + NAMES + sections


def _head(
    machine: Machine, entry: int, segments: Sequence[tuple[int, ...]], at_sections: int
) -> bytes:
    """The header, and those of segments: kind, flags, offset, address, size, alignment."""
    head = struct.pack(
        "<16sHHIQQQIHHHHHH",
        b"\x7fELF\x02\x01\x01",
        *(3, machine.number, 1, entry, HEADER, at_sections, 0),
        *(HEADER, SEGMENT, len(segments), SECTION, SECTIONS, SECTIONS - 1),
    )
    return head + b"".join(
        struct.pack("<IIQQQQQQ", kind, flags, offset, address, address, size, size, align)
        for kind, flags, offset, address, size, align in segments
    )


def _sections(strings: tuple[int, int], dynamic: tuple[int, int]) -> bytes:
    """Of the strings and the entries for the loader, by offset and size: Android's reads them."""
    at_names = sum(dynamic)
    rows = [
        (0,) * 10,
        (NAMES.index(b".dynstr"), 3, 2, strings[0], *strings, 0, 0, 1, 0),
        (NAMES.index(b".dynamic"), 6, 3, dynamic[0] + PAGE, *dynamic, 1, 0, 8, 16),
        (NAMES.index(b".shstrtab"), 3, 0, 0, at_names, len(NAMES), 0, 0, 1, 0),
    ]
    return b"".join(struct.pack("<IIQQQQIIQQ", *row) for row in rows)


def _joined(texts: Sequence[str]) -> tuple[bytes, list[int]]:
    """Texts one behind the other, each ended by a zero, behind a first zero; and where they are."""
    ended = [text.encode() + b"\0" for text in texts]
    *places, _ = accumulate(map(len, ended), initial=1)
    return b"\0" + b"".join(ended), places


def _moves(machine: Machine, slots: int) -> bytes:
    """What writes the addresses of both symbols behind the null one into their slots."""
    return b"".join(
        struct.pack("<QQq", slots + 8 * index, (index + 1) << 32 | machine.address, 0)
        for index in range(2)
    )


def _up(size: int) -> int:
    return -(-size // 8) * 8


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
