"""Prints a loop body as C++: the implementer of the scalar operators whose values are C++
expressions.

v2 = sub v0 v1   ->   const float v2 = v0 - v1;
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_inductor.codegen.cpp.cpp_types import literal, storage_type, value_type
from flambeau_inductor.indexing.expressions import free_names, integer_text

if TYPE_CHECKING:
    import sympy

    from flambeau_inductor.ir import Integer, Number, Statement

OWN_FUNCTIONS = ("exp", "log", "erf")
"""Functions that the prelude has in float32, closer and faster than libmvec's."""

_HALVES = {torch.float16: "float16", torch.bfloat16: "bfloat16"}


class CppPrinter:
    """ScalarOps on C++ expressions. Lines go to `lines`, which the kernel writer swaps as it moves
    from loop to loop.

    `renamed` maps the name of a value to what stands for it in index expressions (an index that was
    checked is replaced by one that is safe to read at); `guards` maps it to the condition under
    which that holds.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.renamed: dict[str, str] = {}
        self.guards: dict[str, str] = {}
        self.checks = 0

    def bind(self, statement: Statement, value: str) -> str:
        """`const T name = value;`"""
        name = statement.name  # type: ignore[union-attr]
        self.lines.append(f"const {value_type(statement.dtype)} {name} = {value};")  # type: ignore[union-attr]
        return name

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

    def store(self, buffer: str, index: sympy.Expr, value: str) -> None:
        self.lines.append(f"{buffer}[{self.index_text(index)}] = {value};")

    def check_index(self, value: str, size: Integer, mask: str | None) -> None:
        valid = self.make_safe(value, size)
        self.lines.append(f"bad |= !{valid}{f' && {mask}' if mask else ''};")

    def make_safe(self, value: str, size: Integer) -> str:
        """Replace an index by one that is safe to read at, valid only where the index is in bounds;
        the condition's name.
        """
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

    # Selection and conversion

    def where(self, condition: str, a: str, b: str, dtype: torch.dtype) -> str:
        return f"{condition} ? {a} : {b}"

    def cast(self, x: str, source: torch.dtype, to: torch.dtype) -> str:
        if source == to:
            return x
        if source == torch.bool:  # a selection is vectorised where the conversion of a mask is not
            return f"{x} ? {literal(1, to)} : {literal(0, to)}"
        if source in _HALVES:
            return self.cast(f"from_{_HALVES[source]}({x})", torch.float32, to)
        if to in _HALVES:
            return f"to_{_HALVES[to]}({self.cast(x, source, torch.float32)})"
        if to == torch.bool:
            return f"{x} != 0"
        if source.is_floating_point and not to.is_floating_point and to.itemsize < 4:
            return f"({storage_type(to)})(int32_t){x}"
        if source.is_floating_point and to == torch.int64:
            return f"int64_of({x})"
        if source == torch.int64 and to.is_floating_point:
            return f"{'float' if to == torch.float32 else 'double'}_of({x})"
        return f"({storage_type(to)}){x}"

    # Unary

    def neg(self, x: str, dtype: torch.dtype) -> str:
        return f"-{x}" if dtype.is_floating_point else _wrapped(f"0 - {_unsigned(x, dtype)}", dtype)

    def abs(self, x: str, dtype: torch.dtype) -> str:
        if dtype.is_floating_point:
            return f"__builtin_fabs{_suffix(dtype)}({x})"
        return x if dtype == torch.uint8 else f"{x} < 0 ? {self.neg(x, dtype)} : {x}"

    def sign(self, x: str, dtype: torch.dtype) -> str:
        return f"sign_of({x})"

    def floor(self, x: str, dtype: torch.dtype) -> str:
        return _rounded("floor", x, dtype)

    def ceil(self, x: str, dtype: torch.dtype) -> str:
        return _rounded("ceil", x, dtype)

    def round(self, x: str, dtype: torch.dtype) -> str:
        return _rounded("rint", x, dtype)

    def trunc(self, x: str, dtype: torch.dtype) -> str:
        return _rounded("trunc", x, dtype)

    def float_of_bits(self, x: str, dtype: torch.dtype) -> str:
        return f"__builtin_bit_cast(double, (int64_t)({x}))"

    def bitwise_not(self, x: str, dtype: torch.dtype) -> str:
        return f"!{x}" if dtype == torch.bool else f"({value_type(dtype)})~{x}"

    def reciprocal(self, x: str, dtype: torch.dtype) -> str:
        return f"{literal(1, dtype)} / {x}"

    def sqrt(self, x: str, dtype: torch.dtype) -> str:
        return f"__builtin_sqrt{_suffix(dtype)}({x})"

    def rsqrt(self, x: str, dtype: torch.dtype) -> str:
        return f"{literal(1, dtype)} / {self.sqrt(x, dtype)}"

    def isnan(self, x: str, dtype: torch.dtype) -> str:
        return f"{x} != {x}"

    def isinf(self, x: str, dtype: torch.dtype) -> str:
        return f"{self.abs(x, dtype)} == __builtin_inf{_suffix(dtype)}()"

    def signbit(self, x: str, dtype: torch.dtype) -> str:
        return f"signbit_of({x})" if dtype.is_floating_point else f"{x} < 0"

    # Binary

    def add(self, a: str, b: str, dtype: torch.dtype) -> str:
        return _arithmetic("+", a, b, dtype)

    def sub(self, a: str, b: str, dtype: torch.dtype) -> str:
        return _arithmetic("-", a, b, dtype)

    def mul(self, a: str, b: str, dtype: torch.dtype) -> str:
        return _arithmetic("*", a, b, dtype)

    def div(self, a: str, b: str, dtype: torch.dtype) -> str:
        return f"{a} / {b}"

    def floor_divide(self, a: str, b: str, dtype: torch.dtype) -> str:
        return f"{_kind(dtype)}_floor_divide({a}, {b})"

    def trunc_divide(self, a: str, b: str, dtype: torch.dtype) -> str:
        if dtype.is_floating_point:
            return f"__builtin_trunc{_suffix(dtype)}({a} / {b})"
        return f"int_divide({a}, {b})"

    def fmod(self, a: str, b: str, dtype: torch.dtype) -> str:
        return (
            f"fmod{_suffix(dtype)}({a}, {b})" if dtype.is_floating_point else f"int_fmod({a}, {b})"
        )

    def remainder(self, a: str, b: str, dtype: torch.dtype) -> str:
        return f"{_kind(dtype)}_remainder({a}, {b})"

    def pow(self, a: str, b: str, dtype: torch.dtype) -> str:
        return f"pow{_suffix(dtype)}({a}, {b})" if dtype.is_floating_point else f"int_pow({a}, {b})"

    def atan2(self, a: str, b: str, dtype: torch.dtype) -> str:
        return f"atan2{_suffix(dtype)}({a}, {b})"

    def maximum(self, a: str, b: str, dtype: torch.dtype) -> str:
        return f"maximum({a}, {b})"

    def minimum(self, a: str, b: str, dtype: torch.dtype) -> str:
        return f"minimum({a}, {b})"

    def copysign(self, a: str, b: str, dtype: torch.dtype) -> str:
        return f"__builtin_copysign{_suffix(dtype)}({a}, {b})"

    def shift_left(self, a: str, b: str, dtype: torch.dtype) -> str:
        return f"shift_left({a}, {b})"

    def shift_right(self, a: str, b: str, dtype: torch.dtype) -> str:
        return f"shift_right({a}, {b})"


def _suffix(dtype: torch.dtype) -> str:
    return "f" if dtype == torch.float32 else ""


def _kind(dtype: torch.dtype) -> str:
    return "float" if dtype.is_floating_point else "int"


def _unsigned(x: str, dtype: torch.dtype) -> str:
    return f"({'uint64_t' if dtype == torch.int64 else 'uint32_t'}){x}"


def _wrapped(expression: str, dtype: torch.dtype) -> str:
    return f"({value_type(dtype)})({expression})"


def _arithmetic(sign: str, a: str, b: str, dtype: torch.dtype) -> str:
    if dtype.is_floating_point:
        return f"{a} {sign} {b}"
    return _wrapped(f"{_unsigned(a, dtype)} {sign} {_unsigned(b, dtype)}", dtype)


def _rounded(name: str, x: str, dtype: torch.dtype) -> str:
    return f"__builtin_{name}{_suffix(dtype)}({x})" if dtype.is_floating_point else x


def _libm(name: str) -> Any:
    def method(self: CppPrinter, x: str, dtype: torch.dtype) -> str:
        return f"{name}_of({x})" if name in OWN_FUNCTIONS else f"{name}{_suffix(dtype)}({x})"

    method.__name__ = name
    return method


def _infix(name: str, sign: str) -> Any:
    def method(self: CppPrinter, a: str, b: str, dtype: torch.dtype) -> str:
        expression = f"{a} {sign} {b}"
        # `&` and its like promote to int; a comparison is bool already.
        return f"({value_type(dtype)})({expression})" if sign in "&|^" else expression

    method.__name__ = name
    return method


# Operators that are one function of libm, or one sign of C++.
for _name in (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos",
    "atan",
    "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "lgamma",
):  # fmt: skip
    setattr(CppPrinter, _name, _libm(_name))
for _name, _sign in {
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
    "bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^",
}.items():  # fmt: skip
    setattr(CppPrinter, _name, _infix(_name, _sign))
