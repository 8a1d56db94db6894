"""Symbolic floats and conditions: as much of both as programs that compute with sizes and with
numbers of the user need.

`x.shape[0] ** -0.5`, `math.sqrt(n)`, `n / 2 < 0.5 * m`: a FloatExpr is an expression tree over
Sizes, with a hint; it prints as a Python expression. Its leaf `symbol` is a float that the program
is given (a learning rate): an int symbol of the SizeEnv stands for its 64 bits, so that whatever
carries sizes to compiled code carries floats too. A Condition is a relation that C++ or the program
has formed but not asked yet; asking decides it as `sizes.eq` and its like do.
"""

from __future__ import annotations

import math
import operator
import struct
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from flambeau_prims import sizes
from flambeau_prims.float_ranges import known_relation
from flambeau_prims.size_ranges import SizeGuard
from flambeau_prims.sizes import Expr, ExprEnv, Size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

Number: TypeAlias = "int | float | Expr | FloatExpr"

_MATH = [
    "sqrt", "cos", "cosh", "sin", "sinh", "tan", "tanh", "acos", "asin", "atan", "log2", "exp",
    "log",
]  # fmt: skip
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv,
    "//": operator.floordiv, "%": operator.mod, "**": operator.pow,
    "min": min, "max": max, "float": float, "abs": abs,
    **{f"math.{name}": getattr(math, name) for name in _MATH},
}  # fmt: skip
"""By the op of a FloatExpr: the function of plain numbers."""
SYMBOLIC_FUNCTIONS = FUNCTIONS | {
    "min": torch.sym_min, "max": torch.sym_max, "float": torch.sym_float,
}  # fmt: skip
"""By the op of a FloatExpr: the function of torch's SymInts and SymFloats."""


class FloatExpr:
    """`op(*args)`: a float computed from Sizes and numbers; `hint` is its value for the sizes seen
    while tracing.

    Interned: made by `float_of` and `float_symbol` only.
    """

    __slots__ = ("__weakref__", "args", "env", "hint", "op")

    op: str
    args: tuple[Number, ...]
    env: ExprEnv
    hint: float

    @property
    def symbol(self) -> str | None:
        """The name of the float that the program is given, for a leaf that is one."""
        return str(self.args[0]) if self.op == "symbol" else None

    def symbols(self) -> set[str]:
        """Names of all symbols that occur, of sizes and of floats."""
        return _symbols_in(self.args)

    def format(self, names: Mapping[str, str]) -> str:
        """A Python expression (over module `math`), symbols called as `names` says."""
        texts = [_format_number(arg, names) for arg in self.args]
        if self.op == "symbol":
            return texts[0]
        if len(texts) == 2 and self.op not in ("min", "max"):
            return f"({texts[0]} {self.op} {texts[1]})"
        return f"{self.op}({', '.join(texts)})"

    def evaluate(self, values: Mapping[str, Any]) -> float:
        """The value for these values of the symbols; those of floats are floats."""
        if self.op == "symbol":
            return float(values[str(self.args[0])])
        return float(FUNCTIONS[self.op](*(evaluate_number(arg, values) for arg in self.args)))

    def __repr__(self) -> str:
        return self.format({})


def bits_of(value: float) -> int:
    """The 64 bits of a float, as the int64 that stands for it in compiled code."""
    return int(struct.unpack("q", struct.pack("d", value))[0])


def float_of_bits(bits: int) -> float:
    """The float that an int64 stands for in compiled code."""
    return float(struct.unpack("d", struct.pack("q", bits))[0])


def is_float_symbol(name: str) -> bool:
    """Whether a symbol of a SizeEnv, by its name, stands for a float."""
    return name.startswith("f") and name[1:].isdigit()


UNBACKED_FLOAT_HINT = 0.5
"""What an unbacked float is taken to be where a guess is good enough."""


def unbacked_float(env: ExprEnv, within: tuple[float, float] | None = None) -> FloatExpr:
    """A new float that the program computes; `within`: its least and greatest value."""
    hint = UNBACKED_FLOAT_HINT if within is None else (within[0] + within[1]) / 2
    result = float_symbol(env, hint, None)
    if within is not None:
        env.float_ranges[str(result)] = within
    env.unbacked_atoms.update(env.atoms_in(result.args[0]))  # type: ignore[arg-type]
    return result


def is_unbacked(number: Any) -> bool:
    """Whether a number, or a Condition, depends on what a tensor of the program holds."""
    if isinstance(number, Expr):
        return number.env.is_unbacked(number)
    if isinstance(number, (FloatExpr, Condition)):
        return any(map(is_unbacked, number.args))
    return False


