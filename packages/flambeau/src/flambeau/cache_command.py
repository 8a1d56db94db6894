"""`python -m flambeau cache`: what the cache directory holds, whether it is sound, and trimming it.

python -m flambeau cache                                      entries, bytes and ages by kind
python -m flambeau cache verify                               each entry that would not be read
python -m flambeau cache trim --max-size 2G --max-age 30d     the oldest entries go first
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from typing import TYPE_CHECKING

from flambeau.artifacts import cache_dir
from flambeau.environment import bytes_of, read_environment
from flambeau_runtime.cache_contents import entries_of, problem_of, trim

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

_AGES = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.add_argument("action", nargs="?", default="list", choices=("list", "verify", "trim"))
    parser.add_argument("--dir", help="the cache directory (default: FLAMBEAU_CACHE_DIR's)")
    parser.add_argument("--max-size", type=bytes_of, help="bytes that trim leaves: 500M, 2G")
    parser.add_argument("--max-age", type=seconds_of, help="age that trim leaves: 12h, 30d")


def seconds_of(text: str) -> float:
    """The seconds of "30d"; ValueError for what is no age."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text.strip().lower())
    if match is None:
        raise ValueError(f"{text!r} is no age")
    return float(match[1]) * _AGES[match[2]]


def run(arguments: argparse.Namespace) -> int:
    """Run the command; its exit status: 1 if verify finds something."""
    from pathlib import Path

    root = Path(arguments.dir) if arguments.dir else cache_dir(read_environment())
    if arguments.action == "trim":
        if arguments.max_size is None and arguments.max_age is None:
            raise SystemExit("trim needs --max-size or --max-age")
        count, size = trim(root, largest=arguments.max_size, oldest=arguments.max_age)
        print(f"removed {count} files, {_bytes_text(size)}, from {root}")
        return 0
    if arguments.action == "verify":
        return _verify(root)
    _list(root)
    return 0


def _list(root: Path) -> None:
    kinds = defaultdict(list)
    for entry in entries_of(root):
        kinds[entry.kind].append(entry)
    now = time.time()
    rows = [
        [
            kind,
            str(len(entries)),
            _bytes_text(sum(entry.size for entry in entries)),
            _age_text(now - entries[0].stored),
            _age_text(now - entries[-1].stored),
        ]
        for kind, entries in sorted(kinds.items())
    ]
    _print_table(str(root), ["kind", "entries", "size", "oldest", "newest"], rows)


def _verify(root: Path) -> int:
    entries = entries_of(root)
    problems = [(entry, problem_of(root, entry)) for entry in entries]
    rows = [[entry.kind, entry.key[:16], text] for entry, text in problems if text]
    if rows:
        _print_table(str(root), ["kind", "key", "problem"], rows)
    print(f"{len(entries)} entries, {len(rows)} of them damaged; such an entry is never used")
    return 1 if rows else 0


def _print_table(title: str, headings: list[str], rows: list[list[str]]) -> None:
    """By rich, if it is installed."""
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        for row in (headings, *rows):
            print("  ".join(cell.ljust(12) for cell in row).rstrip())
        return
    table = Table(title=title)
    for heading in headings:
        table.add_column(heading)
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def _bytes_text(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError


def _age_text(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
