"""Unary, binary and comparison operators.

Opcodes that only move values of the stack, and those that do nothing here.
"""

from __future__ import annotations

import dis
from typing import TYPE_CHECKING, Any

from flambeau_capture.interpreter.branches.raising_branches import as_condition
from flambeau_capture.interpreter.frame import NULL
from flambeau_capture.interpreter.semantics.operators import (
    BINARY_BY_SYMBOL,
    COMPARISONS,
    binary,
    compare,
    contains,
    truth,
    unary,
)
from flambeau_capture.interpreter.values.lazy_values import EntryTarget
from flambeau_capture.interpreter.values.program_functions import identical

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Frame

_OPERATORS = [BINARY_BY_SYMBOL[symbol] for _, symbol in dis._nb_ops]  # type: ignore[attr-defined]


def BINARY_OP(frame: Frame, arg: int) -> None:
    stack = frame.stack
    right = stack.pop()
    stack[-1] = binary(frame.machine, _OPERATORS[arg], stack[-1], right)


def COMPARE_OP(frame: Frame, arg: tuple[str, bool]) -> None:
    symbol, as_bool = arg
    stack = frame.stack
    right = stack.pop()
    result = compare(frame.machine, COMPARISONS[symbol], stack[-1], right)
    stack[-1] = as_condition(frame, result) if as_bool else result


def IS_OP(frame: Frame, arg: int) -> None:
    stack = frame.stack
    right = stack.pop()
    stack[-1] = identical(frame.machine, stack[-1], right) is not bool(arg)


def CONTAINS_OP(frame: Frame, arg: int) -> None:
    stack = frame.stack
    container = stack.pop()
    if type(container) is EntryTarget:
        found = container.has(stack[-1])
        if found is not None:
            stack[-1] = found is not bool(arg)
            return
        container = frame.machine.objects.whole(container)
    stack[-1] = contains(frame.machine, container, stack[-1]) is not bool(arg)


def UNARY_NEGATIVE(frame: Frame, arg: Any) -> None:
    frame.stack[-1] = unary(frame.machine, "__neg__", frame.stack[-1])


def UNARY_POSITIVE(frame: Frame, arg: Any) -> None:
    frame.stack[-1] = unary(frame.machine, "__pos__", frame.stack[-1])


def UNARY_INVERT(frame: Frame, arg: Any) -> None:
    frame.stack[-1] = unary(frame.machine, "__invert__", frame.stack[-1])


def UNARY_NOT(frame: Frame, arg: Any) -> None:
    frame.stack[-1] = not truth(frame.machine, frame.stack[-1])


# ---------------------------------------------------------------- stack


def NOP(frame: Frame, arg: Any) -> None:
    pass


def RESUME(frame: Frame, arg: Any) -> None:
    pass


def CACHE(frame: Frame, arg: Any) -> None:
    pass


def PRECALL(frame: Frame, arg: Any) -> None:
    pass


def POP_TOP(frame: Frame, arg: Any) -> None:
    frame.stack.pop()


def PUSH_NULL(frame: Frame, arg: Any) -> None:
    frame.stack.append(NULL)


def COPY(frame: Frame, arg: int) -> None:
    frame.stack.append(frame.stack[-arg])


def SWAP(frame: Frame, arg: int) -> None:
    stack = frame.stack
    stack[-1], stack[-arg] = stack[-arg], stack[-1]


def END_FOR(frame: Frame, arg: Any) -> None:
    # FOR_ITER jumps past it; it is reached only by falling through, which compiled code never does.
    frame.stack.pop()
