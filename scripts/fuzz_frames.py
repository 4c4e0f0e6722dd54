"""Reads many random and mutated frames: a message or one clear error must come of each.

python scripts/fuzz_frames.py --count 100000
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from support.frame_fuzz import fuzz
from support.message_seeds import REPLIES, REQUESTS

from codl.targets.messages import AnyReply, AnyRequest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    for name, incoming, seeds in (
        ("requests", AnyRequest, REQUESTS),
        ("replies", AnyReply, REPLIES),
    ):
        read, refused = fuzz(args.count // 2, args.seed, incoming, seeds)
        print(f"{name}: {read} frames gave a message, {refused} an error, none anything else")


if __name__ == "__main__":
    main()
