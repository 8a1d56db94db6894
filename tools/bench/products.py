"""Linear layers on a CPU: default mode, max-autotune, and that with frozen weights, of both
compilers.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch._inductor import config

from tools.bench.timing import interleave

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
SHAPES = ((64, 16, 32), (1, 1024, 1024), (16, 1024, 1024), (64, 768, 3072), (512, 512, 512))

PRODUCT_CASES = {
    f"{'x'.join(map(str, shape))}_{name}": (shape, dtype)
    for name, dtype in DTYPES.items()
    for shape in SHAPES
}
"""Rows, inputs and outputs of a linear layer followed by a ReLU."""


def product_table(cases: list[str], rounds: int) -> tuple[list[str], list[list[str]]]:
    """Headings and rows: us per call, and the ratios to default mode and to torch's fastest."""
    rows = []
    for name in cases:
        (rows_of_x, inputs, outputs), dtype = PRODUCT_CASES[name]
        model = nn.Sequential(nn.Linear(inputs, outputs), nn.ReLU()).to(dtype).eval()
        x = torch.randn(rows_of_x, inputs, dtype=dtype)
        with torch.no_grad():
            calls = {way: compiled(way, model, x) for way in WAYS}
            seconds = interleave(
                {way: lambda f=f, x=x: f(x) for way, f in calls.items()}, device="cpu",
                rounds=rounds,
            )  # fmt: skip
        ours, theirs = (
            min(seconds[f"{stack} {way}"] for way in ("tuned", "frozen"))
            for stack in ("flambeau", "torch")
        )
        rows.append([
            name, *(f"{value * 1e6:.1f}" for value in seconds.values()),
            f"{ours / seconds['flambeau default']:.3f}", f"{ours / theirs:.3f}",
        ])  # fmt: skip
    headings = (way.replace("flambeau", "ours").replace(" default", "") for way in WAYS)
    return ["case, us", *headings, "to default", "to torch"], rows


WAYS = (
    "eager", "flambeau default", "flambeau tuned", "flambeau frozen", "torch default",
    "torch tuned", "torch frozen",
)  # fmt: skip
"""Tuned: max-autotune. Frozen: that, and the weights are constants."""


def compiled(way: str, model: nn.Module, x: torch.Tensor) -> Any:
    """The model as a way compiles it, called once."""
    import flambeau

    stack, _, mode = way.partition(" ")
    if stack == "eager":
        return model
    model = copy.deepcopy(model)
    if stack == "flambeau":
        options = {"max_autotune": mode != "default", "freezing": mode == "frozen"}
        result = flambeau.compile(model, options=options)
        result(x)
        return result
    torch._dynamo.reset()  # it counts models of one code as recompilations
    with config.patch(freezing=mode == "frozen", max_autotune=mode != "default"):
        theirs = torch.compile(model)
        theirs(x)
    return theirs
