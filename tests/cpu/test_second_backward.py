"""Backward through one result, then through another: possible where eager has kept no tensors that both need, and an error elsewhere."""

from __future__ import annotations

import pytest
import torch

import flambeau


def apart(x, w):
    return torch.where(x > 0, x, w), (w * x).sin().sum()


def with_common_part(x, w):
    h = (x * w).sin()
    return h.sum(), (h * 2).cos().sum()


def nothing_kept(x, w):
    h = x + w
    return h * 2, h + 3


def of_three(x, w):
    h = (w * x).exp()
    return h.sum(), w * 3, (h * x).sum()


def gradients(function, order, size):
    """The gradient after each backward, or that there was none."""
    x = torch.linspace(-1, 2, size)
    w = torch.full((size,), 0.5, requires_grad=True)
    results, seen = function(x, w), []
    for at in order:
        try:
            results[at].sum().backward()
            seen.append(w.grad.clone())
        except RuntimeError as error:
            seen.append(str(error)[:40])
    return seen


@pytest.mark.parametrize("function", [apart, with_common_part, nothing_kept, of_three])
@pytest.mark.parametrize("order", [(0, 1), (1, 0), (0, 0), (0, 1, 1), (1, 0, 1), (-1, 0, 1)])
def test_same_as_eager(function, order):
    compiled = flambeau.compile(function)
    for size in (5, 7, 1):
        got, want = gradients(compiled, order, size), gradients(function, order, size)
        assert [type(item) for item in got] == [type(item) for item in want]
        torch.testing.assert_close(
            [item for item in got if isinstance(item, torch.Tensor)],
            [item for item in want if isinstance(item, torch.Tensor)],
        )
        assert [i for i in got if isinstance(i, str)] == [i for i in want if isinstance(i, str)]


def test_what_was_changed_in_between_is_an_error():
    for function in (apart, flambeau.compile(apart)):
        x, w = torch.ones(3), torch.ones(3, requires_grad=True)
        first, second = function(x, w)
        first.sum().backward()
        x.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            second.backward()
