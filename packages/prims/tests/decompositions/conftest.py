"""Lets the tests of this folder import their helper modules (one_op.py, cases_*.py)."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
