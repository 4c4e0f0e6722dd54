"""A bundle's file: a zip archive whose parts are stored as they are, each with a checksum.

Any zip tool lists the parts and takes them out. None is compressed and each begins on a page, so
that the file is mapped into memory and read in place. The manifest names all other parts with their
size and SHA-256; its own CRC is the archive's.
"""

from __future__ import annotations

import hmac
import json
import mmap
import struct
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from secrets import token_bytes
from shutil import copyfileobj
from typing import Annotated, Any, NoReturn, TypeAlias
from zipfile import ZIP_STORED, BadZipFile, ZipFile, ZipInfo

import msgspec
import numpy as np
from numpy.typing import NDArray

from codl import files, yaml_file
from codl.errors import CodlError, CodlWarning, InvalidFileError, UnwritableFileError
from codl.ir.constants import array_digest, digest
from codl.ir.network import Layer, Network
from codl.ir.op_text import parse, to_text
from codl.ir.region import Shape
from codl.runtime.cache import state_folder
from codl.yaml_file import NotNegative, Positive

MANIFEST = "manifest.json"
#: The executable, and the arrays of its constants.
EXECUTABLE, CONSTANTS = "executable.json", "constants.safetensors"
#: Inputs from a seed, and what they become, in a bundle whose plan was compared with its model's.
REFERENCE = "reference.safetensors"
#: What `manifest.json` says it belongs to, and the version of everything in the file.
FORMAT, VERSION = "codl bundle", 2
FIX = "`codl package MODEL --soc SOC -o FILE` makes one."
PAGE = 4096
#: A part's header: the fixed fields of a zip archive, and one that only fills up to the next page,
#: under the number that Android's zipalign has for it. A file of any size has 20 bytes more.
LOCAL_HEADER, LARGE_SIZES = 30, 20
FILLING = 0xD935
#: Of all parts alike, so that equal parts make equal files.
TIME = (1980, 1, 1, 0, 0, 0)


def write_archive(
    path: Path, manifest: Mapping[str, Any], parts: Mapping[str, bytes | Path]
) -> None:
    """Write the file whole or not at all; a part is given by its bytes, or a file with them."""
    sums = {name: {"bytes": _size(part), "sha256": _digest(part)} for name, part in parts.items()}
    head = {"format": FORMAT, "version": VERSION, **manifest, "parts": sums}
    with files.writing(path) as partial, ZipFile(partial, "w", ZIP_STORED) as archive:
        for name, part in {MANIFEST: to_json(signed(head)), **parts}.items():
            _add(archive, name, part)


def to_json(content: Any) -> bytes:
    return (json.dumps(content, indent=1) + "\n").encode()


def _size(part: bytes | Path) -> int:
    return len(part) if isinstance(part, bytes) else part.stat().st_size


def _digest(part: bytes | Path) -> str:
    if isinstance(part, bytes):
        return sha256(part).hexdigest()
    total = sha256()
    with part.open("rb") as file:
        while piece := file.read(1 << 20):
            total.update(piece)
    return total.hexdigest()


def _add(archive: ZipFile, name: str, part: bytes | Path) -> None:
    info = ZipInfo(name, TIME)
    info.external_attr = 0o644 << 16
    begin = archive.start_dir + LOCAL_HEADER + len(name.encode()) + LARGE_SIZES + 4
    filling = -begin % PAGE
    info.extra = struct.pack("<HH", FILLING, filling) + bytes(filling)
    with archive.open(info, "w", force_zip64=True) as target:
        if isinstance(part, bytes):
            target.write(part)
        else:
            with part.open("rb") as source:
                copyfileobj(source, target, 1 << 20)


class _Sum(msgspec.Struct, frozen=True):
    """The size of a part and its checksum."""

    bytes: int
    sha256: str


