"""Small models across the borders swapped with torch.compile's: trained with changing batch sizes,
as eager trains them.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import flambeau


def resnet() -> nn.Module:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(8, 8, 3, 1, 1), nn.BatchNorm2d(8), nn.ReLU())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.body(x) + x)

    stem = (nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    return nn.Sequential(*stem, Block(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))


def bert() -> nn.Module:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return BertModel(config, add_pooling_layer=False)


MODELS: dict[str, tuple[Any, list[torch.Tensor]]] = {
    "resnet": (resnet, [torch.randn(n, 3, h, h) for n, h in ((2, 32), (3, 32), (4, 40))]),
    "bert": (bert, [torch.randint(0, 50, shape) for shape in ((2, 7), (3, 9), (4, 12))]),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("way", ["torch's capture", "our capture"])
def test_trained(name: str, way: str) -> None:
    from torch._dynamo.backends.debugging import aot_eager

    torch._dynamo.reset()
    make, inputs = MODELS[name]
    model = make()
    twin = copy.deepcopy(model)
    if way == "our capture":
        compiled = flambeau.compile(twin, backend=aot_eager, dynamic=True)
    else:
        compiled = torch.compile(twin, backend="flambeau", dynamic=True)
    for x in inputs:
        expected, found = (
            out if isinstance(out, torch.Tensor) else out.last_hidden_state
            for out in (model(x), compiled(x))
        )
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        expected.square().mean().backward()
        found.square().mean().backward()
    for parameter, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(other.grad, parameter.grad, rtol=1e-3, atol=1e-4)
    for buffer, other in zip(model.buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(other, buffer, rtol=1e-4, atol=1e-4)