def float_symbol(env: ExprEnv, hint: float, source: object) -> FloatExpr:
    """A new float that the program is given; nothing is assumed of its value."""
    bits = env.symbol(bits_of(hint), source, lower=None, prefix="f")
    return _interned(env, "symbol", (bits,), hint)


def named_symbol(env: ExprEnv, name: str, hint: int) -> Expr | FloatExpr:
    """A new symbol of this name, of a size or (`is_float_symbol`) of a float whose bits the hint
    is, as data holds it; nothing is assumed of its value.
    """
    symbol = env.symbol(hint, name, lower=None, name=name)
    if not is_float_symbol(name):
        return symbol
    return _interned(env, "symbol", (symbol,), float_of_bits(hint))


def _interned(env: ExprEnv, op: str, args: tuple[Number, ...], hint: float) -> FloatExpr:
    key = (op, *((type(arg), bits_of(arg) if type(arg) is float else arg) for arg in args))
    cached = env.floats.get(key)
    if cached is None:
        cached = env.floats[key] = FloatExpr()
        cached.op, cached.args, cached.env, cached.hint = op, args, env, hint
    return cached


def float_of(op: str, *args: Number) -> float | FloatExpr:
    """`op` of numbers: a float when all are plain."""
    env = next((arg.env for arg in args if isinstance(arg, (Expr, FloatExpr))), None)
    if env is not None:
        try:
            hint = FUNCTIONS[op](*(number_hint(arg) for arg in args))
        except (ArithmeticError, ValueError):
            if not any(map(is_unbacked, args)):
                raise  # as the program does
            hint = 1.0  # nobody has seen these numbers
        if not _stays_defined(op, args):
            return float(FUNCTIONS[op](*(as_float(arg) for arg in args)))
        return _interned(env, op, args, float(hint))
    return float(FUNCTIONS[op](*args))  # type: ignore[arg-type]


def _stays_defined(op: str, args: tuple[Number, ...]) -> bool:
    """Whether `op` is a real number for all values the guards admit; takes guards for that."""
    if op in ("/", "//", "%"):
        return Condition("!=", args[1], 0).ask()
    if op == "**" and isinstance(args[1], (int, float)) and float(args[1]).is_integer():
        return args[1] >= 0 or Condition("!=", args[0], 0).ask()
    if op in ("math.log", "math.log2", "**"):
        return Condition(">", args[0], 0).ask()
    if op == "math.sqrt":
        return Condition(">=", args[0], 0).ask()
    if op in ("math.acos", "math.asin"):
        return Condition(">=", args[0], -1).ask() and Condition("<=", args[0], 1).ask()
    return True


def as_float(number: Number) -> float:
    """The number as a float; a symbolic one is specialised: every size in it is fixed."""
    if isinstance(number, FloatExpr):
        if is_unbacked(number):
            question = f"the value of {number} is asked, which is in a tensor"
            return float(number.env.asked(question).value(number, question))
        if number.op == "symbol":
            number.env.fixed_floats[str(number.args[0])] = number.hint
            return number.hint
        for arg in number.args:
            as_float(arg)
        return number.hint
    return float(sizes.as_int(number)) if isinstance(number, Expr) else float(number)


def floor_of(number: Number) -> Size:
    """The greatest integer not above a number; exact for a quotient of sizes, else specialised."""
    if isinstance(number, Expr):
        return number
    if isinstance(number, FloatExpr):
        if number.op == "/" and not any(isinstance(arg, (float, FloatExpr)) for arg in number.args):
            return number.args[0] // number.args[1]  # type: ignore[operator, return-value]
        if number.op == "float":
            return number.args[0]  # type: ignore[return-value]
    return math.floor(as_float(number))


def number_hint(number: Number) -> int | float:
    """The value of a number for the sizes seen while tracing."""
    return number.hint if isinstance(number, (Expr, FloatExpr)) else number


def _format_number(number: Number, names: Mapping[str, str]) -> str:
    if isinstance(number, float) and not math.isfinite(number):
        return "math.nan" if math.isnan(number) else f"({number:+}".replace("inf", "math.inf)")
    text = number.format(names) if isinstance(number, (Expr, FloatExpr)) else repr(number)
    return f"({text})" if isinstance(number, Expr) and number.symbol is None else text


# Conditions

