"""The operator module, pow and divmod."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from flambeau_capture.interpreter import operations
from flambeau_capture.interpreter.classes import python_method
from flambeau_capture.interpreter.items import delete_item, load_item, store_item
from flambeau_capture.interpreter.substitutes.registry import substitute_for
from flambeau_prims.concrete_sizes import concrete

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Machine
    from flambeau_capture.interpreter.substitutes.registry import Substitute


def _comparing(entry: operations.BinaryOperator) -> Substitute:
    return lambda machine, args, kwargs: operations.compare(machine, entry, *args)


def _combining(entry: operations.BinaryOperator) -> Substitute:
    return lambda machine, args, kwargs: operations.binary(machine, entry, *args)


def _unary(name: str) -> Substitute:
    return lambda machine, args, kwargs: operations.unary(machine, name, *args)


def _declare_operators() -> None:
    for entry in operations.COMPARISONS.values():
        substitute_for(entry.function)(_comparing(entry))
    for entry in operations.BINARY_BY_SYMBOL.values():
        substitute_for(entry.function)(_combining(entry))
    for name, unary in operations.UNARY_FUNCTIONS.items():
        substitute_for(unary)(_unary(name))
    substitute_for(operator.getitem)(lambda machine, args, kwargs: load_item(machine, *args))
    substitute_for(operator.setitem)(lambda machine, args, kwargs: store_item(machine, *args))
    substitute_for(operator.delitem)(lambda machine, args, kwargs: delete_item(machine, *args))
    substitute_for(operator.truth)(lambda machine, args, kwargs: operations.truth(machine, *args))
    substitute_for(operator.not_)(
        lambda machine, args, kwargs: not operations.truth(machine, *args)
    )
    substitute_for(operator.contains)(
        lambda machine, args, kwargs: operations.contains(machine, *args)
    )


@substitute_for(pow)
def _pow(machine: Machine, args: Any, kwargs: Any) -> Any:
    given = (*args, *(kwargs[name] for name in ("base", "exp", "mod") if name in kwargs))
    if len(given) == 2 or given[2] is None:
        return operations.binary(machine, operations.BINARY_BY_SYMBOL["**"], *given[:2])
    method = python_method(machine, type(given[0]), "__pow__")
    return pow(*concrete(given)) if method is None else machine.call(method, given, {})


_DIVMOD = operations.BinaryOperator(divmod, "__divmod__", "__rdivmod__")


@substitute_for(divmod)
def _divmod(machine: Machine, args: Any, kwargs: Any) -> Any:
    left, right = args
    if any(
        python_method(machine, type(value), name) is not None
        for value, name in ((left, "__divmod__"), (right, "__rdivmod__"))
    ):
        return operations.binary(machine, _DIVMOD, left, right)
    quotient = operations.binary(machine, operations.BINARY_BY_SYMBOL["//"], left, right)
    return quotient, operations.binary(machine, operations.BINARY_BY_SYMBOL["%"], left, right)


_declare_operators()
