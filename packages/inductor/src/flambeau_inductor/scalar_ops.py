"""The scalar operators of the loop IR: one table, one protocol, and the loop that replays a body on
an implementer.

Implementers: `evaluate.Evaluator` (runs kernels in eager torch: the reference), and the code
generators' printers. A test asks each for every operator of the table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from flambeau_inductor.ir import (
    CheckIndex,
    ColumnReduce,
    Compute,
    Constant,
    IndexValue,
    Load,
    Number,
    Reduce,
    Scan,
    Sort,
    Store,
    TileReduce,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import sympy
    import torch

    from flambeau_inductor.ir import Integer, Statement

V = TypeVar("V")


# 1. The table


@dataclass(frozen=True, slots=True)
class ScalarOp:
    """A pointwise operator. It has the meaning of the primitive of the same name
    (`flambeau_prims.primitives`).

    `result`: "same" dtype as its operands, or the name of a dtype. `cost`: in units of a
    floating-point add, for deciding whether to compute a value again or to store it.
    """

    name: str
    arity: int
    result: str
    cost: int


def _ops(arity: int, result: str, cost: int, names: str) -> dict[str, ScalarOp]:
    return {name: ScalarOp(name, arity, result, cost) for name in names.split()}


SCALAR_OPS: dict[str, ScalarOp] = {
    **_ops(1, "same", 1, "neg abs sign floor ceil round trunc bitwise_not"),
    **_ops(1, "same", 4, "reciprocal sqrt rsqrt"),
    **_ops(1, "same", 12, "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan"),
    **_ops(1, "same", 16, "sinh cosh tanh asinh acosh atanh erf erfc lgamma"),
    **_ops(1, "bool", 1, "isnan isinf signbit"),
    **_ops(2, "same", 1, "add sub mul maximum minimum copysign"),
    **_ops(2, "same", 1, "bitwise_and bitwise_or bitwise_xor shift_left shift_right"),
    **_ops(2, "same", 4, "div floor_divide trunc_divide fmod remainder"),
    **_ops(2, "same", 20, "pow atan2"),
    **_ops(2, "bool", 1, "eq ne lt le gt ge"),
    **_ops(3, "same", 1, "where fma"),
    **_ops(1, "same", 4, "fast_log fast_sin fast_cos"),
    **_ops(1, "same", 1, "cast"),  # the one operator whose result dtype is free
    # Of an int64; no primitive: how a launch passes floats.
    **_ops(1, "float64", 1, "float_of_bits"),
    # Of int64s: seed, offset, call, thread, lane; a word of `flambeau_prims.philox`.
    **_ops(5, "same", 80, "philox"),
}

DISCONTINUOUS = frozenset({
    "eq", "ne", "lt", "le", "gt", "ge", "isinf", "floor", "ceil", "round", "trunc", "sign",
    "floor_divide", "trunc_divide", "fmod", "remainder",
})  # fmt: skip
"""Operators that make a small difference a large one. They read half-precision values as these are
rounded: an extreme that was stored equals no unrounded element.
"""

SINGULAR = {
    "div": 1, "copysign": 1, "pow": 0, "atan2": 0, "reciprocal": 0, "sqrt": 0, "rsqrt": 0,
    "log": 0, "log2": 0, "log10": 0, "log1p": 0, "fast_log": 0, "lgamma": 0, "tan": 0,
    "asin": 0, "acos": 0, "acosh": 0, "atanh": 0,
}  # fmt: skip
"""Operators with a point beside which a small difference of an operand, of this number, makes the
result another one: NaN beside the root of 0, or infinity of another sign.
"""


# 2. The protocol


class ScalarOps(Protocol[V]):
    """What replays a body. V is the implementer's idea of a value: a tensor, a C++ expression, a
    line of text.

    `dtype` is always that of the operands (so a comparison's result is bool); names, buffers and
    index expressions are as in `ir`. An index expression may hold symbols that bear names given to
    `bind` before. Each operator of `SCALAR_OPS` that is not listed here is a method of its name
    that takes its operands and their dtype.
    """

    def bind(self, statement: Statement, value: V) -> V:
        """Name the value that `statement` defines; the result stands for it from here on."""

    # Leaves and memory
    def constant(self, value: Number, dtype: torch.dtype) -> V: ...
    def index_value(self, expr: sympy.Expr, dtype: torch.dtype) -> V: ...
    def load(self, buffer: str, index: sympy.Expr, dtype: torch.dtype, mask: V | None) -> V: ...
    def store(self, buffer: str, index: sympy.Expr, value: V, mask: V | None) -> None: ...
    def scatter(
        self, mode: str, buffer: str, index: sympy.Expr, value: V, mask: V | None
    ) -> None: ...
    def check_index(self, value: V, size: Integer, mask: V | None) -> None: ...
    def reduce(self, kind: str, value: V, dtype: torch.dtype) -> V: ...
    def reduce_columns(self, statement: ColumnReduce, value: V, dtype: torch.dtype) -> V: ...
    def reduce_tile(self, statement: TileReduce, value: V, dtype: torch.dtype) -> V: ...
    def scan(self, statement: Scan, value: V, dtype: torch.dtype) -> V: ...
    def sort(self, statement: Sort, value: V, dtype: torch.dtype) -> V: ...

    # Selection and conversion
    def where(self, condition: V, a: V, b: V, dtype: torch.dtype) -> V: ...
    def cast(self, x: V, source: torch.dtype, to: torch.dtype) -> V: ...
    def float_of_bits(self, x: V, dtype: torch.dtype) -> V: ...

    # Random bits
    def philox(self, seed: V, offset: V, call: V, thread: V, lane: V, dtype: torch.dtype) -> V: ...


def install(implementer: type, functions: Mapping[str, Callable[..., Any]]) -> None:
    """Give an implementer the operators of a table, as functions of the operands and their dtype;
    ValueError for a name that is no operator.
    """
    for name, function in functions.items():
        if name not in SCALAR_OPS:
            raise ValueError(f"{name} is no scalar operator")
        setattr(implementer, name, staticmethod(function))


# 3. Replaying


class Replay:
    """Runs statements on an implementer of ScalarOps (a test checks that implementers are
    complete). One Replay serves a whole kernel, phase after phase; it holds the values by name.
    """

    def __init__(self, ops: Any) -> None:
        self.ops = ops
        self.values: dict[str, Any] = {}
        self.dtypes: dict[str, torch.dtype] = {}

    def run(self, statements: Iterable[Statement]) -> None:
        """Replay statements in order."""
        for statement in statements:
            self.step(statement)

    def step(self, statement: Statement) -> None:
        """Replay one statement."""
        ops, values = self.ops, self.values
        match statement:
            case Constant(_, dtype, number):
                result = ops.constant(number, dtype)
            case IndexValue(_, dtype, expr):
                result = ops.index_value(expr, dtype)
            case Load(_, dtype, buffer, index, mask):
                result = ops.load(buffer, index, dtype, values[mask] if mask else None)
            case Compute(_, dtype, "cast", (x,)):
                result = ops.cast(values[x], self.dtypes[x], dtype)
            case Compute(_, _, op, args):
                dtype = self.dtypes[args[-1]]
                result = getattr(ops, op)(*[values[arg] for arg in args], dtype)
            case Reduce(_, _, kind, value):
                result = ops.reduce(kind, values[value], self.dtypes[value])
            case ColumnReduce(_, _, _, value):
                result = ops.reduce_columns(statement, values[value], self.dtypes[value])
            case TileReduce(_, _, _, value):
                result = ops.reduce_tile(statement, values[value], self.dtypes[value])
            case Scan(_, _, _, value):
                result = ops.scan(statement, values[value], self.dtypes[value])
            case Sort(_, _, _, value):
                result = ops.sort(statement, values[value], self.dtypes[value])
            case Store(buffer, index, value, "", mask):
                ops.store(buffer, index, values[value], values[mask] if mask else None)
                return
            case Store(buffer, index, value, mode, mask):
                ops.scatter(mode, buffer, index, values[value], values[mask] if mask else None)
                return
            case CheckIndex(value, size, mask):
                ops.check_index(values[value], size, values[mask] if mask else None)
                return
        self.values[statement.name] = ops.bind(statement, result)
        self.dtypes[statement.name] = statement.dtype
