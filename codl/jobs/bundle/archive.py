"""A bundle's file: an uncompressed zip archive with a checksum for each part.

Any zip tool lists and extracts the parts. Each part begins on a page, so the file is mapped into
memory and read in place. The manifest names all other parts with size and SHA-256; the archive's
own CRC covers the manifest.
"""

from __future__ import annotations

import hmac
import json
import mmap
import struct
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from secrets import token_bytes
from typing import Annotated, Any, NoReturn, TypeAlias
from zipfile import ZIP_STORED, BadZipFile, ZipFile, ZipInfo

import msgspec
import numpy as np
from numpy.typing import NDArray

from codl import files
from codl.errors import CodlError, CodlWarning, InvalidFileError, UnwritableFileError
from codl.ir import yaml_file
from codl.ir.constants import array_digest, digest
from codl.ir.network import Layer, Network
from codl.ir.op_text import parse, to_text
from codl.ir.region import Shape
from codl.ir.yaml_file import NotNegative, Positive
from codl.machine.cache import state_folder

MANIFEST = "manifest.json"
#: The parts with the executable and with the arrays of its constants.
EXECUTABLE, CONSTANTS = "executable.json", "constants.safetensors"
#: The part with seeded inputs and their outputs; only in bundles of a plan checked against its
#: model.
REFERENCE = "reference.safetensors"
#: The format and version that `manifest.json` names; the version covers the whole file.
FORMAT, VERSION = "codl bundle", 2
FIX = "`codl package MODEL --soc SOC -o FILE` makes one."
PAGE = 4096
#: Bytes of a part's header: zip's fixed fields, and the field for sizes above 4 GiB. A third field,
#: under the number of Android's zipalign, fills the header up to the next page.
LOCAL_HEADER, LARGE_SIZES = 30, 20
FILLING = 0xD935
#: One time for all parts, so that equal parts make equal files.
TIME = (1980, 1, 1, 0, 0, 0)


def write_archive(
    path: Path, manifest: Mapping[str, Any], parts: Mapping[str, bytes | memoryview]
) -> None:
    """Write the whole file or none."""
    sums = {
        name: {"bytes": len(part), "sha256": sha256(part).hexdigest()}
        for name, part in parts.items()
    }
    head = {"format": FORMAT, "version": VERSION, **manifest, "parts": sums}
    with files.writing(path) as partial, ZipFile(partial, "w", ZIP_STORED) as archive:
        for name, part in {MANIFEST: to_json(signed(head)), **parts}.items():
            info = ZipInfo(name, TIME)
            info.external_attr = 0o644 << 16
            begin = archive.start_dir + LOCAL_HEADER + len(name.encode()) + LARGE_SIZES + 4
            filling = -begin % PAGE
            info.extra = struct.pack("<HH", FILLING, filling) + bytes(filling)
            with archive.open(info, "w", force_zip64=True) as target:
                target.write(part)


def to_json(content: Any) -> bytes:
    return (json.dumps(content, indent=1) + "\n").encode()


def mapped(path: Path) -> memoryview:
    """The bytes of a file, read on use."""
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


class _Sum(msgspec.Struct, frozen=True):
    bytes: int
    sha256: str


