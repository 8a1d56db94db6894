"""The loop IR: the whole of it is on this page.

A LoopKernel is a loop nest over two groups of axes and one flat, single-assignment body. Softmax
over the rows of a matrix:

    kernel cpu (b0: f32 read, b1: f32 write) [k0]
      outer i0 < k0
      inner r0 < 512
        v0 = load b0[512*i0 + r0]
      v1 = reduce max v0
        v2 = sub v0 v1
        v3 = exp v2
      v4 = reduce sum v3
        v5 = div v3 v4
        store b1[512*i0 + r0] v5

Laws:

1. Every point of the outer axes is independent of the others; `outer[-1]` and `inner[-1]` are
   innermost.
2. A statement is *inner* if it depends on an inner axis, directly or through its operands, and then
   holds for every point of the inner axes; a Reduce reduces an inner value over all of them and is
   itself a *row* statement, as is everything that depends on outer axes only. A Scan and a Sort are
   inner statements that read a value at other inner points, too. A pure pointwise kernel has no
   inner axes. The order of the body is one valid order of evaluation.
3. A value may be used by statements behind a Reduce that it feeds (v3 above): a code generator
   keeps the row, or computes it again. `scheduler.phases.split_phases` cuts a body into loops for
   those that cannot keep it.
4. Each buffer is a parameter once. Different parameters never overlap in memory, unless all that
   overlap are only read. A parameter that is "update" is read and written at the same place by the
   same point of the loop nest.
5. Index expressions are sympy: integer and nonnegative, over axis symbols, size symbols, and
   symbols that bear the name of an earlier int64 value (an indirect index); made of + * FloorDiv
   Mod only. An index counts elements from the buffer's data pointer.
6. Operands of a Compute have one dtype, which is the operator's; `where` has a bool condition
   first; `cast` converts. float16, bfloat16 and float8 values are only moved, selected and cast;
   float8 from and to float32.
7. The outer points of a kernel with ColumnReduces are dealt to `shares`: each point to one of them,
   as the code generator likes. One program takes the points of a share one after another.
8. The points of `outer[-1]` of a kernel with TileReduces, which is a matrix product, are cut into
   tiles of so many neighbours, the last one maybe shorter; all its TileReduces agree in how many.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from flambeau_inductor.indexing.expressions import Integer, free_names, symbol

if TYPE_CHECKING:
    from collections.abc import Hashable

    import sympy
    import torch

Number: TypeAlias = "bool | int | float"


# 1. Statements.  `name` is the value that a statement defines ("v0"); operands are names.


@dataclass(frozen=True, slots=True)
class Constant:
    """A number."""

    name: str
    dtype: torch.dtype
    value: Number


@dataclass(frozen=True, slots=True)
class IndexValue:
    """An index expression as a value (iota, argmax positions, conditions of pad and cat).

    Of dtype int64 or what the primitive asks; the expression may here go below zero."""

    name: str
    dtype: torch.dtype
    expr: sympy.Expr


@dataclass(frozen=True, slots=True)
class Load:
    """`buffer[index]`; zero, with nothing read, where `mask` names a bool value that is false."""

    name: str
    dtype: torch.dtype
    buffer: str
    index: sympy.Expr
    mask: str | None = None


@dataclass(frozen=True, slots=True)
class Compute:
    """A scalar operator of `scalar_ops.SCALAR_OPS` on values; `dtype` is the result's."""

    name: str
    dtype: torch.dtype
    op: str
    args: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reduce:
    """`value` reduced over all inner axes.

    `kind` is one of REDUCE_KINDS; an argmax or argmin is the int64 row-major position in the inner
    axes, of the first extreme element, NaN counting as extreme; max and min propagate NaN. sum_exp
    is the sum of exp(value - max), squared_deviations that of (value - mean)**2: one pass, with
    several accumulators; so mean, which of equal values is that value.
    """

    name: str
    dtype: torch.dtype
    kind: str
    value: str


@dataclass(frozen=True, slots=True)
class ColumnReduce:
    """An inner `value` reduced, at each inner point, over the outer points of a share: a partial
    result of sums over columns.

    `kind` is one of COLUMN_KINDS. It is only stored, at an index that names SHARE, the number of
    the share, and inner axes.
    """

    name: str
    dtype: torch.dtype
    kind: str
    value: str


@dataclass(frozen=True, slots=True)
class TileReduce:
    """A row `value` reduced over the points of `outer[-1]` that lie in one tile of `points`: a
    partial result of the rows of a matrix product.

    `kind` is one of REDUCE_KINDS; a position is one in all of `outer[-1]`. It is only stored, at an
    index that names TILE, the number of the tile, and other outer axes.
    """

    name: str
    dtype: torch.dtype
    kind: str
    value: str
    points: int


@dataclass(frozen=True, slots=True)
class Scan:
    """`value` accumulated from the first inner point, in row-major order, up to each one; from the
    last one down if `reverse` is set.

    `kind` is one of SCAN_KINDS. max and min give the last of equals, and NaN from the first NaN on.
    """

    name: str
    dtype: torch.dtype
    kind: str
    value: str
    reverse: bool = False


