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

if __name__ == "__main__":
    import interpreter  # sets TRITON_INTERPRET before Triton is imported
    from cases import all_cases, difference, tiling_of

    from flambeau_inductor.codegen.triton import source_writer

    report: dict[str, str | None] = {}
    # The interpreter's own conversions of 8-bit floats do not round to even.
    source_writer.converts_float8 = lambda: False
    for case in all_cases(symbolic_rows=False):
        buffers = [buffer.clone() for buffer in case.buffers]
        try:
            interpreter.run_kernel(case.kernel, tiling_of(case), buffers, case.ints)
            report[case.name] = difference(case, buffers)
        except Exception as error:
            report[case.name] = f"{type(error).__name__}: {error}"
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
    assert not wrong, "\n".join(f"{name}: {text}" for name, text in wrong.items())
