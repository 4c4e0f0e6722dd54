"""Reads many mutated files of every format: each is read, or one clear error comes of it.

    python scripts/fuzz_readers.py --count 100000
    python scripts/fuzz_readers.py --count 5000 --only bundles

A file that anything else comes of is left in the folder that is printed.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from support.reader_fuzz import fuzz
from support.readers import readers

#: No input may take more memory than this process has.
MOST_BYTES = 8 << 30
#: Models are imported by ONNX Runtime, which takes far longer than reading text does.
PART = {"models": 0.1}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=100_000, help="inputs of all formats together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", help="this format alone")
    args = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    warnings.simplefilter("ignore")
    chosen = [one for one in readers() if args.only in (None, one.name)]
    total = sum(PART.get(one.name, 1.0) for one in chosen)
    folder = Path(tempfile.mkdtemp(prefix="codl-fuzz-"))
    print(f"inputs lie in {folder}")
    for one in chosen:
        count = round(args.count * PART.get(one.name, 1.0) / total)
        read, refused = fuzz(one, count, args.seed, folder / one.name)
        print(
            f"{one.name}: {read} were read, {refused} refused for {len(one.reasons)} reasons, "
            "none did anything else",
            flush=True,
        )


if __name__ == "__main__":
    main()
