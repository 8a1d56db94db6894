"""Programs of windows, resampling and scatters, with inputs of odd sizes: (function, arguments)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F

if TYPE_CHECKING:
    from collections.abc import Callable


def _image(*shape: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.randn(shape)


def _rows_last(*shape: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.randn(shape).contiguous(memory_format=torch.channels_last)


def _index(size: int, *shape: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.randint(0, size, shape)


def _points(*shape: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.rand(shape) * 2.6 - 1.3


ROWS, LAST = _image(2, 5, 17, 33), _rows_last(2, 64, 15, 21)

PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Callable[[], torch.Tensor], ...]]] = {
    f"{name}_{layout}": (function, (image,))
    for layout, image in (("rows", ROWS), ("last", LAST))
    for name, function in {
        "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear") * 2,
        "corners": lambda x: F.interpolate(
            x, size=(40, 50), mode="bilinear", align_corners=True
        ),
        "shrunk": lambda x: F.interpolate(x, size=(9, 10), mode="bilinear"),
        "bicubic": lambda x: F.interpolate(x, size=(30, 41), mode="bicubic"),
        "max_pool": lambda x: F.max_pool2d(x, 3, 2, 1),
        "max_pool_indices": lambda x: F.max_pool2d(x, (2, 3), 2, (1, 0), return_indices=True),
        "replicate": lambda x: F.pad(x, (2, 3, 1, 2), mode="replicate"),
    }.items()
} | {
    "trilinear": (lambda x: F.interpolate(x, scale_factor=2, mode="trilinear"),
                  (_image(1, 3, 5, 6, 7),)),
    "adaptive": (lambda x: F.adaptive_avg_pool2d(x, 7), (_image(2, 5, 30, 30),)),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2) * 2, (_image(2, 8, 5, 6),)),
    "grid_sample": (lambda x, g: F.grid_sample(x, g, align_corners=False),
                    (_image(2, 5, 17, 13), _points(2, 9, 11, 2))),
    "grid_sample_volume": (
        lambda x, g: F.grid_sample(x, g, padding_mode="reflection", align_corners=False),
        (_image(2, 5, 7, 8, 9), _points(2, 3, 4, 5, 3))),
    "embedding": (lambda w, i: F.embedding(i, w, padding_idx=3).sin(),
                  (_image(10, 33), _index(10, 7, 90))),
    "index_add": (lambda x, i, s: x.index_add(0, i, s * 2).cos(),
                  (_image(50, 33), _index(50, 200), _image(200, 33))),
    "scatter_add": (lambda x, i, s: x.scatter_add(1, i, s.sin()),
                    (_image(20, 33), _index(33, 20, 70), _image(20, 70))),
    "index_put": (lambda x, i, s: x.index_put((i,), s, accumulate=True),
                  (_image(20, 5), _index(20, 70), _image(70, 5))),
    "gather": (lambda x, i: x.gather(1, i) * 2, (_image(20, 33), _index(33, 20, 70))),
    "index": (lambda x, i, j: x[:, i, j], (_image(8, 9, 9), _index(9, 36), _index(9, 36))),
}  # fmt: skip


def results(
    function: Callable[..., Any], arguments: tuple[torch.Tensor, ...]
) -> list[torch.Tensor]:
    """What a function returns, and the gradients of the sum of its squares."""
    leaves = [
        x.detach().clone().requires_grad_() if x.is_floating_point() else x for x in arguments
    ]
    found = function(*leaves)
    found = list(found) if isinstance(found, tuple) else [found]
    found[0].double().square().sum().backward()
    return [*(x.detach() for x in found), *(x.grad for x in leaves if x.grad is not None)]


def assert_as_near_as_eager(
    function: Callable[..., Any], compiled: Callable[..., Any], arguments: tuple[torch.Tensor, ...]
) -> None:
    """The compiled function's results and gradients have eager's Specs, equal integers, and err
    from those in float64 by little more than eager's.
    """
    wide = tuple(x.double() if x.is_floating_point() else x for x in arguments)
    ours, eager, exact = (
        results(f, x) for f, x in ((compiled, arguments), (function, arguments), (function, wide))
    )
    assert len(ours) == len(eager)
    for mine, theirs, reference in zip(ours, eager, exact, strict=True):
        assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
        assert mine.stride() == theirs.stride()
        if not mine.is_floating_point():
            assert torch.equal(mine, theirs)
            continue
        errors = [(x.double() - reference).abs().max().item() for x in (mine, theirs)]
        scale = reference.abs().max().item()
        assert errors[0] <= 4 * errors[1] + 16 * torch.finfo(mine.dtype).eps * scale