@dataclass(frozen=True, slots=True)
class Sort:
    """`value` sorted along the inner axes in row-major order, equals in their order, NaN greatest.

    `kind` "values": the value at each place of the order; "positions": the int64 position in the
    inner axes of that value.
    """

    name: str
    dtype: torch.dtype
    kind: str
    value: str
    descending: bool = False


@dataclass(frozen=True, slots=True)
class CheckIndex:
    """An indirect index must lie in [0, size), or the program raises. Masked like a Load."""

    value: str
    size: Integer
    mask: str | None = None


@dataclass(frozen=True, slots=True)
class Store:
    """`buffer[index] = value`; distinct points of the axes store to distinct places. Points where
    `mask` is false store nothing.

    Of a scatter, which has a `mode`, several points may name one place: "add" adds to what the
    place holds; "mul", "max" and "min", on a CPU only, multiply it, or leave the greater or lesser,
    NaN if either is; "set" leaves what one of the points stores. A CPU takes the points of one
    place in the order of the loops. No other statement of the kernel touches the buffer.
    """

    buffer: str
    index: sympy.Expr
    value: str
    mode: str = ""
    mask: str | None = None


Statement: TypeAlias = (
    Constant
    | IndexValue
    | Load
    | Compute
    | Reduce
    | ColumnReduce
    | TileReduce
    | Scan
    | Sort
    | CheckIndex
    | Store
)
Body: TypeAlias = tuple[Statement, ...]

SHARE = symbol("share0")
"""The number of a share of the outer points."""

TILE = symbol("tile0")
"""The number of a tile of `outer[-1]`."""

COLUMN_KINDS = ("sum", "max", "min")
SCAN_KINDS = ("sum", "prod", "max", "min", "logaddexp")
SORT_KINDS = ("values", "positions")
SCATTER_MODES = ("add", "mul", "max", "min", "set")
REDUCE_KINDS = (
    "sum", "prod", "max", "min", "any", "all", "sum_exp", "squared_deviations", "mean", "argmax",
    "argmin",
)  # fmt: skip


# 2. Loop nests


@dataclass(frozen=True, slots=True)
class Axis:
    """A loop: `symbol` runs from 0 below `size`, which may be 0 at run time, but is not 1."""

    symbol: sympy.Symbol
    size: Integer


@dataclass(frozen=True, slots=True)
class Param:
    """A buffer of a kernel, by its data pointer. `access` is "read", "write" or "update"."""

    name: str
    dtype: torch.dtype
    access: str


@dataclass(frozen=True, slots=True)
class LoopKernel:
    """A loop nest in canonical names, so that equal work is an equal LoopKernel and is built once.

    Buffers are b0, b1, ...; values v0, v1, ...; axes i0, ... (outer) and r0, ... (inner); sizes k0,
    ... in the order in which a launch passes them (int64). `hints` gives likely sizes of those, for
    choosing tile sizes: not part of identity.
    """

    device: str  # "cpu" or "cuda"
    params: tuple[Param, ...]
    sizes: tuple[sympy.Symbol, ...]
    outer: tuple[Axis, ...]
    inner: tuple[Axis, ...]
    body: Body
    narrow: bool = False  # all buffers are known to have fewer than 2**31 elements
    hints: tuple[int, ...] = field(default=(), compare=False)
    label: str = field(
        default="", compare=False
    )  # what it does, for its name: "softmax", "add_mul"
    divisible: tuple[int, ...] = field(
        default=(), compare=False
    )  # per size: a known divisor (1 if none)
    shares: Integer = 0  # of the outer points, for ColumnReduces; 0 if there are none
    rounded: tuple[str, ...] = ()  # products that no compiler may contract with a sum


@dataclass(frozen=True, slots=True)
class ScheduledKernel:
    """One launch of a LoopKernel: the tensors for its params, and Dims (ints or text) for sizes.

    `tiling` is how a code generator is to cut it, in that generator's terms; None: as it chooses.
    """

    kernel: LoopKernel
    buffers: tuple[str, ...]
    ints: tuple[int | str, ...]
    device: str  # "cpu" or "cuda:0"
    tiling: Hashable | None = None


# 3. Text

DTYPE_NAMES = {
    "float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16", "int64": "i64",
    "int32": "i32", "int16": "i16", "int8": "i8", "uint8": "u8", "bool": "bool",
}  # fmt: skip


def dtype_name(dtype: torch.dtype) -> str:
    """The short name of a dtype: "f32"."""
    name = str(dtype).removeprefix("torch.")
    return DTYPE_NAMES.get(name, name)


