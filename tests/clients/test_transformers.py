"""transformers: `generate` with both kinds of cache, and the Trainer, with compiled models."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import torch

import flambeau
from flambeau.report import report_of

if TYPE_CHECKING:
    from pathlib import Path

transformers = pytest.importorskip("transformers")


def language_model() -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64,
        bos_token_id=1, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_generate(cache: str) -> None:
    model = language_model()
    ids = torch.randint(2, 64, (2, 5))
    given: dict[str, Any] = {"max_new_tokens": 6, "do_sample": False, "cache_implementation": cache}
    given["disable_compile"] = True  # transformers' own torch.compile of the static cache's step
    expected = model.generate(ids, **given)
    model.forward = flambeau.compile(model.forward)
    assert torch.equal(model.generate(ids, **given), expected)
    graphs = report_of(model.forward).graphs
    assert graphs and not any(graph.fallback for graph in graphs)


class Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Twelve sentences of five tokens, with labels."""

    def __init__(self) -> None:
        self.rows = torch.randint(2, 64, (12, 5), generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


def trained(model: Any, folder: Path, **arguments: Any) -> list[torch.Tensor]:
    settings = transformers.TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=4, max_steps=3, report_to=[],
        use_cpu=True, save_strategy="no", logging_strategy="no", disable_tqdm=True, seed=0,
        **arguments,
    )  # fmt: skip
    transformers.Trainer(model=model, args=settings, train_dataset=Rows()).train()
    return [parameter.detach() for parameter in model.parameters()]


def test_trainer(tmp_path: Path) -> None:
    """The recipe of docs/integrations.md: the model is compiled before the Trainer has it."""
    model = language_model()
    twin = copy.deepcopy(model)
    flambeau.compile_in_place(twin)
    expected = trained(model, tmp_path)
    torch.testing.assert_close(trained(twin, tmp_path), expected, rtol=1e-3, atol=1e-4)
    graphs = report_of(twin._compiled_call_impl).graphs
    assert graphs and not any(graph.fallback for graph in graphs)