class Archive:
    """A bundle's file, mapped into memory.

    Raises `InvalidFileError` where it is none, is cut short, or is of another version.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._spans, content = self._read()
        self.manifest = self._checked(content)
        with path.open("rb") as file:
            self._memory = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

    def part(self, name: str) -> memoryview:
        """The bytes of a part, in place, once its checksum has been found right."""
        self.check(name)
        return self.unchecked(name)

    def json(self, name: str) -> Any:
        return files.parse_json(self.text(name), f"{self.path}, {name}", fix=FIX)

    def text(self, name: str) -> memoryview:
        """A part that is read as a whole, and thus not too large for that."""
        part = self.part(name)
        if len(part) > files.MOST_BYTES:
            self.refuse(f"{name} is {len(part)} bytes, {files.MOST_BYTES} at most are read.", FIX)
        return part

    @property
    def is_own(self) -> bool:
        """Whether this user wrote it on this machine."""
        return _is_own(self.manifest)

    def unchecked(self, name: str) -> memoryview:
        """The bytes of a part, in place, for `checking`."""
        wanted = self._sums.get(name)
        if wanted is None or name not in self._spans:
            self.refuse(f"the part {name!r} is missing.", FIX)
        header, size = self._spans[name]
        end = header + LOCAL_HEADER
        if not 0 <= end <= len(self._memory):
            self.refuse("the file is damaged: its directory points outside.", FIX)
        begin = end + sum(struct.unpack("<HH", self._memory[end - 4 : end]))
        if size != wanted.bytes or begin + size > len(self._memory):
            self.refuse(f"{name} is {size} bytes and should be {wanted.bytes}: damaged.", FIX)
        return self._memory[begin : begin + size]

    def check(self, name: str) -> None:
        """Raise `InvalidFileError` where a part is not what was written."""
        actual = sha256(self.unchecked(name)).hexdigest()
        if actual != self._sums[name].sha256:
            self.refuse(
                f"{name} is damaged: its SHA-256 is {actual[:16]}..., the manifest says "
                f"{self._sums[name].sha256[:16]}....",
                FIX,
            )

    @contextmanager
    def checking(self, name: str) -> Iterator[memoryview]:
        """A part whose checksum is looked at meanwhile, by another thread.

        What is wrong with it is raised at the end, whatever else has failed because of it.
        """
        with ThreadPoolExecutor(1) as pool:
            checked = pool.submit(self.check, name)
            try:
                yield self.unchecked(name)
            finally:
                checked.result()

    def refuse(self, problem: str, fix: str) -> NoReturn:
        raise InvalidFileError(self.path, problem, fix=fix)

    def _read(self) -> tuple[dict[str, tuple[int, int]], Any]:
        """Where parts begin and how long they are, and the manifest."""
        try:
            with self.path.open("rb") as file:
                is_zip = file.read(4) == b"PK\x03\x04"
        except OSError as error:
            self.refuse(f"cannot be read: {error.strerror}.", FIX)
        if not is_zip:
            self.refuse("this is no bundle.", FIX)
        try:
            with ZipFile(self.path) as archive:
                entries = archive.infolist()
                self._check_stored(entries)
                spans = {i.filename: (i.header_offset, i.file_size) for i in entries}
                content = archive.read(MANIFEST) if MANIFEST in spans else None
        except (
            BadZipFile,
            OSError,
            EOFError,
            ValueError,
            NotImplementedError,
            zlib.error,
        ) as error:
            self.refuse(f"the file is damaged or cut short ({error}).", FIX)
        if content is None:
            self.refuse(f"this zip archive is no bundle: it has no {MANIFEST}.", FIX)
        return spans, content

    def _check_stored(self, entries: Sequence[ZipInfo]) -> None:
        """What is compressed may be far larger than the file."""
        packed = next(
            (entry.filename for entry in entries if entry.compress_type != ZIP_STORED), None
        )
        if packed is not None:
            self.refuse(
                f"its part {packed} is compressed, and a bundle's parts are stored as they are: it "
                "was zipped again.",
                FIX,
            )

    def _checked(self, content: bytes) -> dict[str, Any]:
        manifest = files.parse_json(content, f"{self.path}, {MANIFEST}", fix=FIX)
        try:
            kind, version = manifest["format"], manifest["version"]
            sums = msgspec.convert(manifest["parts"], dict[str, _Sum])
        except (KeyError, TypeError, ValueError) as error:
            self.refuse(f"{MANIFEST} cannot be read ({error!r}).", FIX)
        if kind != FORMAT:
            self.refuse(f"{MANIFEST}, format: expected {FORMAT!r}, got {kind!r}.", FIX)
        if version != VERSION:
            self.refuse(
                f"it is of format version {version}, written by codl {manifest.get('codl')}; this "
                f"codl reads version {VERSION}.",
                "Package the model again, or use a codl that knows the version.",
            )
        self._sums = sums
        return dict(manifest)


# Whether a bundle was written by this user on this machine: a sum that takes a key of theirs.
# A bundle leads drivers through memory, so one of a stranger is not loaded. The key
# lies in the user's state folder, or where the variable CODL_STATE says, and never leaves it.

#: The key of a manifest that holds its signature, which is of all others.
SIGNATURE = "signature"
KEY_NAME, KEY_BYTES = "bundles.key", 32
#: So long the first bundle waits for another process that writes the key.
KEY_WAIT_S = 5.0


def signed(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest with a signature; where no key can be kept a `CodlWarning`, and none."""
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


def _is_own(manifest: Mapping[str, Any]) -> bool:
    """Whether this user signed it here; it names the sums of all parts of the bundle."""
    with suppress(CodlError):
        signature = manifest.get(SIGNATURE)
        ours = _signature(manifest, state_folder() / KEY_NAME)
        return isinstance(signature, str) and hmac.compare_digest(signature.encode(), ours.encode())
    return False