class Archive:
    """A mapped bundle; raises `InvalidFileError` for another file, version, or one cut short."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._spans, content = self._read()
        self.manifest = self._checked(content)
        self._memory = mapped(path)

    def part(self, name: str) -> memoryview:
        """The bytes of a part, in place, after its checksum was verified."""
        self.check(name)
        return self.unchecked(name)

    def json(self, name: str) -> Any:
        return files.parse_json(self.text(name), f"{self.path}, {name}", fix=FIX)

    def text(self, name: str) -> memoryview:
        """The bytes of a text part; refuses a part above `files.MOST_BYTES`."""
        part = self.part(name)
        if len(part) > files.MOST_BYTES:
            self.refuse(f"{name} is {len(part)} bytes, {files.MOST_BYTES} at most are read.")
        return part

    @property
    def is_own(self) -> bool:
        """Whether this user signed the manifest here, and so the checksums of all parts."""
        with suppress(CodlError):
            signature = self.manifest.get(SIGNATURE)
            ours = _signature(self.manifest, state_folder() / KEY_NAME)
            return isinstance(signature, str) and hmac.compare_digest(
                signature.encode(), ours.encode()
            )
        return False

    def unchecked(self, name: str) -> memoryview:
        """The bytes of a part, in place, without its checksum; checks size and position."""
        wanted = self._sums.get(name)
        if wanted is None or name not in self._spans:
            self.refuse(f"the part {name!r} is missing.")
        header, size = self._spans[name]
        end = header + LOCAL_HEADER
        if not 0 <= end <= len(self._memory):
            self.refuse("the file is damaged: its directory points outside.")
        begin = end + sum(struct.unpack("<HH", self._memory[end - 4 : end]))
        if size != wanted.bytes or begin + size > len(self._memory):
            self.refuse(f"{name} is {size} bytes and should be {wanted.bytes}: damaged.")
        return self._memory[begin : begin + size]

    def check(self, name: str) -> None:
        """Raise `InvalidFileError` where a part differs from its checksum."""
        actual = sha256(self.unchecked(name)).hexdigest()
        if actual != self._sums[name].sha256:
            self.refuse(
                f"{name} is damaged: its SHA-256 is {actual[:16]}..., the manifest says "
                f"{self._sums[name].sha256[:16]}...."
            )

    @contextmanager
    def checking(self, name: str) -> Iterator[memoryview]:
        """A part in place, while another thread verifies its checksum.

        A wrong checksum is raised at the end, and replaces any error in between.
        """
        with ThreadPoolExecutor(1) as pool:
            checked = pool.submit(self.check, name)
            try:
                yield self.unchecked(name)
            finally:
                checked.result()

    def refuse(self, problem: str, fix: str = FIX) -> NoReturn:
        raise InvalidFileError(self.path, problem, fix=fix)

    def _read(self) -> tuple[dict[str, tuple[int, int]], Any]:
        """Header offset and size in bytes of each part, and the manifest's text."""
        try:
            with self.path.open("rb") as file:
                is_zip = file.read(4) == b"PK\x03\x04"
        except OSError as error:
            self.refuse(f"cannot be read: {error.strerror}.")
        if not is_zip:
            self.refuse("this is no bundle.")
        try:
            with ZipFile(self.path) as archive:
                entries = archive.infolist()
                for entry in entries:  # a compressed part may be far larger than the file
                    if entry.compress_type != ZIP_STORED:
                        self.refuse(
                            f"its part {entry.filename} is compressed, and a bundle's parts are "
                            "stored as they are: it was zipped again."
                        )
                spans = {i.filename: (i.header_offset, i.file_size) for i in entries}
                content = archive.read(MANIFEST) if MANIFEST in spans else None
        except (BadZipFile, OSError, EOFError, ValueError, NotImplementedError) as error:
            self.refuse(f"the file is damaged or cut short ({error}).")
        if content is None:
            self.refuse(f"this zip archive is no bundle: it has no {MANIFEST}.")
        return spans, content

    def _checked(self, content: bytes) -> dict[str, Any]:
        manifest = files.parse_json(content, f"{self.path}, {MANIFEST}", fix=FIX)
        try:
            kind, version = manifest["format"], manifest["version"]
            sums = msgspec.convert(manifest["parts"], dict[str, _Sum])
        except (KeyError, TypeError, ValueError) as error:
            self.refuse(f"{MANIFEST} cannot be read ({error!r}).")
        if kind != FORMAT:
            self.refuse(f"{MANIFEST}, format: expected {FORMAT!r}, got {kind!r}.")
        if version != VERSION:
            self.refuse(
                f"it is of format version {version}, written by codl {manifest.get('codl')}; this "
                f"codl reads version {VERSION}.",
                "Package the model again, or use a codl that knows the version.",
            )
        self._sums = sums
        return dict(manifest)


# Signatures: a keyed checksum shows that this user wrote a bundle on this machine. A bundle leads
# drivers through memory, so a stranger's is not loaded. The key lies in the user's state folder (or
# CODL_STATE), and never leaves it.

#: The manifest's key for its signature, which covers all other keys.
SIGNATURE = "signature"
KEY_NAME, KEY_BYTES = "bundles.key", 32
#: Seconds that the first bundle waits for another process to write the key.
KEY_WAIT_S = 5.0