_RELATIONS: dict[
    str,
    tuple[Callable[[Size, Size], bool], Callable[[Size, Size], bool], Callable[[Size, Size], bool]],
] = {
    # relation: (ask with a guard, certainly so, certainly not so)
    "==": (sizes.eq, sizes.known_eq, sizes.known_ne),
    "!=": (sizes.ne, sizes.known_ne, sizes.known_eq),
    "<": (sizes.lt, sizes.known_lt, sizes.known_ge),
    "<=": (sizes.le, sizes.known_le, sizes.known_gt),
    ">": (sizes.gt, sizes.known_gt, sizes.known_le),
    ">=": (sizes.ge, sizes.known_ge, sizes.known_lt),
}
PLAIN: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt,
    ">=": operator.ge,
}  # fmt: skip

_CONNECTIVES: dict[str, Callable[[Iterable[bool]], bool]] = {
    "and": all,
    "or": any,
    "not": lambda sides: not next(iter(sides)),
}


class Condition:
    """A relation of numbers ("==", "<", ...), or "and", "or", "not"; not asked yet."""

    __slots__ = ("args", "op")

    def __init__(self, op: str, *args: Any) -> None:
        self.op = op
        self.args = args

    def ask(self) -> bool:
        """Whether it holds, guarding if need be."""
        if self.op in _CONNECTIVES:
            return _CONNECTIVES[self.op](ask(arg) for arg in self.args)
        a, b = self.args
        if isinstance(a, (float, FloatExpr)) or isinstance(b, (float, FloatExpr)):
            decided = self.known()
            return _ask_floats(self.op, a, b) if decided is None else decided
        return _RELATIONS[self.op][0](a, b)

    def known(self) -> bool | None:
        """True or False if that is certain, else None; takes no guard."""
        if self.op == "not":
            inner = known(self.args[0])
            return None if inner is None else not inner
        if self.op in ("and", "or"):
            decisive = self.op == "or"
            answers = [known(arg) for arg in self.args]
            if decisive in answers:
                return decisive
            return None if None in answers else not decisive
        a, b = self.args
        if isinstance(a, (float, FloatExpr)) or isinstance(b, (float, FloatExpr)):
            if isinstance(a, (Expr, FloatExpr)) or isinstance(b, (Expr, FloatExpr)):
                by_sign = _known_by_sign(self.op, a, b)
                return known_relation(self.op, a, b) if by_sign is None else by_sign
            return PLAIN[self.op](a, b)
        _, certainly, certainly_not = _RELATIONS[self.op]
        return True if certainly(a, b) else False if certainly_not(a, b) else None

    @property
    def hint(self) -> bool:
        """The answer for the sizes seen while tracing."""
        if self.op in _CONNECTIVES:
            return _CONNECTIVES[self.op](condition_hint(arg) for arg in self.args)
        return PLAIN[self.op](number_hint(self.args[0]), number_hint(self.args[1]))

    def symbols(self) -> set[str]:
        """Names of all symbols that occur."""
        return _symbols_in(self.args)

    def evaluate(self, values: Mapping[str, Any]) -> bool:
        """Whether it holds for these values of the symbols; those of floats are floats."""
        sides = (evaluate_number(arg, values) for arg in self.args)
        connective = _CONNECTIVES.get(self.op)
        return PLAIN[self.op](*sides) if connective is None else connective(sides)

    def format(self, names: Mapping[str, str]) -> str:
        """A Python expression, symbols called as `names` says."""
        texts = [
            f"({arg.format(names)})" if isinstance(arg, Condition) else _format_number(arg, names)
            for arg in self.args
        ]
        return f"not {texts[0]}" if self.op == "not" else f" {self.op} ".join(texts)

    def __repr__(self) -> str:
        return self.format({})


def evaluate_number(arg: Any, values: Mapping[str, Any]) -> Any:
    """The value of a symbolic number or Condition; any other object as it is."""
    if isinstance(arg, Expr):
        return arg.env.evaluate(arg, values)
    return arg.evaluate(values) if isinstance(arg, (FloatExpr, Condition)) else arg


def _symbols_in(args: tuple[Any, ...]) -> set[str]:
    result: set[str] = set()
    for arg in args:
        if isinstance(arg, (Expr, FloatExpr, Condition)):
            result |= arg.symbols()
    return result


def condition_of(guard: SizeGuard) -> Condition:
    """The condition that a guard states."""
    condition = Condition(guard.op, guard.lhs, guard.rhs)
    return condition if guard.holds else Condition("not", condition)


def ask(condition: Condition | bool) -> bool:
    """Whether a condition holds, guarding if need be."""
    return condition.ask() if isinstance(condition, Condition) else condition


