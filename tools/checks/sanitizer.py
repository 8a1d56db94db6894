"""Random programs with kernels built under the address sanitizer: an access out of bounds fails
here, whatever value it finds.
"""

from __future__ import annotations

from tools.checks.command import run_python

PROGRAMS = 40


def check() -> None:
    """Run a sample of the tensor fuzzer's programs, of given and of symbolic sizes."""
    run_python("-m", "tools.fuzz", "tensors", "--sanitize", "--programs", str(PROGRAMS))
    run_python(
        "-m",
        "tools.fuzz",
        "tensors",
        "--sanitize",
        "--dynamic",
        "--seed",
        "1000",
        "--programs",
        str(PROGRAMS // 4),
    )
