"""What is timed on a GPU: models whose steps are limited by launches, by kernels, or by both."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from examples.models import ResNet18, UNet, bert
from tools.bench.cases import Case, pointwise_kernel, sin_plus_cos

if TYPE_CHECKING:
    from collections.abc import Callable


def inference(model: nn.Module, *inputs: Any) -> Case:
    """A forward pass without gradients."""
    return Case(model.eval(), lambda f: f(*inputs))


def training(model: nn.Module, *inputs: Any, autocast: bool = False, **named: Any) -> Case:
    """A forward and a backward pass; the loss is the mean square of the first result."""

    def call(f: Any) -> None:
        model.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            result = f(*inputs, **named)
        if not isinstance(result, torch.Tensor):
            result = result[0]
        result.float().square().mean().backward()

    return Case(model.train(), call, training=True)


def loss_training(model: nn.Module, inputs: dict[str, Any], *, autocast: bool = False) -> Case:
    """A forward and a backward pass; the loss is the model's for the labels among its inputs."""

    def call(f: Any) -> None:
        model.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            loss = f(**inputs).loss
        loss.backward()

    return Case(model.train(), call, training=True)


def tokens(batch: int, length: int, vocabulary: int = 30522) -> torch.Tensor:
    """Random token ids."""
    return torch.randint(0, vocabulary, (batch, length), device="cuda")


def images(batch: int) -> torch.Tensor:
    """Random images of 224 x 224."""
    return torch.randn(batch, 3, 224, 224, device="cuda")


def bert_1x8(device: str) -> Case:
    """BERT-base forward, 1 x 8 tokens, float32."""
    return inference(bert().to(device), tokens(1, 8))


def bert_16x128_bf16(device: str) -> Case:
    """BERT-base forward, 16 x 128 tokens, bfloat16."""
    return inference(bert().to(device, torch.bfloat16), tokens(16, 128))


def bert_training(device: str) -> Case:
    """BERT-base forward and backward, 16 x 128 tokens, autocast to bfloat16."""
    return training(bert().to(device), tokens(16, 128), autocast=True)


def resnet18(device: str) -> Case:
    """ResNet-18 forward, 16 images."""
    return inference(ResNet18().to(device), images(16))


def _resnet50() -> nn.Module:
    from transformers import ResNetConfig, ResNetModel

    return ResNetModel(ResNetConfig(depths=[3, 4, 6, 3], layer_type="bottleneck"))


def resnet50(device: str) -> Case:
    """ResNet-50 forward, 64 images."""
    return inference(_resnet50().to(device), images(64))


def resnet50_training(device: str) -> Case:
    """ResNet-50 forward and backward, 64 images."""
    return training(_resnet50().to(device), images(64))


def _convnext() -> nn.Module:
    from transformers import ConvNextConfig, ConvNextModel

    return ConvNextModel(ConvNextConfig())


def convnext(device: str) -> Case:
    """ConvNeXt-T forward, 8 images."""
    return inference(_convnext().to(device), images(8))


def convnext_training(device: str) -> Case:
    """ConvNeXt-T forward and backward, 8 images, autocast to bfloat16."""
    return training(_convnext().to(device), images(8), autocast=True)


def _t5() -> nn.Module:
    from transformers import T5Config, T5EncoderModel

    return T5EncoderModel(T5Config(d_model=512, num_layers=6, num_heads=8, d_kv=64, d_ff=2048))


def t5(device: str) -> Case:
    """T5-small encoder forward, 4 x 64 tokens."""
    return inference(_t5().to(device), tokens(4, 64, 32128))


def t5_training(device: str) -> Case:
    """T5-small encoder forward and backward, 4 x 64 tokens, autocast to bfloat16."""
    return training(_t5().to(device), tokens(4, 64, 32128), autocast=True)


class Recommender(nn.Module):
    """A click model: 26 embedding tables, a bottom and a top MLP, pairwise dot products."""

    def __init__(self, tables: int = 26, rows: int = 10_000, width: int = 64) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(13, 256), nn.ReLU(), nn.Linear(256, width), nn.ReLU())
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(
            nn.Linear(pairs + width, 256),
            nn.ReLU(),
            nn.Linear(256, 64),
            nn.ReLU(),
            nn.Linear(64, 1),
        )
        self.register_buffer("pairs", torch.tril_indices(tables + 1, tables + 1, -1))

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
        """Logits of (batch, 13) numbers and (batch, tables) categories."""
        x = self.bottom(dense)
        rows = [table(sparse[:, i]) for i, table in enumerate(self.tables)]
        features = torch.stack([x, *rows], 1)
        products = features @ features.transpose(1, 2)
        pairs = products[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([x, pairs], 1)).squeeze(1)


