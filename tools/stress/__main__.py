"""`python -m tools.stress kills|threads`: what must hold while processes die and threads meet; exit
status 1 if a result is wrong, a process crashes, the cache is damaged or a thread stands still.

kills: processes compile into one cache directory; one at a time is killed (SIGKILL) at a random
moment and replaced. threads: threads compile programs and call shared ones.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from tools.stress.kills import run_kills
from tools.stress.threads import run_threads


def main() -> int:
    """Run one of the two; print what happened."""
    parser = argparse.ArgumentParser(prog="python -m tools.stress", description=__doc__)
    parser.add_argument("what", choices=("kills", "threads"))
    parser.add_argument("--seed", type=int, default=0, help="of programs and moments")
    parser.add_argument("--programs", type=int, default=24, help="how many differ")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--threads", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=600.0, help="threads: for how long")
    parser.add_argument("--steps", type=int, help="threads: at most so many steps a thread")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        if options.what == "kills":
            outcome = run_kills(
                Path(folder), options.kills, options.processes, options.programs, options.seed
            )
        else:
            outcome = run_threads(
                Path(folder), options.threads, options.seconds, options.steps, options.programs,
                options.seed,
            )  # fmt: skip
    print(outcome)
    return 0 if outcome.passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