def decide(condition: Condition | bool) -> bool:
    """Whether a branch condition holds; of unbacked numbers: certain, or the oracle's answer."""
    if not isinstance(condition, Condition):
        return condition
    certain = condition.known()
    if certain is not None:
        return certain
    if not is_unbacked(condition):
        _tell_asked(condition)
        return condition.ask()
    if condition.op == "not":
        return not decide(condition.args[0])
    if condition.op in ("and", "or"):
        decisive = condition.op == "or"
        return decisive if any(decide(arg) is decisive for arg in condition.args) else not decisive
    return _ask_oracle(condition.op, *condition.args)


def _tell_asked(condition: Condition) -> None:
    """Let a SizeEnv refuse the question."""
    for arg in condition.args:
        if isinstance(arg, Condition):
            _tell_asked(arg)
        elif isinstance(arg, (Expr, FloatExpr)) and arg.env.refuse is not None:
            arg.env.refuse(arg.symbols(), f"whether {condition}")


def _ask_oracle(op: str, a: Number, b: Number) -> bool:
    question = f"{a} {op} {b} is asked, which depends on the contents of a tensor"
    env = next(side.env for side in (a, b) if isinstance(side, (Expr, FloatExpr)))
    return env.asked(question).holds(op, a, b, question)


def expect(condition: Condition | bool) -> bool:
    """Whether a necessary condition holds; of unbacked sizes it is assumed and checked later."""
    if not isinstance(condition, Condition) or not is_unbacked(condition):
        _note_statement(condition)
        return ask(condition)
    if condition.op == "and":
        return all(expect(arg) for arg in condition.args)
    if condition.op == "not" and isinstance(condition.args[0], Condition):
        inner = condition.args[0]
        if inner.op in OPPOSITE:
            return expect(Condition(OPPOSITE[inner.op], *inner.args))
    if condition.op in _RELATIONS and not any(
        isinstance(side, (float, FloatExpr)) for side in condition.args
    ):
        return sizes.expect(condition.op, *condition.args)
    return decide(condition)


def _note_statement(condition: Condition | bool) -> None:
    for arg in condition.args if isinstance(condition, Condition) else ():
        if isinstance(arg, Condition):
            _note_statement(arg)
        elif isinstance(arg, (Expr, FloatExpr)):
            arg.env.stated.add(arg.env.place())


OPPOSITE = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
"""The relation of two ints that holds where one does not."""


def known(condition: Condition | bool) -> bool | None:
    """Whether a condition is certain (True), impossible (False) or neither (None)."""
    return condition.known() if isinstance(condition, Condition) else condition


def condition_hint(condition: Condition | bool) -> bool:
    """The answer for the sizes seen while tracing."""
    return condition.hint if isinstance(condition, Condition) else condition


def _known_by_sign(op: str, a: Number, b: Number) -> bool | None:
    """What the sign of a symbolic float says of its relation to a constant that is not positive."""
    if isinstance(b, (Expr, FloatExpr)) or b > 0:
        return None
    positive, zero_too = _is_positive(a), _is_non_negative(a)
    if positive or (zero_too and b < 0):
        return op in (">", ">=", "!=")
    if zero_too and op in (">=", "<"):
        return op == ">="
    return None


def _is_positive(number: Number) -> bool:
    if isinstance(number, FloatExpr):
        if number.op in ("float", "math.sqrt", "/", "*", "+"):
            return all(_is_positive(arg) for arg in number.args)
        return number.op == "**" and _is_positive(number.args[0])
    return sizes.known_gt(number, 0) if isinstance(number, Expr) else number > 0


def _is_non_negative(number: Number) -> bool:
    if isinstance(number, FloatExpr) and number.op in ("float", "math.sqrt", "*", "+"):
        return all(_is_non_negative(arg) for arg in number.args)
    if isinstance(number, FloatExpr):
        return _is_positive(number)
    return sizes.known_ge(number, 0) if isinstance(number, Expr) else number >= 0


def _ask_floats(op: str, a: Number, b: Number) -> bool:
    if is_unbacked(a) or is_unbacked(b):
        return _ask_oracle(op, a, b)
    answer = PLAIN[op](number_hint(a), number_hint(b))
    env = next((side.env for side in (a, b) if isinstance(side, (Expr, FloatExpr))), None)
    if env is not None:
        env.ranges.record((op, answer, str(a), str(b)), SizeGuard(op, a, b, holds=answer))
    return answer
