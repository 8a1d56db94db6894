"""`python -m flambeau backends | environment`: what this installation has, and which variables it
reads.
"""

from __future__ import annotations

import argparse

from flambeau import environment
from flambeau._version import __version__
from flambeau.backend_registry import list_backends


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="flambeau", description=__doc__)
    parser.add_argument("what", choices=("backends", "environment", "version"))
    what = parser.parse_args().what
    if what == "backends":
        print("\n".join(list_backends()))
    elif what == "environment":
        print(environment.__doc__)
        print(environment.read_environment())
    else:
        print(__version__)


if __name__ == "__main__":
    main()
