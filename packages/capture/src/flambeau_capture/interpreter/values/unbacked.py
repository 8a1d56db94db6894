"""Numbers that the graph itself computes: `x.sum().item()`, the length of `x.nonzero()`.

While a frame must be captured whole, each is an unbacked symbol of the SizeEnv
(`sizes.SizeEnv.unbacked`), defined by a value of the graph: the result of the call that makes it,
or the size of a tensor that the call makes.

    n = mask.sum().item()           u0 = sum_1.item()
    y = x[mask]                     y = x[mask]; u1 = sym_size(y, 0)
    z = x[:3] + x[mask]             ...; _assert_scalar(u1 == 3, ...) checks the assumption

Indices that only the graph knows are selections, because torch's own indexing asks for the value:

    x[n], x[:, n, 2:]       ->      torch.select(x, 0, n), torch.select(x, 1, n)[:, 2:]
"""

from __future__ import annotations

import operator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.record import Assumption, GraphValue
from flambeau_prims.float_ranges import range_of
from flambeau_prims.size_floats import Condition, FloatExpr, is_unbacked
from flambeau_prims.sizes import Expr, as_int
from flambeau_prims.sizes_node import from_symbolic
from flambeau_prims.symbols import symbol_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from flambeau_capture.interpreter.protocols import CallTape
    from flambeau_prims.fake import FakeTensor
    from flambeau_prims.size_ranges import SizeGuard

_COMPARISONS = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt,
    ">=": operator.ge,
}  # fmt: skip


class UnbackedNumbers:
    """The unbacked symbols of one capture; `values`: the graph value of each, by name."""

    def __init__(self, tape: CallTape) -> None:
        self._tape = tape
        self._seen = 0
        self.values: dict[str, GraphValue] = {}
        self._rounded: dict[tuple[Any, FloatExpr], Expr] = {}

    @contextmanager
    def defined(self) -> Iterator[None]:
        """Inside, calls may define unbacked numbers by default, too: of data that the host has at
        hand (arrays, what it draws) the graph may as well read them.
        """
        tracer = self._tape.tracer
        before = tracer.unbacked
        if not self._tape.subgraphs:
            self._tape.size_env()
            tracer.unbacked = True
        try:
            yield
        finally:
            tracer.unbacked = before

    def rounded(self, function: Callable[[Any], int], number: FloatExpr) -> Expr:
        """`int(number)` and the like of an unbacked float: a number that the graph defines."""
        known = self._rounded.get((function, number))
        if known is not None:
            return known
        tape = self._tape
        within = range_of(number)
        lower, upper = (None, None) if within is None else map(function, within)
        made = tape.size_env().unbacked(lower=lower, upper=upper)
        found = self.values[str(made)] = GraphValue(made, str(made))
        tape.record(function, (number,), None, found, can_raise=within is None)
        self.bind_unbacked([], [])
        self._rounded[function, number] = made
        return made

    def fresh(self) -> list[str]:
        """The symbols that were made since the last call was recorded."""
        env = self._tape.env
        if env is None or len(env.unbacked_atoms) == self._seen:
            return []
        return [
            name
            for name, atom in env.symbols.items()
            if atom.index in env.unbacked_atoms and name not in self.values
        ]

    def result(self, inner: Any) -> Any:
        """A symbolic number that a call returns: a new graph value if the call defines it."""
        number = inner.args[0] if isinstance(inner, Condition) and inner.op == "!=" else inner
        name = symbol_name(number)
        if name is None or name not in self.fresh():
            return inner
        found = self.values[name] = GraphValue(number, name)
        return found

    def bind_unbacked(self, names: list[str], made: list[FakeTensor]) -> None:
        """After a call: record where else its numbers are found, and check what was assumed."""
        tape = self._tape
        for name in names:
            if name not in self.values:
                self._record_size(name, made)
        if tape.env is not None:
            self._seen = len(tape.env.unbacked_atoms)
        self.write_checks()

    def _record_size(self, name: str, made: list[FakeTensor]) -> None:
        for tensor in made:
            for dim, size in enumerate(tensor.spec.shape):
                if isinstance(size, Expr) and symbol_name(size) == name:
                    value = self.values[name] = GraphValue(size, name)
                    target, args = torch.ops.aten.sym_size.int, (self._tape.value_of(tensor), dim)
                    self._tape.record(target, args, None, value)
                    return

    def write_checks(self) -> None:
        """Record checks of what has been assumed of unbacked sizes."""
        env = self._tape.env
        if env is None or not env.assumed:
            return
        assumed, env.assumed = env.assumed, []
        for guard in assumed:
            unbacked = {
                name
                for side in (guard.lhs, guard.rhs)
                if isinstance(side, (Expr, FloatExpr))
                for name in side.symbols()
                if env.symbols[name].index in env.unbacked_atoms
            }
            if unbacked <= self.values.keys():  # else the operator that knows the size checks it
                self._record_check(guard)

    def _described(self, guard: SizeGuard) -> str:
        """The guard as text, with the lines that its unbacked numbers come from."""
        sides = [side for side in (guard.lhs, guard.rhs) if isinstance(side, (Expr, FloatExpr))]
        names = sorted(set().union(*(side.symbols() for side in sides)) & self.values.keys())
        lines = {
            call.result: call.where for call in self._tape.calls if type(call.result) is GraphValue
        }
        known = [
            f"{name} is of {lines[value]}"
            for name in names
            if (value := self.values[name]) in lines
        ]
        return f"{guard} ({', '.join(known)})" if known else str(guard)

    def _record_check(self, guard: SizeGuard) -> None:
        tape, where = self._tape, guard.where or self._tape.machine.where
        condition = Condition(guard.op, guard.lhs, guard.rhs)
        holds = GraphValue(condition, "holds")  # type: ignore[arg-type]
        sides = (tape.number(guard.lhs), tape.number(guard.rhs))
        tape.record(_COMPARISONS[guard.op], sides, None, holds, where=where)
        if not guard.holds:
            related, holds = holds, GraphValue(Condition("not", condition), "holds")  # type: ignore[arg-type]
            tape.record(operator.not_, (related,), None, holds, where=where)
        oracle = None if tape.env is None else tape.env.oracle
        assumption = Assumption(where, self._described(guard))
        if oracle is not None and guard in oracle.answered:
            tape.machine.speculation.note(assumption)
        target, args = torch.ops.aten._assert_scalar.default, (holds, assumption.violation)
        tape.record(target, args, where=where, pure=False, can_raise=True)

    def tolist(self, tensor: torch.Tensor) -> Any:
        """`tensor.tolist()`, each number on its own."""
        if not tensor.ndim:
            return self._tape.call_method("item", (tensor,))
        length = as_int(tensor.spec.shape[0])  # type: ignore[attr-defined]
        return [self.tolist(self._tape.getitem(tensor, at)) for at in range(length)]


