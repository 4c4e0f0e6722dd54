"""How long a bundle takes to its first output, in a process that has never seen it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codl.bundle.loading import load
from codl.errors import CodlError

#: The child's first line: what its clock says before anything is imported. The clock is the
#: system's, so that the parent's fits.
CHILD = (
    "import time; begin = time.perf_counter(); import sys; "
    "from codl.bundle.cold_start import run_once; run_once(begin, *sys.argv[1:])"
)


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


def measure(
    path: Path, inputs: Mapping[str, NDArray[Any]]
) -> tuple[ColdStart, dict[str, NDArray[Any]]]:
    """Load a bundle in a process of its own and run it once; the times and the outputs.

    Raises `CodlError` with what the process said where it fails.
    """
    with TemporaryDirectory(prefix="codl-") as folder:
        given, found = Path(folder) / "in.npz", Path(folder) / "out.npz"
        np.savez(given, **inputs)  # type: ignore[arg-type]
        command = [sys.executable, "-c", CHILD, str(path), str(given), str(found)]
        start = perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CodlError(f"{path} does not run in a process of its own:\n{done.stderr.strip()}")
        begin, imported, loaded, ready, fed = json.loads(done.stdout)
        with np.load(found, allow_pickle=False) as content:
            outputs = {name: content[name] for name in content.files}
    between = 1e3 * (fed - loaded)  # reading the inputs is no part of it
    times = ColdStart(
        process_ms=1e3 * (ready - start) - between,
        import_ms=1e3 * (imported - begin),
        load_ms=1e3 * (loaded - imported),
        first_run_ms=1e3 * (ready - fed),
    )
    return times, outputs


def run_once(begin: float, path: str, given: str, found: str) -> None:
    """The child: prints what its clock said when, and leaves the outputs in a file."""
    imported = perf_counter()
    engine = load(path)
    loaded = perf_counter()
    with np.load(given, allow_pickle=False) as content:
        inputs = {name: content[name] for name in content.files}
    fed = perf_counter()
    outputs = engine(inputs)
    ready = perf_counter()
    np.savez(found, **outputs)  # type: ignore[arg-type]
    print(json.dumps([begin, imported, loaded, ready, fed]))
