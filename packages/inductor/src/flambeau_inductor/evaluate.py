"""The reference implementer of the scalar operators: runs kernels and whole scheduled programs in
eager torch.

Values are tensors over the loop nest's points: dim 0 the outer points, dim 1 the inner points
(sizes 1 where a value does not vary). Slow and plain; it is what tests compare code generators
with.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from flambeau_inductor.indexing.expressions import evaluate_expr
from flambeau_inductor.ir import SHARE, TILE, tile_points
from flambeau_inductor.scalar_ops import SCALAR_OPS, Replay, install
from flambeau_inductor.split_reduction import identity
from flambeau_prims.philox import philox
from flambeau_prims.primitives import PRIMS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import sympy

    from flambeau_inductor.ir import (
        Axis,
        ColumnReduce,
        Integer,
        LoopKernel,
        Number,
        Scan,
        Sort,
        Statement,
        TileReduce,
    )

SCANS = {
    "sum": "cumsum", "prod": "cumprod", "max": "cummax", "min": "cummin",
    "logaddexp": "logcumsumexp",
}  # fmt: skip
"""Kind of Scan -> the primitive that it computes."""


def run_kernel(kernel: LoopKernel, buffers: Sequence[torch.Tensor], ints: Sequence[int]) -> None:
    """Run a kernel on tensors in place; a tensor's data pointer is the kernel's index 0."""
    memory = {
        param.name: _flat(tensor) for param, tensor in zip(kernel.params, buffers, strict=True)
    }
    sizes = {size.name: value for size, value in zip(kernel.sizes, ints, strict=True)}
    evaluator = Evaluator(kernel, memory, sizes)
    if evaluator.outer > 0 or kernel.shares != 0:
        Replay(evaluator).run(kernel.body)
    for stored, index, value in evaluator.stores:
        memory[stored][index] = value


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """All of a tensor's memory from its data pointer on, as one dim."""
    count = tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset()
    return tensor.as_strided((max(count, 0),), (1,), tensor.storage_offset())


_SCATTERED: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "set": lambda kept, number: number, "add": torch.add, "mul": torch.mul,
    "max": torch.maximum, "min": torch.minimum,
}  # fmt: skip
"""What a scatter leaves at a place, by its mode."""


