"""aot against eager on whole models: two training steps, with gradients and buffers compared, and
inference.
"""

from __future__ import annotations

import copy

import pytest
import torch
from recording import GraphLog, module_tensors, record_module
from torch import nn
from torch.nn import functional as F

from flambeau_autograd import AutogradOptions, aot


class Block(nn.Module):
    """A residual block with batch norm."""

    def __init__(self, width, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.down = nn.Conv2d(width, width, 1, stride, bias=False) if stride > 1 else nn.Identity()

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn2(self.conv2(y))
        y += self.down(x)
        return F.relu(y, inplace=True)


def small_resnet():
    body = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
    )
    tail = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
    model = nn.Sequential(*body, Block(8, 1), Block(8, 2), *tail)
    return model, [torch.randn(2, 3, 33, 33)], lambda module, x: module(x)


def mlp():
    model = nn.Sequential(
        nn.Linear(7, 9),
        nn.GELU(),
        nn.Dropout(0.2),
        nn.LayerNorm(9),
        nn.Linear(9, 3),
        nn.Softmax(-1),
    )
    model[0].bias.requires_grad_(False)
    return model, [torch.randn(5, 7)], lambda module, x: module(x)


class Tied(nn.Module):
    """One weight used twice: as embedding and as output projection."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 6, padding_idx=0)
        self.head = nn.Linear(6, 11)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return F.cross_entropy(self.head(self.embedding(tokens)).flatten(0, 1), tokens.flatten())


def tied():
    return Tied(), [torch.randint(0, 11, (3, 4))], lambda module, x: module(x)


def transformer_layer():
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.1)
    return model, [torch.randn(2, 5, 8)], lambda module, x: module(x)


def bert():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        vocab_size=50,
    )
    mask = torch.ones(2, 9, dtype=torch.long)
    return (
        transformers.BertModel(config),
        [torch.randint(0, 50, (2, 9)), mask],
        lambda module, ids, mask: tuple(module(ids, attention_mask=mask).to_tuple()),
    )


def gpt2():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=2, vocab_size=50, n_positions=32)
    return (
        transformers.GPT2LMHeadModel(config),
        [torch.randint(0, 50, (2, 9))],
        lambda module, ids: (module(ids, use_cache=False, labels=ids).loss,),
    )


def t5():
    transformers = pytest.importorskip("transformers")
    config = transformers.T5Config(
        d_model=32,
        d_ff=64,
        d_kv=16,
        num_layers=2,
        num_heads=2,
        vocab_size=50,
        decoder_start_token_id=0,
    )
    ids = torch.randint(0, 50, (2, 7))
    return (
        transformers.T5ForConditionalGeneration(config),
        [ids, torch.randint(0, 50, (2, 5))],
        lambda module, ids, labels: (module(input_ids=ids, labels=labels, use_cache=False).loss,),
    )


def llama():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=50,
    )
    return (
        transformers.LlamaForCausalLM(config),
        [torch.randint(0, 50, (2, 9))],
        lambda module, ids: (module(ids, use_cache=False, labels=ids).loss,),
    )


MODELS = [mlp, small_resnet, tied, transformer_layer, bert, gpt2, t5, llama]


@pytest.mark.parametrize("decompose", [False, True], ids=["aten", "prims"])
@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_training_step(make, decompose):
    torch.manual_seed(0)
    theirs, args, call = make()
    theirs.train()
    mine = copy.deepcopy(theirs)
    gm = record_module(mine, args, call)
    options = AutogradOptions(decompose=decompose, check=True)
    compiled = aot(gm, [*args, *module_tensors(mine)], GraphLog(), options=options)
    for seed in (1, 2):
        torch.manual_seed(seed)
        out_mine = compiled(*args, *module_tensors(mine))
        torch.manual_seed(seed)
        out_theirs = call(theirs, *args)
        out_theirs = out_theirs if isinstance(out_theirs, tuple) else (out_theirs,)
        compare(out_mine, out_theirs, decompose)
        for outputs in (out_mine, out_theirs):
            sum((out * out).sum() for out in outputs).backward()
    compare([p.grad for p in mine.parameters()], [p.grad for p in theirs.parameters()], decompose)
    compare(list(mine.buffers()), list(theirs.buffers()), decompose)


@pytest.mark.parametrize("decompose", [False, True], ids=["aten", "prims"])
@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_inference(make, decompose):
    torch.manual_seed(0)
    model, args, call = make()
    model.eval()
    with torch.no_grad():
        gm = record_module(model, args, call)
        tensors = module_tensors(model)
        compiled = aot(
            gm,
            [*args, *tensors],
            GraphLog(),
            options=AutogradOptions(decompose=decompose, check=True),
        )
        expected = call(model, *args)
        compare(
            compiled(*args, *tensors),
            expected if isinstance(expected, tuple) else (expected,),
            decompose,
        )


def compare(mine, theirs, decompose):
    assert len(mine) == len(theirs)
    for a, b in zip(mine, theirs, strict=True):
        assert (a is None) == (b is None)
        if b is None:
            continue
        counting = [dim for dim in range(b.dim()) if b.shape[dim] > 1]
        assert [a.stride(dim) for dim in counting] == [b.stride(dim) for dim in counting]
        scale = max(1.0, float(b.detach().abs().max()))
        torch.testing.assert_close(
            a, b, rtol=1e-4 if decompose else 1e-5, atol=(5e-5 if decompose else 1e-5) * scale
        )
