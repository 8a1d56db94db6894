"""Scalar operators as Triton expressions.

Row values are tiles [XBLOCK, 1], inner values [1, RBLOCK] or [XBLOCK, RBLOCK] (in a pointwise
kernel: all [XBLOCK]); Triton broadcasts. float16, bfloat16 and float8 are only moved, selected and
cast (law 6 of `ir`); a float8 tile is its bits.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from flambeau_inductor.codegen.float8 import FLOAT8, float8_bits
from flambeau_inductor.codegen.triton.scans import scan_tile, sort_order, sorted_tile
from flambeau_inductor.indexing.expressions import integer_text
from flambeau_inductor.ir import ColumnReduce, Load
from flambeau_inductor.scalar_ops import install

if TYPE_CHECKING:
    import sympy

    from flambeau_inductor.ir import Integer, Number, Scan, Sort, Statement, TileReduce

TRITON_TYPES = {
    torch.float64: "tl.float64", torch.float32: "tl.float32", torch.float16: "tl.float16",
    torch.bfloat16: "tl.bfloat16", torch.int64: "tl.int64", torch.int32: "tl.int32",
    torch.int16: "tl.int16", torch.int8: "tl.int8", torch.uint8: "tl.uint8", torch.bool: "tl.int1",
    **dict.fromkeys(FLOAT8, "tl.uint8"),
}  # fmt: skip

POINTER_TYPES = {
    torch.float64: "*fp64", torch.float32: "*fp32", torch.float16: "*fp16", torch.bfloat16: "*bf16",
    torch.int64: "*i64", torch.int32: "*i32", torch.int16: "*i16", torch.int8: "*i8",
    torch.uint8: "*u8", torch.bool: "*u8",
    **dict.fromkeys(FLOAT8, "*u8"),
}  # fmt: skip
"""Types in a Triton signature. A bool tensor is bytes: loads compare with 0, stores write 0, 1."""

HELPERS = {
    "maximum_nan": """
