"""`python -m tools.fuzz`: compare random programs, print those that differ, shrunk; exit status 1 if there are any."""

from __future__ import annotations

import argparse
import os
import sys


def main() -> int:
    """Run the programs of seeds S .. S + N - 1."""
    parser = argparse.ArgumentParser(prog="python -m tools.fuzz", description=__doc__)
    parser.add_argument("--programs", type=int, default=200, help="how many programs")
    parser.add_argument("--seed", type=int, default=0, help="the first one's seed")
    parser.add_argument("--dynamic", action="store_true", help="compile for symbolic sizes")
    parser.add_argument("--backend", default="inductor", help="the backend to compile with")
    options = parser.parse_args()
    os.environ.setdefault("FLAMBEAU_CHECK", "1")
    from tools.fuzz.check import check

    failures = 0
    for seed in range(options.seed, options.seed + options.programs):
        text = check(seed, dynamic=options.dynamic, backend=options.backend)
        if text is not None:
            failures += 1
            print(text, flush=True)
    print(f"{options.programs} programs, {failures} differ")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
