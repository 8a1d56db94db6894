"""`x[mask] = e` where a gradient of `e` is wanted: compiled as any other write, its gradients
eager's.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import flambeau


def whole_rows(x: torch.Tensor, mask: torch.Tensor, value: torch.Tensor) -> Any:
    y = x * 2
    y[mask] = value
    return (y * y).sum(), y


SHAPES = {
    "rows": ((5, 7, 4), (5, 7), (4,)),
    "one row": ((5, 7, 4), (5, 7), (1, 4)),
    "matrices": ((5, 7, 4), (5,), (7, 4)),
    "broadcast": ((5, 7, 4), (5,), (7, 1)),
    "elements": ((3, 5), (3, 5), ()),
    "elements from one": ((3, 5), (3, 5), (1,)),
    "nothing": ((0, 5), (0, 5), ()),
}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_gradients(name: str, backend: str) -> None:
    shape, masked, of_value = SHAPES[name]
    run = flambeau.compile(whole_rows, backend=backend, fullgraph=True)
    for share in (0.4, 0.0, 1.0):
        mask = torch.rand(masked) < share
        inputs = [torch.randn(shape, requires_grad=True), torch.randn(of_value, requires_grad=True)]
        again = [part.detach().clone().requires_grad_() for part in inputs]
        want, y = whole_rows(inputs[0], mask, inputs[1])
        got, z = run(again[0], mask, again[1])
        torch.testing.assert_close((got, z), (want, y))
        want.backward()
        got.backward()
        for left, right in zip(again, inputs, strict=True):
            torch.testing.assert_close(left.grad, right.grad)
    report = str(flambeau.explain(whole_rows)(again[0], mask, again[1]))
    assert "runs eagerly" not in report, report


def chosen(x: torch.Tensor, mask: torch.Tensor) -> Any:
    y = torch.zeros_like(x)
    y[mask] = x[mask].exp() * 2
    return (y * y).sum(), y


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("masked", [(5, 7), (5,), (5, 7, 4)], ids=str)
def test_a_value_for_each_element(masked: tuple[int, ...], backend: str) -> None:
    run = flambeau.compile(chosen, backend=backend, fullgraph=True)
    for share in (0.5, 0.7, 0.0, 1.0, 0.3):
        mask = torch.rand(masked) < share
        x = torch.randn(5, 7, 4, requires_grad=True)
        again = x.detach().clone().requires_grad_()
        want, y = chosen(x, mask)
        got, z = run(again, mask)
        torch.testing.assert_close((got, z), (want, y))
        want.backward()
        got.backward()
        torch.testing.assert_close(again.grad, x.grad)
    report = str(flambeau.explain(chosen)(again, mask))
    assert "runs eagerly" not in report, report


def test_too_few_values_are_refused() -> None:
    run = flambeau.compile(whole_rows, backend="aot_eager", fullgraph=True)
    x, value = torch.randn(4, 3), torch.randn(2, 3, requires_grad=True)
    mask = torch.tensor([True, False, True, False])
    torch.testing.assert_close(run(x, mask, value), whole_rows(x, mask, value))
    more = torch.tensor([True, True, True, False])
    with pytest.raises(RuntimeError, match="shape mismatch"):
        whole_rows(x, more, value)
    with pytest.raises(RuntimeError, match="shape mismatch"):
        run(x, more, value)


def test_a_mask_of_another_shape_is_refused_as_eager_refuses_it() -> None:
    x, value = torch.randn(4, 3), torch.randn(3, requires_grad=True)
    with pytest.raises(IndexError, match="does not match the shape"):
        flambeau.compile(whole_rows)(x, torch.ones(5, dtype=torch.bool), value)
