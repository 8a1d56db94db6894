"""`tools.bench gemm`: what it reports, and that no case can stop the others. No GPU needed."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tools.bench import gemm
from tools.bench.gemm_cases import GEMM_CASES, OTHER_CASES

WORKER = """
import json, sys, time
for name in sys.argv[3:]:
    if name == "crashes":
        sys.exit(3)
    if name == "hangs":
        time.sleep(100)
    print(json.dumps({"case": name, "seconds": {"eager": 1.0}, "errors": {}}), flush=True)
"""


def test_thirty_sizes_and_others() -> None:
    assert len(GEMM_CASES) == 30 and not GEMM_CASES.keys() & OTHER_CASES.keys()
    for name in ("16x1024x4096", "64x16x1024x1024", "int8_1x4096x4096"):
        case = (GEMM_CASES | OTHER_CASES)[name]
        arguments = case.inputs("cpu")
        result = case.function(*arguments)
        rows, columns = arguments[0].shape[-2], arguments[1].shape[-2]
        assert result.shape[-2:] == (rows, columns) and result.dtype == arguments[0].dtype


def test_ratio_is_to_the_faster_of_eager_and_torch() -> None:
    assert gemm.ratio({"eager": 2.0, "torch-ma": 4.0, "torch": 1.0, "flambeau-ma": 1.0}) == 0.5
    assert gemm.ratio({"eager": 4.0, "torch-ma": 2.0, "flambeau-ma": 3.0}) == 1.5
    assert gemm.ratio({"eager": 4.0, "flambeau-ma": 3.0}) == 0.75
    assert gemm.ratio({"eager": 4.0}) is None


def test_choice() -> None:
    table = "AUTOTUNE mm(1x2, 2x3)\n  64x64x64 warps=4 0.1 ms 100.0%\n  aten.mm.out 0.2 ms 50.0%\n"
    assert gemm.choice(table * 2) == "64x64x64 warps=4; 64x64x64 warps=4"
    assert gemm.choice("") == ""


def test_cases_that_crash_or_hang_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    started: list[Any] = []

    class Popen(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, command: list[str], **kwargs: Any) -> None:
            started.append(command)
            super().__init__([sys.executable, str(script), *command[3:]], **kwargs)

    monkeypatch.setattr(gemm.subprocess, "Popen", Popen)
    monkeypatch.setattr(gemm, "CASE_SECONDS", 5.0)
    names = ["a", "crashes", "b", "hangs", "c"]
    deadline = time.monotonic() + 60
    results = {each["case"]: each for each in gemm.run_cases(names, ["eager"], 1, deadline)}
    assert list(results) == names and len(started) == 3
    for name in names:
        assert bool(results[name]["errors"]) == (name in ("crashes", "hangs"))
