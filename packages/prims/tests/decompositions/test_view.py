"""Views and copies."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from one_op import Make, check, decomposed, flat

from flambeau_prims.primitives import Kind

aten = torch.ops.aten

VIEWS: list[tuple[Any, tuple[int, ...], tuple[Any, ...]]] = [
    (aten.view.default, (2, 6), ([3, 4],)),
    (aten.view.default, (2, 6), ([-1],)),
    (aten.view.default, (0, 6), ([0, 2, 3],)),
    (aten._unsafe_view.default, (2, 6), ([12],)),
    (aten._reshape_alias.default, (2, 6), ([12], [1])),
    (aten.expand.default, (2, 1), ([3, 2, 5],)),
    (aten.expand.default, (2, 3), ([-1, 3],)),
    (aten.expand.default, (), ([4],)),
    (aten.permute.default, (2, 3, 4), ([2, 0, -2],)),
    (aten.t.default, (2, 3), ()),
    (aten.t.default, (4,), ()),
    (aten.transpose.int, (2, 3, 4), (0, -1)),
    (aten.transpose.int, (), (0, -1)),
    (aten.unsqueeze.default, (2, 3), (-1,)),
    (aten.unsqueeze.default, (2, 3), (0,)),
    (aten.unsqueeze.default, (), (0,)),
    (aten.squeeze.default, (1, 3, 1), ()),
    (aten.squeeze.dim, (1, 3), (0,)),
    (aten.squeeze.dim, (1, 3), (-1,)),
    (aten.squeeze.dims, (1, 3, 1), ([0, 1, 2],)),
    (aten.slice.Tensor, (5, 6), (0, 1, 4)),
    (aten.slice.Tensor, (5, 6), (1, -3, 2**63 - 1)),
    (aten.slice.Tensor, (5, 6), (1, 1, 6, 2)),
    (aten.slice.Tensor, (5, 6), (0, 4, 2)),
    (aten.slice.Tensor, (5, 6), (0, 7, 9)),
    (aten.slice.Tensor, (5, 6), (0, None, None, 3)),
    (aten.select.int, (3, 4), (1, -1)),
    (aten.select.int, (3, 4), (0, 1)),
    (aten.unbind.int, (3, 4), (1,)),
    (aten.split.Tensor, (7, 2), (3,)),
    (aten.split.Tensor, (2, 7), (3, 1)),
    (aten.split_with_sizes.default, (7, 2), ([2, 0, 5],)),
    (aten.unsafe_split.Tensor, (7, 2), (3,)),
    (aten.unsafe_split_with_sizes.default, (7, 2), ([3, 4],)),
    (aten.chunk.default, (7, 2), (3,)),
    (aten.diagonal.default, (3, 5), ()),
    (aten.diagonal.default, (3, 5), (2,)),
    (aten.diagonal.default, (3, 2, 5), (-1, 0, -1)),
    (aten.detach.default, (3,), ()),
    (aten.alias.default, (3,), ()),
    (aten.narrow.default, (5, 2), (0, 1, 3)),
    (aten.movedim.intlist, (2, 3, 4), ([0], [-1])),
]


@pytest.mark.parametrize("case", range(len(VIEWS)))
def test_views(case: int) -> None:
    op, shape, args = VIEWS[case]
    for dtype in (torch.float32, torch.bfloat16, torch.bool, torch.int64):
        for seed in range(4):
            x = Make(seed, dtype)(*shape)
            if op in (aten.view.default, aten._unsafe_view.default, aten._reshape_alias.default):
                x = x.contiguous()
            check(op, x, *args, exact=True)


def test_views_are_views() -> None:
    for op, shape, args in VIEWS:
        x = Make(0, torch.float32)(*shape).contiguous()
        graph, _ = decomposed(op, (x, *args), {}, flat(op(x, *args)))
        if not op._schema.name.startswith("aten::unsafe"):
            assert all(node.op.kind is Kind.VIEW for node in graph.nodes), graph


def test_as_strided_and_unfold() -> None:
    for seed in range(4):
        x = Make(seed, torch.float32)(4, 6)
        check(aten.as_strided.default, x.contiguous(), [3, 2], [2, 5], 1, exact=True)
        check(aten.unfold.default, x, 1, 3, 2, exact=True)
        check(aten.unfold.default, x, 0, 2, 1, exact=True)
        check(aten.as_strided.default, x, x.size(), x.stride(), exact=True)


CHANNELS_LAST = torch.channels_last


def test_copies() -> None:
    for seed in range(6):
        x = Make(seed, torch.float32)(2, 3, 4, 5)
        check(aten.clone.default, x, exact=True)
        check(aten.clone.default, x, memory_format=torch.contiguous_format, exact=True)
        check(aten.clone.default, x, memory_format=CHANNELS_LAST, exact=True)
        check(aten.contiguous.default, x.expand(2, 3, 4, 5).contiguous() + 1, exact=True)
        check(aten.lift_fresh_copy.default, x, exact=True)


@pytest.mark.parametrize(
    "source",
    [
        torch.float32,
        torch.float64,
        torch.bfloat16,
        torch.float16,
        torch.int64,
        torch.uint8,
        torch.bool,
    ],
)
@pytest.mark.parametrize(
    "target",
    [
        torch.float32,
        torch.float64,
        torch.bfloat16,
        torch.float16,
        torch.int64,
        torch.int8,
        torch.bool,
    ],
)
def test_casts(source: torch.dtype, target: torch.dtype) -> None:
    for seed in range(3):
        make = Make(seed, source)
        x = (
            make(3, 7)
            if source is torch.bool
            else make(3, 7) * (100 if source.is_floating_point else 1)
        )
        check(aten._to_copy.default, x, dtype=target, exact=True)
        check(aten.copy.default, torch.empty(2, 3, 7, dtype=target), x, exact=True)


def test_cast_with_memory_format() -> None:
    x = Make(0, torch.float32)(2, 3, 4, 5)
    check(aten._to_copy.default, x, dtype=torch.bfloat16, memory_format=CHANNELS_LAST, exact=True)
    check(aten._to_copy.default, x, memory_format=torch.contiguous_format, exact=True)


def test_view_copies() -> None:
    x = Make(0, torch.float32)(2, 6).contiguous()
    check(aten.view_copy.default, x, [3, 4], exact=True)
    check(aten.permute_copy.default, x, [1, 0], exact=True)
    check(aten.expand_copy.default, x, [4, 2, 6], exact=True)
