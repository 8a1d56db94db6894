"""A small Llama-type model under plans of tensor and sequence parallelism: trained compiled, in one
graph, beside eager.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

import flambeau
from tests.ranks import leave_groups, run_ranks

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch without distributed")

WIDTH, HEADS, WORDS = 16, 4, 24


class Attention(nn.Module):
    """Causal attention; the number of heads is that of this rank."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> Any:
        rows, steps, _ = x.shape
        q, k, v = (
            part(x).view(rows, steps, -1, WIDTH // HEADS).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(y.transpose(1, 2).reshape(rows, steps, -1))


class Gated(nn.Module):
    """SwiGLU."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(WIDTH, 2 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> Any:
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    """A decoder layer."""

    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_gated = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.attention, self.gated = Attention(), Gated()

    def forward(self, x: torch.Tensor) -> Any:
        x = x + self.attention(self.before_attention(x))
        return x + self.gated(self.before_gated(x))


class Model(nn.Module):
    """Words in, their logits out."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.norm = nn.RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, words: torch.Tensor) -> Any:
        x = self.embedding(words)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def _by_columns_and_rows(model: Model, mesh: Any) -> None:
    """Tensor parallelism inside of each layer."""
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    names = ("attention.q", "attention.k", "attention.v", "gated.gate", "gated.up")
    plan: dict[str, Any] = {name: ColwiseParallel() for name in names}
    plan |= {"attention.o": RowwiseParallel(), "gated.down": RowwiseParallel()}
    for layer in model.layers:
        parallelize_module(layer, mesh, plan)


def _by_sequence(model: Model, mesh: Any) -> None:
    """Norms and residuals on parts of the sequence, too."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    def whole() -> Any:
        return PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))

    outer = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    parallelize_module(model, mesh, outer)
    for layer in model.layers:
        plan: dict[str, Any] = {
            "before_attention": SequenceParallel(), "before_gated": SequenceParallel(),
            "attention": whole(), "gated": whole(),
            "attention.o": RowwiseParallel(output_layouts=Shard(1)),
            "gated.down": RowwiseParallel(output_layouts=Shard(1)),
        }  # fmt: skip
        names = ("attention.q", "attention.k", "attention.v", "gated.gate", "gated.up")
        plan |= {name: ColwiseParallel() for name in names}
        parallelize_module(layer, mesh, plan)


PLANS = (_by_columns_and_rows, _by_sequence)


def train(plan: Any, mesh: Any, *, compiled: bool) -> tuple[list[torch.Tensor], Any]:
    """Losses, gradients and parameters of some steps."""
    torch.manual_seed(0)
    model = Model(2)
    plan(model, mesh)
    call: Any = flambeau.compile(model, fullgraph=True) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    shown = []
    for step in range(3):
        torch.manual_seed(step + 1)
        words, wanted = torch.randint(0, WORDS, (2, 2, 8))
        loss = functional.cross_entropy(call(words).flatten(0, 1), wanted.flatten())
        loss.backward()
        shown.append(loss.detach())
        for tensors in ((p.grad for p in model.parameters()), model.parameters()):
            shown += [_whole(tensor).detach().clone() for tensor in tensors]
        optimizer.step()
        optimizer.zero_grad()
    return shown, call


SIZES = ((2, 8), (4, 12), (6, 6), (4, 16), (8, 10), (2, 8), (3, 14))
"""Batches and lengths of sequences. The last batch is odd: DTensor asks whether ranks divide it."""


def _of_changing_sizes(plan: Any, mesh: Any, dynamic: bool | None) -> None:
    """One graph serves sizes that are divided alike, once they are known to change."""
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(Model(1))  # what is known of sizes is of the whole graph
        plan(models[-1], mesh)
    ours, theirs = models
    call = flambeau.compile(ours, fullgraph=True, dynamic=dynamic)
    graphs = []
    for size in SIZES:
        torch.manual_seed(sum(size))
        words, wanted = torch.randint(0, WORDS, (2, *size))
        shown = []
        for model in (call, theirs):
            loss = functional.cross_entropy(model(words).flatten(0, 1), wanted.flatten())
            loss.backward()
            shown.append(loss.detach())
        torch.testing.assert_close(*shown)
        pairs = zip(ours.parameters(), theirs.parameters(), strict=True)
        for mine, other in pairs:
            torch.testing.assert_close(_whole(mine.grad), _whole(other.grad))
        report = flambeau.explain(call)
        assert not any(graph.fallback for graph in report.graphs)
        graphs.append(len(report.graphs))
    first = [1] if dynamic else [1, 2]
    assert graphs[:-1] == first + [first[-1]] * (len(SIZES) - 1 - len(first))
    assert graphs[-1] <= first[-1] + 1


def _whole(tensor: Any) -> torch.Tensor:
    full: torch.Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return full


def check(rank: int, store: str) -> None:
    """What each of two processes checks."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2, init_method=f"file://{store}")
    mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
    for plan in PLANS:
        theirs, _ = train(plan, mesh, compiled=False)
        ours, call = train(plan, mesh, compiled=True)
        torch.testing.assert_close(ours, theirs, msg=lambda text, plan=plan: f"{plan}: {text}")
        (graph,) = flambeau.explain(call).graphs
        assert graph.fallback is None
        for dynamic in (None, True):
            _of_changing_sizes(plan, mesh, dynamic)
    leave_groups()


def test_two_processes(tmp_path: Path) -> None:
    store = os.fspath(tmp_path / "store")
    run_ranks(check, (store,), 2)
