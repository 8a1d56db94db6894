"""Calls of torch that ask what is in a tensor of their own: compiled whole, beside eager."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

import flambeau

if TYPE_CHECKING:
    from collections.abc import Callable

WINDOW = torch.hann_window(16)


def spectrum(x: torch.Tensor, **options: Any) -> torch.Tensor:
    return torch.stft(x, 16, 4, window=WINDOW, return_complex=True, **options)


PROGRAMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "round_trip": lambda x: torch.istft(spectrum(x), 16, 4, window=WINDOW),
    "of_a_length": lambda x: torch.istft(spectrum(x) * 2, 16, 4, window=WINDOW, length=50),
    "method": lambda x: spectrum(x).istft(16, 4, window=WINDOW).sin(),
    "without_window": lambda x: torch.istft(spectrum(x, center=False), 16, 4, center=False),
    "two_sided": lambda x: torch.istft(
        spectrum(x, onesided=False, normalized=True), 16, 4, window=WINDOW, onesided=False,
        normalized=True,
    ),
    "complex": lambda x: torch.istft(
        spectrum(x, onesided=False), 16, 4, window=WINDOW, onesided=False, return_complex=True
    ).abs(),
    "window_of_the_program": lambda x: torch.istft(
        spectrum(x), 16, 4, window=x.detach()[0, :16].abs() + 1
    ),
    "filtered": lambda x: torch.istft(
        spectrum(x) * (spectrum(x).abs() > 0.1), 16, 4, window=WINDOW, length=x.shape[-1]
    ),
}  # fmt: skip


def backward(result: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    weights = torch.linspace(1, 2, result.numel()).view(result.shape)
    return torch.autograd.grad((result * weights).sum(), x)[0]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_istft(name: str, dynamic: bool | None) -> None:
    function = PROGRAMS[name]
    compiled = flambeau.compile(function, fullgraph=True, dynamic=dynamic)
    for rows, length in ((2, 64), (3, 80), (1, 64)):
        x = torch.randn(rows, length, requires_grad=True)
        want, found = function(x), compiled(x)
        torch.testing.assert_close(found, want)
        assert found.stride() == want.stride()
        assert found.requires_grad == want.requires_grad
        torch.testing.assert_close(backward(found, x), backward(want, x))
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), function(x))


def uncentered(x: torch.Tensor, window: torch.Tensor) -> torch.Tensor:
    return torch.istft(spectrum(x, center=False), 16, 4, window=window, center=False)


@pytest.mark.parametrize("first", [True, False])
def test_a_window_with_gaps_raises_as_eagerly(first: bool) -> None:
    compiled = flambeau.compile(uncentered)
    x = torch.randn(2, 64)
    if not first:
        torch.testing.assert_close(compiled(x, WINDOW + 1), uncentered(x, WINDOW + 1))
    with pytest.raises(RuntimeError, match="window overlap add min") as want:
        uncentered(x, WINDOW)
    with pytest.raises(RuntimeError) as found:
        compiled(x, WINDOW)
    assert str(found.value) == str(want.value)
    torch.testing.assert_close(compiled(x, WINDOW + 1), uncentered(x, WINDOW + 1))


def recovers(x: torch.Tensor, window: torch.Tensor) -> torch.Tensor:
    try:
        return torch.istft(spectrum(x, center=False), 16, 4, window=window, center=False)
    except RuntimeError:
        return x * 2


def test_a_handler_of_the_program_runs() -> None:
    compiled = flambeau.compile(recovers)
    x = torch.randn(2, 64)
    for window in (WINDOW + 1, WINDOW, WINDOW + 1):
        torch.testing.assert_close(compiled(x, window), recovers(x, window))