def _make_key(path: Path) -> None:
    """Write a key, unless another process has written one by now: all sign by the same."""
    with files.locked(path.parent, wait_s=KEY_WAIT_S):
        if not path.exists():
            with files.writing(path) as partial:
                partial.touch(mode=0o600)
                partial.write_bytes(token_bytes(KEY_BYTES))


def _signature(manifest: Mapping[str, Any], path: Path) -> str:
    content = {key: value for key, value in manifest.items() if key != SIGNATURE}
    return hmac.new(files.read_bytes(path), digest(content).encode(), sha256).hexdigest()


#: Axes of an array in NumPy, at most.
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
    """`network.json`."""

    name: str
    inputs: Mapping[str, _Shape]
    outputs: Mapping[str, _Output]
    constants: Mapping[str, Annotated[tuple[Positive, ...], msgspec.Meta(max_length=MOST_AXES)]]
    types: Mapping[str, str]
    layers: tuple[_Layer, ...]


def network_to_json(network: Network) -> Any:
    """All but the weights, and of constants the shapes."""
    content = _Network(
        name=network.name,
        inputs=network.inputs,
        outputs={name: _Output(tensor, shape) for name, (tensor, shape) in network.outputs.items()},
        constants={name: value.shape for name, value in network.constants.items()},
        types=network.types,
        layers=tuple(
            _Layer(layer.name, to_text(layer.op), layer.inputs, layer.output)
            for layer in network.layers
        ),
    )
    return msgspec.to_builtins(content)


def network_from_json(content: Any, path: Path) -> Network:
    """The network without weights: what can be shown and asked of, but not lowered.

    Raises `InvalidFileError` with the `path` for what is no such network.
    """
    read, zero = yaml_file.convert(content, _Network, path), np.zeros((), np.float32)
    return Network(
        name=read.name,
        layers=tuple(Layer(x.name, parse(x.op), x.inputs, x.output, {}) for x in read.layers),
        inputs={name: Shape(*shape) for name, shape in read.inputs.items()},
        outputs={name: (output.tensor, output.shape) for name, output in read.outputs.items()},
        constants={name: np.broadcast_to(zero, shape) for name, shape in read.constants.items()},
        types=read.types,
    )


#: Bytes in front of the header that say how long it is.
LENGTH = 8
#: The format's names of the types that arrays have.
TYPES: Mapping[str, np.dtype[Any]] = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "I8": np.dtype(np.int8),
    "U8": np.dtype(np.uint8),
    "U32": np.dtype(np.uint32),
}


class ArrayStore:
    """Arrays to be written, each content once."""

    def __init__(self) -> None:
        self._arrays: dict[str, NDArray[Any]] = {}

    def put(self, array: NDArray[Any]) -> str:
        """Keep an array; returns its digest, by which it is stored."""
        digest = array_digest(array)
        if digest not in self._arrays:
            # A dimension of its own for a scalar is ascontiguousarray's, not the array's.
            self._arrays[digest] = np.ascontiguousarray(array).reshape(array.shape)
        return digest

    def save(self, path: Path) -> str:
        """Write the file; returns the digest of its header, which `read_arrays` wants."""
        from safetensors import SafetensorError
        from safetensors.numpy import save_file

        try:
            save_file(self._arrays, path)
        except SafetensorError as error:  # arrays are sound: it is the disk
            raise UnwritableFileError(path, OSError(str(error))) from error
        with path.open("rb") as file:
            length = file.read(LENGTH)
            return sha256(length + file.read(int.from_bytes(length, "little"))).hexdigest()


def read_arrays(data: memoryview, digest: str) -> dict[str, NDArray[Any]]:
    """The arrays of a safetensors file, over its own memory and never to be written.

    The library's own reader would copy every array. Only the header is checked here, since a kernel
    may read beyond an array that is too short. Raises `ValueError` for a header that does not have
    the `digest`.
    """
    end = LENGTH + int.from_bytes(data[:LENGTH], "little")
    if sha256(data[:end]).hexdigest() != digest:
        raise ValueError("the header of the weights is damaged")
    header, body = msgspec.json.decode(data[LENGTH:end], type=dict[str, msgspec.Raw]), data[end:]
    return {
        name: _array(body, msgspec.json.decode(place, type=_Place))
        for name, place in header.items()
        if name != "__metadata__"
    }


class _Place(msgspec.Struct, frozen=True):
    """What the header says of an array."""

    dtype: str
    shape: tuple[NotNegative, ...]
    data_offsets: tuple[NotNegative, NotNegative]


def _array(body: memoryview, place: _Place) -> NDArray[Any]:
    begin, end = place.data_offsets
    flat: NDArray[Any] = np.frombuffer(body[begin:end], TYPES[place.dtype])
    array: NDArray[Any] = flat.reshape(place.shape)
    return array
