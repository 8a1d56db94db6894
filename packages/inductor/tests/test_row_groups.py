"""Which group a row belongs to: the search, and that kernels recognise it and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
import sympy
import torch

from flambeau_inductor.evaluate import run_kernel
from flambeau_inductor.indexing.expressions import symbol
from flambeau_inductor.ir import Axis, Constant, LoopKernel, Param, defined_name
from flambeau_inductor.lowering.body_builder import BodyBuilder
from flambeau_inductor.lowering.row_groups import group_of_row, search_group

ROW = symbol("i0")


def search(ends: list[int], rows: int, offset: int = 0) -> tuple[LoopKernel, str]:
    """A kernel that stores the group of each row."""
    builder = BodyBuilder()
    value = search_group(builder, "b0", len(ends), ROW, sympy.Integer(offset))
    builder.store("b1", ROW, value)
    params = Param("b0", torch.int32, "read"), Param("b1", torch.int64, "write")
    return LoopKernel("cpu", params, (), (Axis(ROW, rows),), (), builder.finish()), value


@pytest.mark.parametrize("ends", [[9], [0, 9], [3, 3, 9], [2, 4, 6, 8, 9], [0, 0, 5], [1] * 17])
def test_the_search(ends: list[int]) -> None:
    kernel, _ = search(ends, 9)
    result = torch.full((9,), -1)
    run_kernel(kernel, [torch.tensor(ends, dtype=torch.int32), result], ())
    found = torch.searchsorted(torch.tensor(ends), torch.arange(9), right=True)
    assert torch.equal(result, found.clamp(max=len(ends) - 1))


@pytest.mark.parametrize("count", [1, 2, 3, 8, 60])
@pytest.mark.parametrize("offset", [0, 5])
def test_is_recognised(count: int, offset: int) -> None:
    kernel, value = search([1] * count, 9, offset)
    defined = {name: s for s in kernel.body if (name := defined_name(s)) is not None}
    groups = group_of_row(value, defined)
    assert groups is not None
    assert (groups.row, groups.bounds, groups.count) == (ROW, "b0", count)
    assert groups.offset == offset
    for name, statement in defined.items():  # any other number makes it another function
        if isinstance(statement, Constant) and count > 1:
            changed = defined | {name: replace(statement, value=int(statement.value) + 1)}
            assert group_of_row(value, changed) is None
