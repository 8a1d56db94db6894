"""Pointwise kernels whose places and weights are the same along some axes: channels of images."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_inductor.codegen.triton.tiling import Tiling
from flambeau_inductor.indexing.expressions import symbol
from flambeau_inductor.ir import Axis, Compute, Constant, IndexValue, Load, LoopKernel, Param, Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from flambeau_inductor.ir import Statement

F32, I64 = torch.float32, torch.int64


def repeat_cases(case: Callable[..., Any]) -> Iterator[Any]:
    """Rows that fill their tiles and others, one and two axes of rows, a middle one, no rows."""
    middle, first, both = ("i0", "i2", "i3"), ("i1", "i2", "i3"), ("i2", "i3")
    yield resized_channels(case, (2, 8, 8, 16), middle)
    yield resized_channels(case, (3, 5, 7, 9), middle)
    yield resized_channels(case, (11, 3, 5, 6), first)
    yield resized_channels(case, (3, 5, 7, 9), both)
    yield resized_channels(case, (2, 0, 4, 4), middle)
    yield resized_channels(case, (2, 3, 40, 64), None)


def resized_channels(
    case: Callable[..., Any], shape: tuple[int, ...], lanes: tuple[str, ...] | None
) -> Any:
    """y[n, c, i, j] = x[n, c, a, b] * w(j) + x[n, last - c, a, i]: a, b and w of i and j alone."""
    images, channels, height, width = shape
    n, c, i, j = (symbol(f"i{number}") for number in range(4))
    side = height * width
    body: list[Statement] = [Constant("half", F32, 0.5), Constant("scale", F32, 0.75)]
    for name, axis in (("a", i), ("b", j)):
        body += [
            IndexValue(f"v{name}0", I64, axis),
            Compute(f"v{name}1", F32, "cast", (f"v{name}0",)),
            Compute(f"v{name}2", F32, "add", (f"v{name}1", "half")),
            Compute(f"v{name}3", F32, "mul", (f"v{name}2", "scale")),
            Compute(f"v{name}4", F32, "floor", (f"v{name}3",)),
            Compute(f"v{name}", I64, "cast", (f"v{name}4",)),
            Compute(f"v{name}5", F32, "sub", (f"v{name}3", f"v{name}4")),
        ]
    place = channels * side * n + width * symbol("va")
    body += [
        Load("v0", F32, "b0", place + side * c + symbol("vb")),
        Compute("v1", F32, "mul", ("v0", "vb5")),
        Load("v2", F32, "b0", place + side * (channels - 1) - side * c + i),
        Compute("v3", F32, "add", ("v1", "v2")),
        Store("b1", channels * side * n + side * c + width * i + j, "v3"),
    ]
    params = (Param("b0", F32, "read"), Param("b1", F32, "write"))
    axes = tuple(Axis(axis, size) for axis, size in zip((n, c, i, j), shape, strict=True))
    kernel = LoopKernel("cuda", params, (), axes, (), tuple(body))
    total = images * channels * side
    # The row of pixels i is read at column i, too: images are padded by as much.
    buffers = [torch.randn(total + height), torch.zeros(total)]
    tiling = lanes and Tiling(4, 32, lanes=lanes, lane_first=True, dealt=True, repeats=True)
    name = f"repeats-{'x'.join(map(str, shape))}-{lanes}"
    return case(name, kernel, buffers, tiling=tiling)
