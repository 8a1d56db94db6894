"""Activations and their gradients, at their kinks too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from one_op import Make, check

aten = torch.ops.aten

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
SHAPES = ((), (7,), (3, 8), (2, 3, 4, 5), (0, 3))

FORWARD: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
    (aten.relu.default, (), {}),
    (aten.relu6.default, (), {}),
    (aten.sigmoid.default, (), {}),
    (aten.silu.default, (), {}),
    (aten.gelu.default, (), {}),
    (aten.gelu.default, (), {"approximate": "tanh"}),
    (aten.mish.default, (), {}),
    (aten.hardswish.default, (), {}),
    (aten.hardsigmoid.default, (), {}),
    (aten.hardtanh.default, (), {}),
    (aten.hardtanh.default, (-0.5, 2.0), {}),
    (aten.leaky_relu.default, (), {}),
    (aten.leaky_relu.default, (0.3,), {}),
    (aten.elu.default, (), {}),
    (aten.elu.default, (1.5, 1.05, 0.7), {}),
    (aten.celu.default, (1.3,), {}),
    (aten.softplus.default, (), {}),
    (aten.softplus.default, (2.0, 5.0), {}),
    (aten.threshold.default, (0.5, -3.0), {}),
    (aten.logit.default, (0.1,), {}),
    (aten.log_sigmoid_forward.default, (), {}),
]

BACKWARD: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
    (aten.threshold_backward.default, (0,), {}),
    (aten.threshold_backward.default, (0.5,), {}),
    (aten.hardtanh_backward.default, (-1.0, 1.0), {}),
    (aten.leaky_relu_backward.default, (0.1, False), {}),
    (aten.sigmoid_backward.default, (), {}),
    (aten.tanh_backward.default, (), {}),
    (aten.silu_backward.default, (), {}),
    (aten.hardsigmoid_backward.default, (), {}),
    (aten.hardswish_backward.default, (), {}),
    (aten.gelu_backward.default, (), {}),
    (aten.gelu_backward.default, (), {"approximate": "tanh"}),
    (aten.mish_backward.default, (), {}),
    (aten.softplus_backward.default, (1.5, 3.0), {}),
    (aten.logit_backward.default, (0.1,), {}),
    (aten._prelu_kernel.default, (), {}),
]


@pytest.mark.parametrize("case", range(len(FORWARD)))
def test_forward(case: int) -> None:
    op, args, kwargs = FORWARD[case]
    for dtype in FLOATS:
        # At infinities and in the far tails eager's vector code differs between element types:
        # finite values there.
        for make in (
            Make(case, dtype),
            Make(case + 100, dtype, special=op in (aten.relu.default, aten.leaky_relu.default)),
        ):
            for shape in SHAPES:
                check(op, make(*shape), *args, **kwargs)


@pytest.mark.parametrize("case", range(len(BACKWARD)))
def test_backward(case: int) -> None:
    op, args, kwargs = BACKWARD[case]
    for dtype in FLOATS:
        if (op, dtype) == (aten.hardsigmoid_backward.default, torch.float64):
            continue  # eager multiplies by 1/6 rounded to float32
        make = Make(case, dtype)
        for shape in SHAPES:
            check(op, make(*shape), make(*shape), *args, **kwargs)


@pytest.mark.parametrize(
    "op",
    [
        aten.hardswish_backward,
        aten.hardsigmoid_backward,
        aten.threshold_backward,
        aten.hardtanh_backward,
    ],
)
def test_kinks(op: Any) -> None:
    kinks = torch.tensor(
        [-3.0, 3.0, 0.0, -0.0, 1.0, -1.0, 2.9999998, float("nan"), float("inf"), float("-inf")]
    )
    args = {"threshold_backward": (0,), "hardtanh_backward": (-1.0, 1.0)}.get(op.__name__, ())
    check(op.default, torch.full((10,), 0.7), kinks, *args)


def test_elu_backward() -> None:
    for is_result in (False, True):
        for dtype in FLOATS:
            make = Make(0, dtype)
            check(aten.elu_backward.default, make(3, 9), 1.2, 1.05, 0.9, is_result, make(3, 9))


def test_log_sigmoid_backward() -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        make = Make(0, dtype)
        x = make(3, 9)
        check(
            aten.log_sigmoid_backward.default, make(3, 9), x, aten.log_sigmoid_forward.default(x)[1]
        )


def test_prelu_backward() -> None:
    for dtype in FLOATS:
        make = Make(0, dtype)
        check(aten._prelu_kernel_backward.default, make(3, 9), make(3, 9), make(1, 9).expand(3, 9))


def test_glu() -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        make = Make(1, dtype)
        for dim in (0, -1):
            check(aten.glu.default, make(4, 6), dim)
            check(
                aten.glu_backward.default, make(2, 6) if dim == 0 else make(4, 3), make(4, 6), dim
            )


def test_integers() -> None:
    for dtype in (torch.int64, torch.int32, torch.uint8):
        make = Make(0, dtype)
        check(aten.relu.default, make(9))
        check(aten.sigmoid.default, make(9))
        check(aten.threshold_backward.default, make(9), make(9), 0)


def test_shrinks() -> None:
    for dtype in FLOATS:
        make = Make(2, dtype)
        check(aten.hardshrink.default, make(3, 8), 0.4)
        check(aten.softshrink.default, make(3, 8), 0.4)
        check(aten.hardshrink_backward.default, make(3, 8), make(3, 8), 0.4)
        check(aten.softshrink_backward.default, make(3, 8), make(3, 8), 0.4)
