"""Recurrent networks on a GPU: one graph, which leaves cuDNN's calls to torch, beside eager."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import flambeau

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture(autouse=True)
def _no_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


class Encoder(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], cast: torch.dtype | None, **options: Any) -> None:
        super().__init__()
        self.network = kind(8, 16, num_layers=2, batch_first=True, **options)
        self.cast = cast

    def forward(self, x: torch.Tensor, lengths: torch.Tensor | None = None) -> Any:
        with torch.autocast("cuda", self.cast, enabled=self.cast is not None):
            x = x * 2
            if lengths is not None:
                x = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            output, last = self.network(x)
            if lengths is not None:
                output = pad_packed_sequence(output, batch_first=True)[0]
            return output + 1, last


def compared(module: nn.Module, compile: Callable[..., Any], dtype: torch.dtype, *more: Any) -> Any:
    """Results, strides and gradients of three steps, with the state of the generator."""
    torch.manual_seed(1)
    function = compile(module)
    found: list[Any] = []
    for batch in (3, 3, 5):
        x = torch.randn(batch, 6, 8, device="cuda", dtype=dtype, requires_grad=True)
        given = [torch.randint(1, 7, (batch,)) for _ in more]
        output, last = function(x, *given)
        loss = output.float().square().sum() + sum(state.float().sum() for state in last)
        loss.backward()
        found += [output.detach(), output.stride(), x.grad]
    grads = [parameter.grad for parameter in module.parameters()]
    return found, grads, torch.cuda.get_rng_state()


CASTS = (None, torch.bfloat16, torch.float16)


@pytest.mark.parametrize("ambient", [False, True])
@pytest.mark.parametrize("cast", CASTS)
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_as_eager(kind: type[nn.RNNBase], cast: torch.dtype | None, ambient: bool) -> None:
    check(Encoder(kind, cast, bidirectional=True), ambient=ambient)


@pytest.mark.parametrize("cast", CASTS)
def test_packed_sequences(cast: torch.dtype | None) -> None:
    check(Encoder(nn.LSTM, cast), "packed")


def test_dropout_draws_as_eagerly() -> None:
    check(Encoder(nn.GRU, None, dropout=0.4))


def test_projections() -> None:
    check(Encoder(nn.LSTM, None, proj_size=4))


def check(
    module: nn.Module, *more: Any, ambient: bool = False, dtype: torch.dtype = torch.float32
) -> None:
    module = module.cuda()
    twin = copy.deepcopy(module)
    with torch.autocast("cuda", torch.bfloat16, enabled=ambient):
        want, want_grads, want_state = compared(module, lambda module: module, dtype, *more)
        found, grads, state = compared(
            twin, lambda module: flambeau.compile(module, fullgraph=True), dtype, *more
        )
    cast = module.cast is not None
    tolerance = {"rtol": 3e-2, "atol": 3e-2} if cast else {"rtol": 1e-3, "atol": 1e-3}
    torch.testing.assert_close(found, want, **tolerance)
    torch.testing.assert_close(grads, want_grads, **tolerance)
    assert torch.equal(state, want_state)


def test_double_precision_is_not_cast() -> None:
    check(Encoder(nn.LSTM, torch.bfloat16).double(), dtype=torch.float64)


def test_without_cudnn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "enabled", False)
    check(Encoder(nn.LSTM, None))


def test_inference_under_reduced_overhead() -> None:
    network = nn.LSTM(8, 16, batch_first=True).cuda().eval()

    def run(x: torch.Tensor) -> torch.Tensor:
        return network(x.sin())[0].softmax(-1)

    compiled = flambeau.compile(run, mode="reduce-overhead", fullgraph=True)
    with torch.no_grad():
        for _ in range(4):
            x = torch.randn(3, 5, 8, device="cuda")
            torch.testing.assert_close(compiled(x), run(x), rtol=1e-4, atol=1e-5)