@triton.jit
def maximum_nan(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
""",
    "minimum_nan": """
@triton.jit
def minimum_nan(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
""",
    "product": """
@triton.jit
def product(a, b):
    return a * b
""",
    "first_largest": """
@triton.jit
def first_largest(a, i, b, j):
    a_wins = (a > b) | ((a != a) & (b == b)) | (((a == b) | ((a != a) & (b != b))) & (i < j))
    return tl.where(a_wins, a, b), tl.where(a_wins, i, j)
""",
    "first_smallest": """
@triton.jit
def first_smallest(a, i, b, j):
    a_wins = (a < b) | ((a != a) & (b == b)) | (((a == b) | ((a != a) & (b != b))) & (i < j))
    return tl.where(a_wins, a, b), tl.where(a_wins, i, j)
""",
    "divide_by": """
@triton.jit
def divide_by(a, b, inverse):
    first = a * inverse
    rest = tl.fma(first, -b, a)
    quotient = tl.fma(rest, inverse, first)
    return tl.where((tl.abs(rest) > 0) & (tl.abs(first) < float("inf")), quotient, first)
""",
    "divide_by_row": """
@triton.jit
def divide_by_row(a, b, rounded: tl.constexpr):
    inverse = tl.div_rn(tl.full(b.shape, 1.0, tl.float32), b)
    size = tl.max(tl.abs(b))
    if (size > 7.888609052210118e-31) & (size < 1.2676506002282294e30):
        if rounded:
            quotient = a * inverse
        else:
            quotient = divide_by(a, b, inverse)
    else:
        quotient = tl.div_rn(a, b)
    return quotient
""",
    "philox": """
@triton.jit
def philox(seed, offset, call, thread, lane):
    counter = (offset >> 2) + call
    low, high = (counter & 0xFFFFFFFF).to(tl.uint32), ((counter >> 32) & 0xFFFFFFFF).to(tl.uint32)
    above = ((thread >> 32) & 0xFFFFFFFF).to(tl.uint32)
    x, y, z, w = tl.philox(seed, low, high, (thread & 0xFFFFFFFF).to(tl.uint32), above)
    pair = tl.where(lane == 0, x, y)
    return tl.where(lane < 2, pair, tl.where(lane == 2, z, w)).to(tl.int64)
""",
    "integer_power": """
@triton.jit
def integer_power(a, b):
    result = tl.full(a.shape, 1, a.dtype)
    base = a
    for bit in range(63):
        result = tl.where((b >> bit) & 1 != 0, result * base, result)
        base = base * base
    of_units = tl.where(a == 1, 1, tl.where(a == -1, tl.where(b & 1 != 0, -1, 1), 0))
    return tl.where(b < 0, of_units.to(a.dtype), result)
""",
}
"""Helpers of a kernel's source. `first_largest` is argmax's: NaN wins, then the lower index.

`divide_by` takes the exact remainder into the quotient (P. Markstein, IBM J. Res. Dev. 34, 1990):
of 10**7 quotients hardly one is a unit off; subnormal ones are more often, since their remainder is
not exact.
"""


class TritonOps:
    """ScalarOps whose values are names of Triton tiles; lines go to `emit`.

    `mask_of(index)` gives the tile mask of an access; `inner` tells whether the statement being
    replayed is inner.
    """

    def __init__(self, writer: Any) -> None:
        self.writer = writer
        self.fills = False
        """Whether the last load gives a number for elements that do not exist (`filled_loads`)."""
        self.filled: set[str] = set()
        """The values of such loads."""

    def bind(self, statement: Statement, value: str) -> str:
        name: str = statement.name  # type: ignore[union-attr]
        if isinstance(statement, ColumnReduce):
            return value  # a running tile
        defined: str = self.writer.define(name, value)
        if isinstance(statement, Load) and self.fills:
            self.filled.add(defined)
        return defined

    # Leaves and memory

    def constant(self, value: Number, dtype: torch.dtype) -> str:
        return f"tl.full({self.writer.scalar_shape}, {number(value, dtype)}, {TRITON_TYPES[dtype]})"

    def index_value(self, expr: sympy.Expr, dtype: torch.dtype) -> str:
        if not expr.free_symbols:
            return self.constant(int(expr), dtype)
        text = self.index(expr)
        if all(symbol.name in self.writer.size_names for symbol in expr.free_symbols):
            return f"tl.full({self.writer.scalar_shape}, {text}, {TRITON_TYPES[dtype]})"
        return f"({text}).to({TRITON_TYPES[dtype]})"

    def index(self, expr: Integer) -> str:
        if isinstance(expr, int):
            return str(expr)
        return integer_text(expr, self.writer.index_name)

    def load(self, buffer: str, index: sympy.Expr, dtype: torch.dtype, mask: str | None) -> str:
        bound = self.writer.bounds.get((mask, index))
        whole = self.writer.whole_vectors(mask, bound) if bound else mask
        conditions = self.writer.masks(index, dtype) + ([whole] if whole else [])
        text = self.writer.pointer(buffer, index)
        scalar = None if conditions else self.writer.scalar_pointer(buffer, index)
        fill = None if bound else self.writer.filled_loads.get((buffer, index, mask))
        self.fills = fill is not None
        if scalar:
            text = f"tl.broadcast_to(tl.load({scalar}), {self.writer.scalar_shape})"
            return f"({text} != 0)" if dtype is torch.bool else text
        if bound:
            text = f"tl.where({mask}, tl.load({text}, {' & '.join(conditions)}, other=0), 0.0)"
            return f"{text}.to({TRITON_TYPES[dtype]})"
        if conditions:
            text = f"tl.load({text}, {' & '.join(conditions)}, other={fill or 0})"
        else:
            text = f"tl.load({text})"
        return f"({text} != 0)" if dtype is torch.bool else text

    def store(self, buffer: str, index: sympy.Expr, value: str, mask: str | None) -> None:
        dtype = self.writer.dtype_of(buffer)
        if dtype is torch.bool:
            value = f"{value}.to(tl.uint8)"
        self.writer.store(buffer, index, value, mask=mask)

    def scatter(
        self, mode: str, buffer: str, index: sympy.Expr, value: str, mask: str | None
    ) -> None:
        if self.writer.dtype_of(buffer) is torch.bool:
            value = f"{value}.to(tl.uint8)"
        self.writer.store(buffer, index, value, mode, mask)

    def check_index(self, value: str, size: Integer, mask: str | None) -> None:
        inside = f"(({value} >= 0) & ({value} < {self.index(size)}))"
        outside = [
            f"~{text}" for text in [*self.writer.value_masks(value), *([mask] if mask else [])]
        ]
        condition = " | ".join([inside, *(f"({text})" for text in outside)])
        self.writer.line(f'tl.device_assert({condition}, "index out of bounds")')

    def reduce(self, kind: str, value: str, dtype: torch.dtype) -> str:
        return self.writer.reduce(kind, value, dtype)

    def reduce_columns(self, statement: ColumnReduce, value: str, dtype: torch.dtype) -> str:
        self.writer.reduce_columns(statement, value, dtype)
        return f"{statement.name}_tile"

    def reduce_tile(self, statement: TileReduce, value: str, dtype: torch.dtype) -> str:
        text: str = self.writer.reduce_tile(statement, value, dtype)
        return text

    def scan(self, statement: Scan, value: str, dtype: torch.dtype) -> str:
        return scan_tile(self.writer, statement, value, dtype)

    def sort(self, statement: Sort, value: str, dtype: torch.dtype) -> str:
        orders, key = self.writer.orders, (value, statement.descending)
        if key not in orders:
            orders[key] = sort_order(self.writer, statement, value, dtype)
        return sorted_tile(statement, value, orders[key], dtype)

    # Selection and conversion

    def where(self, condition: str, a: str, b: str, dtype: torch.dtype) -> str:
        return a if a in self.filled else f"tl.where({condition}, {a}, {b})"

    def cast(self, x: str, source: torch.dtype, to: torch.dtype) -> str:
        if source in FLOAT8:
            wide = f"{self.writer.float8_helper(FLOAT8[source], False)}({x})"
            return wide if to is torch.float32 else self.cast(wide, torch.float32, to)
        if to in FLOAT8:
            wide = x if source is torch.float32 else self.cast(x, source, torch.float32)
            return f"{self.writer.float8_helper(FLOAT8[to], True)}({wide})"
        if to is torch.bool:
            return f"({x} != 0)"
        if source.is_floating_point and to is torch.uint8:
            # PTX saturates; eager's conversion wraps through a wider integer.
            return f"{x}.to(tl.int32).to(tl.uint8)"
        if to is torch.bfloat16 and source is not torch.float32:
            return f"{x}.to(tl.float32).to(tl.bfloat16)"  # through float32, as eager does it
        return f"{x}.to({TRITON_TYPES[to]})"

    def float_of_bits(self, x: str, dtype: torch.dtype) -> str:
        return f"{x}.to(tl.float64, bitcast=True)"

    def philox(self, *args: Any) -> str:
        return _call(self.writer.helper("philox"), *args)

    # Operators that ask the writer

    def div(self, a: str, b: str, dtype: torch.dtype) -> str:
        """A row or tile divided by one number shares its reciprocal: no division for each element,
        which takes two slow instructions and a branch. Where quotients are rounded to half
        precision, their product with it is near enough.
        """
        if dtype is torch.float32:
            divisor = self.writer.constants.get(b)
            if divisor is not None and 2.0**-100 < abs(divisor) < 2.0**100:
                one = torch.tensor(1.0)
                inverse = repr((one / torch.tensor(divisor, dtype=dtype)).item())
                return f"{self.writer.helper('divide_by')}({a}, {b}, {inverse})"
            if self.writer.divides_row(a, b):
                self.writer.helper("divide_by")
                rounded = self.writer.rounds_quotient(a, b)
                return f"{self.writer.helper('divide_by_row')}({a}, {b}, {rounded})"
        return _div(a, b, dtype)

    def mul(self, a: str, b: str, dtype: torch.dtype) -> str:
        if dtype.is_floating_point and self.writer.rounds_product(a, b):
            return _rounded_product(a, b, dtype)
        return f"({a} * {b})"

    def pow(self, a: str, b: str, dtype: torch.dtype) -> str:
        if dtype.is_floating_point:
            return f"libdevice.pow({a}, {b})"
        return self.writer.helper("integer_power") + f"({a}, {b})"


def number(value: Number, dtype: torch.dtype) -> str:
    """A constant in Triton's syntax."""
    if dtype is torch.bool:
        return str(bool(value))
    if dtype in FLOAT8:
        return str(float8_bits(float(value), dtype))
    if not dtype.is_floating_point:
        return str(int(value))
    value = float(value)
    return repr(value) if math.isfinite(value) else f'float("{value}")'


# Operators that are expressions of their operands


def _rounded_product(a: str, b: str, dtype: torch.dtype) -> str:
    """A product that no compiler contracts with a sum; libdevice's flushes subnormal numbers."""
    kind, letter = ("f64", "d") if dtype is torch.float64 else ("f32", "f")
    return (
        f'tl.inline_asm_elementwise("mul.rn.{kind} $0, $1, $2;", "={letter},{letter},{letter}", '
        f"[{a}, {b}], dtype={TRITON_TYPES[dtype]}, is_pure=True, pack=1)"
    )


def _sign(x: str, dtype: torch.dtype) -> str:
    kind = TRITON_TYPES[dtype]
    # A NaN compares false both times: its sign is 0, as in eager.
    return f"(({x} > 0).to({kind}) - ({x} < 0).to({kind}))"


def _signbit(x: str, dtype: torch.dtype) -> str:
    if not dtype.is_floating_point:
        return f"({x} < 0)"
    return f"({x}.to(tl.int{dtype.itemsize * 8}, bitcast=True) < 0)"


def _div(a: str, b: str, dtype: torch.dtype) -> str:
    return f"tl.div_rn({a}, {b})" if dtype is torch.float32 else f"({a} / {b})"


def _floor_divide(a: str, b: str, dtype: torch.dtype) -> str:
    if dtype.is_floating_point:
        # As eager: from the exact remainder, so that 1 // 0.1 is 9.
        remainder = f"libdevice.fmod({a}, {b})"
        quotient = _div(f"({a} - {remainder})", b, dtype)
        lower = f"(({remainder} != 0) & (({b} < 0) != ({remainder} < 0)))"
        kind = TRITON_TYPES[dtype]
        exact = f"libdevice.nearbyint({quotient} - {lower}.to({kind}))"
        return f"tl.where({b} == 0, {a} / {b}, {exact})"
    inexact = f"({a} % {b} != 0) & (({a} < 0) != ({b} < 0))"
    return f"({a} // {b} - ({inexact}).to({TRITON_TYPES[dtype]}))"


def _trunc_divide(a: str, b: str, dtype: torch.dtype) -> str:
    if dtype.is_floating_point:
        return f"libdevice.trunc({_div(a, b, dtype)})"
    return f"({a} // {b})"


def _fmod(a: str, b: str, dtype: torch.dtype) -> str:
    return f"libdevice.fmod({a}, {b})" if dtype.is_floating_point else f"({a} % {b})"


def _remainder(a: str, b: str, dtype: torch.dtype) -> str:
    remainder = _fmod(a, b, dtype)
    differ = f"({remainder} != 0) & (({remainder} < 0) != ({b} < 0))"
    return f"({remainder} + tl.where({differ}, {b}, 0))"


def extremum(name: str, a: str, b: str, dtype: torch.dtype) -> str:
    """The `name` "maximum" or "minimum" of two tiles; NaN if either is NaN."""
    if dtype is torch.bool:
        return f"({a} {'|' if name == 'maximum' else '&'} {b})"
    nan = ", propagate_nan=tl.PropagateNan.ALL" if dtype.is_floating_point else ""
    return f"tl.{name}({a}, {b}{nan})"


def _call(function: str, *args: Any) -> str:
    return f"{function}({', '.join(args[:-1])})"


def _infix(sign: str, a: str, b: str, dtype: torch.dtype) -> str:
    return f"({a} {sign} {b})"


_IN_TRITON = ("floor", "ceil", "exp", "exp2", "log", "log2", "sin", "cos", "erf", "abs")
_IN_LIBDEVICE = (
    "trunc", "rsqrt", "expm1", "log10", "log1p", "tan", "asin", "acos", "atan", "sinh", "cosh",
    "tanh", "asinh", "acosh", "atanh", "erfc", "lgamma", "atan2", "copysign",
)  # fmt: skip
_INFIX = {
    "add": "+", "sub": "-", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">",
    "ge": ">=", "bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^", "shift_left": "<<",
    "shift_right": ">>",
}  # fmt: skip

install(TritonOps, {
    **{name: partial(_call, f"tl.{name}") for name in _IN_TRITON},
    **{name: partial(_call, f"libdevice.{name}") for name in _IN_LIBDEVICE},
    **{name: partial(_infix, sign) for name, sign in _INFIX.items()},
    # Of a float Triton's minus is 0 - x, which loses the sign of 0.
    "neg": lambda x, dtype: f"({x} * -1.0)" if dtype.is_floating_point else f"-{x}",
    "sign": _sign,
    "round": partial(_call, "libdevice.nearbyint"),
    "fma": partial(_call, "tl.fma"),
    **{f"fast_{name}": partial(_call, f"libdevice.fast_{name}f") for name in ("log", "sin", "cos")},
    "bitwise_not": lambda x, dtype: f"{x} == 0" if dtype is torch.bool else f"~{x}",
    "reciprocal": lambda x, dtype: _div(
        f"tl.full({x}.shape, 1.0, {TRITON_TYPES[dtype]})", x, dtype
    ),
    "sqrt": lambda x, dtype: _call(
        "tl.sqrt_rn" if dtype is torch.float32 else "libdevice.sqrt", x, dtype
    ),
    "isnan": lambda x, dtype: f"({x} != {x})",
    "isinf": lambda x, dtype: f'(tl.abs({x}) == float("inf"))',
    "signbit": _signbit,
    "floor_divide": _floor_divide,
    "trunc_divide": _trunc_divide,
    "fmod": _fmod,
    "remainder": _remainder,
    "maximum": partial(extremum, "maximum"),
    "minimum": partial(extremum, "minimum"),
})  # fmt: skip