def _clicks(batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    dense = torch.randn(batch, 13, device="cuda")
    return dense, torch.randint(0, 10_000, (batch, 26), device="cuda")


def recommender(device: str) -> Case:
    """A recommender, forward, batch 2048."""
    return inference(Recommender().to(device), *_clicks(2048))


def recommender_training(device: str) -> Case:
    """A recommender, forward and backward, batch 2048."""
    return training(Recommender().to(device), *_clicks(2048))


def _noisy(batch: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    steps = torch.rand(batch, device="cuda") * 1000
    return torch.randn(batch, 3, size, size, device="cuda"), steps


def unet(device: str) -> Case:
    """A small U-Net forward, 2 images of 64 x 64."""
    return inference(UNet().to(device), *_noisy(2, 64))


def unet_training(device: str) -> Case:
    """A small U-Net forward and backward, 16 images of 64 x 64, autocast to bfloat16."""
    return training(UNet().to(device), *_noisy(16, 64), autocast=True)


def _experts() -> nn.Module:
    from transformers import MixtralConfig, MixtralModel

    config = MixtralConfig(
        vocab_size=32000,
        hidden_size=512,
        intermediate_size=1024,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        num_local_experts=8,
        use_cache=False,
    )
    return MixtralModel(config)


def experts(device: str) -> Case:
    """A mixture of 8 experts, 4 layers, forward, 4 x 128 tokens, bfloat16."""
    return inference(_experts().to(device, torch.bfloat16), tokens(4, 128, 32000))


def experts_training(device: str) -> Case:
    """The same, forward and backward."""
    return training(_experts().to(device, torch.bfloat16), tokens(4, 128, 32000))


def _state_space() -> nn.Module:
    from transformers import MambaConfig, MambaModel

    config = MambaConfig(vocab_size=32000, hidden_size=512, num_hidden_layers=4, use_cache=False)
    return MambaModel(config)


def state_space(device: str) -> Case:
    """A Mamba of 4 layers forward, 4 x 64 tokens."""
    return inference(_state_space().to(device), tokens(4, 64, 32000))


def state_space_training(device: str) -> Case:
    """The same, forward and backward."""
    return training(_state_space().to(device), tokens(4, 64, 32000))


class Tagger(nn.Module):
    """Labels of words: embeddings, an LSTM of two layers and two directions, a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(30522, 256)
        self.network = nn.LSTM(256, 256, 2, batch_first=True, bidirectional=True)
        self.norm, self.out = nn.LayerNorm(512), nn.Linear(512, 64)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        output, _ = self.network(self.words(ids))
        return self.out(nn.functional.gelu(self.norm(output))).log_softmax(-1)


def tagger_training(device: str) -> Case:
    """A tagger by an LSTM, forward and backward, 32 x 128 words, autocast to bfloat16."""
    return training(Tagger().to(device), tokens(32, 128), autocast=True)


def gpt2_training(device: str) -> Case:
    """GPT-2 small with its loss, forward and backward, 8 x 512 tokens, autocast to bfloat16."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(use_cache=False)
    ids = tokens(8, 512, config.vocab_size)
    model = GPT2LMHeadModel(config).to(device)
    return loss_training(model, {"input_ids": ids, "labels": ids}, autocast=True)


def llama_training(device: str) -> Case:
    """A Llama of 8 layers with its loss, forward and backward, 4 x 512 tokens, bfloat16."""
    from transformers import LlamaForCausalLM

    config = _llama_config(use_cache=False)
    ids = tokens(4, 512, config.vocab_size)
    model = LlamaForCausalLM(config).to(device, torch.bfloat16)
    return loss_training(model, {"input_ids": ids, "labels": ids})


def _vit() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(ViTConfig(num_labels=1000))


def vit(device: str) -> Case:
    """ViT-base forward, 16 images, autocast to bfloat16."""
    model, given = _vit().to(device).eval(), images(16)

    def call(f: Any) -> None:
        with torch.autocast("cuda", torch.bfloat16):
            f(given)

    return Case(model, call)


def vit_training(device: str) -> Case:
    """ViT-base with its loss, forward and backward, 16 images, autocast to bfloat16."""
    inputs = {"pixel_values": images(16), "labels": torch.randint(0, 1000, (16,), device="cuda")}
    return loss_training(_vit().to(device), inputs, autocast=True)


class DecodeStep(nn.Module):
    """One step of greedy decoding with a cache of fixed size: the next token."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, token: torch.Tensor, position: torch.Tensor, cache: Any) -> torch.Tensor:
        """The likeliest successor of `token`, which stands at `position`."""
        result = self.model(
            input_ids=token, position_ids=position, past_key_values=cache, use_cache=True
        )
        return result.logits[:, -1:].argmax(-1)


def _llama_config(**changes: Any) -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=8,
        num_attention_heads=16,
        num_key_value_heads=8,
        vocab_size=32000,
        **changes,
    )


def llama_decode(device: str) -> Case:
    """A decoding step of a Llama of 8 layers, batch 1, bfloat16, a static cache of 512 places."""
    from transformers import LlamaForCausalLM, StaticCache

    config = _llama_config()
    model = LlamaForCausalLM(config).to(device, torch.bfloat16).eval()
    cache = StaticCache(config=config, max_cache_len=512)
    positions = [torch.tensor([[place]], device=device) for place in range(64)]
    token, steps = torch.zeros(1, 1, dtype=torch.long, device=device), itertools.count()

    def call(f: Any) -> None:
        place = next(steps) % len(positions)
        if place == 0:
            cache.reset()
        f(token, positions[place], cache)

    return Case(DecodeStep(model), call)


GPU_CASES: dict[str, Callable[[str], Case]] = {
    "one_kernel": sin_plus_cos,
    "pointwise": pointwise_kernel,
    "bert_1x8": bert_1x8,
    "bert_16x128_bf16": bert_16x128_bf16,
    "bert_training": bert_training,
    "resnet18": resnet18,
    "resnet50": resnet50,
    "resnet50_training": resnet50_training,
    "convnext": convnext,
    "convnext_training": convnext_training,
    "t5": t5,
    "t5_training": t5_training,
    "recommender": recommender,
    "recommender_training": recommender_training,
    "unet": unet,
    "unet_training": unet_training,
    "experts": experts,
    "experts_training": experts_training,
    "state_space": state_space,
    "state_space_training": state_space_training,
    "tagger_training": tagger_training,
    "llama_decode": llama_decode,
    "llama_training": llama_training,
    "gpt2_training": gpt2_training,
    "vit": vit,
    "vit_training": vit_training,
}
