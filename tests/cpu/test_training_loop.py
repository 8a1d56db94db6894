"""A whole training loop, compiled as it stands: data loader, backward, clipping, optimizer step,
`.item()`, prints, a list of losses.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

import flambeau
from tests.worlds import kinds


def parts() -> tuple[Any, Any, Any]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(16, 1)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = TensorDataset(torch.randn(70, 8), torch.randn(70, 1))
    return model, optimizer, DataLoader(data, batch_size=16)


def train(model: Any, optimizer: Any, loader: Any, epochs: int) -> list[float]:
    losses: list[float] = []
    for epoch in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
        if epoch % 2 == 0:
            print(f"epoch {epoch}: {sum(losses) / len(losses):.4f}")
    return losses


def test_a_training_loop(capsys: Any) -> None:
    eager, compiled = parts(), parts()
    torch.manual_seed(1)
    want = train(*eager, 4)
    printed = capsys.readouterr().out
    torch.manual_seed(1)
    call = flambeau.compile(train)
    got = call(*compiled, 4)
    assert capsys.readouterr().out == printed
    assert len(got) == 20
    torch.testing.assert_close(torch.tensor(got), torch.tensor(want), rtol=1e-4, atol=1e-5)
    for mine, yours in zip(compiled[0].parameters(), eager[0].parameters(), strict=True):
        torch.testing.assert_close(mine, yours, rtol=1e-4, atol=1e-5)
    first = kinds(call)
    assert "limit" not in first
    assert first.count("capture") + first.count("recompile") <= 20
    before = len(first)
    call(*compiled, 4)
    again = kinds(call, before)
    assert again.count("capture") + again.count("recompile") <= 4, "the pieces serve again"
