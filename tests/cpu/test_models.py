"""Real models, whole: forward against eager and float64, a training step with every gradient."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import flambeau
from examples.models import ResNet18, bert
from flambeau.interop_dynamo import flambeau_backend

if TYPE_CHECKING:
    from collections.abc import Callable

transformers = pytest.importorskip("transformers")


def resnet() -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    return ResNet18(width=8, classes=10), (torch.randn(2, 3, 65, 65),), {}


def small_bert() -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    model = bert(layers=2, hidden=32, heads=2, vocabulary=99)
    mask = torch.ones(3, 11, dtype=torch.long)
    mask[1, 7:] = 0
    return model, (torch.randint(0, 99, (3, 11)),), {"attention_mask": mask}


def gpt2() -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    config = transformers.GPT2Config(vocab_size=99, n_embd=32, n_layer=2, n_head=2, n_positions=64)
    return transformers.GPT2Model(config), (torch.randint(0, 99, (2, 9)),), {}


def llama() -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    config = transformers.LlamaConfig(
        vocab_size=99,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    return transformers.LlamaModel(config), (torch.randint(0, 99, (2, 9)),), {}


def gemma2() -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    config = transformers.Gemma2Config(
        vocab_size=99,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=64,
        sliding_window=4,
    )
    return transformers.Gemma2Model(config), (torch.randint(1, 99, (2, 9)),), {}


def ctrl() -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """Scales by numpy.sqrt of a setting."""
    config = transformers.CTRLConfig(
        vocab_size=99, n_embd=32, n_layer=1, n_head=2, dff=64, n_positions=64
    )
    return transformers.CTRLModel(config), (torch.randint(0, 99, (2, 9)),), {}


def t5() -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    config = transformers.T5Config(
        vocab_size=99,
        d_model=32,
        d_kv=16,
        d_ff=64,
        num_layers=2,
        num_heads=2,
        decoder_start_token_id=0,
    )
    tokens = torch.randint(1, 99, (2, 9))
    return (
        transformers.T5Model(config),
        (),
        {"input_ids": tokens, "decoder_input_ids": tokens[:, :5]},
    )


def vit() -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    config = transformers.ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        image_size=32,
        patch_size=8,
    )
    return transformers.ViTModel(config), (torch.randn(2, 3, 32, 32),), {}


def convnext() -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    config = transformers.ConvNextConfig(hidden_sizes=[8, 16, 16, 32], depths=[1, 1, 1, 1])
    return transformers.ConvNextModel(config), (torch.randn(2, 3, 64, 64),), {}


MODELS: dict[str, Callable[[], tuple[nn.Module, tuple[Any, ...], dict[str, Any]]]] = {
    "resnet": resnet,
    "bert": small_bert,
    "gpt2": gpt2,
    "llama": llama,
    "gemma2": gemma2,
    "ctrl": ctrl,
    "t5": t5,
    "vit": vit,
    "convnext": convnext,
}


def first_tensor(output: Any) -> torch.Tensor:
    """The tensor to compare: the output itself or its first field."""
    return output if isinstance(output, torch.Tensor) else output[0]


def in_double(value: Any) -> Any:
    """Floating tensors in float64."""
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.double()
    return value


@pytest.mark.parametrize("name", MODELS)
def test_forward(name: str) -> None:
    model, args, kwargs = MODELS[name]()
    model.eval()
    compiled = flambeau.compile(model, fullgraph=True)
    exact_model = copy.deepcopy(model).double()
    with torch.no_grad():
        found = compiled(*args, **kwargs)
        eager = model(*args, **kwargs)
        exact = exact_model(*map(in_double, args), **{k: in_double(v) for k, v in kwargs.items()})
    assert type(found) is type(eager)
    error = (first_tensor(found).double() - first_tensor(exact)).abs().max()
    eager_error = (first_tensor(eager).double() - first_tensor(exact)).abs().max()
    assert first_tensor(found).stride() == first_tensor(eager).stride()
    assert error <= 4 * eager_error + 1e-6


@pytest.mark.parametrize("name", MODELS)
def test_training_step(name: str) -> None:
    model, args, kwargs = MODELS[name]()
    model.train()
    twin = copy.deepcopy(model)
    compiled = flambeau.compile(model, fullgraph=True)
    for program in (compiled, twin):
        torch.manual_seed(11)
        first_tensor(program(*args, **kwargs)).square().mean().backward()
    for (name_, ours), (_, theirs) in zip(
        model.named_parameters(), twin.named_parameters(), strict=True
    ):
        if theirs.grad is None:
            assert ours.grad is None, name_
            continue
        torch.testing.assert_close(
            ours.grad,
            theirs.grad,
            rtol=1e-4,
            atol=1e-5 * max(1.0, theirs.grad.abs().max().item()),
            msg=name_,
        )
    for (name_, ours), (_, theirs) in zip(model.named_buffers(), twin.named_buffers(), strict=True):
        torch.testing.assert_close(ours, theirs, msg=name_)


@pytest.mark.parametrize("sizes", [[(2, 7), (3, 12), (5, 31)]])
def test_bert_forward_compiles_once_for_all_sizes(sizes: list[tuple[int, int]]) -> None:
    model = bert(layers=2, hidden=32, heads=2, vocabulary=99).eval()
    graphs = 0

    def counting(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
        nonlocal graphs
        graphs += 1
        return flambeau_backend(gm, example_inputs)

    compiled = flambeau.compile(model, fullgraph=True, dynamic=True, backend=counting)
    with torch.no_grad():
        for batch, length in sizes:
            tokens = torch.randint(0, 99, (batch, length))
            torch.testing.assert_close(
                compiled(tokens).last_hidden_state,
                model(tokens).last_hidden_state,
                rtol=1e-4,
                atol=1e-5,
            )
    assert graphs == 1
