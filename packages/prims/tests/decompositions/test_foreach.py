"""Operators on lists of tensors."""

from __future__ import annotations

import pytest
import torch
from one_op import Make, check

aten = torch.ops.aten

FLOATS = (torch.float32, torch.float64, torch.bfloat16)


def lists(make: Make) -> list[torch.Tensor]:
    return [make(3, 4), make(5), make()]


@pytest.mark.parametrize(
    "name", ["abs", "neg", "sqrt", "exp", "reciprocal", "sign", "sigmoid", "rsqrt", "zero"]
)
def test_unary(name: str) -> None:
    for dtype in FLOATS:
        check(getattr(aten, f"_foreach_{name}").default, lists(Make(0, dtype)))


@pytest.mark.parametrize(
    "name", ["add", "sub", "mul", "div", "maximum", "minimum", "clamp_min", "clamp_max"]
)
def test_binary(name: str) -> None:
    packet = getattr(aten, f"_foreach_{name}")
    for dtype in FLOATS:
        make = Make(1, dtype)
        check(packet.Scalar, lists(make), 1.5)
        check(packet.List, lists(make), lists(make))
        check(packet.ScalarList, lists(make), [1.5, 2, -3])
        if name in ("add", "mul", "div"):
            check(packet.Tensor, lists(make), make())
        if name in ("add", "sub"):
            check(packet.List, lists(make), lists(make), alpha=0.5)


def test_optimizer_steps() -> None:
    for dtype in FLOATS:
        make = Make(2, dtype)
        for name in ("addcmul", "addcdiv"):
            packet = getattr(aten, f"_foreach_{name}")
            check(packet.Scalar, lists(make), lists(make), lists(make), 0.3)
            check(packet.ScalarList, lists(make), lists(make), lists(make), [0.3, 0.4, 0.5])
        check(aten._foreach_lerp.Scalar, lists(make), lists(make), 0.1)
        check(aten._foreach_lerp.List, lists(make), lists(make), lists(make))
        check(aten._foreach_pow.Scalar, lists(make), 2)
        check(aten._foreach_pow.ScalarAndTensor, 0.9, lists(make))
        check(aten._foreach_norm.Scalar, lists(make))
        check(aten._foreach_copy.default, lists(make), lists(Make(3, torch.float32)))
