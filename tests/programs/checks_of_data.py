"""Programs that check what their tensors hold: `assert`, `if ...: raise`. (In a module of their
own: pytest rewrites the asserts of tests.)
"""

from __future__ import annotations

from typing import Any

import torch


class Refused(Exception):
    pass


def asserts(x: torch.Tensor, log: list[Any]) -> torch.Tensor:
    log.append("in")
    assert (x > -10).all(), f"{x.min():.1f} is too small"
    x = x * 2
    log.append(x.shape)
    assert not (x > 50).any() and torch.isfinite(x).all()
    return x + 1


def raises(x: torch.Tensor, log: list[Any]) -> torch.Tensor:
    total = x.sum()
    if total > 30:
        log.append(float(total))
        raise Refused("too much", x.shape)
    log.append("fine")
    with torch.no_grad():
        if not (x.abs() < 10).all():
            raise Refused("too far") from None
    return x - total


def writes_before(x: torch.Tensor, log: list[Any]) -> torch.Tensor:
    x.add_(1)
    log.append(x)
    if (x < -5).any():
        raise Refused("negative")
    x.mul_(2)
    return x.cos()


def of_a_helper(x: torch.Tensor, log: list[Any]) -> torch.Tensor:
    def checked(y: torch.Tensor, name: str) -> torch.Tensor:
        if torch.isnan(y).any():
            raise Refused(f"{name} has no number")
        log.append(name)
        return y

    return checked(checked(x, "x").log(), "log")


def stated(x: torch.Tensor, log: list[Any]) -> torch.Tensor:
    message = f"{x.min():.1f} is too small among {tuple(x.shape)}"
    torch._check_tensor_all_with(Refused, x > -10, lambda: message)
    log.append(message)
    total = x.sum()
    torch._check_with(Refused, (total < 30).item(), lambda: f"{total:.2f} is too much")
    torch._check_tensor_all(x == x, lambda: f"{x}")
    return x * total


def is_a_number(x: torch.Tensor, log: list[Any]) -> torch.Tensor:
    assert x[0, 0], "the first is zero"
    log.append(1)
    return x / x[0, 0]


def handles(x: torch.Tensor) -> torch.Tensor:
    try:
        if x.sum() > 0:
            raise Refused
        return x - 1
    except Refused:
        return x + 1


def data_sizes(x: torch.Tensor) -> Any:
    longest = x.max().item()
    assert longest <= 10
    if longest < -10:
        raise Refused(longest)
    found = x.nonzero()
    assert found.shape[0] > 0, "all zero"
    return found * 2, longest


def ambiguous(x: torch.Tensor) -> torch.Tensor:
    assert x > 0
    return x


CHECKED = (asserts, raises, writes_before, of_a_helper, stated, is_a_number)
