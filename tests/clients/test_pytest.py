"""pytest reports a test that fails inside a compiled frame, with the values of its variables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

FAILING = """
import flambeau, pytest, torch

def make(k):
    def fn(x):
        y = x + k
        torch._dynamo.graph_break()
        if k:
            raise ValueError("k is set")
        return y
    return fn

def test_error_behind_a_break():
    flambeau.compile(make(3))(torch.ones(2))

@flambeau.compile
def asserts(x):
    assert x.sum() > 100
    return x

def test_assertion():
    asserts(torch.ones(2))

def test_error_of_an_operator():
    flambeau.compile(lambda x, i: x[i])(torch.ones(2), torch.tensor([5]))
"""


@pytest.mark.parametrize("style", ["long", "native"])
def test_failures_are_reported(style: str, tmp_path: Path) -> None:
    import subprocess
    import sys

    (tmp_path / "test_failing.py").write_text(FAILING)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            f"--tb={style}",
            "--showlocals",
            "-p",
            "no:cacheprovider",
            "test_failing.py",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "3 failed" in done.stdout
    assert "ValueError: k is set" in done.stdout
    assert "assert" in done.stdout and "IndexError" in done.stdout
    if style == "long":
        assert 'raise ValueError("k is set")' in done.stdout
