"""The element of a value at an index, computed into a body: loads from what has memory, everything
else inlined.

element(z, (i0, i1))  with z = tanh(add(x, y)), x and y in memory:
  v0 = load x[512*i0 + i1];  v1 = load y[512*i0 + i1];  v2 = add v0 v1;  v3 = tanh v2
"""

from __future__ import annotations

import operator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import sympy
import torch

from flambeau_inductor.indexing.expressions import evaluate_expr, free_names, linear, symbol
from flambeau_inductor.indexing.ranges import RangedMath
from flambeau_inductor.ir import Compute, Constant, IndexValue
from flambeau_inductor.lowering.body_builder import BodyBuilder
from flambeau_inductor.lowering.registry import ELEMENT_RULES
from flambeau_prims.graph import Value
from flambeau_prims.size_floats import FloatExpr, as_float
from flambeau_prims.sizes import Expr

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from flambeau_inductor.indexing.sizes import SizeTable
    from flambeau_prims.graph import Node
    from flambeau_prims.spec import Size

Index = tuple[sympy.Expr, ...]

FLOAT_OPS = {
    "+": "add",
    "-": "sub",
    "*": "mul",
    "/": "div",
    "**": "pow",
    "min": "minimum",
    "max": "maximum",
    "abs": "abs",
    **{
        f"math.{name}": name
        for name in (
            "sqrt", "cos", "cosh", "sin", "sinh", "tan", "tanh", "acos", "asin", "atan", "exp",
            "log",
        )
    },
}  # fmt: skip
"""Operator of a symbolic float -> scalar operator."""

COMPARISONS = {name: getattr(operator, name) for name in ("lt", "le", "gt", "ge", "eq", "ne")}


