"""Kernels of the loop IR that cast from and to 8-bit floats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_inductor.codegen.float8 import FLOAT8
from flambeau_inductor.indexing.expressions import symbol
from flambeau_inductor.ir import Axis, Compute, Load, LoopKernel, Param, Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

OTHERS = (torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.bool)


def float8_cases(case: Callable[..., Any]) -> Iterator[Any]:
    """Every code of each format to other dtypes, and numbers around every rounding border to it."""
    codes = torch.arange(256, dtype=torch.uint8)
    for dtype in FLOAT8:
        for to in (*OTHERS, *FLOAT8):
            x = codes.view(dtype)
            if to is torch.int32:
                x = x.float().nan_to_num(1.0, 1.0, 1.0).to(dtype)
            if to is not dtype:
                yield cast(case, x, to)
        for source in OTHERS:
            yield cast(case, near_borders(dtype).to(source), dtype)


def near_borders(dtype: torch.dtype) -> torch.Tensor:
    """The numbers of a format, those halfway between, both with their neighbours, and specials."""
    own = torch.arange(256, dtype=torch.uint8).view(dtype).float()
    own = own[own.isfinite()].unique()
    halfway = (own[1:] + own[:-1]) / 2
    beyond = own.max() * torch.tensor([1.03, 1.05, 1.0625, 1.125, 1.2, 4.0, 1e30])
    border = torch.cat([own, halfway, beyond, -beyond])
    up, down = border.new_full((), float("inf")), border.new_full((), float("-inf"))
    special = torch.tensor([float("inf"), float("-inf"), float("nan"), 0.0, -0.0, 1e-30, -1e-40])
    return torch.cat([border, torch.nextafter(border, up), torch.nextafter(border, down), special])


def cast(case: Callable[..., Any], x: torch.Tensor, to: torch.dtype) -> Any:
    """A cast of a vector."""
    i = symbol("i0")
    body = (
        Load("v0", x.dtype, "b0", i),
        Compute("v1", to, "cast", ("v0",)),
        Store("b1", i, "v1"),
    )
    params = (Param("b0", x.dtype, "read"), Param("b1", to, "write"))
    kernel = LoopKernel("cuda", params, (), (Axis(i, len(x)),), (), body)
    return case(f"float8-{x.dtype}-{to}", kernel, [x, torch.zeros(len(x)).to(to)])
