"""`python -m tools.sweep {models|ops} ...`: each has options of its own (`--help`)."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the sweep that the first argument names; returns its exit status, or 2 for an unknown
    name.
    """
    name, arguments = (sys.argv[1:2] or [""])[0], sys.argv[2:]
    if name == "models":
        from tools.sweep.models.command import main as models

        return models(arguments)
    if name == "ops":
        from tools.sweep.ops.command import main as ops

        return ops(arguments)
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
