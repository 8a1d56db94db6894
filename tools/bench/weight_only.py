"""Linear layers by quantised weights on a CPU, few rows: ours beside eager and torch.compile.

int8: `linear(x, q * scale)`; int4: two numbers a byte, a scale and a zero point for 32 inputs.
"""

from __future__ import annotations

import contextlib
import io
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional as F

from tools.bench.cpu_gemm import fastest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
GROUP = 32

WEIGHT_ONLY_CASES = {
    f"{rows}x{size}x{size}_{form}_{name}": (rows, size, form, dtype)
    for form in ("int8", "int4")
    for name, dtype in DTYPES.items()
    for rows, size in ((1, 2048), (1, 4096), (4, 4096), (16, 2048))
}
"""Rows x outputs x inputs, the weight's form, the dtype of activations."""

CANDIDATES = ("eager", "flambeau", "flambeau-ma", "torch", "torch-ma")


class Quantised(nn.Module):
    """One linear layer."""

    def __init__(self, size: int, form: str, dtype: torch.dtype) -> None:
        super().__init__()
        self.form = form
        groups = size // GROUP
        stored = size if form == "int8" else size // 2
        kind, low, high = (torch.int8, -127, 128) if form == "int8" else (torch.uint8, 0, 256)
        self.register_buffer("q", torch.randint(low, high, (size, stored), dtype=kind))
        count = 1 if form == "int8" else groups
        self.register_buffer("scale", (torch.rand(size, count) / size).to(dtype))
        self.register_buffer("zero", torch.randint(0, 16, (size, groups, 1)).to(dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = self.q
        if self.form == "int8":
            return F.linear(x, q.to(x.dtype) * self.scale)
        digits = torch.stack((q & 15, q >> 4), -1).reshape(len(q), -1, GROUP)
        weight = (digits.to(x.dtype) - self.zero) * self.scale[:, :, None]
        return F.linear(x, weight.reshape(len(q), -1))


def compiled(candidate: str, model: nn.Module) -> Callable[[torch.Tensor], Any]:
    """The layer as a candidate runs it."""
    measures = candidate.endswith("-ma")
    if candidate == "eager":
        return model
    if candidate.startswith("torch"):
        torch._dynamo.reset()
        return torch.compile(model, mode="max-autotune" if measures else None)
    import flambeau

    return flambeau.compile(model, options={"max_autotune": measures})


def weight_only_table(
    names: Sequence[str], candidates: Sequence[str], rounds: int, passive: bool
) -> tuple[list[str], list[list[str]]]:
    """Headings and rows: us a call, and ours with max-autotune to eager and to torch's best.
    `passive`: CPU time, for one thread.
    """
    clock = time.process_time if passive else time.perf_counter
    rows, ratios = [], []
    for name in names:
        count, size, form, dtype = WEIGHT_ONLY_CASES[name]
        torch.manual_seed(0)
        model, x = Quantised(size, form, dtype), torch.randn(count, size).to(dtype)
        calls: dict[str, Any] = {}
        with torch.no_grad(), contextlib.redirect_stderr(io.StringIO()):
            expected = model(x).float()
            for candidate in candidates:
                calls[candidate] = call = compiled(candidate, model)
                error = float((call(x).float() - expected).norm() / expected.norm())
                if not error <= 2e-2:
                    raise RuntimeError(f"{name}: {candidate} differs from eager by {error:.0e}")
            seconds = fastest(calls, x, rounds, clock)
        ours = seconds.get("flambeau-ma")
        theirs = [seconds[each] for each in ("torch", "torch-ma") if each in seconds]
        pair = [
            ours / seconds["eager"] if ours and "eager" in seconds else None,
            ours / min(theirs) if ours and theirs else None,
        ]
        ratios.append(pair)
        row = [name, *(f"{seconds[each] * 1e6:.1f}" for each in candidates), *map(_ratio, pair)]
        print(*row, sep="  ", file=sys.stderr, flush=True)
        rows.append(row)
    means = []
    for column in zip(*ratios, strict=True):
        known = [each for each in column if each is not None]
        means.append(_ratio(statistics.geometric_mean(known) if known else None))
    rows.append(["geometric mean", *[""] * len(candidates), *means])
    return ["case", *(f"{each} us" for each in candidates), "to eager", "to torch"], rows


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
