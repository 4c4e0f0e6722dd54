"""The process that a peer runs in: `python -m codl.strategies.peers.child NAME JOB`.

It answers every line on its standard input by a line of JSON. While others run it sleeps on that
pipe, and it answers a run only when its threads sleep too: libraries let them spin for a while,
which would disturb whoever is measured next.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread, get_native_id
from time import perf_counter, process_time
from typing import Any, TypeAlias

import numpy as np

from codl.plugins import load_installed
from codl.runtime import threads
from codl.strategies.peers import PEERS
from codl.strategies.peers.base import Job, Peer

Answer: TypeAlias = dict[str, Any]
#: How long a peer is watched to see on which cores it works, and how often.
OBSERVE_S, LOOK_S = 0.3, 0.005


def main() -> None:
    """Libraries print to standard output as they like: it becomes standard error for them."""
    with os.fdopen(os.dup(1), "w") as wire:
        os.dup2(2, 1)
        peer, job = None, _job(json.loads(sys.argv[2]))
        try:
            load_installed()
            peer = PEERS[sys.argv[1]](job)
            _answer(wire, {"version": peer.version})
            commands = _commands(peer)
            for line in sys.stdin:
                command, *arguments = json.loads(line)
                _answer(wire, commands[command](*arguments))
        except Exception as error:  # whatever a library raises is the row's reason
            _answer(wire, {"error": _first_line(error)})
        if peer is not None:
            peer.close()


def _commands(peer: Peer) -> dict[str, Callable[..., Answer]]:
    def feed(path: str, names: list[str]) -> Answer:
        with np.load(path) as content:
            peer.feed(dict(zip(names, content.values(), strict=True)))
        return {}

    def run(lead_in: int) -> Answer:
        for _ in range(lead_in):
            peer.run()
        start = perf_counter()
        peer.run()
        spent = perf_counter() - start
        return {"seconds": spent, "idle": threads.wait_until_idle()}

    def observe() -> Answer:
        used, begin = process_time(), perf_counter()
        cores = observed(peer.run)
        return {"cores": cores, "busy": (process_time() - used) / (perf_counter() - begin)}

    def outputs(path: str) -> Answer:
        found = peer.outputs()
        np.savez(path, *found.values())
        return {"names": list(found)}

    return {"feed": feed, "run": run, "observe": observe, "outputs": outputs}


def observed(work: Callable[[], None]) -> list[int]:
    """The cores on which threads of this process were seen while `work` was done for a while."""
    stop, observer = Event(), threads.CoreObserver()

    def watch() -> None:
        observer.ignore(get_native_id())
        while not stop.wait(LOOK_S):
            observer.sample()

    watcher = Thread(target=watch)
    watcher.start()
    begin = perf_counter()
    while perf_counter() - begin < OBSERVE_S:
        work()
    stop.set()
    watcher.join()
    return sorted(observer.cores)


def _job(content: dict[str, Any]) -> Job:
    files = {key: Path(content[key]) for key in ("model", "folder", "soc", "plan")}
    return Job(cores=tuple(content["cores"]), **files)


def _answer(wire: Any, answer: Answer) -> None:
    wire.write(json.dumps(answer) + "\n")
    wire.flush()


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


if __name__ == "__main__":
    main()
