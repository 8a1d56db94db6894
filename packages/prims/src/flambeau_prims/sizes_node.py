"""The node protocol that lets torch carry our sizes: SymInt, SymFloat and SymBool around Exprs,
FloatExprs and Conditions.

torch.SymInt(node) takes any object with the methods that C++ (c10::SymNodeImpl) and the magic
methods of the Python classes call. Arithmetic builds Exprs; a relation builds a Condition, and is
decided (and guarded) when C++ or Python asks for its truth.
"""

from __future__ import annotations

import math
import operator
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from flambeau_prims import sizes
from flambeau_prims.size_floats import (
    PLAIN,
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
    from collections.abc import Callable, Sequence

Symbolic: TypeAlias = "torch.SymInt | torch.SymFloat | torch.SymBool"


def to_symint(size: Size) -> int | torch.SymInt:
    """A size as torch takes it: an int, or the one SymInt of its Expr."""
    if type(size) is int:
        return size
    if size.symint is None:  # type: ignore[union-attr]
        size.symint = torch.SymInt(IntNode(size))  # type: ignore[union-attr]
    return size.symint  # type: ignore[union-attr]


def from_symint(value: int | torch.SymInt) -> Size:
    """The size inside a SymInt of ours; ints pass."""
    if isinstance(value, torch.SymInt) and isinstance(value.node, IntNode):
        return value.node.value
    return int(value)


def to_symbolic(value: Any) -> Any:
    """The torch object for an Expr, FloatExpr or Condition; other values pass."""
    if isinstance(value, Expr):
        return to_symint(value)
    if isinstance(value, FloatExpr):
        return torch.SymFloat(FloatNode(value))
    if isinstance(value, Condition):
        return torch.SymBool(BoolNode(value))
    return value


def from_symbolic(value: Symbolic) -> Any:
    """The value in a SymInt, SymFloat or SymBool of ours: a number, or an expression of ours."""
    return value.node.value


class SizeNode:
    """The common part of the nodes. `value`: an Expr, FloatExpr, Condition or a constant."""

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
        return self.value if type(self.value) is int else None

    def maybe_as_float(self) -> float | None:
        return self.value if isinstance(self.value, float) else None

    def maybe_as_bool(self) -> bool | None:
        return self.value if isinstance(self.value, bool) else None

    def has_hint(self) -> bool:
        return not is_unbacked(self.value)

    @property
    def expr(self) -> Any:
        """A sympy number or symbol that equals those of equal values, for torch's own Python; its
        name is that of an unbacked symbol if the value has unbacked ones.
        """
        import sympy

        if self.is_constant():
            return sympy.sympify(self.value)
        return sympy.Symbol(("s_" if self.has_hint() else "u_") + str(self.value))

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


class IntNode(SizeNode):
    """A Size."""

    __slots__ = ()

    value: Size

    def is_int(self) -> bool:
        return True

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
        return decide(_condition("!=", self.value, 0))

    def pos(self) -> IntNode:
        return self

    floor = ceil = trunc = sym_int = pos

    def round(self, digits: int | None = None) -> IntNode:
        if digits is None or digits >= 0:
            return self
        return IntNode(round(sizes.as_int(self.value), digits))

    def sym_sum(self, args: Sequence[IntNode]) -> IntNode:
        total: Size = 0
        for node in args:
            total = total + node.value
        return IntNode(total)

    def pow(self, other: IntNode) -> IntNode | FloatNode:
        if isinstance(other, FloatNode) or decide(_condition("<", other.value, 0)):
            return FloatNode(float_of("**", float_of("float", self.value), other.value))
        return IntNode(_natural_power(self.value, other.value))


class FloatNode(SizeNode):
    """A float or FloatExpr."""

    __slots__ = ()

    value: float | FloatExpr

    def is_float(self) -> bool:
        return True

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
        return decide(_condition("!=", self.value, 0.0))

    def pos(self) -> FloatNode:
        return self

    sym_float = pos

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
        return self.floor() if decide(_condition(">=", self.value, 0.0)) else self.ceil()

    sym_int = trunc

    def round(self, digits: int | None = None) -> IntNode | FloatNode:
        rounded = round(as_float(self.value), digits)
        return IntNode(rounded) if digits is None else FloatNode(rounded)

    def is_integer(self) -> BoolNode:
        return BoolNode(as_float(self.value).is_integer())


class BoolNode(SizeNode):
    """A bool or Condition."""

    __slots__ = ()

    value: bool | Condition

    def is_bool(self) -> bool:
        return True

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
        return BoolNode(_condition("and", self.value, other.value))

    def sym_or(self, other: BoolNode) -> BoolNode:
        return BoolNode(_condition("or", self.value, other.value))

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
    """A divisor, assumed to stay nonzero; zero itself raises in the division."""
    sizes.expect("!=", value, 0)
    return value


def _condition(op: str, a: Any, b: Any) -> bool | Condition:
    """A relation or connective, decided if it is certain."""
    if type(a) is int and type(b) is int:
        return PLAIN[op](a, b)
    if a is b and type(a) is Expr:
        return PLAIN[op](0, 0)
    condition = Condition(op, a, b)
    decided = condition.known()
    return condition if decided is None else decided


# Methods that compute on the values of their operands


def _natural_power(base: Size, exponent: Size) -> Size:
    return base ** sizes.as_int(exponent)


def _on_ints(function: Callable[[int, int], int]) -> Callable[[Size, Size], Size]:
    """The function of ints, for which sizes are specialised."""
    return lambda a, b: function(sizes.as_int(a), sizes.as_int(b))


_RELATIONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_INT: dict[str, Callable[..., Size]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "neg": operator.neg,
    "floordiv int_floordiv": lambda a, b: a // _divisor(b),
    "mod": lambda a, b: a % _divisor(b),
    "abs": lambda a: sizes.size_max(a, -a),
    "sym_min": sizes.size_min,
    "sym_max": sizes.size_max,
    "pow_by_natural": _natural_power,
    "lshift": lambda a, b: a * (1 << sizes.as_int(b)),
    "rshift": lambda a, b: a // (1 << sizes.as_int(b)),
    "bitwise_and and_": _on_ints(operator.and_),
    "bitwise_or or_": _on_ints(operator.or_),
    "bitwise_xor xor": _on_ints(operator.xor),
}
_FLOAT = {
    "add": "+", "sub": "-", "mul": "*", "float_truediv truediv": "/", "floordiv": "//", "mod": "%",
    "float_pow pow": "**", "abs": "abs", "sym_min": "min", "sym_max": "max",
}  # fmt: skip
_OF_ANY_NUMBER = (
    "sqrt", "cos", "cosh", "sin", "sinh", "tan", "tanh", "acos", "asin", "atan", "log2",
)  # fmt: skip


def _install(node: type[SizeNode], names: str, result: type[SizeNode], compute: Any) -> None:
    """Give a class of nodes the methods `names`: `compute` of the values, as a node `result`."""

    def method(self: SizeNode, *others: SizeNode) -> SizeNode:
        return result(compute(self.value, *[other.value for other in others]))

    for name in names.split():
        setattr(node, name, method)


for _names, _function in _INT.items():
    _install(IntNode, _names, IntNode, _function)
_install(IntNode, "sym_float", FloatNode, partial(float_of, "float"))
_install(IntNode, "int_truediv truediv", FloatNode, partial(float_of, "/"))
for _names, _op in _FLOAT.items():
    _install(FloatNode, _names, FloatNode, partial(float_of, _op))
_install(FloatNode, "neg", FloatNode, lambda value: float_of("*", value, -1.0))
for _name in _OF_ANY_NUMBER:
    _install(SizeNode, f"sym_{_name}", FloatNode, partial(float_of, f"math.{_name}"))
for _name, _op in _RELATIONS.items():
    _install(SizeNode, _name, BoolNode, partial(_condition, _op))
