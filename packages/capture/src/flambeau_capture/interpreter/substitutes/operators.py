"""The operator module, pow and divmod.

torch._check and its kin: what a program states about its sizes and tensors. Of what is in the data
it is assumed, and checked as the graph runs; the function that makes the message is called only
where it is known to fail.

And the check of `one_hot`, which on a CPU looks at its classes before it calls any operator.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.interpreter.branches.raising_branches import check, is_in_data
from flambeau_capture.interpreter.semantics import operators
from flambeau_capture.interpreter.semantics.items import delete_item, load_item, store_item
from flambeau_capture.interpreter.substitute_registry import substitute_for, substitute_if_new
from flambeau_capture.interpreter.values.classes import SYMBOLIC_NUMBERS, python_method
from flambeau_prims.concrete_sizes import concrete
from flambeau_prims.size_floats import expect
from flambeau_prims.sizes_node import from_symbolic

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Machine
    from flambeau_capture.interpreter.substitute_registry import Substitute


def _comparing(entry: operators.BinaryOperator) -> Substitute:
    return lambda machine, args, kwargs: operators.compare(machine, entry, *args)


def _combining(entry: operators.BinaryOperator) -> Substitute:
    return lambda machine, args, kwargs: operators.binary(machine, entry, *args)


def _unary(name: str) -> Substitute:
    return lambda machine, args, kwargs: operators.unary(machine, name, *args)


def _declare_operators() -> None:
    for entry in operators.COMPARISONS.values():
        substitute_for(entry.function)(_comparing(entry))
    for entry in operators.BINARY_BY_SYMBOL.values():
        substitute_for(entry.function)(_combining(entry))
    for name, unary in operators.UNARY_FUNCTIONS.items():
        substitute_for(unary)(_unary(name))
    substitute_for(operator.getitem)(lambda machine, args, kwargs: load_item(machine, *args))
    substitute_for(operator.setitem)(lambda machine, args, kwargs: store_item(machine, *args))
    substitute_for(operator.delitem)(lambda machine, args, kwargs: delete_item(machine, *args))
    substitute_for(operator.truth)(lambda machine, args, kwargs: operators.truth(machine, *args))
    substitute_for(operator.not_)(lambda machine, args, kwargs: not operators.truth(machine, *args))
    substitute_for(operator.contains)(
        lambda machine, args, kwargs: operators.contains(machine, *args)
    )


@substitute_for(pow)
def _pow(machine: Machine, args: Any, kwargs: Any) -> Any:
    given = (*args, *(kwargs[name] for name in ("base", "exp", "mod") if name in kwargs))
    if len(given) == 2 or given[2] is None:
        return operators.binary(machine, operators.BINARY_BY_SYMBOL["**"], *given[:2])
    method = python_method(machine, type(given[0]), "__pow__")
    return pow(*concrete(given)) if method is None else machine.call(method, given, {})


_DIVMOD = operators.BinaryOperator(divmod, "__divmod__", "__rdivmod__")


@substitute_for(divmod)
def _divmod(machine: Machine, args: Any, kwargs: Any) -> Any:
    left, right = args
    if any(
        python_method(machine, type(value), name) is not None
        for value, name in ((left, "__divmod__"), (right, "__rdivmod__"))
    ):
        return operators.binary(machine, _DIVMOD, left, right)
    quotient = operators.binary(machine, operators.BINARY_BY_SYMBOL["//"], left, right)
    return quotient, operators.binary(machine, operators.BINARY_BY_SYMBOL["%"], left, right)


_declare_operators()


# ---------------------------------------------------------------- checks


def _holds(machine: Machine, condition: Any) -> bool:
    if type(condition) is not torch.SymBool:
        return bool(condition)
    answer = expect(from_symbolic(condition))
    machine.tape.unbacked.write_checks()
    return answer


def _check(error: type[Exception]) -> Substitute:
    def substitute(machine: Machine, args: Any, kwargs: Any) -> None:
        cond, message = _bound(("cond", "message"), args, kwargs)
        _check_with(machine, (error, cond, message), {})

    return substitute


def _bound(names: tuple[str, ...], args: Any, kwargs: Any) -> list[Any]:
    """Arguments by position or name; the last is the message, which may be left out."""
    given = dict(zip(names, args, strict=False)) | kwargs
    return [*[given[name] for name in names[:-1]], given.get(names[-1])]


def _check_with(machine: Machine, args: Any, kwargs: Any) -> None:
    error, condition, message = _bound(("error_type", "cond", "message"), args, kwargs)
    if type(condition) not in (bool, torch.SymBool):
        machine.interpret(torch._check_with, (error, condition, message), {})  # raises a TypeError
    elif not _holds(machine, condition):
        _fail(machine, error, message)


def _fail(machine: Machine, error: Any, message: Any) -> None:
    """What torch's own check does with a condition that does not hold."""
    machine.interpret(torch._check_with, (error, False, message), {})


