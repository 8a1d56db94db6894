"""Random real tensors for the rule tests: shapes, dtypes and, above all, layouts."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
COMPLEX = (torch.complex64, torch.complex128)
REAL = (*FLOATS, *INTEGERS, torch.bool)
ALL = (*REAL, *COMPLEX)

LAYOUTS = ("contiguous", "permuted", "channels_last", "sliced", "expanded", "shifted")


def shape(
    rng: random.Random, low: int = 0, high: int = 5, *, empty: bool = True
) -> tuple[int, ...]:
    """A random shape of `low` to `high` dimensions; now and then a size is 1 or 0."""
    sizes = [1, 1, 2, 3, 4, 5] + ([0] if empty and rng.random() < 0.1 else [])
    return tuple(rng.choice(sizes) for _ in range(rng.randint(low, high)))


def broadcastable(rng: random.Random, of: Sequence[int]) -> tuple[int, ...]:
    """A shape that broadcasts to `of`."""
    if rng.random() < 0.4:
        return tuple(of)
    kept = list(of)[rng.randint(0, len(of)) :] if rng.random() < 0.4 else list(of)
    return tuple(1 if rng.random() < 0.3 else size for size in kept)


def values(
    rng: random.Random, sizes: Sequence[int], dtype: torch.dtype, device: str
) -> torch.Tensor:
    """Small values that any operator takes without complaint (1 to 3, or booleans)."""
    generator = torch.Generator().manual_seed(rng.randrange(2**31))
    raw = torch.randint(1, 4, tuple(sizes), generator=generator)
    return (raw % 2 == 0 if dtype == torch.bool else raw.to(dtype)).to(device)


def tensor(
    rng: random.Random,
    sizes: Sequence[int],
    dtype: torch.dtype = torch.float32,
    layout: str | None = None,
    device: str = "cpu",
) -> torch.Tensor:
    """A tensor of this shape in a random layout."""
    sizes = tuple(sizes)
    layout = layout or rng.choice(LAYOUTS)
    if layout == "permuted":
        order = rng.sample(range(len(sizes)), len(sizes))
        made = values(rng, [sizes[d] for d in order], dtype, device)
        return made.permute([order.index(d) for d in range(len(sizes))])
    if layout == "channels_last" and len(sizes) in (4, 5):
        wanted = torch.channels_last if len(sizes) == 4 else torch.channels_last_3d
        return values(rng, sizes, dtype, device).contiguous(memory_format=wanted)
    if layout == "sliced" and sizes:
        dim = rng.randrange(len(sizes))
        step = rng.choice((1, 2))
        grown = list(sizes)
        grown[dim] = grown[dim] * step + 1
        base = tensor(rng, grown, dtype, rng.choice(("contiguous", "permuted")), device)
        return base.narrow(dim, 1, grown[dim] - 1)[
            (slice(None),) * dim + (slice(None, None, step),)
        ]
    if layout == "expanded" and sizes:
        kept = [1 if rng.random() < 0.5 else size for size in sizes]
        base = tensor(rng, kept, dtype, rng.choice(("contiguous", "permuted")), device)
        return base.expand(sizes)
    if layout == "shifted":
        count = 1
        for size in sizes:
            count *= size
        return values(rng, [count + 3], dtype, device)[3:].view(sizes)
    return values(rng, sizes, dtype, device)


def index_tensor(
    rng: random.Random, sizes: Sequence[int], below: int, device: str = "cpu"
) -> torch.Tensor:
    """int64 positions below a bound, in a random layout."""
    base = tensor(rng, sizes, torch.int64, device=device)
    return (
        base.clone().random_(0, max(below, 1)) if base.numel() and below else base.clone().zero_()
    )


def to_device(arg: Any, device: str) -> Any:
    """An argument with its tensors copied to a device, strides and offset kept."""
    if isinstance(arg, torch.Tensor):
        extent = arg.untyped_storage().nbytes() // arg.element_size()
        return (
            arg.as_strided((extent,), (1,), 0)
            .to(device)
            .as_strided(arg.shape, arg.stride(), arg.storage_offset())
        )
    if isinstance(arg, (list, tuple)):
        return type(arg)(to_device(item, device) for item in arg)
    return arg
