"""`python -m flambeau backends | environment | version | cache | minify`: what this installation
has, which variables it reads, what its cache holds, and a failing graph cut to the smallest one
that fails.
"""

from __future__ import annotations

import argparse
import sys

from flambeau import cache_command, environment
from flambeau._version import __version__
from flambeau.backend_registry import list_backends
from flambeau.minify import command


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="flambeau", description=__doc__)
    commands = parser.add_subparsers(dest="what", required=True)
    for name in ("backends", "environment", "version"):
        commands.add_parser(name)
    for name, module in (("cache", cache_command), ("minify", command)):
        module.add_arguments(
            commands.add_parser(
                name,
                description=module.__doc__,
                formatter_class=argparse.RawDescriptionHelpFormatter,
            )
        )
    arguments = parser.parse_args()
    if arguments.what == "backends":
        print("\n".join(list_backends()))
    elif arguments.what == "environment":
        print(environment.__doc__)
        print(environment.read_environment())
    elif arguments.what == "version":
        print(__version__)
    elif arguments.what == "cache":
        sys.exit(cache_command.run(arguments))
    else:
        sys.exit(command.minify(arguments))


if __name__ == "__main__":
    main()
