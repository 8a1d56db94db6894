"""Normalizations, forward and backward."""

from __future__ import annotations

import pytest
import torch
from one_op import Make, check, decomposed

from flambeau_prims.evaluate import run_graph

aten = torch.ops.aten

FLOATS = (torch.float32, torch.float64, torch.bfloat16)
DENSE = ("contiguous", "permuted")


def images(make: Make) -> list[torch.Tensor]:
    x = make(3, 4, 5, 6)
    return [
        x.contiguous(),
        x.contiguous(memory_format=torch.channels_last),
        make(5, 4),
        make(2, 4, 7),
        make(2, 4, 2, 3, 2),
    ]


@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm(affine: bool) -> None:
    for dtype in FLOATS:
        make = Make(0, dtype, layouts=("contiguous",))
        weight, bias = (make(4), make(4)) if affine else (None, None)
        running_mean, running_var = make(4), make(4).abs() + 0.5
        for x in images(make):
            for training in (True, False):
                check(
                    aten._native_batch_norm_legit_functional.default,
                    x,
                    weight,
                    bias,
                    running_mean,
                    running_var,
                    training,
                    0.1,
                    1e-5,
                    factor=8.0,
                    near=1.0,
                )
            check(
                aten._batch_norm_with_update_functional.default,
                x,
                weight,
                bias,
                running_mean,
                running_var,
                0.1,
                1e-5,
                factor=8.0,
                near=1.0,
            )
            check(
                aten._native_batch_norm_legit_no_training.default,
                x,
                weight,
                bias,
                running_mean,
                running_var,
                0.1,
                1e-5,
            )
            check(
                aten._native_batch_norm_legit.no_stats,
                x,
                weight,
                bias,
                True,
                0.1,
                1e-5,
                factor=8.0,
                near=1.0,
            )
            check(
                aten.native_batch_norm.default,
                x,
                weight,
                bias,
                running_mean,
                running_var,
                False,
                0.1,
                1e-5,
            )
            check(
                aten.native_batch_norm.default,
                x,
                weight,
                bias,
                None,
                None,
                True,
                0.1,
                1e-5,
                factor=8.0,
                near=1.0,
            )


@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm_backward(affine: bool) -> None:
    for dtype in FLOATS:
        make = Make(1, dtype, layouts=("contiguous",))
        weight = make(4) if affine else None
        running_mean, running_var = make(4), make(4).abs() + 0.5
        for x in images(make):
            _, mean, invstd = aten.native_batch_norm.default(
                x, weight, None, None, None, True, 0.1, 1e-5
            )
            grad = torch.randn_like(x)
            for train in (True, False):
                check(
                    aten.native_batch_norm_backward.default,
                    grad,
                    x,
                    weight,
                    running_mean,
                    running_var,
                    mean if train else None,
                    invstd if train else None,
                    train,
                    1e-5,
                    [True, affine, affine],
                    factor=8.0,
                    near=1.0,
                )


@pytest.mark.parametrize("affine", [True, False])
def test_layer_norm(affine: bool) -> None:
    for dtype in (*FLOATS, torch.float16):
        make = Make(2, dtype)
        for shape, inner in (
            ((3, 8), (8,)),
            ((2, 3, 5), (3, 5)),
            ((2, 1, 33), (33,)),
            ((7,), (7,)),
        ):
            x = Make(2, dtype, layouts=DENSE)(*shape)
            weight, bias = (make(*inner), make(*inner)) if affine else (None, None)
            check(
                aten.native_layer_norm.default,
                x,
                list(inner),
                weight,
                bias,
                1e-5,
                factor=8.0,
                near=1.0,
            )
            _, mean, rstd = aten.native_layer_norm.default(x, list(inner), weight, bias, 1e-5)
            grad = make(*shape)
            check(
                aten.native_layer_norm_backward.default,
                grad,
                x,
                list(inner),
                mean,
                rstd,
                weight,
                bias,
                [True, affine, affine],
                factor=8.0,
                near=1.0,
            )


def test_layer_norm_of_mixed_dtypes() -> None:
    x = Make(3, torch.bfloat16, layouts=DENSE)(4, 16)
    weight, bias = Make(4, torch.float32)(16), Make(5, torch.float32)(16)
    check(aten.native_layer_norm.default, x, [16], weight, bias, 1e-5, factor=8.0, near=1.0)


@pytest.mark.parametrize("affine", [True, False])
def test_group_norm(affine: bool) -> None:
    for dtype in FLOATS:
        make = Make(6, dtype, layouts=("contiguous",))
        for shape, group in (((2, 4, 3, 5), 2), ((2, 4, 3, 5), 4), ((3, 6), 3), ((2, 4, 7), 1)):
            x = make(*shape)
            xs = [x, x.contiguous(memory_format=torch.channels_last)] if x.ndim == 4 else [x]
            channels, space = shape[1], x[0, 0].numel()
            weight, bias = (make(channels), make(channels)) if affine else (None, None)
            for x in xs:
                check(
                    aten.native_group_norm.default,
                    x,
                    weight,
                    bias,
                    shape[0],
                    channels,
                    space,
                    group,
                    1e-5,
                    factor=8.0,
                    near=1.0,
                )
            x = xs[0]
            _, mean, rstd = aten.native_group_norm.default(
                x, weight, bias, shape[0], channels, space, group, 1e-5
            )
            check(
                aten.native_group_norm_backward.default,
                make(*shape),
                x,
                mean,
                rstd,
                weight,
                shape[0],
                channels,
                space,
                group,
                [True, affine, affine],
                factor=8.0,
                near=1.0,
            )


def test_rms_norm() -> None:
    for dtype in FLOATS:
        make = Make(7, dtype)
        for weight in (make(9), None):
            for eps in (1e-6, None):
                x = make(4, 9)
                check(aten._fused_rms_norm.default, x, [9], weight, eps, factor=8.0, near=1.0)


@pytest.mark.parametrize("affine", [True, False])
def test_rms_norm_backward(affine: bool) -> None:
    """Against autograd through the formula, since eager has a kernel on some devices only."""
    make = Make(7, torch.float64)
    x, grad, weight = (
        make(4, 9).requires_grad_(),
        make(4, 9),
        make(9).requires_grad_() if affine else None,
    )
    rstd = (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    y = x * rstd if weight is None else x * rstd * weight
    wanted = torch.autograd.grad(y, [x] if weight is None else [x, weight], grad)
    args = (
        grad,
        x.detach(),
        [9],
        rstd.detach(),
        None if weight is None else weight.detach(),
        [True, affine],
    )
    graph, tensors = decomposed(
        aten._fused_rms_norm_backward.default, args, {}, [*wanted, *[None] * (not affine)]
    )
    for mine, theirs in zip(run_graph(graph, tensors), wanted, strict=False):
        torch.testing.assert_close(mine, theirs)


def test_weight_norm() -> None:
    for dtype in (torch.float32, torch.float64):
        make = Make(8, dtype, layouts=("contiguous",))
        for dim, shape in ((0, (5, 1)), (1, (1, 7))):
            v, g = make(5, 7), make(*shape)
            check(aten._weight_norm_interface.default, v, g, dim)
            _, norm = aten._weight_norm_interface.default(v, g, dim)
            check(aten._weight_norm_interface_backward.default, make(5, 7), v, g, norm, dim)
