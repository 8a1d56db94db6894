"""`python -m tools.sweep ops`: run every operator of torch's operator tests in every variant,
compiled and eagerly.

Rows are kept line by line in `--results`; what stands there is not run again. Differences that a
maintainer has accepted stand in `accepted.toml`, each with its reason.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from tools.sweep.ops.accepted import accept
from tools.sweep.ops.drive import Settings, Unit, drive
from tools.sweep.ops.sample import SAMPLE, SAMPLE_VARIANTS, VARIANTS
from tools.sweep.ops.table import line, table

Rows = dict[tuple[str, str, str], dict[str, Any]]


def main(arguments: list[str]) -> int:
    """Run what is missing, print the table; exit with 1 if a row differs and is not accepted."""
    options = _parse(arguments)
    rows = _read(options.results)
    units = _units(options)
    pending = [unit for unit in units if (*unit, "") not in rows]

    def take(row: dict[str, Any]) -> None:
        rows[row["op"], row["variant"], row["case"]] = row
        if options.results is not None:
            with options.results.open("a") as file:
                file.write(json.dumps(row) + "\n")
        if row["status"] in ("differs", "crash") and accept(row) is None:
            print(line(row), flush=True)

    settings = Settings(
        device=options.device,
        backend=options.backend,
        samples=options.samples,
        seed=options.seed,
        jobs=options.jobs,
        limit=options.limit,
        seconds=options.seconds,
    )
    drive(pending, set(rows), settings, take)
    wanted = set(units)
    chosen = [row for key, row in rows.items() if key[:2] in wanted and key[2] != ""]
    missing = sum((*unit, "") not in rows for unit in units)
    text, differ = table(chosen, missing)
    print(text)
    if options.table is not None:
        options.table.write_text(text + "\n")
    return int(differ > 0)


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.sweep ops", description=__doc__)
    parser.add_argument("--ops", nargs="+", help="names of op_db (mul, nn.functional.gelu)")
    parser.add_argument("--variants", nargs="+", help="static, dynamic, views, ... (default: all)")
    parser.add_argument("--sample", action="store_true", help="the fixed sample that CI runs")
    parser.add_argument("--results", type=Path, help="a JSON-lines file to go on with and add to")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--backend", default="inductor", help="aot_eager: without kernels, faster")
    parser.add_argument("--samples", type=int, default=2, help="per operator and variant; 0: all")
    parser.add_argument("--seed", type=int, default=0, help="other values; with other --results")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds that a case may take")
    parser.add_argument("--seconds", type=float, help="stop after so long; go on with --results")
    parser.add_argument("--table", type=Path, help="write the table here, as Markdown")
    return parser.parse_args(arguments)


def _read(path: Path | None) -> Rows:
    rows: Rows = {}
    if path is not None and path.exists():
        for text in path.read_text().splitlines():
            row = json.loads(text)
            rows[row["op"], row["variant"], row["case"]] = row
    return rows


def _units(options: argparse.Namespace) -> list[Unit]:
    """What to run. Names that op_db has not are rows that fail; only a sweep over all of it reads
    it here.
    """
    variants = options.variants or (SAMPLE_VARIANTS if options.sample else VARIANTS)
    unknown = sorted(set(variants) - set(VARIANTS))
    if unknown:
        raise SystemExit(f"no such variant: {', '.join(unknown)}; known: {', '.join(VARIANTS)}")
    names = options.ops or (SAMPLE if options.sample else _all_names())
    return [(name, variant) for name in names for variant in variants]


def _all_names() -> list[str]:
    from torch.testing._internal.common_methods_invocations import op_db

    return [op.full_name for op in op_db]
