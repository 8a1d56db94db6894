"""Files of at most 800 lines, functions of at most 100; the exceptions stand in one list that only
shrinks.

    python -m tools.checks size

An entry of `size_ratchet.toml` is the size that a too large file or function has; it fails when it
grows, and also when it has shrunk below the entry (lower the entry, or drop it).
"""

from __future__ import annotations

import ast
import tomllib
from typing import TYPE_CHECKING

from tools.checks.command import ROOT, CheckFailed

if TYPE_CHECKING:
    from collections.abc import Iterator

FILE_LINES = 800
FUNCTION_LINES = 100
EXCEPTIONS = ROOT / "tools" / "checks" / "size_ratchet.toml"


def check() -> None:
    """Compare every file and function of the packages, tools and examples with the limits and the
    exceptions.
    """
    allowed: dict[str, int] = tomllib.loads(EXCEPTIONS.read_text())["lines"]
    found = dict(oversized())
    problems = []
    for place, lines in found.items():
        limit = allowed.get(place)
        if limit is None:
            problems.append(f"{place} has {lines} lines: split it")
        elif lines > limit:
            problems.append(f"{place} grew from {limit} to {lines} lines: split it")
        elif lines < limit:
            problems.append(f"{place} shrank from {limit} to {lines} lines: lower its entry")
    problems += [
        f"{place} is within the limits now: drop its entry"
        for place in allowed.keys() - found.keys()
    ]
    if problems:
        raise CheckFailed("\n  ".join(["size ratchet:", *sorted(problems)]))


def oversized() -> Iterator[tuple[str, int]]:
    """("path" or "path:function", lines) of everything over the limits."""
    for folder in ("packages", "tools", "examples"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix not in (".py", ".c", ".h") or "build" in path.parts:
                continue
            name = str(path.relative_to(ROOT))
            text = path.read_text()
            lines = text.count("\n")
            if lines > FILE_LINES:
                yield name, lines
            if path.suffix == ".py":
                for node in ast.walk(ast.parse(text, name)):
                    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                        length = (node.end_lineno or node.lineno) - node.lineno + 1
                        if length > FUNCTION_LINES:
                            yield f"{name}:{node.name}", length
