"""Pooling through flambeau.compile: values, indices, strides and gradients of eager, in many forms
at once.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

import flambeau


def special(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """x with NaN, infinities and zeros of both signs among its elements."""
    if not x.is_floating_point():
        return x
    picks = torch.randint(0, 30, x.shape, generator=generator)
    for number, value in enumerate((float("nan"), float("-inf"), float("inf"), 0.0, -0.0)):
        x = torch.where(picks == number, value, x).to(x.dtype)
    return x


def random_pools(
    seed: int, count: int, dtypes: tuple[torch.dtype, ...]
) -> list[tuple[torch.Tensor, tuple[Any, ...]]]:
    """Images of sizes that do and do not fill vectors, in three layouts, with arguments of
    max_pool2d that fit them.
    """
    generator = torch.Generator().manual_seed(seed)

    def integer(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=generator))

    found: list[tuple[torch.Tensor, tuple[Any, ...]]] = []
    while len(found) < count:
        shape = (integer(0, 3), (1, 3, 16, 33, 70)[integer(0, 5)], integer(1, 20), integer(1, 40))
        kernel = (integer(1, 5), integer(1, 5))
        stride = (kernel, (integer(1, 4), integer(1, 4)), 2)[integer(0, 3)]
        padding = tuple(integer(0, size // 2 + 1) for size in kernel)
        dilation = ((1, 1), (integer(1, 4), integer(1, 3)))[integer(0, 2)]
        args = (kernel, stride, padding, dilation, integer(0, 5) < 2)
        dtype = dtypes[integer(0, len(dtypes))]
        x = special((torch.randn(shape, generator=generator) * 5).to(dtype), generator)
        layout = integer(0, 3)
        if layout == 0:
            x = x.contiguous(memory_format=torch.channels_last)
        elif layout == 1:
            x = x.transpose(2, 3)
        try:
            F.max_pool2d(x, *args)
        except RuntimeError:
            continue  # no window fits
        found.append((x, args))
    return found


def assert_same(ours: torch.Tensor, theirs: torch.Tensor, what: object) -> None:
    """Equal in value, the sign of zeros included, in dtype and in strides."""
    assert ours.dtype is theirs.dtype and ours.shape == theirs.shape, what
    assert ours.stride() == theirs.stride(), what
    torch.testing.assert_close(
        ours, theirs, rtol=0, atol=0, equal_nan=True, msg=lambda m: f"{what}: {m}"
    )
    if ours.is_floating_point():
        numbers = ~ours.isnan()
        assert torch.equal(ours[numbers].signbit(), theirs[numbers].signbit()), what


@pytest.mark.parametrize("seed", [0, 1])
def test_max_pools(seed: int) -> None:
    """As eager to the bit, and so are the indices, of every dtype that eager pools."""
    dtypes = (
        torch.float32,
        torch.float32,
        torch.float64,
        torch.bfloat16,
        torch.float16,
        torch.int32,
        torch.int64,
        torch.uint8,
    )
    pools = random_pools(seed, 12, dtypes)

    def program(*images: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [
            F.max_pool2d(x, *args, return_indices=True)
            for x, (_, args) in zip(images, pools, strict=True)
        ]

    images = [x for x, _ in pools]
    ours = flambeau.compile(program, fullgraph=True)(*images)
    for mine, theirs, (x, args) in zip(ours, program(*images), pools, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            assert_same(a, b, (x.shape, x.stride(), x.dtype, args))


def test_gradients_of_max_pools() -> None:
    """In eager's order of summation: equal, whichever form computes them."""
    pools = random_pools(2, 10, (torch.float32, torch.float64))

    def program(*images: torch.Tensor) -> list[torch.Tensor]:
        return [F.max_pool2d(x, *args) for x, (_, args) in zip(images, pools, strict=True)]

    generator = torch.Generator().manual_seed(3)
    results = []
    for call in (flambeau.compile(program, fullgraph=True), program):
        images = [
            x.detach().clone(memory_format=torch.preserve_format).requires_grad_() for x, _ in pools
        ]
        outs = call(*images)
        grads = [
            torch.randn(out.shape, generator=generator.manual_seed(4)).to(out.dtype) for out in outs
        ]
        torch.autograd.backward(outs, grads)
        results.append([x.grad for x in images])
    for ours, theirs, (x, args) in zip(*results, pools, strict=True):
        what = (x.shape, x.stride(), x.dtype, args)
        torch.testing.assert_close(
            ours, theirs, rtol=0, atol=0, msg=lambda m, what=what: f"{what}: {m}"
        )