# ---------------------------------------------------------------- unbacked indices

_INTEGERS = frozenset({int, torch.SymInt})
_BASIC = _INTEGERS | {slice, type(None), type(...)}


def select_unbacked(tape: CallTape, tensor: torch.Tensor, key: Any) -> tuple[torch.Tensor, Any]:
    """The part of a tensor that unbacked indices select, and the rest of the subscript (or ())."""
    items = key if type(key) is tuple else (key,)
    if not any(map(_is_unbacked, items)) or tape.subclasses.of(tensor) is not None:
        return tensor, key
    if any(type(item) not in _BASIC for item in items) or items.count(...) > 1:
        return tensor, key
    rest: list[Any] = []
    ndim, dim, spanned = tensor.ndim, 0, 0
    for place, item in enumerate(items):
        if item is ...:
            before = dim
            dim = tensor.ndim - sum(after is not None for after in items[place + 1 :])
            spanned = dim - before
        if _is_unbacked(item):
            if any(earlier is None for earlier in rest):
                # Applied before the selection, as in eager: the stride of a new dimension is told
                # by the dimension after it.
                first = [(i,) if i is not ... else (slice(None),) * spanned for i in rest]
                tensor = tape.getitem(tensor, sum(first, ()))
                dim += sum(1 if i is None else -(type(i) in _INTEGERS) for i in rest)
                rest = [slice(None)] * dim
            tensor = _select(tape, tensor, dim, item, place, ndim)
            continue
        rest.append(item)
        dim += item is not None and item is not ...
    return tensor, tuple(rest)


def _select(
    tape: CallTape, tensor: torch.Tensor, dim: int, index: Any, place: int, ndim: int
) -> torch.Tensor:
    """One index along a dimension, number `place` in a subscript of a tensor of `ndim` dimensions,
    which errors name.
    """
    size = tensor.shape[dim] if dim < tensor.ndim else 0
    try:
        found: torch.Tensor = tape.call_function(torch.select, (tensor, dim, index))
    except IndexError:
        if dim >= tensor.ndim:
            message = f"too many indices for tensor of dimension {ndim}"
            raise IndexError(message) from None
        text = f"index {int(index)} is out of bounds for dimension {place} with size {size}"
        raise IndexError(text) from None
    return found


def _is_unbacked(item: Any) -> bool:
    return type(item) is torch.SymInt and is_unbacked(from_symbolic(item))
