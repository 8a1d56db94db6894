"""Operators, opcodes that only move values of the stack, and intrinsics.

CALL_INTRINSIC_1 and CALL_INTRINSIC_2 (3.12 and later) are rare operations, by number; those about
type parameters run natively.
"""

from __future__ import annotations

import dis
import typing
from typing import TYPE_CHECKING, Any

from flambeau_capture.interpreter.branches.speculation import as_condition
from flambeau_capture.interpreter.exit.rebuild_objects import RaisedGroups
from flambeau_capture.interpreter.frame import NULL
from flambeau_capture.interpreter.opcodes.exceptions import to_reraise
from flambeau_capture.interpreter.semantics.attributes import load_attr
from flambeau_capture.interpreter.semantics.items import native_iterable, store_item
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
from flambeau_capture.reasons import unsupported_instruction

if TYPE_CHECKING:
    from collections.abc import Callable

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


RESUME = CACHE = PRECALL = NOP


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


# ---------------------------------------------------------------- intrinsics


def CALL_INTRINSIC_1(frame: Frame, arg: int) -> None:
    handler = INTRINSICS_1.get(arg)
    if handler is None:
        raise unsupported_instruction(f"CALL_INTRINSIC_1 {arg}")
    frame.stack[-1] = handler(frame, frame.stack[-1])


def CALL_INTRINSIC_2(frame: Frame, arg: int) -> None:
    handler = INTRINSICS_2.get(arg)
    if handler is None:
        raise unsupported_instruction(f"CALL_INTRINSIC_2 {arg}")
    second = frame.stack.pop()
    frame.stack[-1] = handler(frame, frame.stack[-1], second)


def _import_star(frame: Frame, module: Any) -> None:
    """`from module import *`, into the namespace of a module's code."""
    machine = frame.machine
    try:
        names = list(native_iterable(machine, load_attr(machine, module, "__all__")))
    except AttributeError:
        names = [name for name in vars(module) if not name.startswith("_")]
    for name in names:
        store_item(machine, frame.namespace, name, load_attr(machine, module, name))


def IMPORT_STAR(frame: Frame, arg: Any) -> None:
    _import_star(frame, frame.stack.pop())


def _stop_iteration_error(frame: Frame, error: Any) -> Any:
    """The RuntimeError that stands for a StopIteration which leaves a generator."""
    if not isinstance(error, StopIteration):
        return error
    raised = RuntimeError("generator raised StopIteration")
    raised.__cause__ = raised.__context__ = error
    return raised


def _type_variable(frame: Frame, name: str, *constraints: Any, bound: Any = None) -> Any:
    made: Any = typing.TypeVar
    return _of_module(frame, made(name, *constraints, bound=bound, infer_variance=True))


def _of_module(frame: Frame, parameter: Any) -> Any:
    """A type parameter that says which module it was made in, as the compiler's own do."""
    parameter.__module__ = frame.globals.get("__name__")
    return parameter


def _subscript_generic(frame: Frame, parameters: Any) -> Any:
    unpacked = tuple(
        typing.Unpack[item] if isinstance(item, typing.TypeVarTuple) else item
        for item in parameters
    )
    return typing.Generic[unpacked]  # type: ignore[index]


def _type_alias(frame: Frame, parts: Any) -> Any:
    name, parameters, evaluate = parts
    value = frame.machine.call(evaluate, (), {})
    return typing.TypeAliasType(name, value, type_params=parameters or ())  # type: ignore[attr-defined]


def _set_type_parameters(frame: Frame, function: Any, parameters: Any) -> Any:
    function.__type_params__ = parameters
    return function


def _set_parameter_default(frame: Frame, parameter: Any, evaluate: Any) -> Any:
    default = frame.machine.call(evaluate, (), {})
    kind, name = type(parameter), parameter.__name__
    if kind is typing.TypeVar:
        constraints, bound = parameter.__constraints__, parameter.__bound__
        made: Any = kind(name, *constraints, bound=bound, infer_variance=True, default=default)
    else:
        made = kind(name, default=default)
    return _of_module(frame, made)


INTRINSICS_1: dict[int, Callable[[Frame, Any], Any]] = {
    2: _import_star,
    3: _stop_iteration_error,
    5: lambda frame, value: unary(frame.machine, "__pos__", value),
    6: lambda frame, items: tuple(items),
    7: _type_variable,
    8: lambda frame, name: _of_module(frame, typing.ParamSpec(name, infer_variance=True)),  # type: ignore[call-arg]
    9: lambda frame, name: _of_module(frame, typing.TypeVarTuple(name)),
    10: _subscript_generic,
    11: _type_alias,
}

INTRINSICS_2: dict[int, Callable[[Frame, Any, Any], Any]] = {
    1: lambda frame, original, errors: to_reraise(
        original, errors, frame.machine.state_of(RaisedGroups).named
    ),
    2: lambda frame, name, evaluate: _type_variable(
        frame, name, bound=frame.machine.call(evaluate, (), {})
    ),
    3: lambda frame, name, evaluate: _type_variable(
        frame, name, *frame.machine.call(evaluate, (), {})
    ),
    4: _set_type_parameters,
    5: _set_parameter_default,
}
