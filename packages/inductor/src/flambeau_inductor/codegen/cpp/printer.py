"""Prints a loop body as C++: the implementer of the scalar operators whose values are C++
expressions.

v2 = sub v0 v1   ->   const float v2 = v0 - v1;
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from flambeau_inductor.codegen.cpp.cpp_types import HALVES, literal, storage_type, value_type
from flambeau_inductor.codegen.cpp.scans import take
from flambeau_inductor.indexing.expressions import free_names, integer_text
from flambeau_inductor.ir import Compute, Constant
from flambeau_inductor.scalar_ops import install

if TYPE_CHECKING:
    from collections.abc import Callable

    import sympy

    from flambeau_inductor.ir import (
        ColumnReduce,
        Integer,
        Number,
        Scan,
        Sort,
        Statement,
        TileReduce,
    )

OWN_FUNCTIONS = ("exp", "log", "erf", "lgamma")
"""Functions that the prelude has in float32: closer and faster than libmvec's, or not there."""


class CppPrinter:
    """ScalarOps on C++ expressions. Lines go to `lines`, which the kernel writer swaps as it moves
    from loop to loop.

    `renamed` maps the name of a value to what stands for it in index expressions (an index that was
    checked is replaced by one that is safe to read at); `guards` maps it to the condition under
    which that holds. `carry_index` picks a column's carry of a Scan. `bounds` maps constants to
    variables that hold them, whose value the compiler does not know. `floats` are the dtypes of
    floating values; `truncated` maps an integer that was cast from one to the float equal to it;
    `rounded` maps a bfloat16 to the float that it was cast from, in the same scope; `masks` maps a
    condition to a variable with its value in each bit. `gathered` are float16 loads at places that
    differ from element to element: loops with such loads are not vectorised. `sums_of_erf` maps
    sums 1 + erf(x) to the erf where nothing else reads that: its name holds the sum then. `hidden`
    maps integers to variables that hold them, which `chosen` constants are (`hidden_integers`).
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.renamed: dict[str, str] = {}
        self.guards: dict[str, str] = {}
        self.checks = 0
        self.carry_index = ""
        self.constants: dict[str, Number] = {}
        self.bounds: dict[str, str] = {}
        self.floats: dict[str, torch.dtype] = {}
        self.truncated: dict[str, tuple[str, torch.dtype]] = {}
        self.rounded: dict[str, str] = {}
        self.masks: dict[str, str] = {}
        self.gathered: frozenset[str] = frozenset()
        self.sums_of_erf: dict[str, str] = {}
        self.chosen: frozenset[str] = frozenset()
        self.hidden: dict[int, str] = {}

    def bind(self, statement: Statement, value: str) -> str:
        """`const T name = value;`"""
        name = statement.name  # type: ignore[union-attr]
        # A peeled loop has names in common with others: a masked load, a constant where it is not.
        self.constants.pop(name, None)
        self.truncated.pop(name, None)
        if isinstance(statement, Constant):
            self.constants[name] = statement.value
            if name in self.chosen and statement.value in self.hidden:
                value = f"({value_type(statement.dtype)}){self.hidden[int(statement.value)]}"
        if name in self.sums_of_erf:
            value = self.renamed.get(self.sums_of_erf[name], self.sums_of_erf[name])
        elif name in self.sums_of_erf.values():
            value = value.replace("erf_of(", "one_plus_erf(", 1)
        self.lines.append(f"const {value_type(statement.dtype)} {name} = {value};")  # type: ignore[union-attr]
        if statement.dtype.is_floating_point:  # type: ignore[union-attr]
            if isinstance(statement, Compute) and statement.dtype is torch.bfloat16:
                self._bind_rounded(statement)
            self.floats[name] = statement.dtype  # type: ignore[union-attr]
        elif isinstance(statement, Compute) and statement.op == "cast":
            self._bind_truncated(statement)
        return name

    def _bind_rounded(self, statement: Compute) -> None:
        """The float that a bfloat16 was cast from, where it was."""
        self.rounded.pop(statement.name, None)
        if statement.op == "cast" and self.floats.get(statement.args[0]) is torch.float32:
            (self.rounded[statement.name],) = statement.args

    def _bind_truncated(self, cast: Compute) -> None:
        """The float that equals an integer cast from a float. GCC before 14 makes the casts there
        and back one truncation, with another sign of zero and other values beyond the integers.
        """
        source, name = cast.args[0], cast.name
        if cast.dtype.itemsize < 4:
            return
        if source in self.truncated:
            self.truncated[name] = self.truncated[source]
        elif source in self.floats:
            dtype = self.floats[source]
            wide = torch.float64 if dtype == torch.float64 else torch.float32
            bound = literal(2.0 ** (8 * cast.dtype.itemsize - 1), wide)
            value = f"whole_of({self.cast(source, dtype, wide)}, {bound})"
            self.lines.append(f"const {value_type(wide)} {name}_float = {value};")
            self.truncated[name] = f"{name}_float", wide

    def index_text(self, expr: Integer) -> str:
        """An index expression in C++."""
        return integer_text(expr, lambda name: self.renamed.get(name, name), "/")

    # Leaves and memory

    def constant(self, value: Number, dtype: torch.dtype) -> str:
        return literal(value, dtype)

    def index_value(self, expr: sympy.Expr, dtype: torch.dtype) -> str:
        if dtype.is_floating_point:
            return self.cast(f"(int64_t)({self.index_text(expr)})", torch.int64, dtype)
        return f"({value_type(dtype)})({self.index_text(expr)})"

    def load(self, buffer: str, index: sympy.Expr, dtype: torch.dtype, mask: str | None) -> str:
        element = f"{buffer}[{self.index_text(index)}]"
        if dtype == torch.bool:
            element = f"{element} != 0"
        conditions = [
            self.guards[name] for name in sorted(free_names(index)) if name in self.guards
        ]
        conditions += [mask] if mask else []
        if not conditions:
            return element
        return f"{' && '.join(conditions)} ? {element} : {literal(0, dtype)}"

    def store(self, buffer: str, index: sympy.Expr, value: str, mask: str | None) -> None:
        condition = f"if ({mask}) " if mask else ""
        self.lines.append(f"{condition}{buffer}[{self.index_text(index)}] = {value};")

    def scatter(
        self, mode: str, buffer: str, index: sympy.Expr, value: str, mask: str | None
    ) -> None:
        conditions = [
            self.guards[name] for name in sorted(free_names(index)) if name in self.guards
        ]
        conditions += [mask] if mask else []
        test = f"if ({' && '.join(conditions)}) " if conditions else ""
        place = f"{buffer}[{self.index_text(index)}]"
        if mode in ("max", "min"):
            sign = ">" if mode == "max" else "<"
            value = f"{value} {sign} {place} || {value} != {value} ? {value} : {place}"
        sign = {"add": "+=", "mul": "*="}.get(mode, "=")
        self.lines.append(f"{test}{place} {sign} {value};")

    def check_index(self, value: str, size: Integer, mask: str | None) -> None:
        valid = self.make_safe(value, size)
        self.lines.append(f"bad |= !{valid}{f' && {mask}' if mask else ''};")

    def make_safe(self, value: str, size: Integer) -> str:
        """Replace an index by one that is always safe to read at; returns its condition's name."""
        self.checks += 1
        valid, safe = f"{value}_valid{self.checks}", f"{value}_safe{self.checks}"
        self.lines.append(
            f"const bool {valid} = (uint64_t){value} < (uint64_t)({self.index_text(size)});"
        )
        self.lines.append(f"const int64_t {safe} = {valid} ? {self.renamed.get(value, value)} : 0;")
        before = self.guards.get(value)
        self.renamed[value] = safe
        self.guards[value] = f"{before} && {valid}" if before else valid
        return valid

    def reduce(self, kind: str, value: str, dtype: torch.dtype) -> str:
        raise AssertionError("reductions are written by the kernel writer")

    def reduce_columns(self, statement: ColumnReduce, value: str, dtype: torch.dtype) -> str:
        raise AssertionError("columns are reduced by stores (row_shares)")

    def reduce_tile(self, statement: TileReduce, value: str, dtype: torch.dtype) -> str:
        raise AssertionError("tiles are reduced on a GPU")

    def scan(self, statement: Scan, value: str, dtype: torch.dtype) -> str:
        step, result = take(statement, value, self.carry_index)
        self.lines.append(step)
        return result

    def sort(self, statement: Sort, value: str, dtype: torch.dtype) -> str:
        raise AssertionError("sorts are written by the kernel writer")

    # Selection and conversion

    def where(self, condition: str, a: str, b: str, dtype: torch.dtype) -> str:
        if condition in self.masks and dtype is torch.float32:
            return f"selected({self.masks[condition]}, {a}, {b})"
        return f"{condition} ? {a} : {b}"

    def maximum(self, a: str, b: str, dtype: torch.dtype) -> str:
        return self._extreme("maximum", ">", a, b, dtype)

    def minimum(self, a: str, b: str, dtype: torch.dtype) -> str:
        return self._extreme("minimum", "<", a, b, dtype)

    def _extreme(self, name: str, sign: str, a: str, b: str, dtype: torch.dtype) -> str:
        """One selection if an operand is a number; of equals the second. NaN is an extreme."""
        if dtype.is_floating_point and _is_number(self.constants.get(a)):
            bound = self.bounds.get(a, a)
            return f"{bound} {sign} {b} ? {bound} : {b}"
        if dtype.is_floating_point and _is_number(number := self.constants.get(b)):
            # Signs of zeros tell equals apart.
            bound, equal = self.bounds.get(b, b), "" if number else "="
            return f"{bound} {sign}{equal} {a} ? {bound} : {a}"
        return f"{name}({a}, {b})"

    def cast(self, x: str, source: torch.dtype, to: torch.dtype) -> str:
        if source == to:
            return x
        if to.is_floating_point and x in self.truncated:
            value, wide = self.truncated[x]  # the integer exactly, so `to` rounds once
            return self.cast(value, wide, to)
        if source == torch.bool:  # a selection is vectorised where the conversion of a mask is not
            one, zero = literal(1, to), literal(0, to)
            if self.hidden and not to.is_floating_point:
                one, zero = (f"({storage_type(to)}){self.hidden[number]}" for number in (1, 0))
            return f"{x} ? {one} : {zero}"
        if x in self.rounded and to in (torch.float32, torch.float64):
            return self.cast(f"rounded_bfloat16({self.rounded[x]})", torch.float32, to)
        if x in self.gathered:
            return self.cast(f"one_float16({x})", torch.float32, to)
        if source in HALVES:
            return self.cast(f"from_{HALVES[source]}({x})", torch.float32, to)
        if to in HALVES:
            return f"to_{HALVES[to]}({self.cast(x, source, torch.float32)})"
        if to == torch.bool:
            return f"{x} != 0"
        if source.is_floating_point and not to.is_floating_point and to.itemsize < 4:
            return f"({storage_type(to)})(int32_t){x}"
        if source.is_floating_point and to == torch.int64:
            return f"int64_of({x})"
        if source == torch.int64 and to.is_floating_point:
            return f"{'float' if to == torch.float32 else 'double'}_of({x})"
        return f"({storage_type(to)}){x}"

    def float_of_bits(self, x: str, dtype: torch.dtype) -> str:
        return f"__builtin_bit_cast(double, (int64_t)({x}))"


