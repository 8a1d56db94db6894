"""The documentation site: pictures are current, notebooks run, links and references resolve.

The site is built by mkdocs in the environment `docs`, strictly; notebooks run in this interpreter.
"""

from __future__ import annotations

import os
import sys

from tools.checks import pictures
from tools.checks.command import run


def check() -> None:
    """Compare the pictures and build the site."""
    pictures.check()
    os.environ["FLAMBEAU_PYTHON"] = sys.executable
    run("hatch", "run", "docs:build", clean=True)
