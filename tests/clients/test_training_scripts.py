"""Training loops as timm's script, torchtune and torchtitan write them: averaged weights, mixed
precision, accumulated and clipped gradients, blocks that are compiled one by one and checkpointed.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import flambeau
from flambeau.report import report_of


class Block(nn.Module):
    """A transformer's block: causal attention, and a gated network."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.gate = nn.Linear(width, 2 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        attention = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + attention.transpose(1, 2).flatten(2)
        left, right = self.gate(x).chunk(2, -1)
        return x + self.out(F.silu(left) * right)


class Language(nn.Module):
    """Blocks between an embedding and a head."""

    def __init__(self, checkpointed: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, 16)
        self.blocks = nn.ModuleList(Block(16) for _ in range(2))
        self.head = nn.Linear(16, 32)
        self.checkpointed = checkpointed

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return self.head(x)


def loss_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def train(model: nn.Module, run: Any, loss_function: Any) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 6)
    generator = torch.Generator().manual_seed(0)
    losses = []
    for _ in range(3):
        for _ in range(2):  # accumulated
            ids = torch.randint(0, 32, (2, 9), generator=generator)
            loss = loss_function(run(ids[:, :-1]), ids[:, 1:]) / 2
            loss.backward()
            losses.append(loss.item())
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
    return losses


def test_blocks_compiled_one_by_one_and_checkpointed() -> None:
    model = Language(checkpointed=True)
    twin = copy.deepcopy(model)
    for block in twin.blocks:
        flambeau.compile_in_place(block, fullgraph=True)
    ours = train(twin, twin, flambeau.compile(loss_of))
    theirs = train(model, model, loss_of)
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
    for block in twin.blocks:
        graphs = report_of(block._compiled_call_impl).graphs
        assert graphs and not any(graph.fallback for graph in graphs)
    assert not any("_orig_mod" in name for name in twin.state_dict())


def test_the_whole_model_in_bfloat16() -> None:
    model = Language(checkpointed=False)
    twin = copy.deepcopy(model)

    def cast(run: Any) -> Any:
        def called(ids: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return run(ids)

        return called

    compiled = flambeau.compile(twin)
    ours, theirs = train(twin, cast(compiled), loss_of), train(model, cast(model), loss_of)
    torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-2)


def test_averaged_weights_and_a_learning_rate_that_changes() -> None:
    """timm's script: the model is compiled, its original is averaged, evaluated and saved."""

    def script(compile_it: Any) -> tuple[list[float], dict[str, torch.Tensor]]:
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4),
        )  # fmt: skip
        average = torch.optim.swa_utils.AveragedModel(
            model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9), use_buffers=True
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
        run, losses = compile_it(model), []
        for step in range(4):
            for group in optimizer.param_groups:
                group["lr"] = 0.1 / (step + 1)
            x, y = torch.randn(4, 3, 8, 8), torch.randint(0, 4, (4,))
            loss = F.cross_entropy(run(x), y, label_smoothing=0.1)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            average.update_parameters(model)
            losses.append(loss.item())
        run.eval()
        with torch.no_grad():
            losses.append(run(torch.ones(2, 3, 8, 8)).sum().item())
        return losses, dict(average.module.state_dict())

    ours, theirs = script(flambeau.compile), script(lambda model: model)
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