def _is_number(value: Number | None) -> bool:
    return value is not None and not math.isnan(value)


def _suffix(dtype: torch.dtype) -> str:
    return "f" if dtype == torch.float32 else ""


def _unsigned(x: str, dtype: torch.dtype) -> str:
    return f"({'uint64_t' if dtype == torch.int64 else 'uint32_t'}){x}"


def _wrapped(expression: str, dtype: torch.dtype) -> str:
    return f"({value_type(dtype)})({expression})"


def _neg(x: str, dtype: torch.dtype) -> str:
    return f"-{x}" if dtype.is_floating_point else _wrapped(f"0 - {_unsigned(x, dtype)}", dtype)


def _abs(x: str, dtype: torch.dtype) -> str:
    if dtype.is_floating_point:
        return _builtin("fabs", x, dtype)
    return x if dtype == torch.uint8 else f"{x} < 0 ? {_neg(x, dtype)} : {x}"


def _arithmetic(sign: str, a: str, b: str, dtype: torch.dtype) -> str:
    if dtype.is_floating_point:
        return f"{a} {sign} {b}"
    return _wrapped(f"{_unsigned(a, dtype)} {sign} {_unsigned(b, dtype)}", dtype)


def _bitwise(sign: str, a: str, b: str, dtype: torch.dtype) -> str:
    return _wrapped(f"{a} {sign} {b}", dtype)  # `&` and its like promote to int