class Evaluator:
    """ScalarOps on torch tensors of shape [outer points or 1, inner points or 1]."""

    def __init__(
        self, kernel: LoopKernel, memory: Mapping[str, torch.Tensor], sizes: dict[str, int]
    ) -> None:
        self.memory = memory
        self.names: dict[str, Any] = dict(sizes)
        self.outer = self.grid(kernel.outer, 0)
        self.inner = self.grid(kernel.inner, 1)
        self.shares = int(evaluate_expr(kernel.shares, self.names))
        if self.shares:
            self.names[SHARE.name] = torch.arange(self.shares).reshape(-1, 1)
        if points := tile_points(kernel.body):
            self.names[TILE.name] = self.names[kernel.outer[-1].symbol.name] // points
        self.last = int(evaluate_expr(kernel.outer[-1].size, self.names)) if kernel.outer else 1
        self.stores: list[tuple[str, torch.Tensor, torch.Tensor]] = []

    def grid(self, axes: Sequence[Axis], dim: int) -> int:
        """Bind the axes to their values at each point; returns the number of points."""
        lengths = [int(evaluate_expr(axis.size, self.names)) for axis in axes]
        total = math.prod(lengths)
        position = torch.arange(total)
        for axis, length in zip(reversed(axes), reversed(lengths), strict=True):
            value = position % length if length else position
            self.names[axis.symbol.name] = (
                value.reshape(-1, 1) if dim == 0 else value.reshape(1, -1)
            )
            position = position // max(length, 1)
        return total

    def bind(self, statement: Statement, value: torch.Tensor) -> torch.Tensor:
        self.names[statement.name] = value  # type: ignore[union-attr]
        return value

    # Leaves and memory

    def constant(self, value: Number, dtype: torch.dtype) -> torch.Tensor:
        if dtype.is_floating_point:
            return torch.tensor([[value]]).to(dtype)
        return torch.tensor([[value]], dtype=dtype)

    def index_value(self, expr: sympy.Expr, dtype: torch.dtype) -> torch.Tensor:
        return self.positions(expr).to(dtype)

    def positions(self, expr: sympy.Expr) -> torch.Tensor:
        value = evaluate_expr(expr, self.names)
        return value if isinstance(value, torch.Tensor) else torch.tensor([[value]])

    def load(
        self, buffer: str, index: sympy.Expr, dtype: torch.dtype, mask: torch.Tensor | None
    ) -> torch.Tensor:
        positions = self.positions(index)
        memory = self.memory[buffer]
        if mask is None:
            return memory[positions]
        positions, mask = torch.broadcast_tensors(positions, mask)
        if memory.numel() == 0:
            if bool(mask.any()):
                raise IndexError(f"a masked load reads the empty buffer {buffer}")
            return torch.zeros(positions.shape, dtype=dtype)
        return torch.where(
            mask, memory[torch.where(mask, positions, 0)], torch.zeros((), dtype=dtype)
        )

    def store(
        self, buffer: str, index: sympy.Expr, value: torch.Tensor, mask: torch.Tensor | None
    ) -> None:
        positions = self.positions(index)
        if mask is not None:
            positions, value, mask = torch.broadcast_tensors(positions, value, mask)
            positions, value = positions[mask], value[mask]
        positions, value = torch.broadcast_tensors(positions, value)
        self.stores.append((buffer, positions, value))

    def scatter(
        self, mode: str, buffer: str, index: sympy.Expr, value: torch.Tensor,
        mask: torch.Tensor | None,
    ) -> None:  # fmt: skip
        points = [self.positions(index), value, *([mask] if mask is not None else [])]
        shape = torch.broadcast_shapes((self.outer, self.inner), *(p.shape for p in points))
        positions, value, *masks = (p.expand(shape).reshape(-1) for p in points)
        if masks:
            positions, value = positions[masks[0]], value[masks[0]]
        memory = self.memory[buffer]
        for position, number in zip(positions.tolist(), value, strict=True):
            memory[position] = _SCATTERED[mode](memory[position], number)

    def check_index(self, value: torch.Tensor, size: Integer, mask: torch.Tensor | None) -> None:
        limit = evaluate_expr(size, self.names)
        wrong = (value < 0) | (value >= limit)
        if mask is not None:
            wrong = wrong & mask
        if bool(wrong.any()):
            raise IndexError(f"index out of bounds for size {limit}")

    def reduce(self, kind: str, value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return _reduced(kind, value.expand(value.shape[0], self.inner), dtype)

    def reduce_columns(
        self, statement: ColumnReduce, value: torch.Tensor, dtype: torch.dtype
    ) -> torch.Tensor:
        value = value.expand(self.outer, self.inner)
        parts = [value[number :: self.shares] for number in range(self.shares)]
        if statement.kind == "sum":
            return torch.stack([part.sum(0, dtype=statement.dtype) for part in parts])
        start = identity("a" + statement.kind, dtype)
        row = torch.full((1, self.inner), start, dtype=dtype)
        return torch.stack(
            [getattr(torch, "a" + statement.kind)(torch.cat([row, part]), 0) for part in parts]
        )

    def reduce_tile(
        self, statement: TileReduce, value: torch.Tensor, dtype: torch.dtype
    ) -> torch.Tensor:
        rows = value.expand(self.outer, 1).reshape(-1, self.last)
        results = []
        for start in range(0, self.last, statement.points):
            tile = rows[:, start : start + statement.points]
            result = _reduced(statement.kind, tile, statement.dtype)
            if statement.kind in ("argmax", "argmin"):
                result = result + start
            results.append(result.expand(tile.shape))
        return torch.cat(results, 1).reshape(self.outer, 1)

    def scan(self, statement: Scan, value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        value = value.expand(value.shape[0], self.inner)
        return PRIMS[SCANS[statement.kind]](value, 1, statement.reverse)

    def sort(self, statement: Sort, value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        value = value.expand(value.shape[0], self.inner)
        name = "sort" if statement.kind == "values" else "argsort"
        return PRIMS[name](value, 1, statement.descending, self.inner)

    # Selection and conversion

    def where(
        self, condition: torch.Tensor, a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype
    ) -> torch.Tensor:
        return torch.where(condition, a, b)

    def cast(self, x: torch.Tensor, source: torch.dtype, to: torch.dtype) -> torch.Tensor:
        return x.to(to)

    def float_of_bits(self, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return x.view(torch.float64)

    def philox(self, *args: Any) -> torch.Tensor:
        *places, _ = args
        return philox(*places)


def _reduced(kind: str, rows: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Rows [n, length] reduced to [n, 1]; `dtype`: of sums and products."""
    if kind in ("argmax", "argmin"):
        return PRIMS[kind].reference(rows, 1).unsqueeze(1)
    if kind in ("any", "all"):
        return getattr(torch, kind)(rows, dim=1, keepdim=True)
    if kind in ("max", "min"):
        return getattr(torch, "a" + kind)(rows, dim=1, keepdim=True)
    if kind in ("sum_exp", "squared_deviations", "mean"):
        return PRIMS[kind].reference(rows, (1,)).unsqueeze(1)
    return getattr(torch, kind)(rows, dim=1, keepdim=True, dtype=dtype)


def _pointwise(name: str) -> Any:
    """The operator as the primitive of its name computes it."""
    reference = PRIMS[name].reference

    def function(*args: Any) -> torch.Tensor:
        operands = torch.broadcast_tensors(*args[:-1]) if len(args) > 2 else args[:-1]
        return reference(*operands)

    return function


install(Evaluator, {name: _pointwise(name) for name in SCALAR_OPS if not hasattr(Evaluator, name)})
