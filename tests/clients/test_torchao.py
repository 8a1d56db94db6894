"""Models quantised by torchao under compile: one graph each, eager's results."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import flambeau

pytest.importorskip("torchao")
transformers = pytest.importorskip("transformers")

from torchao import quantization  # noqa: E402

CONFIGS: dict[str, Any] = {
    "int8_weight_only": lambda: quantization.Int8WeightOnlyConfig(version=2),
    "int8_dynamic": lambda: quantization.Int8DynamicActivationInt8WeightConfig(version=2),
    "int4_weight_only": lambda: quantization.IntxWeightOnlyConfig(
        weight_dtype=torch.int4, granularity=quantization.PerGroup(32)
    ),
    "int4_dynamic": lambda: quantization.Int8DynamicActivationIntxWeightConfig(
        weight_dtype=torch.int4, weight_granularity=quantization.PerGroup(32)
    ),
}
TOLERANCES = {"int8_dynamic": 0.05}
"""Symmetric rounding puts the largest number of each row between two steps, so the last bit of what
comes before decides: eager's own logits move by 2.4 % if the norms' results move by one.
"""


def llama() -> tuple[Any, dict[str, Any]]:
    config = transformers.LlamaConfig(
        vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2,
    )  # fmt: skip
    tokens = torch.randint(0, 128, (2, 9))
    return transformers.LlamaForCausalLM(config), {"input_ids": tokens, "use_cache": False}


def vit() -> tuple[Any, dict[str, Any]]:
    config = transformers.ViTConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
        image_size=32, patch_size=8,
    )  # fmt: skip
    model = transformers.ViTForImageClassification(config)
    return model, {"pixel_values": torch.randn(2, 3, 32, 32)}


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("make", [llama, vit])
def test_a_quantised_model_is_one_graph(make: Any, name: str) -> None:
    torch.manual_seed(0)
    model, arguments = make()
    model.eval()
    quantization.quantize_(model, CONFIGS[name]())
    compiled = flambeau.compile(model, fullgraph=True)
    with torch.no_grad():
        for _ in range(2):
            ours, theirs = compiled(**arguments).logits, model(**arguments).logits
            scale = theirs.abs().max().item()
            torch.testing.assert_close(
                ours, theirs, rtol=0, atol=scale * TOLERANCES.get(name, 1e-5)
            )
    (graph,) = flambeau.explain(compiled).graphs
    assert graph.fallback is None
