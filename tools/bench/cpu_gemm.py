"""Linear layers with a bias and GELU on a CPU, weights frozen: ours with max-autotune beside the
fastest of ATen's and oneDNN's calls, and torch.compile with max-autotune.

An int8 layer is `gelu(int32 product * scale + bias)` in float32. The library's times are those of
eager code and of oneDNN's linear operator, with the weight in oneDNN's order and GELU fused.
"""

from __future__ import annotations

import contextlib
import io
import statistics
import sys
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional as F

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Clock = Callable[[], float]

DTYPES = {
    "f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "int8": torch.int8,
}  # fmt: skip

SHAPES = {
    "f32": (
        (1, 1024, 1024), (1, 4096, 1024), (4, 768, 3072), (16, 1024, 1024), (64, 3072, 768),
        (128, 768, 768), (512, 768, 3072), (1000, 1001, 999), (4096, 1024, 1024),
    ),
    "bf16": (
        (1, 1024, 1024), (1, 4096, 4096), (8, 1024, 4096), (16, 3072, 768), (64, 768, 768),
        (512, 3072, 768), (777, 515, 511), (4096, 1024, 1024),
    ),
    "f16": (
        (1, 1024, 1024), (4, 4096, 1024), (32, 768, 768), (128, 768, 3072), (1024, 1024, 1024),
    ),
    "int8": (
        (1, 1024, 1024), (1, 4096, 4096), (8, 1024, 1024), (32, 3072, 768), (128, 768, 768),
        (512, 768, 3072), (777, 515, 511), (4096, 1024, 1024),
    ),
}  # fmt: skip

CPU_GEMM_CASES = {
    f"{'x'.join(map(str, shape))}_{name}": (shape, DTYPES[name])
    for name, shapes in SHAPES.items()
    for shape in shapes
}
"""Rows x outputs x inputs of a layer."""

BOUND = 1.02
"""No ratio should be above."""

CANDIDATES = ("eager", "library", "flambeau", "flambeau-ma", "torch-ma")

SAMPLE_SECONDS = 3e-4
"""About: a sample is to fit between the time slices that other programs take."""

CASE_SECONDS, FEWEST_ROUNDS = 2.0, 10


