"""Conversions, lengths, iteration, and builtins whose callbacks are interpreted."""

from __future__ import annotations

import functools
import itertools
import operator
import sys
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.bytecode.instructions import VERSION
from flambeau_capture.interpreter.semantics import native_functions, operators
from flambeau_capture.interpreter.semantics.attributes import load_attr
from flambeau_capture.interpreter.semantics.items import (
    EXHAUSTED,
    ReversibleSequence,
    advance,
    dict_item,
    iterate,
    native_iterable,
)
from flambeau_capture.interpreter.semantics.native_functions import InterpretedCallable
from flambeau_capture.interpreter.substitute_registry import forwarding, substitute_for
from flambeau_capture.interpreter.values.classes import (
    MISSING,
    SYMBOLIC_NUMBERS,
    lookup,
    python_method,
)
from flambeau_capture.interpreter.values.lazy_values import AppendTarget
from flambeau_prims.size_floats import float_of
from flambeau_prims.sizes_node import from_symbolic, to_symbolic

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Machine
    from flambeau_capture.interpreter.substitute_registry import Substitute


substitute_for(len)(forwarding(operators.length))


@substitute_for(dict.__getitem__)
def _item_of_dict(machine: Machine, args: Any, kwargs: Any) -> Any:
    if len(args) == 2 and not kwargs and isinstance(args[0], dict):
        return dict_item(machine, *args)
    return dict.__getitem__(*args, **kwargs)  # which raises


@substitute_for(bool)
def _bool(machine: Machine, args: Any, kwargs: Any) -> bool:
    return operators.truth(machine, args[0]) if args else False


@substitute_for(iter)
def _iter(machine: Machine, args: Any, kwargs: Any) -> Any:
    if len(args) == 2:
        if not callable(args[0]):
            iter(*args)  # which says so
        return iter(InterpretedCallable(machine, args[0]), args[1])
    return iterate(machine, args[0])


@substitute_for(next)
def _next(machine: Machine, args: Any, kwargs: Any) -> Any:
    item = advance(machine, args[0])
    if item is EXHAUSTED:
        if len(args) == 2:
            return args[1]
        value = machine.stop_value
        raise StopIteration if value is None else StopIteration(value)
    return item


@substitute_for(reversed, unpacked=True)
def _reversed(machine: Machine, obj: Any) -> Any:
    if isinstance(obj, torch.Tensor):
        return machine.call(load_attr(machine, obj, "__reversed__"), (), {})
    method = python_method(machine, type(obj), "__reversed__")
    if method is not None:
        return machine.call(method, (obj,), {})
    if lookup(machine, type(obj), "__reversed__") is MISSING and (
        python_method(machine, type(obj), "__getitem__") is not None
        or python_method(machine, type(obj), "__len__") is not None
    ):
        if lookup(machine, type(obj), "__getitem__") is MISSING:
            raise TypeError(f"{type(obj).__name__!r} object is not reversible")
        return reversed(ReversibleSequence(machine, obj))
    return reversed(machine.objects.read_whole(obj))


@substitute_for(sum)
def _sum(machine: Machine, args: Any, kwargs: Any) -> Any:
    total = args[1] if len(args) > 1 else kwargs.get("start", 0)
    if isinstance(total, (str, bytes, bytearray)):
        sum((), total)  # which says how they are joined
    items = native_iterable(machine, args[0])
    if type(total) in (int, torch.SymInt, *_FLOATS):
        total, items = _sum_leading_numbers(machine, total, iter(items))
    add = operators.BINARY_BY_SYMBOL["+"]
    for item in items:
        total = operators.binary(machine, add, total, item)
    return total


_SUMMANDS = frozenset({bool, int, float, *SYMBOLIC_NUMBERS})
_FLOATS = (float, torch.SymFloat)
_COMPENSATES = VERSION >= (3, 12)


