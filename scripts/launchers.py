"""Writes the programs that start a Python build on a device, without a compiler.

Each is an ELF file for 64-bit Linux or Android. It calls `Py_BytesMain` with its arguments, and
`exit` with the result. Both C libraries are initialised before a program's first instruction.
`codl.targets.python_build` puts the file name of Python's library in its place.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from codl.targets.python_build import LOADER, NAME, PROGRAMS

#: Bytes of an ELF header.
HEADER = 64


@dataclass(frozen=True)
class Machine:
    """A CPU architecture: its number in ELF files, and its loaders by C library."""

    number: int
    loaders: Mapping[str, str]


MACHINES: Mapping[str, Machine] = {
    "aarch64": Machine(183, {"bionic": LOADER, "glibc": "/lib/ld-linux-aarch64.so.1"}),
    "x86_64": Machine(62, {"bionic": LOADER, "glibc": "/lib64/ld-linux-x86-64.so.2"}),
}
#: File name of each C library.
LIBC = {"bionic": "libc.so", "glibc": "libc.so.6"}
#: Functions called by the program.
MAIN, EXIT = "Py_BytesMain", "exit"
#: Folder of the libraries, beside the program's folder.
RUNPATH = "$ORIGIN/../lib"
#: Alignment of 64 KiB, for kernels with pages of 4, 16 or 64 KiB.
PAGE = 0x10000
#: Sizes of headers; kinds of segments, sections and entries by their names in ELF.
SEGMENT, SECTION, SYMBOL, RELOCATION = 56, 64, 24, 24
LOAD, DYNAMIC, INTERPRETER, PROGRAM_HEADERS, STACK = 1, 2, 3, 6, 0x6474E551
NEEDED, HASH, STRINGS, SYMBOLS, RELA = 1, 4, 5, 6, 7
RELA_SIZE, RELA_ENTRY, STRINGS_SIZE, SYMBOL_ENTRY = 8, 9, 10, 11
RUNPATH_TAG, FLAGS, FLAGS_1 = 29, 30, 0x6FFFFFFB
READ, WRITE, EXECUTE = 4, 2, 1
GLOBAL_FUNCTION = 0x12
#: Loader flags, without the flag for a program: older Androids warn of unknown flags.
BIND_NOW, NOW = 8, 1
#: Names of sections, padded to a multiple of 8 bytes; numbers of headers; bytes of two addresses.
NAMES = b"\0.dynstr\0.dynamic\0.shstrtab\0".ljust(32, b"\0")
SEGMENTS, SECTIONS, SLOTS = 6, 4, 16


#: Relocation of an address by machine.
ADDRESS = {"aarch64": 1025, "x86_64": 6}
CODE_SIZE = 64


def program(machine: str, libc: str) -> bytes:
    """A program for a key of `MACHINES` and one of its loaders.

    It has two segments: one is read and executed; the other, one page later in memory, has the
    addresses of the called functions and the entries for the loader.
    """
    texts = NAME.decode(), LIBC[libc], RUNPATH, MAIN, EXIT
    strings, (name, c_library, runpath, *called) = _joined(texts)
    symbols = bytes(SYMBOL) + b"".join(
        struct.pack("<IBBHQQ", place, GLOBAL_FUNCTION, 0, 0, 0, 0) for place in called
    )
    loader = MACHINES[machine].loaders[libc].encode() + b"\0"
    # The table finds nothing, as no symbol is defined here; loaders require one.
    table = struct.pack("<6I", 1, len(called) + 1, 0, 0, 0, 0)
    parts = [loader, table, symbols, strings, bytes(2 * RELOCATION), bytes(CODE_SIZE)]
    at_loader, at_table, at_symbols, at_strings, at_moves, at_code, end = accumulate(
        (_up(len(part)) for part in parts), initial=HEADER + SEGMENTS * SEGMENT
    )
    slots = end + PAGE
    code = CODE[machine](at_code, slots)
    parts[-2:] = _moves(machine, slots), code.ljust(CODE_SIZE, b"\0")
    entries = [
        *((NEEDED, name), (NEEDED, c_library), (RUNPATH_TAG, runpath), (HASH, at_table)),
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


def _head(machine: str, entry: int, segments: Sequence[tuple[int, ...]], at_sections: int) -> bytes:
    """The file header, and segment headers of kind, flags, offset, address, size, alignment."""
    head = struct.pack(
        "<16sHHIQQQIHHHHHH",
        b"\x7fELF\x02\x01\x01",
        *(3, MACHINES[machine].number, 1, entry, HEADER, at_sections, 0),
        *(HEADER, SEGMENT, len(segments), SECTION, SECTIONS, SECTIONS - 1),
    )
    return head + b"".join(
        struct.pack("<IIQQQQQQ", kind, flags, offset, address, address, size, size, align)
        for kind, flags, offset, address, size, align in segments
    )


def _sections(strings: tuple[int, int], dynamic: tuple[int, int]) -> bytes:
    """Section headers of strings and loader entries, by offset and size; Android reads them."""
    at_names = sum(dynamic)
    rows = [
        (0,) * 10,
        (NAMES.index(b".dynstr"), 3, 2, strings[0], *strings, 0, 0, 1, 0),
        (NAMES.index(b".dynamic"), 6, 3, dynamic[0] + PAGE, *dynamic, 1, 0, 8, 16),
        (NAMES.index(b".shstrtab"), 3, 0, 0, at_names, len(NAMES), 0, 0, 1, 0),
    ]
    return b"".join(struct.pack("<IIQQQQIIQQ", *row) for row in rows)


def _joined(texts: Sequence[str]) -> tuple[bytes, list[int]]:
    """A zero byte, then zero-terminated texts; returns also the offset of each text."""
    ended = [text.encode() + b"\0" for text in texts]
    *places, _ = accumulate(map(len, ended), initial=1)
    return b"\0" + b"".join(ended), places


def _moves(machine: str, slots: int) -> bytes:
    """Relocations that write the addresses of both functions into their slots."""
    return b"".join(
        struct.pack("<QQq", slots + 8 * index, (index + 1) << 32 | ADDRESS[machine], 0)
        for index in range(2)
    )


def _up(size: int) -> int:
    return -(-size // 8) * 8


def _arm_code(at: int, slots: int) -> bytes:
    """Machine code for a stack with the argument count and the arguments' addresses."""

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


def main() -> None:
    PROGRAMS.mkdir(exist_ok=True)
    for machine, facts in MACHINES.items():
        for libc in facts.loaders:
            (PROGRAMS / f"{machine}-{libc}").write_bytes(program(machine, libc))


if __name__ == "__main__":
    main()
