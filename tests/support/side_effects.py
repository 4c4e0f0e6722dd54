"""What Python code does to a machine: files that it changes, programs and code that it runs."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

#: Names of audit events, beside files that are opened to be written.
ACTS = frozenset(
    (
        *("os.chmod", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink"),
        *("os.truncate", "os.exec", "os.fork", "os.posix_spawn", "os.system", "shutil.rmtree"),
        *("subprocess.Popen", "pickle.find_class", "socket.connect", "socket.bind"),
    )
)
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


#: They go on from a folder that is removed, which is told by itself.
OF_TREES = ("os.remove", "os.rmdir")


class _Watch:
    """The one hook of a process: Python takes none away again. Other threads are seen too."""

    def __init__(self) -> None:
        self.acts: list[str] | None = None
        self.scratch = ""
        sys.addaudithook(self._note)

    def _note(self, event: str, args: tuple[Any, ...]) -> None:
        if self.acts is None:
            return
        is_act = event in ACTS or (event == "open" and (args[2] or 0) & WRITES)
        if not is_act or str(args[0]).startswith(self.scratch):
            return
        if event not in OF_TREES or args[-1] == -1:
            self.acts.append(f"{event} {args!r:.300}")


@cache
def _watch() -> _Watch:
    return _Watch()


@contextmanager
def watched(scratch: Path) -> Iterator[list[str]]:
    """What is done inside, as it comes, but for temporary files, which lie in a folder."""
    watch, usual = _watch(), tempfile.tempdir
    watch.scratch = tempfile.tempdir = str(scratch)
    watch.acts = acts = []
    try:
        yield acts
    finally:
        watch.acts, tempfile.tempdir = None, usual
