"""How long a bundle takes to its first output, in a process that has never seen it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec
from numpy.typing import NDArray

from codl.bundle.loading import load
from codl.errors import CodlError
from codl.runtime.child import Child, TimedOutError, own_streams
from codl.runtime.frames import Connection, FrameError
from codl.targets.arrays import ArrayRecord, from_wire, to_wire

#: The child's first line: what its clock says before anything is imported. The clock is the
#: system's, so that the parent's fits.
CHILD = (
    "import time; begin = time.perf_counter(); "
    "from codl.bundle.cold_start import run_once; run_once(begin)"
)
#: Compiling a large model from source takes its time, where the driver is another one.
LIMIT_S = 600.0


@dataclass(frozen=True)
class ColdStart:
    """Milliseconds of one new process; the file was in the system's cache, since just written.

    `process_ms` is all, from before the process is started to its first output; of it
    `import_ms` goes to Python's modules, `load_ms` to the bundle, `first_run_ms` to the first
    inference, and the rest to the interpreter.
    """

    process_ms: float
    import_ms: float
    load_ms: float
    first_run_ms: float

    @property
    def without_interpreter_ms(self) -> float:
        return self.import_ms + self.load_ms + self.first_run_ms


class RunBundle(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """The first message to the child: load this bundle."""

    path: str


class Feed(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """The second one: run once on these inputs, one blob each."""

    inputs: tuple[ArrayRecord, ...]


class BundleRan(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """What the child's clock said when, and the outputs, one blob each."""

    begin: float
    imported: float
    loaded: float
    fed: float
    ready: float
    outputs: tuple[ArrayRecord, ...]


def measure(
    path: Path, inputs: Mapping[str, NDArray[Any]]
) -> tuple[ColdStart, dict[str, NDArray[Any]]]:
    """Load a bundle in a process of its own and run it once; the times and the outputs.

    Raises `CodlError` with what the process said where it fails.
    """
    start = perf_counter()
    child = Child([sys.executable, "-c", CHILD])
    child.limit(LIMIT_S)
    connection: Connection[BundleRan, Any] = Connection(child.output, child.input, BundleRan)
    records, blobs = to_wire(inputs)
    try:
        connection.send(RunBundle(str(path)))
        connection.send(Feed(records), blobs)
        done, parts = connection.receive()
    except (FrameError, TimedOutError) as error:
        child.kill()
        raise CodlError(
            f"{path} does not run in a process of its own, which {child.ending()}."
        ) from error
    child.close()
    between = 1e3 * (done.fed - done.loaded)  # reading the inputs is no part of it
    times = ColdStart(
        process_ms=1e3 * (done.ready - start) - between,
        import_ms=1e3 * (done.imported - done.begin),
        load_ms=1e3 * (done.loaded - done.imported),
        first_run_ms=1e3 * (done.ready - done.fed),
    )
    return times, from_wire(done.outputs, parts)


def run_once(begin: float) -> None:
    """The child: loads and runs what it is told to, and says what its clock said when."""
    imported = perf_counter()
    reader, writer = own_streams()
    connection: Connection[RunBundle | Feed, BundleRan] = Connection(
        reader, writer, RunBundle | Feed
    )
    wanted, _ = connection.receive()
    assert isinstance(wanted, RunBundle)
    engine = load(wanted.path)
    loaded = perf_counter()
    given, blobs = connection.receive()
    assert isinstance(given, Feed)
    inputs = from_wire(given.inputs, blobs)
    fed = perf_counter()
    outputs = engine(inputs)
    ready = perf_counter()
    records, parts = to_wire(outputs)
    connection.send(BundleRan(begin, imported, loaded, fed, ready, records), parts)