def _comparison(sign: str, a: str, b: str, dtype: torch.dtype) -> str:
    return f"{a} {sign} {b}"


def _builtin(name: str, x: str, dtype: torch.dtype) -> str:
    return f"__builtin_{name}{_suffix(dtype)}({x})"


def _rounded(name: str, x: str, dtype: torch.dtype) -> str:
    return _builtin(name, x, dtype) if dtype.is_floating_point else x


def _libm(name: str, *args: Any) -> str:
    *operands, dtype = args
    return f"{name}{_suffix(dtype)}({', '.join(operands)})"


def _prelude(name: str, *args: Any) -> str:
    return f"{name}({', '.join(args[:-1])})"


def _by_kind(of_floats: Callable[..., str], of_ints: Callable[..., str]) -> Callable[..., str]:
    return lambda *args: (of_floats if args[-1].is_floating_point else of_ints)(*args)


def _truncated_quotient(a: str, b: str, dtype: torch.dtype) -> str:
    return _builtin("trunc", f"{a} / {b}", dtype)


_LIBM = (
    "exp2", "expm1", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh",
    "cosh", "tanh", "asinh", "acosh", "atanh", "erfc", "atan2",
)  # fmt: skip

_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}

install(CppPrinter, {
    **{name: partial(_libm, name) for name in _LIBM},
    **{name: partial(_prelude, f"{name}_of") for name in (*OWN_FUNCTIONS, "sign")},
    **{name: partial(_comparison, sign) for name, sign in _COMPARISONS.items()},
    "neg": _neg,
    "abs": _abs,
    "floor": partial(_rounded, "floor"),
    "ceil": partial(_rounded, "ceil"),
    "round": partial(_rounded, "rint"),
    "trunc": partial(_rounded, "trunc"),
    "sqrt": partial(_builtin, "sqrt"),
    "rsqrt": lambda x, dtype: f"{literal(1, dtype)} / {_builtin('sqrt', x, dtype)}",
    "reciprocal": lambda x, dtype: f"{literal(1, dtype)} / {x}",
    "isnan": lambda x, dtype: f"{x} != {x}",
    "isinf": lambda x, dtype: f"{_abs(x, dtype)} == __builtin_inf{_suffix(dtype)}()",
    "signbit": _by_kind(partial(_prelude, "signbit_of"), lambda x, dtype: f"{x} < 0"),
    "bitwise_not": lambda x, t: f"!{x}" if t == torch.bool else f"({value_type(t)})~{x}",
    "bitwise_and": partial(_bitwise, "&"),
    "bitwise_or": partial(_bitwise, "|"),
    "bitwise_xor": partial(_bitwise, "^"),
    "shift_left": partial(_prelude, "shift_left"),
    "shift_right": partial(_prelude, "shift_right"),
    "add": partial(_arithmetic, "+"),
    "sub": partial(_arithmetic, "-"),
    "mul": partial(_arithmetic, "*"),
    "div": lambda a, b, dtype: f"{a} / {b}",
    "floor_divide": _by_kind(
        partial(_prelude, "float_floor_divide"), partial(_prelude, "int_floor_divide")
    ),
    "trunc_divide": _by_kind(_truncated_quotient, partial(_prelude, "int_divide")),
    "fmod": _by_kind(partial(_libm, "fmod"), partial(_prelude, "int_fmod")),
    "remainder": _by_kind(partial(_prelude, "float_remainder"), partial(_prelude, "int_remainder")),
    "pow": _by_kind(partial(_libm, "pow"), partial(_prelude, "int_pow")),
    "philox": partial(_prelude, "philox_of"),
    "fma": lambda a, b, c, dtype: f"__builtin_fma{_suffix(dtype)}({a}, {b}, {c})",
    **{f"fast_{name}": partial(_libm, name) for name in ("sin", "cos")},
    "fast_log": partial(_prelude, "log_of"),
    "copysign": lambda a, b, dtype: f"__builtin_copysign{_suffix(dtype)}({a}, {b})",
})  # fmt: skip
