"""Losses and their gradients, and dropout's gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from one_op import Make, check

aten = torch.ops.aten

FLOATS = (torch.float32, torch.float64, torch.bfloat16)
SHAPES = ((7,), (3, 5), (0, 3))
REDUCTIONS = (0, 1, 2)

LOSSES: list[tuple[str, tuple[Any, ...]]] = [
    ("mse_loss", ()),
    ("smooth_l1_loss", (1.0,)),
    ("smooth_l1_loss", (0.3,)),
    ("smooth_l1_loss", (0.0,)),
    ("huber_loss", (0.7,)),
    ("soft_margin_loss", ()),
]


@pytest.mark.parametrize("case", range(len(LOSSES)))
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_elementwise(case: int, reduction: int) -> None:
    name, args = LOSSES[case]
    for dtype in FLOATS:
        make = Make(case, dtype)
        for shape in SHAPES:
            x, target = make(*shape), make(*shape)
            check(getattr(aten, name).default, x, target, reduction, *args)
            if shape != (0, 3):
                grad = make(*shape) if reduction == 0 else make()
                check(getattr(aten, f"{name}_backward").default, grad, x, target, reduction, *args)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_binary_cross_entropy(reduction: int) -> None:
    for dtype in (torch.float32, torch.float64):
        make = Make(0, dtype)
        x, target = make(3, 5, low=0.0, high=1.0), make(3, 5, low=0.0, high=1.0)
        for weight in (None, make(3, 5)):
            check(aten.binary_cross_entropy.default, x, target, weight, reduction)
            grad = make(3, 5) if reduction == 0 else make()
            check(aten.binary_cross_entropy_backward.default, grad, x, target, weight, reduction)
        ends = torch.tensor([0.0, 1.0, 0.0, 1.0], dtype=dtype)
        check(
            aten.binary_cross_entropy.default,
            ends,
            torch.tensor([0.0, 1.0, 1.0, 0.0], dtype=dtype),
            None,
            reduction,
        )
        for weight in (None, make(5)):
            for pos_weight in (None, make(5)):
                logits = make(3, 5)
                check(
                    aten.binary_cross_entropy_with_logits.default,
                    logits,
                    target,
                    weight,
                    pos_weight,
                    reduction,
                )


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_a_loss_of_logits_has_the_dtype_of_its_target(reduction: int) -> None:
    single, double = Make(0, torch.float32), Make(1, torch.float64)
    for x, target in ((single, double), (double, single)):
        arguments = (x(3, 5), target(3, 5), double(5), single(5), reduction)
        check(aten.binary_cross_entropy_with_logits.default, *arguments)


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_nll_loss(reduction: int, weighted: bool) -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        make = Make(1, dtype)
        weight = make(6).abs() if weighted else None
        for x, target in (
            (make(5, 6), make.index(6, 5)),
            (make(6), torch.tensor(2)),
            (make(3, 6), torch.tensor([-100, 2, -100])),
        ):
            check(aten.nll_loss_forward.default, x, target, weight, reduction, -100)
            total = aten.nll_loss_forward.default(x, target, weight, reduction, -100)[1]
            grad = make(x.shape[0]) if reduction == 0 and x.ndim == 2 else make()
            check(aten.nll_loss_backward.default, grad, x, target, weight, reduction, -100, total)
    ignored = torch.full((3,), -100)
    check(aten.nll_loss_forward.default, make(3, 6), ignored, None, reduction, -100)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_nll_loss2d(reduction: int) -> None:
    for dtype in (torch.float32, torch.float64):
        make = Make(2, dtype)
        for weight in (None, make(6).abs()):
            x, target = make(2, 6, 3, 4), make.index(6, 2, 3, 4)
            check(aten.nll_loss2d_forward.default, x, target, weight, reduction, 1)
            total = aten.nll_loss2d_forward.default(x, target, weight, reduction, 1)[1]
            grad = make(2, 3, 4) if reduction == 0 else make()
            check(aten.nll_loss2d_backward.default, grad, x, target, weight, reduction, 1, total)


def test_dropout_backward() -> None:
    for dtype in FLOATS:
        make = Make(3, dtype)
        check(aten.native_dropout_backward.default, make(3, 5), make(3, 5, dtype=torch.bool), 1.25)