def other_pools(
    image: torch.Tensor, line: torch.Tensor, volume: torch.Tensor
) -> list[torch.Tensor]:
    """The pools that follow from the same windows."""
    return [
        F.max_pool1d(line, 3, 2, 1),
        F.max_pool3d(volume, (2, 3, 2), (2, 1, 2), (1, 1, 0), ceil_mode=True),
        F.adaptive_max_pool2d(image, (4, 5)),
        F.adaptive_max_pool2d(image, 1),
        F.adaptive_max_pool1d(line, 3),
        F.avg_pool1d(line, 3, 2, 1, ceil_mode=True, count_include_pad=False),
        F.avg_pool2d(image, 3, 2, 1, ceil_mode=True),
        F.avg_pool2d(image, (3, 2), 1, (1, 1), count_include_pad=False),
        F.avg_pool2d(image, 3, 1, 1, divisor_override=4),
        F.avg_pool3d(volume, 2, 1, 1, count_include_pad=False),
        F.lp_pool2d(image, 2, 3, 2),
        F.interpolate(image, (17, 9)),
        F.interpolate(image, scale_factor=(1.5, 0.4)),
    ]


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_other_pools(layout: torch.memory_format) -> None:
    generator = torch.Generator().manual_seed(5)
    shapes = ((2, 18, 12, 15), (2, 3, 15), (2, 3, 5, 6, 7))
    image, line, volume = (torch.randn(shape, generator=generator) for shape in shapes)
    image = image.contiguous(memory_format=layout)
    results = []
    for call in (flambeau.compile(other_pools, fullgraph=True), other_pools):
        leaves = [
            x.clone(memory_format=torch.preserve_format).requires_grad_()
            for x in (image, line, volume)
        ]
        outs = call(*leaves)
        torch.autograd.backward(outs, [torch.ones_like(out) for out in outs])
        results.append((outs, [x.grad for x in leaves]))
    for ours, theirs in zip(*[outs + grads for outs, grads in results], strict=True):
        assert ours.stride() == theirs.stride()
        torch.testing.assert_close(ours, theirs)


def test_symbolic_sizes() -> None:
    """One program pools images of all sizes."""

    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            *F.max_pool2d(x, 3, 2, 1, return_indices=True),
            F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
            F.max_pool2d(x, 2, 2, ceil_mode=True),
        )

    compiled = flambeau.compile(program, fullgraph=True, dynamic=True)
    for shape in ((2, 5, 12, 14), (3, 5, 13, 21), (1, 7, 40, 9), (2, 16, 9, 8)):
        for layout in (torch.contiguous_format, torch.channels_last):
            x = torch.randn(shape).contiguous(memory_format=layout)
            for ours, theirs in zip(compiled(x), program(x), strict=True):
                assert ours.stride() == theirs.stride()
                torch.testing.assert_close(ours, theirs)


def test_windows_that_do_not_fit() -> None:
    """Eager's errors."""
    for kernel, padding in ((7, 0), (3, 2)):
        with pytest.raises(RuntimeError) as eager:
            F.max_pool2d(torch.randn(1, 1, 4, 4), kernel, 2, padding)
        compiled = flambeau.compile(lambda x, k=kernel, p=padding: F.max_pool2d(x, k, 2, p))
        with pytest.raises(RuntimeError) as ours:
            compiled(torch.randn(1, 1, 4, 4))
        assert str(ours.value).splitlines()[0] == str(eager.value).splitlines()[0]
