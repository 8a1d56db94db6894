"""Programs that write to parts of an input, and read it before and afterwards."""

from __future__ import annotations

import torch

from tests.programs.draw import rand
from tests.programs.program import Program, program

PROGRAMS: dict[str, Program] = {}
add = program(PROGRAMS)

IN_PLACE: set[str] = set()
"""The programs that need no second tensor of the input's size."""


def statements(*lines: str) -> object:
    """A function of these statements on `x` and `k`; the last is what it returns."""
    scope: dict[str, object] = {"torch": torch, "rows": torch.tensor([5, 2, 7])}
    body = "\n    ".join([*lines[:-1], f"return {lines[-1]}"])
    exec(compile(f"def program(x, k):\n    {body}\n", f"<{lines[0]}>", "exec"), scope)
    return scope["program"]


def plain() -> tuple[torch.Tensor, torch.Tensor]:
    """Two matrices, row by row."""
    return rand(16, 24), rand(16, 24)


def columns() -> tuple[torch.Tensor, torch.Tensor]:
    """Two matrices, column by column."""
    return rand(24, 16).t(), rand(24, 16).t()


def odd() -> tuple[torch.Tensor, torch.Tensor]:
    """Windows on larger memory, with gaps between the rows."""
    return rand(18, 40)[1:17, 3:27], rand(16, 48)[:, ::2]


IN_PLACE_CASES: dict[str, tuple[str, ...]] = {
    "rows": ("x[3:5] = k[:2]", "x.sum()"),
    "columns": ("x[:, 3:5] = k[:, :2]", "x.sum()"),
    "one_row": ("x[3] = k[0]", "x.sum(0)"),
    "one_column": ("x[:, 3] = k[:, 0]", "x.sum(0)"),
    "a_number": ("x[:, 3] = 7.5", "x.sum(0)"),
    "added": ("x[:, 3] += k[:, 0]", "x.sum(0)"),
    "read_before": ("y = x.sum(1)", "x[2] = k[0]", "x.sum(1) + y"),
    "read_before_from_behind": ("z = x + 1", "x[2] = k[0]", "x.sum(1) + z.cos().sum()"),
    "two_writes": ("x[:, 3:5] = k[:, :2]", "x[4:9] = k[:5]", "x.sum(1)"),
    "overlapping": ("x[2:9] = k[2:9]", "x[3:5] = x[2:4] + 1", "x.sum(1)"),
    "shift": ("x[1:] = x[:-1] * 2", "x.sum(0)"),
    "swap": ("x[0], x[1] = x[1].clone(), x[0].clone()", "x.sum(1)"),
    "read_between": (
        "x[0] = k[0]", "a = x.sum()", "x[1] = k[1] * a", "b = x.sum()", "x[2] = k[2] * b",
        "x.mean()",
    ),
    "through_views": ("x.t()[1:3] = k.t()[:2]", "x.sum(0)"),
    "returned": ("x[:, 3] = k[:, 0]", "x"),
    "view_returned": ("x[:, 3] = k[:, 0]", "x[2:4]"),
}  # fmt: skip

OTHER_CASES: dict[str, tuple[str, ...]] = {
    "copy_returned": ("x[:, 3] = k[:, 0]", "x.clone()"),
    "old_and_new": ("y = x.clone()", "x[:, 3] = k[:, 0]", "x, y"),
    "raises_later": ("x[0] = k[0]", "x[(x[:, 0].abs() * 100).long() % 8]"),
    "every_second": ("x[:, ::2] = k[:, ::2]", "x.sum(0)"),
    "diagonal": ("x.diagonal().copy_(k[0, :16])", "x.sum(0)"),
    "masked": ("x[k > 0] = 3.0", "x[:, 2] = 1", "x.sum(0)"),
    "index_add": ("x.index_add_(0, rows, k[:3])", "x.sum(0)"),
    "index_copy": ("x.index_copy_(0, rows, k[:3] * 2)", "x.sum(0)"),
    "index_put": ("x[rows] = k[:3] * 2", "x.sum(0)"),
    "index_put_accumulate": ("x.index_put_((rows,), k[:3], accumulate=True)", "x.sum(0)"),
    "index_put_column": ("x[:, rows] = k[:, :3] * 2", "x.sum(0)"),
    "index_fill": ("x.index_fill_(1, rows, 2.5)", "x.sum(0)"),
    "scatter": ("x.scatter_(1, (k[:, :1].abs() * 5).long().clamp(0, 23), k[:, :1])", "x.sum(1)"),
    "scatter_add": ("x.scatter_add_(1, (k.abs() * 5).long().clamp(0, 23), k)", "x.sum(1)"),
    "indexed_by_itself": ("x[x[:, 0].argsort()[:2]] = x[3:5] * 2", "x.sum(0)"),
    "result_kept": ("y = x.index_add(0, rows, k[:3])", "x.copy_(y)", "y"),
    "of_a_result": ("y = x * 2", "y[1:3] = k[:2]", "y.index_add_(0, rows, k[:3])", "y"),
    "of_zeros": (
        "y = torch.zeros_like(x)", "y.index_put_((rows,), k[:3], accumulate=True)", "y, y + 1",
    ),
    "result_read_before": ("y = x * 2", "z = y.sum()", "y.index_add_(0, rows, k[:3])", "y, z"),
    "old_scattered_later": (
        "r = rows.argsort()[:, None].expand(3, 24)", "y = x.scatter(0, r, k)", "x[0] = y[0].sum()",
        "x.scatter(0, r, y)",
    ),
    "scattered_then_overwritten": (
        "y = x.index_copy(0, rows, k[:3])", "x[0] = y.sum()", "x.index_copy(0, rows, y[:3])",
    ),
    "both_results": ("y = x * 2", "z = y.index_add(0, rows, k[:3])", "y, z"),
}  # fmt: skip


def scaled_beside_softmax(x: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """One result may take the memory of `y` only behind the last pass of the softmax over it."""
    y = x.index_add(0, k, x[:2])
    return torch.softmax(y, 1) * 1.5, y * 1.5


add("scaled_beside_softmax", scaled_beside_softmax, lambda: (rand(300, 300), torch.tensor([7, 3])))

for layout in (plain, columns, odd):
    for name, lines in {**IN_PLACE_CASES, **OTHER_CASES}.items():
        title = f"{name}_{layout.__name__}"
        add(title, statements(*lines), layout)  # type: ignore[arg-type]
        if name in IN_PLACE_CASES and layout is not odd:
            IN_PLACE.add(title)
