"""Whole models, captured in eval and train mode without a break and compared with eager: torch's
modules, and transformers'.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.utils.checkpoint
from capture_harness import compiled
from torch import nn

import flambeau_capture


def tensors_of(value):
    """Every tensor in a (nested) result, caches and other objects included."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    elif not isinstance(value, (list, tuple)):
        value = list(vars(value).values()) if hasattr(value, "__dict__") else []
    return [tensor for item in value for tensor in tensors_of(item)]


def check_model(model, kwargs, *, dynamic=False):
    for mode in (False, True):
        model.train(mode)
        fn = compiled(model, dynamic=dynamic)
        results = []
        for run in (model, fn, fn):
            state = {name: buffer.clone() for name, buffer in model.named_buffers()}
            torch.manual_seed(0)
            results.append(
                (run(**kwargs), {name: buffer.clone() for name, buffer in model.named_buffers()})
            )
            model.load_state_dict(state, strict=False)
        want, buffers = results[0]
        for got, own_buffers in results[1:]:
            assert type(got) is type(want)
            if isinstance(want, dict):
                assert list(got) == list(want)
            pairs = list(zip(tensors_of(got), tensors_of(want), strict=True))
            assert pairs
            for a, b in pairs:
                torch.testing.assert_close(a, b, equal_nan=True)
                assert a.requires_grad == b.requires_grad
            for name, buffer in buffers.items():
                torch.testing.assert_close(own_buffers[name], buffer)
        events = flambeau_capture.state_of(fn).events
        assert [event.kind for event in events] == ["capture"], [event.text for event in events]


class Block(nn.Module):
    def __init__(self, width_in, width, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or width_in != width:
            self.downsample = nn.Sequential(
                nn.Conv2d(width_in, width, 1, stride, bias=False), nn.BatchNorm2d(width)
            )

    def forward(self, x):
        shortcut = x if self.downsample is None else self.downsample(x)
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += shortcut
        return self.relu(out)


class ResNet18(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 8, 7, 2, 3, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )
        widths = [8, 8, 16, 32, 64]
        self.layers = nn.ModuleList()
        for at in range(4):
            stride = 1 if at == 0 else 2
            self.layers.append(
                nn.Sequential(
                    Block(widths[at], widths[at + 1], stride),
                    Block(widths[at + 1], widths[at + 1], 1),
                )
            )
        self.fc = nn.Linear(64, 10)

    def forward(self, x):
        x = self.stem(x)
        for layer in self.layers:
            x = layer(x)
        return self.fc(torch.flatten(nn.functional.adaptive_avg_pool2d(x, 1), 1))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    ("make", "kwargs"),
    [
        (ResNet18, {"x": torch.randn(2, 3, 64, 64)}),
        (
            lambda: nn.TransformerEncoderLayer(16, 4, 32, batch_first=True),
            {"src": torch.randn(2, 5, 16)},
        ),
        (
            lambda: nn.MultiheadAttention(16, 4, batch_first=True),
            dict.fromkeys(("query", "key", "value"), torch.randn(2, 5, 16)),
        ),
    ],
    ids=["resnet18", "encoder_layer", "attention"],
)
def test_torch_modules(make, kwargs, dynamic):
    torch.manual_seed(0)
    check_model(make(), kwargs, dynamic=dynamic)


def test_recurrent_module():
    check_model(nn.LSTM(8, 16, 2, batch_first=True), {"input": torch.randn(2, 5, 8)})


@dataclasses.dataclass(frozen=True)
class Case:
    config: str
    model: str
    settings: dict
    inputs: dict


IDS = torch.arange(32).reshape(2, 16) % 30
IMAGE = torch.randn(2, 3, 32, 32)
SMALL = {
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 40,
}
CASES = {
    "bert": Case(
        "BertConfig", "BertModel", SMALL, {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}
    ),
    "gpt2": Case(
        "GPT2Config",
        "GPT2LMHeadModel",
        {"n_layer": 2, "n_embd": 32, "n_head": 4, "vocab_size": 40},
        {"input_ids": IDS, "labels": IDS},
    ),
    "llama": Case(
        "LlamaConfig", "LlamaForCausalLM", {**SMALL, "num_key_value_heads": 2}, {"input_ids": IDS}
    ),
    "t5": Case(
        "T5Config",
        "T5Model",
        {"num_layers": 2, "d_model": 32, "d_kv": 8, "num_heads": 4, "d_ff": 64, "vocab_size": 40},
        {"input_ids": IDS, "decoder_input_ids": IDS[:, :8]},
    ),
    "vit": Case(
        "ViTConfig",
        "ViTModel",
        {
            **{k: v for k, v in SMALL.items() if k != "vocab_size"},
            "image_size": 32,
            "patch_size": 8,
        },
        {"pixel_values": IMAGE},
    ),
    "convnext": Case(
        "ConvNextConfig",
        "ConvNextModel",
        {"hidden_sizes": [8, 16, 32, 32], "depths": [1, 1, 2, 1], "image_size": 32},
        {"pixel_values": IMAGE},
    ),
    "bert_all_outputs": Case(
        "BertConfig",
        "BertForMaskedLM",
        {**SMALL, "attn_implementation": "eager"},
        {"input_ids": IDS, "labels": IDS, "output_hidden_states": True, "output_attentions": True},
    ),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_transformers(name, dynamic):
    transformers = pytest.importorskip("transformers")
    case = CASES[name]
    torch.manual_seed(0)
    model = getattr(transformers, case.model)(getattr(transformers, case.config)(**case.settings))
    check_model(model, case.inputs, dynamic=dynamic)


def test_checkpointed_layers():
    layer = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))

    def fn(x):
        return torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False) + 1

    x = torch.randn(3, 4, requires_grad=True)
    results = []
    for run in (fn, compiled(fn)):
        torch.manual_seed(0)
        out = run(x)
        results.append((out, *torch.autograd.grad(out.sum(), [x, *layer.parameters()])))
    torch.testing.assert_close(results[1], results[0])


def test_decoding_with_a_cache():
    """The cache is the program's own object: changed in place, and its growing length becomes
    symbolic.
    """
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**SMALL, num_key_value_heads=2)
    ).eval()
    eager_cache, own_cache = (transformers.DynamicCache(config=model.config) for _ in range(2))
    fn = compiled(model, dynamic=None)
    ids = IDS[:1, :8]
    with torch.no_grad():
        for _ in range(7):
            want = model(ids, past_key_values=eager_cache)
            got = fn(ids, past_key_values=own_cache)
            assert got.past_key_values is own_cache
            assert own_cache.get_seq_length() == eager_cache.get_seq_length()
            torch.testing.assert_close(got.logits, want.logits)
            ids = want.logits[:, -1:].argmax(-1)
    assert len(flambeau_capture.state_of(fn).events) == 3