def signed(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest with a signature; unsigned with a `CodlWarning` where no key can be kept."""
    path = state_folder() / KEY_NAME
    try:
        if not path.exists():
            _make_key(path)
        return {**manifest, SIGNATURE: _signature(manifest, path)}
    except CodlError as error:
        text = (
            f"The bundle has no signature, so it will count as a stranger's here, too: {error} "
            "CODL_STATE names another folder for the key."
        )
        warnings.warn(text, CodlWarning, stacklevel=2)
    return dict(manifest)


def _make_key(path: Path) -> None:
    """Write a key unless another process has written one, so that all processes share it."""
    with files.locked(path.parent, wait_s=KEY_WAIT_S):
        if not path.exists():
            with files.writing(path) as partial:
                partial.touch(mode=0o600)
                partial.write_bytes(token_bytes(KEY_BYTES))


def _signature(manifest: Mapping[str, Any], path: Path) -> str:
    content = {key: value for key, value in manifest.items() if key != SIGNATURE}
    return hmac.new(files.read_bytes(path), digest(content).encode(), sha256).hexdigest()


#: The most axes of a NumPy array.
MOST_AXES = 32
_Shape: TypeAlias = tuple[Positive, Positive, Positive, Positive]


class _Layer(msgspec.Struct, frozen=True):
    name: str
    op: str
    inputs: tuple[str, ...]
    output: str


class _Output(msgspec.Struct, frozen=True):
    tensor: str
    shape: tuple[NotNegative, ...]


class _Network(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `network.json`."""

    name: str
    inputs: Mapping[str, _Shape]
    outputs: Mapping[str, _Output]
    constants: Mapping[str, Annotated[tuple[Positive, ...], msgspec.Meta(max_length=MOST_AXES)]]
    types: Mapping[str, str]
    layers: tuple[_Layer, ...]


def network_to_json(network: Network) -> Any:
    """A network as JSON content: all but the weights, with the shapes of constants."""
    content = _Network(
        name=network.name,
        inputs=dict(network.inputs),
        outputs={name: _Output(*output) for name, output in network.outputs.items()},
        constants={name: value.shape for name, value in network.constants.items()},
        types=network.types,
        layers=tuple(_Layer(x.name, to_text(x.op), x.inputs, x.output) for x in network.layers),
    )
    return msgspec.to_builtins(content)


def network_from_json(content: Any, path: Path) -> Network:
    """The network of `network_to_json`, without weights; raises `InvalidFileError` with `path`."""
    read, zero = yaml_file.convert(content, _Network, path), np.zeros((), np.float32)
    return Network(
        name=read.name,
        layers=tuple(Layer(x.name, parse(x.op), x.inputs, x.output, {}) for x in read.layers),
        inputs={name: Shape(*shape) for name, shape in read.inputs.items()},
        outputs={name: (output.tensor, output.shape) for name, output in read.outputs.items()},
        constants={name: np.broadcast_to(zero, shape) for name, shape in read.constants.items()},
        types=read.types,
    )


#: Bytes in front of a safetensors header, with its length.
LENGTH = 8
#: NumPy types by safetensors' names.
TYPES: Mapping[str, type[np.generic]] = {
    "F32": np.float32,
    "F16": np.float16,
    "I8": np.int8,
    "U8": np.uint8,
    "U32": np.uint32,
}


class ArrayStore:
    """Arrays for one safetensors file, each distinct content once."""

    def __init__(self) -> None:
        self._arrays: dict[str, NDArray[Any]] = {}

    def put(self, array: NDArray[Any]) -> str:
        """Add an array; returns its digest, which is its name in the file."""
        digest = array_digest(array)
        if digest not in self._arrays:
            # np.ascontiguousarray gives a scalar an axis; the reshape takes it off.
            self._arrays[digest] = np.ascontiguousarray(array).reshape(array.shape)
        return digest

    def save(self, path: Path) -> str:
        """Write the file; returns the digest of its header, for `read_arrays`."""
        from safetensors import SafetensorError
        from safetensors.numpy import save_file

        try:
            save_file(self._arrays, path)
        except SafetensorError as error:  # the disk, as the arrays are sound
            raise UnwritableFileError(path, OSError(str(error))) from error
        with path.open("rb") as file:
            length = file.read(LENGTH)
            return sha256(length + file.read(int.from_bytes(length, "little"))).hexdigest()


def read_arrays(data: memoryview, digest: str) -> dict[str, NDArray[Any]]:
    """The arrays of a safetensors file, as read-only views of `data`.

    The library's own reader would copy each array. Only the header is checked, since a kernel may
    read beyond an array that is too short. Raises `ValueError` for a header without this `digest`.
    """
    end = LENGTH + int.from_bytes(data[:LENGTH], "little")
    if sha256(data[:end]).hexdigest() != digest:
        raise ValueError("the header of the weights is damaged")
    header, body = msgspec.json.decode(data[LENGTH:end], type=dict[str, msgspec.Raw]), data[end:]
    arrays: dict[str, NDArray[Any]] = {}
    for name, encoded in header.items():
        if name != "__metadata__":
            place = msgspec.json.decode(encoded, type=_Place)
            content = body[slice(*place.data_offsets)]
            arrays[name] = np.frombuffer(content, TYPES[place.dtype]).reshape(place.shape)
    return arrays


class _Place(msgspec.Struct, frozen=True):
    """Type, shape and byte offsets of an array in a safetensors header."""

    dtype: str
    shape: tuple[NotNegative, ...]
    data_offsets: tuple[NotNegative, NotNegative]
