"""Run the checks, in the order in which a failure is cheapest to learn.

python -m tools.checks              everything
python -m tools.checks lint types   only these stages
python -m tools.checks --list
"""

from __future__ import annotations

import argparse
import sys
import time

from rich.console import Console

from tools.checks import (
    alone,
    end_to_end,
    isa_levels,
    public_surface,
    reasons_page,
    sanitizer,
    size_ratchet,
    sources,
    wheels,
)
from tools.checks.command import CheckFailed

STAGES = {
    "lint": sources.lint,
    "types": sources.types,
    "layers": sources.layers,
    "banned": sources.banned_imports,
    "size": size_ratchet.check,
    "surface": public_surface.check,
    "reasons": reasons_page.check,
    "changelog": sources.changelog,
    "alone": alone.check,
    "end-to-end": end_to_end.check,
    "isa": isa_levels.check,
    "sanitize": sanitizer.check,
    "wheels": wheels.check,
}


def main() -> int:
    """Run the named stages (all by default); returns the number of failures as exit status."""
    parser = argparse.ArgumentParser(prog="checks", description=__doc__.partition("\n")[0])
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=", ".join(STAGES))
    parser.add_argument("--list", action="store_true", help="name the stages and stop")
    arguments = parser.parse_args()
    console = Console(highlight=False)
    if arguments.list:
        console.print("\n".join(STAGES))
        return 0
    unknown = sorted(set(arguments.stages) - STAGES.keys())
    if unknown:
        parser.error(f"unknown stage {', '.join(unknown)}; known: {', '.join(STAGES)}")
    failed: list[str] = []
    chosen = arguments.stages or list(STAGES)
    for name in chosen:
        console.rule(f"[bold]{name}")
        started = time.perf_counter()
        try:
            STAGES[name]()
        except CheckFailed as failure:
            console.print(f"[red]{name} failed[/]: {failure}")
            failed.append(name)
        console.print(f"{name}: {time.perf_counter() - started:.1f} s")
    console.rule()
    for name in chosen:
        console.print(f"{'[red]failed' if name in failed else '[green]passed'}[/] {name}")
    print(f"{len(chosen) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
