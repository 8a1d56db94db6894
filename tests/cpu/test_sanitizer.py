"""Kernels under the address sanitizer: what is right runs, and a planted access out of bounds ends
the process.
"""

from __future__ import annotations

import pytest
import torch

import flambeau
from flambeau_runtime.build import sanitizer
from flambeau_runtime.environment_errors import SanitizerNotLoaded
from tools.fuzz.sanitized import SYMPTOM, run

needs_sanitizer = pytest.mark.skipif(
    sanitizer.preload("g++") is None, reason="this compiler has no address sanitizer"
)

PROGRAM = """
import torch
import flambeau
from flambeau_inductor.codegen.cpp.printer import CppPrinter

load = CppPrinter.load
if {planted}:
    CppPrinter.load = lambda self, buffer, index, *rest: load(self, buffer, index - 1, *rest)
x = torch.randn(3, 50)
y = flambeau.compile(lambda x: (x.exp() * 2, x.sum(0)), fullgraph=True)(x)
assert torch.allclose(y[0], x.exp() * 2) and torch.allclose(y[1], x.sum(0))
print("right")
"""


@needs_sanitizer
def test_an_access_out_of_bounds_ends_the_process() -> None:
    done = run("-c", PROGRAM.format(planted=False))
    assert done.returncode == 0 and done.stdout == "right\n", done.stderr
    done = run("-c", PROGRAM.format(planted=True))
    assert done.returncode != 0 and not done.stdout
    found = SYMPTOM.search(done.stderr)
    assert found and "heap-buffer-overflow" in found[0]


def test_a_process_without_the_sanitizer_is_told_how_to_start() -> None:
    if sanitizer.is_loaded():
        pytest.skip("this process began with it")
    with pytest.raises(SanitizerNotLoaded, match="LD_PRELOAD"):
        flambeau.compile(lambda x: x + 1, options={"sanitize": True})(torch.ones(3))
