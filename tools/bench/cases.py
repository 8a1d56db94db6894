"""What is timed: each case builds a program and a call of it on one device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F

from examples.models import Linears, ResNet18, bert, sin_cos

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Case:
    """A program, one call of it, and how it is compiled (`options` go to both compilers'
    `compile`).
    """

    program: Any
    call: Callable[[Any], Any]
    training: bool = False


def sin_cos_tutorial(device: str) -> Case:
    """torch.sin(torch.cos(x)), 10 000 elements."""
    x = torch.randn(10_000, device=device)
    return Case(sin_cos, lambda f: f(x))


def sin_plus_cos(device: str) -> Case:
    """sin(x) + cos(x) on a 0-dim tensor."""
    x = torch.randn((), device=device)
    return Case(lambda x: torch.sin(x) + torch.cos(x), lambda f: f(x))


def bert_forward(device: str, batch: int = 1, length: int = 8, layers: int = 12) -> Case:
    """BERT-base forward, 1 x 8 tokens, float32."""
    model = bert(layers=layers).to(device).eval()
    tokens = torch.randint(0, 30522, (batch, length), device=device)
    return Case(model, lambda f: f(tokens))


def bert_large_batch(device: str) -> Case:
    """BERT-base forward, 4 x 64 tokens, float32."""
    return bert_forward(device, batch=4, length=64)


def bert_training(device: str) -> Case:
    """BERT-base forward and backward, 2 x 32 tokens."""
    model = bert().to(device).train()
    tokens = torch.randint(0, 30522, (2, 32), device=device)

    def call(f: Any) -> None:
        model.zero_grad()
        f(tokens).last_hidden_state.square().mean().backward()

    return Case(model, call, training=True)


def small_bert_training(device: str) -> Case:
    """A training step of a two-layer BERT, 8 x 64 tokens."""
    model = bert(layers=2, hidden=128, heads=2, vocabulary=1000).to(device).train()
    tokens = torch.randint(0, 1000, (8, 64), device=device)

    def call(f: Any) -> None:
        model.zero_grad()
        f(tokens).last_hidden_state.square().mean().backward()

    return Case(model, call, training=True)


def resnet_forward(device: str) -> Case:
    """ResNet-18 forward, one image on a CPU, 16 on a GPU."""
    model = ResNet18().to(device).eval()
    x = torch.randn(16 if device == "cuda" else 1, 3, 224, 224, device=device)
    return Case(model, lambda f: f(x))


def pointwise_kernel(device: str) -> Case:
    """gelu(x) * sigmoid(y) + x / 2 on 4M floats (64M on a GPU)."""
    count = (64 if device == "cuda" else 4) << 20
    x, y = torch.randn(count, device=device), torch.randn(count, device=device)
    return Case(lambda x, y: F.gelu(x) * torch.sigmoid(y) + x / 2, lambda f: f(x, y))


def softmax_kernel(device: str) -> Case:
    """softmax over rows of 1024, 4M floats."""
    x = torch.randn(4096, 1024, device=device)
    return Case(lambda x: torch.softmax(x, -1), lambda f: f(x))


def layer_norm_kernel(device: str) -> Case:
    """layer_norm over rows of 1024, 4M floats."""
    x = torch.randn(4096, 1024, device=device)
    weight, bias = torch.randn(1024, device=device), torch.randn(1024, device=device)
    return Case(
        lambda x, w, b: F.layer_norm(x, (1024,), w, b),
        lambda f: f(x, weight, bias),
    )


def one_tensor(device: str) -> Case:
    """A function of one tensor: what a guarded call costs."""
    x = torch.randn(4, device=device)
    return Case(lambda x: x + 1, lambda f: f(x))


def twenty_linears(device: str) -> Case:
    """A module of 20 Linears (40 parameters): what guarding it costs."""
    model = Linears(20).to(device)
    x = torch.randn(2, 8, device=device)
    return Case(model, lambda f: f(x))


def llama_tree(device: str) -> Case:
    """LlamaModel of 32 layers, as many modules and parameters as 7B has, sizes tiny: what guarding
    it costs.
    """
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(
        hidden_size=16,
        intermediate_size=32,
        num_attention_heads=2,
        num_key_value_heads=2,
        vocab_size=32,
        num_hidden_layers=32,
        use_cache=False,
    )
    model = LlamaModel(config).to(device).eval()
    tokens = torch.randint(0, 32, (1, 8), device=device)
    return Case(model, lambda f: f(tokens))


CASES: dict[str, Callable[[str], Case]] = {
    "sin_cos": sin_cos_tutorial,
    "sin_plus_cos": sin_plus_cos,
    "bert": bert_forward,
    "bert_4x64": bert_large_batch,
    "bert_training": bert_training,
    "small_bert_training": small_bert_training,
    "resnet": resnet_forward,
    "pointwise": pointwise_kernel,
    "softmax": softmax_kernel,
    "layer_norm": layer_norm_kernel,
    "one_tensor": one_tensor,
    "linears": twenty_linears,
    "llama": llama_tree,
}