def _sum_leading_numbers(machine: Machine, start: Any, items: Any) -> tuple[Any, Any]:
    """The sum of the numbers that come first, which C adds, and the other items.

    They end before the first item that is no number or does not fit 64 bits. From CPython 3.12 on,
    the rounding of floats is compensated among them, and not after them.
    """
    if _is_long(start):
        return start, items
    numbers, rest = [], items
    floating = type(start) in _FLOATS
    for item in items:
        if _is_long(item) or (
            type(item) not in _SUMMANDS and not (floating and issubclass(type(item), int))
        ):
            rest = itertools.chain((item,), items)
            break
        if type(item) not in _SUMMANDS:
            item = int.__int__(item)  # CPython adds its value, whatever its `__radd__` says
        floating = floating or type(item) in _FLOATS
        numbers.append(item)
    if not SYMBOLIC_NUMBERS.keys() & {type(start), *map(type, numbers)}:
        return sum(numbers, start), rest
    return _sum_symbolic(machine, start, numbers), rest


def _is_long(item: Any) -> bool:
    return issubclass(type(item), int) and not -(2**63) <= int.__int__(item) < 2**63


def _sum_symbolic(machine: Machine, total: Any, numbers: list[Any]) -> Any:
    """`sum` of numbers that are partly symbolic.

    The errors of the additions are exact (Knuth's TwoSum, which asks nothing of the numbers), as
    CPython's are, and so are equal to them. `missed` is never -0.0: a sum -0.0 keeps its sign.
    """
    binary = functools.partial(operators.binary, machine)
    add, subtract = operators.BINARY_BY_SYMBOL["+"], operators.BINARY_BY_SYMBOL["-"]
    missed: Any = 0.0
    compensated = _COMPENSATES and type(total) in _FLOATS
    for number in numbers:
        before, total = total, binary(add, total, number)
        if compensated and type(number) in _FLOATS:
            rounded = binary(subtract, total, before)
            lost = binary(subtract, before, binary(subtract, total, rounded))
            error = binary(add, lost, binary(subtract, number, rounded))
            missed = binary(subtract, missed, error)
        compensated = _COMPENSATES and type(total) in _FLOATS
    if not compensated or (type(missed) is float and not missed):
        return total
    # An infinite or overflowed sum stays; `missed` is NaN then, which comparisons leave out.
    largest = sys.float_info.max
    bounded = _of_floats("max", -largest, _of_floats("min", largest, missed))
    return binary(subtract, total, bounded)


@substitute_for(any)
def _any(machine: Machine, args: Any, kwargs: Any) -> bool:
    return any(operators.truth(machine, item) for item in native_iterable(machine, args[0]))


@substitute_for(all)
def _all(machine: Machine, args: Any, kwargs: Any) -> bool:
    return all(operators.truth(machine, item) for item in native_iterable(machine, args[0]))


@substitute_for(functools.reduce, unpacked=True)
def _reduce(machine: Machine, function: Any, items: Any, *initial: Any) -> Any:
    called = InterpretedCallable(machine, function)
    return functools.reduce(called, native_iterable(machine, items), *initial)


def _extreme(function: Any) -> Substitute:
    def substitute(machine: Machine, args: Any, kwargs: Any) -> Any:
        items = list(native_iterable(machine, args[0]) if len(args) == 1 else args)
        kinds = set(map(type, items))
        if len(items) > 1 and not kwargs:
            if torch.SymInt in kinds and kinds <= {int, torch.SymInt}:
                symbolic = torch.sym_max if function is max else torch.sym_min
                return functools.reduce(symbolic, items)
            if torch.SymFloat in kinds and kinds <= {float, torch.SymFloat}:
                # In this order: of zeros and NaNs it decides.
                return functools.reduce(functools.partial(_of_floats, function.__name__), items)
        key = native_functions.sorting_key(machine, items, kwargs.get("key"))
        return function(items, **{**kwargs, "key": key})

    return substitute


def _of_floats(op: str, *pair: Any) -> Any:
    return to_symbolic(float_of(op, *map(_inner, pair)))


def _inner(number: Any) -> Any:
    return from_symbolic(number) if type(number) is torch.SymFloat else number


substitute_for(max)(_extreme(max))
substitute_for(min)(_extreme(min))


@substitute_for(sorted)
def _sorted(machine: Machine, args: Any, kwargs: Any) -> Any:
    items = list(native_iterable(machine, args[0]))
    return sorted(
        items,
        key=native_functions.sorting_key(machine, items, kwargs.get("key")),
        reverse=kwargs.get("reverse", False),
    )


