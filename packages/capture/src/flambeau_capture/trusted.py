"""Modules whose definitions capture takes as they are, without guards."""

from __future__ import annotations

import sys
from typing import Any

TRUSTED_ROOTS = frozenset(sys.stdlib_module_names) | {
    "torch",
    "builtins",
    "flambeau",
    "flambeau_capture",
    "flambeau_prims",
    "numpy",
}
"""Top-level modules whose functions and classes do not change: no guards on their contents."""


def is_trusted(module_name: Any) -> bool:
    """Whether a module's own definitions need no guards."""
    return isinstance(module_name, str) and module_name.partition(".")[0] in TRUSTED_ROOTS
