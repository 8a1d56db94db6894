"""Time loop kernels with other tiles and warps than the inductor chooses.

python -m tools.tilings measure --out rows.jsonl [--case softmax ...] [--jobs 8]    needs a GPU
python -m tools.tilings report rows.jsonl      the chosen tiling of each kernel beside the fastest

The kernels are those of `tools.bench kernels`, `scattered_cases` and `row_cases`. Every tiling of a
kernel is compiled, then timed on the device with a cold L2 cache. Only one process times at a
moment.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tools.checks.command import ROOT
from tools.tilings.measure import CASES


def measure(arguments: argparse.Namespace) -> None:
    """Time the cases in `jobs` processes, and append a row for each kernel and tiling."""
    cases = arguments.case or list(CASES)
    parts = [cases[start :: arguments.jobs] for start in range(arguments.jobs)]

    def run(part: list[str]) -> None:
        command = [sys.executable, "-m", "tools.tilings.measure", arguments.lock, *part]
        with Path(arguments.out).open("a") as rows:  # rows of finished kernels outlast a time-out
            done = subprocess.run(
                command, cwd=ROOT, stdout=rows, stderr=subprocess.PIPE, text=True, check=False
            )
        if done.stderr:
            print(done.stderr[-600:], file=sys.stderr)

    with ThreadPoolExecutor(arguments.jobs) as pool:
        list(pool.map(run, filter(None, parts)))


def report(arguments: argparse.Namespace) -> None:
    """For each kernel, the time of the tiling that was chosen, and the three fastest ones."""
    kernels: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for line in Path(arguments.out).read_text().splitlines():
        row = json.loads(line)
        kernels[row["case"], row["kernel"]].append(row)
    table = Table(title="tilings")
    for heading in ("case", "kernel", "points x row", "chosen", "us", "fastest", "loss"):
        table.add_column(heading)
    for (case, kernel), rows in kernels.items():
        chosen = next(row for row in rows if row["chosen"])
        fastest = sorted(rows, key=lambda row: row["us"])[:3]
        table.add_row(
            case,
            kernel[:40],
            f"{chosen['points']} x {chosen['row']}",
            _text(chosen),
            f"{chosen['us']:.1f}",
            "; ".join(f"{_text(row)} {row['us']:.1f}" for row in fastest),
            f"{chosen['us'] / fastest[0]['us']:.2f}",
        )
    Console(width=180).print(table)


def _text(row: dict[str, Any]) -> str:
    tiling = row["tiling"]
    kind = "persistent" if tiling["persistent"] else " ".join(tiling["lanes"])
    kind += " dealt" if tiling["dealt"] else ""
    return f"{tiling['xblock']}x{tiling['rblock']}/{tiling['warps']} {kind}".strip()


def main() -> None:
    """Measure or report."""
    parser = argparse.ArgumentParser(prog="tilings", description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("measure")
    one.add_argument("--out", required=True)
    one.add_argument("--case", action="append", choices=CASES)
    one.add_argument("--jobs", type=int, default=8)
    one.add_argument("--lock", default="tilings.lock", help="the file that timing processes lock")
    one.set_defaults(run=measure)
    two = commands.add_parser("report")
    two.add_argument("out")
    two.set_defaults(run=report)
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