def _check_tensor_all(machine: Machine, args: Any, kwargs: Any) -> None:
    cond, message = _bound(("cond", "message"), args, kwargs)
    _check_tensor_all_with(machine, (RuntimeError, cond, message), {})


def _check_tensor_all_with(machine: Machine, args: Any, kwargs: Any) -> None:
    error, condition, message = _bound(("error_type", "cond", "message"), args, kwargs)
    if not isinstance(condition, torch.Tensor):
        seen = SYMBOLIC_NUMBERS.get(type(condition), type(condition))
        raise TypeError(f"cond must be a tensor, but got {seen}")
    if condition.dtype is not torch.bool:
        raise TypeError(f"cond tensor must have dtype torch.bool, but got {condition.dtype}")
    holds = machine.tape.call_method("_is_all_true", (condition,))
    frame = machine.frame
    # What a `try` awaits is one of the program's ordinary ways.
    awaited = frame is None or machine.backwards or frame.is_in_block(with_too=False)
    if is_in_data(holds) and not awaited:
        check(machine, holds, f"{machine.where}: the program raises here")
    elif not operators.truth(machine, holds):
        _fail(machine, error, message)


def _check_is_size(machine: Machine, args: Any, kwargs: Any) -> None:
    size, most = args[0] if args else kwargs["i"], kwargs.get("max")
    bounds = [(">=", 0)] if most is None else [(">=", 0), ("<=", most)]
    for op, bound in bounds:
        condition = operators.compare(machine, operators.COMPARISONS[op], size, bound)
        if not _holds(machine, condition):
            raise RuntimeError("Expected cond to be True, but got False.")


def _constrain(machine: Machine, args: Any, kwargs: Any) -> None:
    """`torch._constrain_as_size(n, min=, max=)` and `_constrain_as_value`."""
    size = args[0]
    least = args[1] if len(args) > 1 else kwargs.get("min")
    most = args[2] if len(args) > 2 else kwargs.get("max")
    for op, bound in ((">=", least), ("<=", most)):
        if bound is not None:
            condition = operators.compare(machine, operators.COMPARISONS[op], size, bound)
            if not _holds(machine, condition):
                raise RuntimeError(f"{size} is out of range")


@substitute_for(torch.nn.functional.one_hot)
def _one_hot(machine: Machine, args: Any, kwargs: Any) -> Any:
    tape = machine.tape
    result = tape.call_function(torch.nn.functional.one_hot, args, kwargs)
    classes = args[0] if args else kwargs["input"]
    if classes.device.type == "cpu":
        inside = tape.call_function(torch.ge, (classes, 0))
        below = tape.call_function(torch.lt, (classes, result.shape[-1]))
        all_are = tape.call_function(
            torch.all, (tape.call_function(torch.logical_and, (inside, below)),)
        )
        tape.call_function(torch._assert_async, (all_are,))
    return result


def _declare() -> None:
    table: dict[str, Substitute] = {
        "_check": _check(RuntimeError),
        "_check_with": _check_with,
        "_check_tensor_all": _check_tensor_all,
        "_check_tensor_all_with": _check_tensor_all_with,
        "_check_index": _check(IndexError),
        "_check_value": _check(ValueError),
        "_check_type": _check(TypeError),
        "_check_not_implemented": _check(NotImplementedError),
        "_check_is_size": _check_is_size,
        "_constrain_as_size": _constrain,
    }
    for name, substitute in table.items():
        substitute_if_new(getattr(torch, name, None), substitute)


_declare()
