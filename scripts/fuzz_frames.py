"""Both ends of a connection with another that says anything: an answer or one clear error each.

Frames are random and mutated. Then messages are right by their types alone: a host asks agents that
answer so, and hosts ask so of an agent without a device.

    python scripts/fuzz_frames.py --count 100000
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from support.frame_fuzz import fuzz
from support.hostile_agent import fuzz_host
from support.hostile_host import fuzz_agent
from support.message_seeds import REPLIES, REQUESTS

from codl.targets.messages import AnyReply, AnyRequest


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=100_000, help="frames; a tenth as many ends")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    for name, incoming, seeds in (
        ("requests", AnyRequest, REQUESTS),
        ("replies", AnyReply, REPLIES),
    ):
        read, refused = fuzz(args.count // 2, args.seed, incoming, seeds)
        print(f"{name}: {read} frames gave a message, {refused} an error, none anything else")
    answered, refused = fuzz_host(args.count // 10, args.seed)
    print(f"host: {answered} agents gave an answer, {refused} an error, none anything else")
    found = fuzz_agent(args.count // 10, args.seed)
    print(f"agent: {', '.join(f'{kind} {count}' for kind, count in found.most_common())}")


if __name__ == "__main__":
    main()
