"""`python -m tools.stdlib`: run the standard library's tests plainly, then compiled, then as one
graph each; print a table.

Results are kept line by line in `--results`; what stands there is not run again. Exit status 1 when
a test that passes plainly does not pass compiled and `accepted.toml` does not say why.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from tools.stdlib.files import available, package_missing
from tools.stdlib.report import Results, accepted, table, unexpected


def main() -> int:
    """Run what is missing, print what failed and the table."""
    parser = argparse.ArgumentParser(prog="python -m tools.stdlib", description=__doc__)
    parser.add_argument("--files", nargs="+", help="test files, e.g. list dict (default: all)")
    parser.add_argument(
        "--only",
        nargs="+",
        default=[""],
        help="how names of tests begin, e.g. dict.DictTest.test_u",
    )
    parser.add_argument(
        "--modes", nargs="+", choices=("default", "graph"), default=["default", "graph"]
    )
    parser.add_argument("--results", type=Path, help="a JSON-lines file to go on with and add to")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--limit", type=float, default=60, help="seconds a test may take")
    parser.add_argument(
        "--summary", action="store_true", help="run nothing: the table of --results"
    )
    options = parser.parse_args()
    missing = package_missing()
    if missing is not None:
        parser.error(missing)
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch

    from tools.stdlib import driver

    torch.set_num_threads(1)
    files = available(tuple(options.files)) if options.files else available()
    results = _read(options.results)
    if not options.summary:
        arguments = {"jobs": options.jobs, "limit": options.limit, "only": tuple(options.only)}
        for key, row in driver.run_all(files, tuple(options.modes), results, **arguments):
            if options.results is not None:
                with options.results.open("a") as file:
                    file.write(json.dumps([*key, row]) + "\n")
            if row["status"] not in ("pass", "skip", "done") and key[1] != "plain":
                print(
                    f"{key[1]} {key[0]}.{key[2]}: {row['status']}: {row['cause'][:300]}", flush=True
                )
    chosen = {key: row for key, row in results.items() if key[0] in files}
    print(table(chosen, accepted()))
    return int(bool(unexpected(chosen, accepted())))


def _read(path: Path | None) -> Results:
    if path is None or not path.exists():
        return {}
    rows = map(json.loads, path.read_text().splitlines())
    return {(file, mode, name): row for file, mode, name, row in rows}


if __name__ == "__main__":
    sys.exit(main())
