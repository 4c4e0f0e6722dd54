"""Gives whatever takes bytes of strangers many mutated ones: taken, or one clear error each.

Mutations are guided by coverage (Atheris, which is libFuzzer): an input that gets codl's code
somewhere new is changed again. Readers of files must change no file and run nothing.

    python scripts/fuzz.py --count 100000 --folder F
    python scripts/fuzz.py --count 200000 --folder F          # goes on where that one ended
    python scripts/fuzz.py --only bundles --input F/bundles/found-crash-...

In F there is a folder for each subject, with its log, its inputs that are worth to be changed, and
`found-...`: an input that anything else came of.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, NoReturn

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

if TYPE_CHECKING:
    from support.fuzzing import Subject

#: An input may take so much memory more than there was before, so many seconds of the processor,
#: and as many of the clock: a machine may be held for long.
MOST_BYTES, LIMIT_S, WAIT_S = 1 << 30, 20, 1500
#: Models have the most in them. Of predictors the features are computed, which takes far longer.
PART = {"models": 2.0, "predictors": 0.25}
#: Files that are read once lie in memory, where the system has a place for that.
MEMORY = Path("/dev/shm")
#: Counts are kept so often.
EVERY = 200
#: So many inputs that were taken are changed again.
MOST_SOUND = 300
#: Inputs are no larger than this, or twice the largest sound one.
MOST_SIZE = 1 << 16
COVERED = re.compile(r"cov: (\d+)")


def main() -> None:
    args = _arguments()
    if args.subject is not None:
        _guided(args.subject, args.count, args.seed, args.folder)
    from support.readers import SUBJECTS

    chosen = [name for name in SUBJECTS if args.only in (None, name)]
    if not chosen:
        sys.exit(f"--only must be one of {', '.join(SUBJECTS)}, got {args.only!r}.")
    if args.input is not None:
        _take_one(chosen[0], args.input)
        return
    folder = args.folder or Path(tempfile.mkdtemp(prefix="codl-fuzz-"))
    print(f"in {folder}", flush=True)
    total = sum(PART.get(name, 1.0) for name in chosen)
    failed = 0
    for name in chosen:
        count = round(args.count * PART.get(name, 1.0) / total)
        failed += not _run(name, count, args.seed, folder / name)
    sys.exit(failed > 0)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=100_000, help="inputs of all together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", help="this subject alone")
    parser.add_argument("--folder", type=Path, help="where inputs lie, and what is done already")
    parser.add_argument("--input", type=Path, help="takes this one input")
    parser.add_argument("--subject", help=argparse.SUPPRESS)
    return parser.parse_args()


def _take_one(name: str, file: Path) -> None:
    from support.fuzzing import is_taken
    from support.readers import SUBJECTS

    with tempfile.TemporaryDirectory() as folder:
        taken = is_taken(SUBJECTS[name](Path(folder)), file.read_bytes())
    print("taken" if taken else "refused")


def _run(name: str, count: int, seed: int, folder: Path) -> bool:
    """In a process of its own, which may crash; whether nothing was found."""
    folder.mkdir(parents=True, exist_ok=True)
    own = ["--subject", name, "--count", str(count), "--seed", str(seed), "--folder", str(folder)]
    with (folder / "log").open("ab") as log:
        ended = subprocess.run([sys.executable, __file__, *own], stdout=log, stderr=log)
    done, log_text = _done(folder), (folder / "log").read_text(errors="replace")
    covered = [int(number) for number in COVERED.findall(log_text)]
    print(
        f"{name}: {done['taken']} were taken, {done['refused']} refused, "
        f"{max(covered, default=0)} branches were seen, "
        + ("none did anything else" if ended.returncode == 0 else f"SEE {folder}"),
        flush=True,
    )
    return ended.returncode == 0


def _done(folder: Path) -> Counter[str]:
    file = folder / "done.json"
    return Counter(json.loads(file.read_text()) if file.exists() else {})


def _guided(name: str, count: int, seed: int, folder: Path) -> NoReturn:
    """Mutate until `count` inputs were taken or refused; never returns."""
    import atheris

    warnings.simplefilter("ignore")
    sys.dont_write_bytecode = True
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as files:
        with atheris.instrument_imports(include=["codl"]):
            from support.readers import SUBJECTS

            subject = SUBJECTS[name](Path(files))
            for content in subject.seeds:  # modules that are imported late are instrumented too
                subject.take(content)
        run = _Run(subject, count, folder)
        arguments = [__file__, *_options(subject, seed + run.done.total(), folder)]
        atheris.Setup(arguments, run, custom_mutator=run.mutated)
        _limit_memory()
        atheris.Fuzz()
    raise AssertionError("it ends the process")


def _options(subject: Subject, seed: int, folder: Path) -> list[str]:
    """libFuzzer's, and the folder of its corpus, with the sound inputs in it."""
    corpus = folder / "corpus"
    corpus.mkdir(exist_ok=True)
    for at, content in enumerate(subject.seeds):
        (corpus / f"seed-{at}").write_bytes(content)
    most = max(MOST_SIZE, *(2 * len(content) for content in subject.seeds))
    return [
        *(f"-seed={seed}", f"-timeout={WAIT_S}", "-rss_limit_mb=0", f"-max_len={most}"),
        f"-artifact_prefix={folder}/found-",
        # Sound inputs stay, and are changed at most so often before another one is.
        *("-keep_seed=1", "-reduce_inputs=0", "-mutate_depth=2"),
        str(corpus),
    ]


class _Run:
    """Takes inputs until there were so many, and ends the process then."""

    def __init__(self, subject: Subject, count: int, folder: Path) -> None:
        self.subject, self.count, self.folder = subject, count, folder
        self.done = _done(folder)
        #: What is changed half of the time: most inputs that cover something new are refused early.
        self.sound = [*subject.seeds]
        signal.signal(signal.SIGPROF, self._hang)

    def mutated(self, content: bytes, most: int, number: int) -> bytes:
        """Changed once: in one of the subject's own ways, or one of libFuzzer's."""
        import atheris

        dice = Random(number)
        content = content if dice.random() < 0.5 else dice.choice(self.sound)
        makers = [*self.subject.makers, lambda _, own: bytes(atheris.Mutate(own[:most], most))]
        return dice.choice(makers)(dice, content)[:most]

    def __call__(self, content: bytes) -> None:
        from support.fuzzing import is_taken

        if self.done.total() >= self.count:
            self._save()
            os._exit(0)
        signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
        taken = is_taken(self.subject, content)
        signal.setitimer(signal.ITIMER_PROF, 0)
        self.done["taken" if taken else "refused"] += 1
        if taken and len(self.sound) < MOST_SOUND:
            self.sound.append(content)
        if self.done.total() % EVERY == 0:
            self._save()

    def _save(self) -> None:
        (self.folder / "done.json").write_text(json.dumps(self.done))

    def _hang(self, *_: Any) -> None:
        raise AssertionError(f"this takes more than {LIMIT_S} s of the processor")


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MOST_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


if __name__ == "__main__":
    main()
