"""Time one first call in a process of its own: `python -m tools.bench.cold CASE STACK DEVICE
[--dynamic] [--mode=MODE]`, JSON on stdout.

The clock starts after `import torch` and the model's construction and runs through the compiler's
own imports.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch

from tools.bench.cases import CASES
from tools.bench.gpu_cases import GPU_CASES


def first_call(
    case_name: str, stack: str, device: str, dynamic: bool, mode: str | None
) -> dict[str, float]:
    """Seconds of the first call, and of the second."""
    torch.manual_seed(0)
    cases = CASES | GPU_CASES if device == "cuda" else CASES
    case = cases[case_name](device)
    options: dict[str, Any] = {"mode": mode} | ({"dynamic": True} if dynamic else {})
    with torch.set_grad_enabled(case.training):
        started = time.perf_counter()
        if stack == "flambeau":
            import flambeau

            compiled = flambeau.compile(case.program, **options)
        else:
            compiled = torch.compile(case.program, **options)
        case.call(compiled)
        if device == "cuda":
            torch.cuda.synchronize()
        first = time.perf_counter() - started
        started = time.perf_counter()
        case.call(compiled)
        return {"first": first, "second": time.perf_counter() - started}


if __name__ == "__main__":
    modes = [word.removeprefix("--mode=") for word in sys.argv if word.startswith("--mode=")]
    dynamic = "--dynamic" in sys.argv
    print(json.dumps(first_call(*sys.argv[1:4], dynamic=dynamic, mode=modes[0] if modes else None)))