@substitute_for(list.sort)
def _list_sort(machine: Machine, args: Any, kwargs: Any) -> None:
    (items,) = args
    list.sort(
        items,
        key=native_functions.sorting_key(machine, items, kwargs.get("key")),
        reverse=kwargs.get("reverse", False),
    )


def _taking_callback(function: Any, position: int = 0) -> None:
    def substitute(machine: Machine, args: Any, kwargs: Any) -> Any:
        prepared = [
            (InterpretedCallable(machine, arg) if arg is not None else None)
            if at == position
            else native_iterable(machine, arg)
            for at, arg in enumerate(args)
        ]
        return function(*prepared, **kwargs)

    substitute_for(function)(substitute)


for _iterator in (
    map, filter, itertools.starmap, itertools.takewhile, itertools.dropwhile,
    itertools.filterfalse,
):  # fmt: skip
    _taking_callback(_iterator)
_taking_callback(itertools.groupby, 1)


@substitute_for(itertools.accumulate)
def _accumulate(machine: Machine, args: Any, kwargs: Any) -> Any:
    items, *rest = args
    function = rest[0] if rest else kwargs.pop("func", operator.add)
    called = InterpretedCallable(machine, function)
    return itertools.accumulate(native_iterable(machine, items), called, **kwargs)


@substitute_for(functools.cmp_to_key)
def _cmp_to_key(machine: Machine, args: Any, kwargs: Any) -> Any:
    return functools.cmp_to_key(InterpretedCallable(machine, args[0]))


@substitute_for(tuple.index)
def _tuple_index(machine: Machine, args: Any, kwargs: Any) -> int:
    at = _place(machine, tuple.index, args, kwargs)
    if at is None:
        raise ValueError("tuple.index(x): x not in tuple")
    return at


@substitute_for(list.index)
def _list_index(machine: Machine, args: Any, kwargs: Any) -> int:
    at = _place(machine, list.index, args, kwargs)
    if at is None:
        raise ValueError(f"{args[1]!r} is not in list")
    return at


def _place(machine: Machine, function: Any, args: Any, kwargs: Any) -> int | None:
    """`sequence.index(wanted, start, stop)`; None where it is not in there."""
    sequence, wanted, *bounds = args
    eq = operators.COMPARISONS["=="]
    bounds = [native_functions.as_index(machine, bound) for bound in bounds]
    if not all(hasattr(bound, "__index__") for bound in bounds):
        function(sequence, wanted, *bounds)  # which says so
    start, stop = (*bounds, None, None)[:2]
    for at in range(*slice(start, stop).indices(len(sequence))):
        if at >= len(sequence):  # a comparison has made it shorter
            break
        item = sequence[at]
        if item is wanted or operators.truth(machine, operators.compare(machine, eq, item, wanted)):
            return at
    return None


@substitute_for(list.append)
def _append(machine: Machine, args: Any, kwargs: Any) -> None:
    items, *rest = args
    if type(items) is AppendTarget and len(rest) == 1:
        items.extend(rest)
    else:
        list.append(machine.objects.whole(items), *rest, **kwargs)


@substitute_for(list.extend)
def _extend(machine: Machine, args: Any, kwargs: Any) -> None:
    items, *rest = args
    rest = [native_iterable(machine, value) for value in rest]
    if type(items) is AppendTarget:
        items.extend(*rest)
    else:
        list.extend(machine.objects.whole(items), *rest, **kwargs)


@substitute_for(list.count, tuple.count, unpacked=True)
def _count(machine: Machine, sequence: Any, wanted: Any) -> int:
    eq = operators.COMPARISONS["=="]
    return sum(
        item is wanted or operators.truth(machine, operators.compare(machine, eq, item, wanted))
        for item in sequence
    )


@substitute_for(list.remove, unpacked=True)
def _remove(machine: Machine, items: Any, wanted: Any) -> None:
    at = _place(machine, list.index, (items, wanted), {})
    if at is None:
        raise ValueError("list.remove(x): x not in list")
    del items[at]