class Linear(nn.Module):
    """GELU of a linear layer; of int8 factors with a scale for each output."""

    def __init__(self, outputs: int, inputs: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.quantised = dtype is torch.int8
        own = torch.float32 if self.quantised else dtype
        if self.quantised:
            weight = torch.randint(-127, 128, (outputs, inputs), dtype=dtype)
        else:
            weight = (torch.randn(outputs, inputs) * inputs**-0.5).to(dtype)
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = nn.Parameter(torch.randn(outputs).to(own), requires_grad=False)
        self.scale = nn.Parameter(torch.rand(outputs) / (5000 * inputs**0.5), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.quantised:
            product = torch._int_mm(x, self.weight.t())
            return F.gelu(product.to(torch.float32) * self.scale + self.bias)
        return F.gelu(F.linear(x, self.weight, self.bias))

    def fused(self, rows: int) -> Callable[[torch.Tensor], torch.Tensor]:
        """OneDNN's operator with GELU fused; its weight in the order of its kernels."""
        if not self.quantised:
            packed = torch.ops.mkldnn._reorder_linear_weight(self.weight, rows)
            bias, call = self.bias, torch.ops.mkldnn._linear_pointwise
            return lambda x: call(x, packed, bias, "gelu", [], "none")
        zero = torch.zeros(self.scale.shape[0], dtype=torch.int64)
        shape = [rows, self.weight.shape[1]]
        packed = torch.ops.onednn.qlinear_prepack(self.weight, shape)
        scale, bias, quantised = self.scale, self.bias, torch.ops.onednn.qlinear_pointwise
        rest = packed, scale, zero, bias, 1.0, 0, torch.float32, "gelu", [], "none"
        # OneDNN is slow with int8 on the left: it gets the same numbers, and 128, as uint8.
        return lambda x: quantised(x, 1.0, 128, *rest)


@dataclass
class Timed:
    """The results of one case."""

    seconds: dict[str, float]
    first: dict[str, float]
    table: str
    errors: dict[str, str]

    @property
    def ratio(self) -> float | None:
        """Our time to the library's fastest."""
        theirs = [self.seconds[name] for name in ("eager", "library") if name in self.seconds]
        ours = self.seconds.get("flambeau-ma")
        return ours / min(theirs) if theirs and ours else None


def compiled(candidate: str, model: Linear, rows: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """The layer as a candidate runs it."""
    if candidate == "eager":
        return model
    if candidate == "library":
        return model.fused(rows)
    if candidate.startswith("torch"):
        from torch._inductor import config

        torch._dynamo.reset()
        config.freezing = True
        return torch.compile(model, mode="max-autotune")
    import flambeau

    options = {"freezing": True, "max_autotune": candidate.endswith("-ma")}
    return flambeau.compile(model, options=options)


def measure(name: str, candidates: Sequence[str], rounds: int, clock: Clock) -> Timed:
    """Fastest calls of the candidates, which take turns."""
    (rows, outputs, inputs), dtype = CPU_GEMM_CASES[name]
    torch.manual_seed(0)
    model = Linear(outputs, inputs, dtype).eval()
    x = (
        torch.randint(-127, 128, (rows, inputs), dtype=dtype)
        if dtype is torch.int8
        else torch.randn(rows, inputs).to(dtype)
    )
    result = Timed({}, {}, "", {})
    calls = {}
    with torch.no_grad():
        expected = model(x).float()
        for candidate in candidates:
            start = time.perf_counter()
            log = io.StringIO()
            try:
                with contextlib.redirect_stderr(log):
                    call = compiled(candidate, model, rows)
                    if dtype is torch.int8 and candidate == "library":
                        call = partial(lambda f, other, _: f(other), call, shifted(x))
                    error = float((call(x).float() - expected).norm() / expected.norm())
            except (RuntimeError, TypeError) as failure:
                result.errors[candidate] = str(failure).partition("\n")[0][:60]
                continue
            result.first[candidate] = time.perf_counter() - start
            if not error <= 2e-2:
                result.errors[candidate] = f"differs by {error:.0e}"
            if candidate == "flambeau-ma":
                result.table = log.getvalue()
            calls[candidate] = call
        result.seconds = fastest(calls, x, rounds, clock)
    return result


def shifted(x: torch.Tensor) -> torch.Tensor:
    """Int8 numbers and 128, as uint8."""
    return (x.to(torch.int16) + 128).to(torch.uint8)


def fastest(
    calls: dict[str, Callable[[torch.Tensor], object]], x: torch.Tensor, rounds: int, clock: Clock
) -> dict[str, float]:
    """Seconds of the fastest sample of each candidate: what else runs only makes one longer."""
    repeats, seconds = {}, {}

    def sample(name: str, count: int) -> float:
        start = clock()
        for _ in range(count):
            calls[name](x)
        return (clock() - start) / count

    for name in calls:
        seconds[name] = min(sample(name, 1) for _ in range(3))
        repeats[name] = max(1, int(SAMPLE_SECONDS / seconds[name]))
    end = clock() + CASE_SECONDS
    for number in range(rounds):
        for name in calls:
            seconds[name] = min(seconds[name], sample(name, repeats[name]))
        if number >= FEWEST_ROUNDS and clock() > end:
            break
    return seconds


def chosen(table: str) -> str:
    """The way that the table of measurements has first."""
    lines = table.partition("AUTOTUNE")[2].splitlines()
    return lines[1].strip() if len(lines) > 1 else "no choice"


def cpu_gemm_table(
    names: Sequence[str], candidates: Sequence[str], rounds: int, passive: bool
) -> tuple[list[str], list[list[str]]]:
    """Headings and rows: us per call, the ratios, and what was chosen. `passive`: CPU time, which
    other programs prolong little; for one thread (`OMP_NUM_THREADS`).
    """
    clock = time.process_time if passive else time.perf_counter
    rows, ratios, to_torch = [], [], []
    for name in names:
        timed = measure(name, candidates, rounds, clock)
        ours, theirs = timed.seconds.get("flambeau-ma"), timed.seconds.get("torch-ma")
        ratio, other = timed.ratio, ours / theirs if ours and theirs else None
        ratios += [] if ratio is None else [ratio]
        to_torch += [] if other is None else [other]
        errors = [f"{who}: {text}" for who, text in timed.errors.items()]
        times = (timed.seconds.get(each) for each in candidates)
        row = [
            name, *("-" if each is None else f"{each * 1e6:.1f}" for each in times),
            *("-" if each is None else f"{each:.3f}" for each in (ratio, other)),
            "; ".join([chosen(timed.table), *errors])[:90],
        ]  # fmt: skip
        print(*row, sep="  ", file=sys.stderr, flush=True)
        rows.append(row)
    means = ["-" if not each else f"{statistics.geometric_mean(each):.3f}"
             for each in (ratios, to_torch)]  # fmt: skip
    above = sum(each > BOUND for each in ratios)
    note = f"{above} of {len(ratios)} above {BOUND}" if ratios else ""
    rows.append(["geometric mean", *[""] * len(candidates), *means, note])
    headings: list[Any] = [f"{name} us" for name in candidates]
    return ["case", *headings, "to library", "to torch", "chosen"], rows