def format_statement(statement: Statement) -> str:
    """One statement as text."""
    mask = getattr(statement, "mask", None)
    tail = f" if {mask}" if mask else ""
    match statement:
        case Constant(name, dtype, value):
            return f"{name} = {value!r}:{dtype_name(dtype)}"
        case IndexValue(name, dtype, expr):
            return f"{name} = index {expr} :{dtype_name(dtype)}"
        case Load(name, _, buffer, index):
            return f"{name} = load {buffer}[{index}]{tail}"
        case Compute(name, dtype, "cast", args):
            return f"{name} = cast {args[0]} :{dtype_name(dtype)}"
        case Compute(name, _, op, args):
            return f"{name} = {op} {' '.join(args)}"
        case Reduce(name, _, kind, value):
            return f"{name} = reduce {kind} {value}"
        case ColumnReduce(name, _, kind, value):
            return f"{name} = column {kind} {value}"
        case TileReduce(name, _, kind, value, points):
            return f"{name} = reduce {kind} {value} by {points}"
        case Scan(name, _, kind, value, reverse):
            return f"{name} = scan {kind} {value}{' reversed' if reverse else ''}"
        case Sort(name, _, kind, value, descending):
            return f"{name} = sort {kind} {value}{' descending' if descending else ''}"
        case CheckIndex(value, size):
            return f"check {value} < {size}{tail}"
        case Store(buffer, index, value, mode):
            return f"{mode or 'store'} {buffer}[{index}] {value}{tail}"


def format_kernel(kernel: LoopKernel) -> str:
    """A kernel as text, inner statements indented one step deeper than row statements."""
    params = ", ".join(f"{p.name}: {dtype_name(p.dtype)} {p.access}" for p in kernel.params)
    sizes = f" [{', '.join(map(str, kernel.sizes))}]" if kernel.sizes else ""
    lines = [f"kernel {kernel.device} ({params}){sizes}"]
    for group, axes in (("outer", kernel.outer), ("inner", kernel.inner)):
        if axes:
            lines.append(f"  {group} " + ", ".join(f"{axis.symbol} < {axis.size}" for axis in axes))
    if kernel.shares != 0:
        lines.append(f"  shares {SHARE} < {kernel.shares}")
    inner = inner_names(kernel.body, kernel.inner)
    for statement in kernel.body:
        indent = "    " if is_inner(statement, inner) and kernel.inner else "  "
        lines.append(indent + format_statement(statement))
    return "\n".join(lines)


# 4. What a statement depends on


def operands(statement: Statement) -> tuple[str, ...]:
    """The values that a statement reads, those inside index expressions excepted."""
    match statement:
        case Compute(args=args):
            return args
        case (
            Reduce(value=value)
            | ColumnReduce(value=value)
            | TileReduce(value=value)
            | Scan(value=value)
            | Sort(value=value)
        ):
            return (value,)
        case Store(value=value, mask=mask) | CheckIndex(value=value, mask=mask):
            return (value, mask) if mask else (value,)
        case Load(mask=str(mask)):
            return (mask,)
    return ()


def defined_name(statement: Statement) -> str | None:
    """The value that a statement defines, if any."""
    return None if isinstance(statement, (Store, CheckIndex)) else statement.name


def index_of(statement: Statement) -> sympy.Expr | None:
    """The index expression of a statement, if it has one."""
    match statement:
        case Load(index=expr) | Store(index=expr) | IndexValue(expr=expr):
            return expr
    return None


def finds_positions(body: Body) -> bool:
    """Whether the order of the inner axes matters: a statement numbers their points or follows
    them.
    """
    return any(
        isinstance(s, (Scan, Sort)) or (isinstance(s, Reduce) and s.kind in ("argmax", "argmin"))
        for s in body
    )


def scan_direction(body: Body) -> bool | None:
    """The `reverse` of the body's Scans; None if there are none. One kernel has one direction."""
    return next((s.reverse for s in body if isinstance(s, Scan)), None)


def reduces_columns(body: Body) -> bool:
    """Whether a body has ColumnReduces."""
    return any(isinstance(s, ColumnReduce) for s in body)


def tile_points(body: Body) -> int:
    """The points of the tiles that a body's TileReduces reduce over; 0 if there are none."""
    return next((s.points for s in body if isinstance(s, TileReduce)), 0)


def scatters(body: Body) -> bool:
    """Whether several points of a loop nest may store to one place."""
    return any(isinstance(s, Store) and s.mode for s in body)


def is_inner(statement: Statement, inner: set[str]) -> bool:
    """Whether a statement holds for every inner point; `inner`: inner axes and values."""
    if isinstance(statement, Reduce):
        return False
    if isinstance(statement, (Scan, Sort)):
        return True
    if any(name in inner for name in operands(statement)):
        return True
    index = index_of(statement)
    return index is not None and not inner.isdisjoint(free_names(index))


def inner_names(body: Body, axes: tuple[Axis, ...]) -> set[str]:
    """The names of the inner axes and of all inner values."""
    inner = {axis.symbol.name for axis in axes}
    for statement in body:
        if not isinstance(statement, (Store, CheckIndex)) and is_inner(statement, inner):
            inner.add(statement.name)
    return inner
