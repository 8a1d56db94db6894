"""Recognise a matrix product in a kernel of the loop IR, and say which axes play which part.

    outer i0 < 512, i1 < 768                      batch  ()
    inner r0 < 64                                 rows   (i0,)
      v2 = mul (load b0[64*i0 + r0])        ->    lanes  (i1,)
               (load b1[768*r0 + i1])             left   the operand over rows and the inner axes
    v3 = reduce sum v2                            right  the operand over the inner axes and lanes
    store b2[768*i0 + i1] (tanh v3)

Relies on law 2 of `ir`. What follows the reduction is the kernel's epilogue, what an operand is
computed from its prologue: they are ordinary statements.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import torch

from flambeau_inductor.indexing.expressions import free_names
from flambeau_inductor.ir import (
    CheckIndex,
    Compute,
    Load,
    Reduce,
    Scan,
    Sort,
    Store,
    defined_name,
    index_of,
    inner_names,
    is_inner,
    operands,
)
from flambeau_inductor.lowering.row_groups import group_of_row, search_statements

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Sequence

    from flambeau_inductor.ir import Axis, Body, Integer, LoopKernel, Statement
    from flambeau_inductor.lowering.row_groups import RowGroups

FLOAT8_OPERANDS = frozenset({torch.float8_e4m3fn, torch.float8_e5m2})
OPERAND_DTYPES = FLOAT8_OPERANDS | {torch.float32, torch.float16, torch.bfloat16, torch.int8}
"""What kernels multiply; 8-bit floats on a GPU."""


@dataclass(frozen=True)
class Operand:
    """One factor: its value, in the dtype that is multiplied, and what computes it."""

    value: str
    dtype: torch.dtype
    body: Body

    @property
    def load(self) -> Load | None:
        """The load that it is, unmasked; None if it is computed."""
        last = self.body[-1]
        return last if isinstance(last, Load) and last.mask is None else None


@dataclass(frozen=True)
class Contraction:
    """A kernel that multiplies matrices. `lanes` hold the axis that is innermost in memory."""

    reduce: Reduce
    left: Operand
    right: Operand
    batch: tuple[Axis, ...]
    rows: tuple[Axis, ...]
    lanes: tuple[Axis, ...]
    epilogue: Body
    groups: RowGroups | None = None
    """The groups that rows belong to, if the right factor is another matrix for each."""


@dataclass(frozen=True)
class Extents:
    """The sizes of a product, likely ones where they are symbolic."""

    batch: int
    rows: int
    lanes: int
    inner: int
    static: bool = True

    @property
    def points(self) -> int:
        """The number of results."""
        return self.batch * self.rows * self.lanes


def extents(
    contraction: Contraction, inner: Sequence[Axis], hint: Callable[[Integer], int]
) -> Extents:
    """The sizes of a product."""
    groups = (contraction.batch, contraction.rows, contraction.lanes, tuple(inner))
    batch, rows, lanes, depth = (prod(hint(axis.size) for axis in axes) for axes in groups)
    if contraction.groups is not None:  # each likely has as many rows
        batch = contraction.groups.count
        rows = -(-rows // batch)
    static = all(isinstance(axis.size, int) for axes in groups for axis in axes)
    return Extents(batch, rows, lanes, depth, static)


def contraction_of(kernel: LoopKernel) -> Contraction | None:
    """The matrix product that a kernel is, or None."""
    reduces = [statement for statement in kernel.body if isinstance(statement, Reduce)]
    if len(reduces) != 1 or reduces[0].kind != "sum" or not kernel.outer or not kernel.inner:
        return None
    defined = {name: s for s in kernel.body if (name := defined_name(s)) is not None}
    inner = inner_names(kernel.body, kernel.inner)
    groups = _groups(kernel, defined)
    searches = [] if groups is None else search_statements(groups.value, defined)
    if any(
        isinstance(s, (Scan, Sort)) or _is_refused(s, defined, inner, kernel.device, groups)
        for s in kernel.body
        if s not in searches
    ):
        return None
    product = defined[reduces[0].value]
    if not isinstance(product, Compute) or product.op != "mul":
        return None
    epilogue = tuple(s for s in kernel.body if s is not reduces[0] and not is_inner(s, inner))
    if any(isinstance(s, Store) and (s.mode or s not in epilogue) for s in kernel.body):
        return None  # it scatters, or stores inner values
    known = {} if groups is None else {groups.value: groups}
    first, second = (_operand(arg, kernel.body, defined, known) for arg in product.args)
    if first.dtype is not second.dtype or first.dtype in narrow_for(kernel.device, reduces[0]):
        # Products of what both were widened to.
        first, second = (_operand(arg, kernel.body, defined, known, False) for arg in product.args)
    if first.dtype is not second.dtype or first.dtype not in OPERAND_DTYPES:
        return None
    axes_first, axes_second = _axes(first, kernel), _axes(second, kernel)
    outer = {axis.symbol.name for axis in kernel.outer}
    needed = {axis.symbol.name for axis in kernel.inner}
    if not needed <= axes_first & axes_second or axes_first | axes_second != outer | needed:
        return None
    left, right, left_axes, right_axes = first, second, axes_first, axes_second
    if kernel.outer[-1].symbol.name in axes_first - axes_second:
        left, right, left_axes, right_axes = second, first, axes_second, axes_first

    def of(names: set[str]) -> tuple[Axis, ...]:
        return tuple(axis for axis in kernel.outer if axis.symbol.name in names)

    result = Contraction(
        reduces[0], left, right,
        of(left_axes & right_axes), of(left_axes - right_axes), of(right_axes - left_axes),
        epilogue, groups,
    )  # fmt: skip
    return result if groups is None or _is_grouped(result, groups) else None


def _is_grouped(contraction: Contraction, groups: RowGroups) -> bool:
    """Whether the groups are those of the rows, and choose right factors."""
    if contraction.batch or [axis.symbol for axis in contraction.rows] != [groups.row]:
        return False

    def reads_group(operand: Operand) -> bool:
        indices = (index for each in operand.body if (index := index_of(each)) is not None)
        return any(groups.value in free_names(index) for index in indices)

    return reads_group(contraction.right) and not reads_group(contraction.left)


def narrow_for(device: str, reduce: Reduce) -> frozenset[torch.dtype]:
    """The dtypes that a device does not multiply with sums of this dtype."""
    whole = frozenset({torch.int8}) if reduce.dtype.is_floating_point else frozenset()
    return whole | FLOAT8_OPERANDS if device == "cpu" else whole


def _groups(kernel: LoopKernel, defined: dict[str, Statement]) -> RowGroups | None:
    """The groups of rows that an index of the kernel names."""
    for statement in kernel.body:
        if isinstance(statement, Load):
            for name in sorted(free_names(statement.index) & defined.keys()):
                groups = group_of_row(name, defined)
                if groups is not None:
                    return groups
    return None


def _operand(
    name: str, body: Body, defined: dict[str, Statement], known: Container[str | None],
    narrow: bool = True,
) -> Operand:  # fmt: skip
    """A factor, if `narrow` without the conversion to the dtype in which products are summed, and
    without what computes the `known` values.
    """
    statement = defined[name]
    assert not isinstance(statement, (Store, CheckIndex))
    if narrow and isinstance(statement, Compute) and statement.op == "cast":
        source = defined[statement.args[0]]
        assert not isinstance(source, (Store, CheckIndex))
        if source.dtype in OPERAND_DTYPES:
            name, statement = statement.args[0], source
    needed: set[str] = {name}
    for each in reversed(body):
        if (own := defined_name(each)) in needed and own is not None and own not in known:
            needed.update(operands(each))
            if (index := index_of(each)) is not None:
                needed.update(free_names(index))
    return Operand(
        name,
        statement.dtype,
        tuple(s for s in body if (n := defined_name(s)) in needed and n not in known),
    )  # type: ignore[union-attr]


def _axes(operand: Operand, kernel: LoopKernel) -> set[str]:
    """The axes that an operand varies along."""
    names = {axis.symbol.name for axis in (*kernel.outer, *kernel.inner)}
    return {
        name
        for statement in operand.body
        if (index := index_of(statement)) is not None
        for name in free_names(index) & names
    }


def _is_refused(
    statement: Statement, defined: dict[str, Statement], inner: set[str], device: str,
    groups: RowGroups | None,
) -> bool:  # fmt: skip
    """Whether an index is computed otherwise than as the group of a row, or on a GPU for a row:
    gathered rows of a factor.
    """
    if isinstance(statement, CheckIndex):
        return device == "cpu" or statement.value in inner
    index = index_of(statement)
    indirect = set() if index is None else free_names(index) & defined.keys()
    if not indirect or (groups is not None and indirect == {groups.value}):
        return False
    return device == "cpu" or not isinstance(statement, Load) or not indirect.isdisjoint(inner)
