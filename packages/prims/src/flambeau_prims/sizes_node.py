"""The node protocol that lets torch carry our sizes: SymInt, SymFloat and SymBool around Exprs,
FloatExprs and Conditions.

torch.SymInt(node) takes any object with the methods that C++ (c10::SymNodeImpl) and the magic
methods of the Python classes call. Arithmetic builds Exprs; a relation builds a Condition, and is
decided (and guarded) when C++ or Python asks for its truth.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from flambeau_prims import sizes
from flambeau_prims.size_floats import (
    Condition,
    FloatExpr,
    as_float,
    ask,
    condition_hint,
    decide,
    expect,
    float_of,
    floor_of,
    is_unbacked,
    known,
)
from flambeau_prims.sizes import Expr, Size

if TYPE_CHECKING:
    from collections.abc import Sequence

Symbolic: TypeAlias = "torch.SymInt | torch.SymFloat | torch.SymBool"


def to_symint(size: Size) -> int | torch.SymInt:
    """A size as torch takes it: an int, or the one SymInt of its Expr."""
    if type(size) is int:
        return size
    found = size.symint  # type: ignore[union-attr]
    if found is None:
        found = torch.SymInt(IntNode(size))
        size.symint = found  # type: ignore[union-attr]
    return found


def from_symint(value: int | torch.SymInt) -> Size:
    """The size inside a SymInt of ours; ints pass."""
    if isinstance(value, torch.SymInt):
        node = value.node
        if isinstance(node, IntNode):
            return node.value
        return int(value)
    return int(value)


def to_symbolic(value: Any) -> Any:
    """Any symbolic value of ours (Expr, FloatExpr, Condition) as the torch object for it; other
    values pass.
    """
    if isinstance(value, Expr):
        return to_symint(value)
    if isinstance(value, FloatExpr):
        return torch.SymFloat(FloatNode(value))
    if isinstance(value, Condition):
        return torch.SymBool(BoolNode(value))
    return value


def from_symbolic(value: Symbolic) -> Any:
    """What is inside a SymInt, SymFloat or SymBool of ours: Size, float or FloatExpr, bool or
    Condition.
    """
    return value.node.value


class SizeNode:
    """What the three kinds of node share. `value` is the Expr, FloatExpr or Condition, or a plain
    constant.
    """

    __slots__ = ("value",)

    value: Any

    def __init__(self, value: Any) -> None:
        self.value = value

    def is_int(self) -> bool:
        return False

    def is_float(self) -> bool:
        return False

    def is_bool(self) -> bool:
        return False

    def is_nested_int(self) -> bool:
        return False

    def nested_int(self) -> None:
        return None

    def is_constant(self) -> bool:
        return isinstance(self.value, (int, float))

    def is_symbolic(self) -> bool:
        return not self.is_constant()

    @property
    def constant(self) -> int | float | bool | None:
        return self.value if self.is_constant() else None

    def maybe_as_int(self) -> int | None:
        return None

    def maybe_as_float(self) -> float | None:
        return None

    def maybe_as_bool(self) -> bool | None:
        return None

    def has_hint(self) -> bool:
        return not is_unbacked(self.value)

    def clone(self) -> SizeNode:
        return self

    def __repr__(self) -> str:
        return str(self.value)

    _graph_repr = str = __repr__

    def wrap_int(self, value: int) -> IntNode:
        return IntNode(value)

    def wrap_float(self, value: float) -> FloatNode:
        return FloatNode(value)

    def wrap_bool(self, value: bool) -> BoolNode:
        return BoolNode(value)

    # Relations, shared by ints and floats

    def eq(self, other: SizeNode) -> BoolNode:
        return BoolNode(_relation("==", self.value, other.value))

    def ne(self, other: SizeNode) -> BoolNode:
        return BoolNode(_relation("!=", self.value, other.value))

    def lt(self, other: SizeNode) -> BoolNode:
        return BoolNode(_relation("<", self.value, other.value))

    def le(self, other: SizeNode) -> BoolNode:
        return BoolNode(_relation("<=", self.value, other.value))

    def gt(self, other: SizeNode) -> BoolNode:
        return BoolNode(_relation(">", self.value, other.value))

    def ge(self, other: SizeNode) -> BoolNode:
        return BoolNode(_relation(">=", self.value, other.value))


class IntNode(SizeNode):
    """A Size."""

    __slots__ = ()

    value: Size

    def is_int(self) -> bool:
        return True

    def maybe_as_int(self) -> int | None:
        return self.value if type(self.value) is int else None

    @property
    def hint(self) -> int:
        return sizes.hint_of(self.value)

    def require_hint(self, fallback: int | None = None) -> int:
        return sizes.hint_of(self.value)

    def guard_int(self, file: str, line: int) -> int:
        return sizes.as_int(self.value)

    def int_(self) -> int:
        return sizes.as_int(self.value)

    def bool_(self) -> bool:
        return decide(_relation("!=", self.value, 0))

    def add(self, other: IntNode) -> IntNode:
        return IntNode(self.value + other.value)

    def sub(self, other: IntNode) -> IntNode:
        return IntNode(self.value - other.value)

    def mul(self, other: IntNode) -> IntNode:
        return IntNode(self.value * other.value)

    def floordiv(self, other: IntNode) -> IntNode:
        return IntNode(self.value // _divisor(other.value))

    int_floordiv = floordiv

    def mod(self, other: IntNode) -> IntNode:
        return IntNode(self.value % _divisor(other.value))

    def neg(self) -> IntNode:
        return IntNode(-self.value)

    def pos(self) -> IntNode:
        return self

    floor = ceil = trunc = sym_int = pos

    def round(self, digits: int | None = None) -> IntNode:
        if digits is None or digits >= 0:
            return self
        return IntNode(round(sizes.as_int(self.value), digits))

    def abs(self) -> IntNode:
        return IntNode(sizes.size_max(self.value, -self.value))

    def sym_min(self, other: IntNode) -> IntNode:
        return IntNode(sizes.size_min(self.value, other.value))

    def sym_max(self, other: IntNode) -> IntNode:
        return IntNode(sizes.size_max(self.value, other.value))

    def sym_sum(self, args: Sequence[IntNode]) -> IntNode:
        total: Size = 0
        for node in args:
            total = total + node.value
        return IntNode(total)

    def pow_by_natural(self, other: IntNode) -> IntNode:
        return IntNode(self.value ** sizes.as_int(other.value))

    def pow(self, other: IntNode) -> IntNode | FloatNode:
        if isinstance(other, FloatNode) or decide(_relation("<", other.value, 0)):
            return FloatNode(float_of("**", float_of("float", self.value), other.value))
        return self.pow_by_natural(other)

    def lshift(self, other: IntNode) -> IntNode:
        return IntNode(self.value * (1 << sizes.as_int(other.value)))

    def rshift(self, other: IntNode) -> IntNode:
        return IntNode(self.value // (1 << sizes.as_int(other.value)))

    def bitwise_and(self, other: IntNode) -> IntNode:
        return IntNode(sizes.as_int(self.value) & sizes.as_int(other.value))

    def bitwise_or(self, other: IntNode) -> IntNode:
        return IntNode(sizes.as_int(self.value) | sizes.as_int(other.value))

    def bitwise_xor(self, other: IntNode) -> IntNode:
        return IntNode(sizes.as_int(self.value) ^ sizes.as_int(other.value))

    and_, or_, xor = bitwise_and, bitwise_or, bitwise_xor

    def sym_float(self) -> FloatNode:
        return FloatNode(float_of("float", self.value))

    def int_truediv(self, other: IntNode) -> FloatNode:
        return FloatNode(float_of("/", self.value, other.value))

    truediv = int_truediv


class FloatNode(SizeNode):
    """A float or FloatExpr."""

    __slots__ = ()

    value: float | FloatExpr

    def is_float(self) -> bool:
        return True

    def maybe_as_float(self) -> float | None:
        return self.value if isinstance(self.value, float) else None

    @property
    def hint(self) -> float:
        return self.value.hint if isinstance(self.value, FloatExpr) else self.value

    def guard_float(self, file: str, line: int) -> float:
        return as_float(self.value)

    def guard_int(self, file: str, line: int) -> int:
        return int(as_float(self.value))

    def int_(self) -> int:
        return int(as_float(self.value))

    def bool_(self) -> bool:
        return decide(_relation("!=", self.value, 0.0))

    def add(self, other: FloatNode) -> FloatNode:
        return FloatNode(float_of("+", self.value, other.value))

    def sub(self, other: FloatNode) -> FloatNode:
        return FloatNode(float_of("-", self.value, other.value))

    def mul(self, other: FloatNode) -> FloatNode:
        return FloatNode(float_of("*", self.value, other.value))

    def float_truediv(self, other: FloatNode) -> FloatNode:
        return FloatNode(float_of("/", self.value, other.value))

    truediv = float_truediv

    def floordiv(self, other: FloatNode) -> FloatNode:
        return FloatNode(float_of("//", self.value, other.value))

    def mod(self, other: FloatNode) -> FloatNode:
        return FloatNode(float_of("%", self.value, other.value))

    def float_pow(self, other: FloatNode) -> FloatNode:
        return FloatNode(float_of("**", self.value, other.value))

    pow = float_pow

    def neg(self) -> FloatNode:
        return FloatNode(float_of("*", self.value, -1.0))

    def pos(self) -> FloatNode:
        return self

    sym_float = pos

    def abs(self) -> FloatNode:
        return FloatNode(float_of("abs", self.value))

    def floor(self) -> IntNode:
        return IntNode(floor_of(self.value))

    def ceil(self) -> IntNode:
        negated = self.value
        if isinstance(negated, FloatExpr) and negated.op == "/":
            left, right = negated.args
            if not any(isinstance(side, (float, FloatExpr)) for side in (left, right)):
                return IntNode(-(-left // right))  # type: ignore[operator]
        return IntNode(math.ceil(as_float(negated)))

    def trunc(self) -> IntNode:
        return self.floor() if decide(_relation(">=", self.value, 0.0)) else self.ceil()

    sym_int = trunc

    def round(self, digits: int | None = None) -> IntNode | FloatNode:
        rounded = round(as_float(self.value), digits)
        return IntNode(rounded) if digits is None else FloatNode(rounded)

    def is_integer(self) -> BoolNode:
        return BoolNode(as_float(self.value).is_integer())

    def sym_min(self, other: FloatNode) -> FloatNode:
        return FloatNode(float_of("min", self.value, other.value))

    def sym_max(self, other: FloatNode) -> FloatNode:
        return FloatNode(float_of("max", self.value, other.value))


def _float_function(name: str) -> Any:
    def method(self: SizeNode) -> FloatNode:
        return FloatNode(float_of(f"math.{name}", self.value))

    return method


for _name in ("sqrt", "cos", "cosh", "sin", "sinh", "tan", "tanh", "acos", "asin", "atan", "log2"):
    setattr(SizeNode, f"sym_{_name}", _float_function(_name))


class BoolNode(SizeNode):
    """A bool or Condition."""

    __slots__ = ()

    value: bool | Condition

    def is_bool(self) -> bool:
        return True

    def maybe_as_bool(self) -> bool | None:
        return self.value if isinstance(self.value, bool) else None

    @property
    def hint(self) -> bool:
        return condition_hint(self.value)

    def guard_bool(self, file: str, line: int) -> bool:
        return decide(self.value)

    def bool_(self) -> bool:
        return decide(self.value)

    def int_(self) -> int:
        return int(decide(self.value))

    def guard_int(self, file: str, line: int) -> int:
        return int(decide(self.value))

    def guard_size_oblivious(self, file: str, line: int) -> bool:
        return condition_hint(self.value) if self._is_open() else ask(self.value)

    def expect_true(self, file: str, line: int) -> bool:
        return expect(self.value)

    def guard_or_false(self, file: str, line: int) -> bool:
        return False if self._is_open() else ask(self.value)

    def guard_or_true(self, file: str, line: int) -> bool:
        return True if self._is_open() else ask(self.value)

    def _is_open(self) -> bool:
        return is_unbacked(self.value) and known(self.value) is None

    def statically_known_true(self, file: str, line: int) -> bool:
        return known(self.value) is True

    def sym_and(self, other: BoolNode) -> BoolNode:
        return BoolNode(_both("and", self.value, other.value))

    def sym_or(self, other: BoolNode) -> BoolNode:
        return BoolNode(_both("or", self.value, other.value))

    def eq(self, other: SizeNode) -> BoolNode:
        return BoolNode(decide(self.value) == _decided(other.value))

    def ne(self, other: SizeNode) -> BoolNode:
        return BoolNode(decide(self.value) != _decided(other.value))

    def sym_not(self) -> BoolNode:
        return BoolNode(
            not self.value if isinstance(self.value, bool) else Condition("not", self.value)
        )

    and_, or_ = sym_and, sym_or

    def sym_ite(self, then: SizeNode, otherwise: SizeNode) -> SizeNode:
        return then if decide(self.value) else otherwise


def _decided(value: Any) -> Any:
    return decide(value) if isinstance(value, Condition) else value


def _divisor(value: Size) -> Size:
    """A number to divide by, of which is assumed that it stays other than zero; zero itself raises
    in the division.
    """
    sizes.expect("!=", value, 0)
    return value


def _relation(op: str, a: Any, b: Any) -> bool | Condition:
    condition = Condition(op, a, b)
    decided = condition.known()
    return condition if decided is None else decided


def _both(op: str, a: bool | Condition, b: bool | Condition) -> bool | Condition:
    condition = Condition(op, a, b)
    decided = condition.known()
    return condition if decided is None else decided
