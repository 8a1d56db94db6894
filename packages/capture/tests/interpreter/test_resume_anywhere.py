"""Wherever a frame is suspended, it goes on as if it had not been: the other tests' programs,
broken after every few instructions.
"""

from __future__ import annotations

import capture_harness
import pytest
from test_language import *  # noqa: F403
from test_side_effects import *  # noqa: F403
from test_unusual import *  # noqa: F403


@pytest.fixture(autouse=True, params=[23, 70])
def steps(request, monkeypatch):
    monkeypatch.setattr(capture_harness, "STEPS", request.param)
