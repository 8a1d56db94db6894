"""Generated Triton, run in Triton's interpreter on a CPU and compared with the reference evaluator;
no GPU needed.

The interpreter is chosen when Triton is imported, so the cases run in a process of their own: this
file, run as a program.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import pytest

ACCESSES = """
import triton
import triton.language as tl

@triton.jit
def copy(b0, b1, FIRST: tl.constexpr, LANES: tl.constexpr, STORED: tl.constexpr):
    lane = FIRST + tl.arange(0, 64)
    tl.store(b1 + lane, tl.load(b0 + lane, lane < LANES), lane < STORED)

@triton.jit
def count(b0, b1, FIRST: tl.constexpr, LANES: tl.constexpr, STORED: tl.constexpr):
    lane = FIRST + tl.arange(0, 64)
    tl.atomic_add(b1 + lane, 1.0, (lane < STORED) & (lane >= 0))
"""
"""Kernels on two buffers of 50 floats, which end 8 bytes behind a vector of 16 bytes."""

if __name__ == "__main__":
    import interpreter  # sets TRITON_INTERPRET before Triton is imported
    import torch
    from cases import all_cases, difference, tiling_of

    from flambeau_inductor.codegen.triton import source_writer

    report: dict[str, str | None] = {}
    # The interpreter's own conversions of 8-bit floats do not round to even.
    source_writer.converts_float8 = lambda: False
    for case in all_cases():
        buffers = [buffer.clone() for buffer in case.buffers]
        try:
            interpreter.run_kernel(case.kernel, tiling_of(case), buffers, case.ints)
            report[case.name] = difference(case, buffers)
        except Exception as error:
            report[case.name] = f"{type(error).__name__}: {error}"
    for name, *bounds in (
        ("copy", 0, 50, 50), ("copy", 0, 52, 50), ("copy", 0, 53, 50), ("copy", 0, 50, 51),
        ("copy", -1, 50, 0), ("count", 0, 50, 50), ("count", 0, 50, 51), ("count", -1, 50, 50),
    ):  # fmt: skip
        meta = {
            "debug": False,
            "constants": dict(zip(("FIRST", "LANES", "STORED"), bounds, strict=True)),
        }
        try:
            interpreter.run(ACCESSES, name, [torch.zeros(50), torch.zeros(50)], (), (1,), meta)
        except Exception as error:
            report[f"{name}{bounds}"] = str(error)
    print(json.dumps(report))


@pytest.fixture(scope="module")
def report() -> dict[str, str | None]:
    """What each case differs in."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_every_case_equals_the_reference(report: dict[str, str | None]) -> None:
    assert len(report) > 150
    wrong = {name: difference for name, difference in report.items() if difference is not None}
    wrong = {name: text for name, text in wrong.items() if not name.startswith(("copy[", "count["))}
    assert not wrong, "\n".join(f"{name}: {text}" for name, text in wrong.items())


def test_accesses_outside_of_buffers_are_refused(report: dict[str, str | None]) -> None:
    """But a load may have all of a vector that holds an element."""
    refused = {name: text for name, text in report.items() if name.startswith(("copy[", "count["))}
    expected = {
        "copy[0, 53, 50]": "load of 1 lanes, one 8 bytes behind the end",
        "copy[0, 50, 51]": "store of 1 lanes, one 0 bytes behind the end",
        "copy[-1, 50, 0]": "load of 1 lanes",
        "count[0, 50, 51]": "atomic update of 1 lanes, one 0 bytes behind the end",
    }
    assert set(refused) == set(expected)
    for name, text in expected.items():
        assert "OutsideOfBuffers" in refused[name] and text in refused[name], refused[name]
