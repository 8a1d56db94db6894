"""NumPy's room is opened by the first object of NumPy, and the package works without NumPy."""

from __future__ import annotations

import subprocess
import sys

import pytest

from flambeau_capture.interpreter import foreign_types
from flambeau_capture.numpy.library import NumPy

WITHOUT_NUMPY = """
import sys
sys.modules["numpy"] = None  # its import fails
import torch, flambeau_capture
fast = flambeau_capture.compile(lambda x: x.sin() + 1, backend=lambda gm, inputs: gm.forward)
x = torch.ones(2)
assert torch.equal(fast(x), x.sin() + 1)
assert "flambeau_capture.numpy.functions" not in sys.modules
"""


def test_the_package_works_without_numpy() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT_NUMPY], check=True, timeout=300)


def test_a_library_has_one_room() -> None:
    with pytest.raises(ValueError, match="numpy has two rooms"):
        foreign_types.register("numpy", NumPy())
