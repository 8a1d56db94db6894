"""Lets tests import the helpers beside them (`models`, `rules.calls`)."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
