"""Reads many mutated executables: each runs in NumPy, or one clear error comes of it.

python scripts/fuzz_executables.py --count 100000
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from support.executable_fuzz import fuzz


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    outcome = fuzz(args.count, args.seed)
    print(
        f"{outcome.refused} were refused when read, {outcome.refused_when_run} when run, "
        f"{outcome.ran} ran to their end, none did anything else"
    )


if __name__ == "__main__":
    main()
