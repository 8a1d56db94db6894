"""Compiling and running a model imports nothing of the stack that Flambeau replaces."""

from __future__ import annotations

import subprocess
import sys

START = """
import sys
import torch
before = set(sys.modules)
import flambeau
from torch import nn
from torch.nn import functional as F
"""

MODEL = """
model = nn.Sequential(
    nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5),
    nn.Dropout(),
)
compiled = flambeau.compile(model, {options})
for size in (2, 3):
    x = torch.randn(size, 3, 8, 8)
    F.cross_entropy(compiled(x), torch.zeros(size, dtype=torch.long)).backward()
with torch.no_grad():
    compiled(torch.randn(2, 3, 8, 8))
"""

HIGHER_ORDER = """
class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient * ctx.saved_tensors[0]

def program(x):
    y = torch.utils.checkpoint.checkpoint(Square.apply, x, use_reentrant=False)
    z = torch.func.vmap(torch.func.grad(lambda row: row.sin().sum()))(x)
    return torch.cond(y.sum() > 3, torch.sin, torch.cos, (y + z,)).sum()

compiled = flambeau.compile(program, {options})
for size in (2, 3):
    compiled(torch.randn(size, 3, requires_grad=True)).backward()
"""

REPORT = """
banned = ("torch._dynamo", "torch._inductor", "torch._functorch", "torch._decomp", "torch._refs",
          "torch._prims", "torch._subclasses", "torch._export", "torch.export",
          "torch.fx.experimental.symbolic_shapes", "torch.fx.experimental.proxy_tensor")
new = sorted(set(sys.modules) - before)
print([name for name in new if any(name == b or name.startswith(b + ".") for b in banned)])
"""


def imported(options: str, program: str = MODEL) -> str:
    """The banned modules that a run with these options imports, beyond a bare `import torch`."""
    done = subprocess.run(
        [sys.executable, "-c", (START + program + REPORT).replace("{options}", options)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]


def test_static() -> None:
    assert imported("dynamic=False") == "[]"


def test_dynamic() -> None:
    assert imported("dynamic=True") == "[]"


def test_functions_of_functions() -> None:
    assert imported("dynamic=False", HIGHER_ORDER) == "[]"
