"""Lightning: a compiled LightningModule is fitted, by the Trainer and by Fabric."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import flambeau

if TYPE_CHECKING:
    from pathlib import Path

lightning = pytest.importorskip("lightning")


class Regression(lightning.LightningModule):  # type: ignore[misc,name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        x, y = batch
        loss = (self(x) - y).square().mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def data() -> torch.utils.data.DataLoader[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    rows = torch.utils.data.TensorDataset(
        torch.randn(12, 3, generator=generator), torch.randn(12, 1, generator=generator)
    )
    return torch.utils.data.DataLoader(rows, batch_size=4)


def test_fit(tmp_path: Path) -> None:
    module = Regression()
    twin = copy.deepcopy(module)
    for each in (module, flambeau.compile(twin)):
        trainer = lightning.Trainer(
            max_epochs=1,
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            log_every_n_steps=1,
            default_root_dir=tmp_path,
        )
        trainer.fit(each, data())
        trainer.save_checkpoint(tmp_path / "last.ckpt")
        assert trainer.callback_metrics["loss"] > 0
    torch.testing.assert_close(dict(twin.state_dict()), dict(module.state_dict()))
    saved = torch.load(tmp_path / "last.ckpt", weights_only=True)["state_dict"]
    assert saved.keys() == module.state_dict().keys()


def test_fabric() -> None:
    module = nn.Linear(3, 1)
    twin = copy.deepcopy(module)
    fabric = lightning.Fabric(accelerator="cpu", devices=1)
    for each in (module, flambeau.compile(twin)):
        prepared, optimizer = fabric.setup(each, torch.optim.SGD(each.parameters(), lr=0.1))
        for x, y in data():
            optimizer.zero_grad()
            fabric.backward((prepared(x) - y).square().mean())
            optimizer.step()
    torch.testing.assert_close(dict(twin.state_dict()), dict(module.state_dict()))