class Elements:
    """One body under construction.

    `memory` maps realized values to buffer names, `roots` views to the values whose memory they are
    windows on. `math` knows the ranges of the loop axes. `fetch` copies a scalar that lives on
    another device to this one. `mask` is the condition under which the elements asked for now exist
    (inside `pad` and `cat`), or None.
    """

    def __init__(
        self, memory: dict[Value, str], roots: dict[Value, Value], sizes: SizeTable,
        ranges: dict[str, sympy.Expr],
        device: torch.device, fetch: Callable[[Value, torch.device], Value], elide_cast_pairs: bool,
    ) -> None:  # fmt: skip
        self.memory = memory
        self.roots = roots
        self.sizes = sizes
        self.device = device
        self.fetch = fetch
        self.builder = BodyBuilder(elide_cast_pairs)
        self.math = RangedMath(ranges)
        self.mask: str | None = None
        self.conditions: tuple[str, ...] = ()
        self.labels: dict[str, None] = {}
        self.host_reads: dict[str, None] = {}
        self.computed: dict[Node, None] = {}
        self._memo: dict[tuple[Value, Index, str | None], str] = {}

    def element(self, value: Value, index: Index) -> str:
        """The element of a value at an index."""
        key = (value, index, self.mask)
        cached = self._memo.get(key)
        if cached is None:
            cached = self._memo[key] = self._element(value, index)
        return cached

    def _element(self, value: Value, index: Index) -> str:
        root = self.roots.get(value, value)
        buffer = self.memory.get(root)
        if buffer is not None:
            return self.load(buffer, root, value, index)
        return self.inline(value, index)

    def inline(self, value: Value, index: Index) -> str:
        """The element computed by the value's own operator, whether or not it has memory."""
        node = value.producer
        assert node is not None, f"input {value} has no memory"
        rule = ELEMENT_RULES.get(node.op.name)
        if rule is None:
            raise NotImplementedError(f"{node.op} has no element rule")
        self.computed[node] = None
        if node.op.kind.value != "view":
            self.labels[node.op.name] = None
        return rule(self, node, index)

    def load(self, buffer: str, root: Value, value: Value, index: Index) -> str:
        """A load through the strides of `value`, a window on the memory of `root`."""
        sizes = self.sizes
        if root.spec.device != self.device:
            if root.spec.numel != 1:
                raise ValueError(f"a kernel on {self.device} reads {root}: {root.spec}")
            buffer = self.memory[self.fetch(root, self.device)]
        offset = (
            sizes.convert(value.spec.offset - root.spec.offset)
            if value is not root
            else sympy.S.Zero
        )
        address = linear(index, sizes.convert_all(value.spec.stride), offset)
        return self.builder.load(buffer, address, value.spec.dtype, self.mask_of(address))

    def mask_of(self, address: sympy.Expr) -> str | None:
        """The conditions of `mask` that bear on an address, alone or through other conditions. What
        an address of other axes reads exists where they fail, too: no operand is chosen there. A
        condition without axes that fails does so everywhere, and then nothing is known to exist.
        """
        names = free_names(address)
        axes = self.math.ranges.keys() - self.builder.by_name.keys()
        if not self.conditions or not names <= axes:
            return self.mask
        rest = [(condition, self._axes_of(condition)) for condition in self.conditions]
        kept: set[str] = set()
        while near := [item for item in rest if item[1] is None or not names.isdisjoint(item[1])]:
            rest = [item for item in rest if item not in near]
            kept.update(condition for condition, _ in near)
            names = names.union(*(bound for _, bound in near if bound is not None))
        if not rest or any(not axes and not self._holds(each) for each, axes in rest):
            return self.mask
        mask: str | None = None
        for condition in self.conditions:
            mask = self.builder.both(mask, condition) if condition in kept else mask
        return mask

    def _axes_of(self, condition: str) -> frozenset[str] | None:
        """The axes that a condition compares with numbers; None if it is about anything else."""
        statement = self.builder.by_name[condition]
        if isinstance(statement, Constant):
            return frozenset()
        if isinstance(statement, IndexValue):
            names = frozenset(free_names(statement.expr))
            static = all(
                name in self.math.ranges and self.math.ranges[name].is_Integer for name in names
            )
            return names if static and not names & self.builder.by_name.keys() else None
        if not isinstance(statement, Compute):
            return None
        axes = [self._axes_of(name) for name in statement.args]
        known = [each for each in axes if each is not None]
        return frozenset().union(*known) if len(known) == len(axes) else None

    def _holds(self, condition: str) -> bool:
        """Whether a comparison of numbers is certain."""
        statement = self.builder.by_name[condition]
        if not isinstance(statement, Compute):
            return False
        if statement.op == "bitwise_and":
            return all(map(self._holds, statement.args))
        args = [self.builder.by_name[name] for name in statement.args]
        numbers = [each.value for each in args if isinstance(each, Constant)]
        compare = COMPARISONS.get(statement.op)
        return compare is not None and len(numbers) == len(args) and bool(compare(*numbers))

    def host_value(self, value: Value, number: int) -> str:
        """An element of an int64 tensor of the CPU, which a launch passes by value."""
        buffer = self.memory[self.roots.get(value, value)]
        self.host_reads[buffer] = None
        name = host_symbol(buffer, number)
        self.sizes.hints[name] = 0
        return self.builder.index_value(symbol(name), torch.int64)

    def operand(self, operand: Any, index: Index, dtype: torch.dtype) -> str:
        """The element of an operand that may be a number; numbers are taken in `dtype`."""
        if isinstance(operand, Value):
            return self.element(operand, index)
        return self.number(operand, dtype)

    def number(self, number: Any, dtype: torch.dtype) -> str:
        """A number or symbolic size as a value."""
        if isinstance(number, Expr):
            whole = self.builder.index_value(self.sizes.convert(number), torch.int64)
            return self.builder.cast(whole, dtype)
        if isinstance(number, FloatExpr):
            return self.builder.cast(self.float_expr(number), dtype)
        return self.builder.constant(number, dtype)

    def float_expr(self, number: FloatExpr) -> str:
        """A float that is computed from sizes, or given, in float64."""
        if number.op == "symbol":
            (symbol,) = number.args
            assert isinstance(symbol, Expr)
            bits = self.builder.index_value(self.sizes.convert(symbol), torch.int64)
            return self.builder.pointwise("float_of_bits", bits)
        args = [self.number(arg, torch.float64) for arg in number.args]
        if number.op == "float":
            return args[0]
        op = FLOAT_OPS.get(number.op)
        if op is None:
            return self.number(as_float(number), torch.float64)  # specialises, with a guard
        return self.builder.pointwise(op, *args)

    def shape(self, value: Value) -> Index:
        """A value's shape as expressions."""
        return self.sizes.convert_all(value.spec.shape)

    def condition(self, op: str, left: sympy.Expr, right: Size | sympy.Expr) -> str:
        """A comparison of index expressions as a bool value."""
        builder = self.builder
        bound = right if isinstance(right, sympy.Expr) else self.sizes.convert(right)
        narrow = self.device.type != "cpu" and self.fits_32_bits(left) and self.fits_32_bits(bound)
        dtype = torch.int32 if narrow else torch.int64
        return builder.pointwise(
            op, builder.index_value(left, dtype), builder.index_value(bound, dtype)
        )

    def fits_32_bits(self, expr: sympy.Expr) -> bool:
        """Whether an index expression certainly stays within 32 bits."""
        sizes = {name: size for name, size in self.math.ranges.items() if size.is_Integer}
        names = free_names(expr)
        if not names <= sizes.keys():
            return False
        ends = {name: int(sizes[name]) for name in names}
        terms = sympy.Add.make_args(expr)
        return sum(abs(int(evaluate_expr(term, ends))) for term in terms) < 2**31

    def indirect(self, name: str, size: sympy.Expr, *, checked: bool = True) -> sympy.Expr:
        """An int64 value as an index below `size`, which is checked unless it is certain."""
        statement = self.builder.by_name[name]
        if not checked and isinstance(statement, IndexValue):
            return statement.expr
        if not checked and isinstance(statement, Constant):
            return sympy.Integer(int(statement.value))
        if checked:
            self.builder.check_index(name, int(size) if size.is_Integer else size, self.mask)
        self.math.ranges.setdefault(name, size)
        return symbol(name)

    @contextmanager
    def where(self, condition: str) -> Iterator[None]:
        """Within, elements exist only where the condition holds."""
        outside = self.mask, self.conditions
        self.mask = self.builder.both(self.mask, condition)
        self.conditions = (*self.conditions, condition)
        try:
            yield
        finally:
            self.mask, self.conditions = outside


def host_symbol(buffer: str, number: int) -> str:
    """The symbol for an element of an int64 tensor of the CPU."""
    return f"{buffer}_at{number}"


def operand_dtype(node: Node) -> torch.dtype:
    """The dtype of a pointwise node's operands: of the last tensor (a condition comes first)."""
    return next(arg.spec.dtype for arg in reversed(node.args) if isinstance(arg, Value))
