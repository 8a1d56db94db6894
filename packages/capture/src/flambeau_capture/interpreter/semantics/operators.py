"""Operators, truth, comparison, membership, length and formatting of values as the frame sees them.

Tensors make calls on the tape; special methods written in Python are interpreted; everything else
runs natively.
"""

from __future__ import annotations

import operator
import types
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.bytecode.instructions import VERSION
from flambeau_capture.interpreter.semantics.formatting import percent
from flambeau_capture.interpreter.semantics.items import (
    guard_native_read,
    guard_operands,
    lazy_dict_has,
    native_iterable,
)
from flambeau_capture.interpreter.values import numbers
from flambeau_capture.interpreter.values.classes import (
    MISSING,
    Proxy,
    accept,
    lookup,
    python_method,
)
from flambeau_capture.interpreter.values.deferred_strings import (
    DeferredString,
    characters_of,
    readable,
)
from flambeau_capture.interpreter.values.keys import native_key
from flambeau_capture.interpreter.values.program_functions import identical, tell_apart
from flambeau_prims.concrete_sizes import concrete
from flambeau_prims.sizes_node import from_symbolic

if TYPE_CHECKING:
    from collections.abc import Callable

    from flambeau_capture.interpreter.machine import Machine

_PLAIN = frozenset({
    int, float, bool, str, tuple, list, type(None), bytes, complex, dict, set, frozenset,
    torch.Size, torch.dtype, range,
})  # fmt: skip
"""Types whose operators among themselves are native; tuples and lists only concatenate."""


@dataclass(frozen=True, slots=True)
class BinaryOperator:
    """One binary operator: the function, and the names of the special methods."""

    function: Callable[[Any, Any], Any]
    left: str
    right: str
    inplace: str = ""
    plain: Callable[[Any, Any], Any] | None = None
    """What an in-place operator does when its left operand cannot be changed."""


_NAMES = {
    "+": "add", "-": "sub", "*": "mul", "/": "truediv", "//": "floordiv", "%": "mod", "**": "pow",
    "@": "matmul", "<<": "lshift", ">>": "rshift", "&": "and", "|": "or", "^": "xor",
}  # fmt: skip


def _binary_table() -> dict[str, BinaryOperator]:
    table = {}
    for symbol, name in _NAMES.items():
        plain = f"{name}_" if name in ("and", "or") else name
        left, right, inplace = f"__{name}__", f"__r{name}__", f"__i{name}__"
        table[symbol] = BinaryOperator(getattr(operator, plain), left, right)
        function = getattr(operator, f"i{name}")
        table[f"{symbol}="] = BinaryOperator(function, left, right, inplace, table[symbol].function)
    return table


BINARY_BY_SYMBOL = _binary_table()
COMPARISONS = {
    "==": BinaryOperator(operator.eq, "__eq__", "__eq__"),
    "!=": BinaryOperator(operator.ne, "__ne__", "__ne__"),
    "<": BinaryOperator(operator.lt, "__lt__", "__gt__"),
    "<=": BinaryOperator(operator.le, "__le__", "__ge__"),
    ">": BinaryOperator(operator.gt, "__gt__", "__lt__"),
    ">=": BinaryOperator(operator.ge, "__ge__", "__le__"),
}
UNARY_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "__neg__": operator.neg,
    "__pos__": operator.pos,
    "__invert__": operator.invert,
    "__abs__": abs,
}


def special_method(machine: Machine, obj: Any, name: str) -> Any:
    """The bound special method of an object's class (instance attributes do not count), or None."""
    kind = type(obj)
    method = python_method(machine, kind, name)
    if method is not None:
        return types.MethodType(method, obj)
    if lookup(machine, kind, name) is MISSING:
        return None
    return getattr(obj, name)


def binary(machine: Machine, op: BinaryOperator, left: Any, right: Any) -> Any:
    """`left op right`."""
    left_kind, right_kind = type(left), type(right)
    if left_kind is dict or right_kind is dict:
        left, right = machine.objects.read_whole(left), machine.objects.read_whole(right)
    if left_kind in _PLAIN and right_kind in _PLAIN:
        if left_kind is str and op.left == "__mod__":
            return percent(machine, left, right)
        return op.function(left, right)
    if left_kind in (str, DeferredString) and op.left == "__mod__":
        return percent(machine, characters_of(left), right)
    if left_kind is torch.SymBool or right_kind is torch.SymBool:
        if left_kind is not right_kind or op.left not in _LOGICAL:
            return binary(machine, op, _decided(left), _decided(right))
    if left_kind is torch.SymFloat or right_kind is torch.SymFloat:
        result = numbers.arithmetic(op.left, left, right)
        if result is not NotImplemented:
            return result
    if _is_of_tensors(machine, op, left, right):
        on_number = op.plain is not None and not isinstance(left, torch.Tensor)
        function: Any = op.plain if on_number else op.function
        return machine.tape.call_function(function, (left, right))
    if op.inplace and (
        op.inplace in _IN_PLACE_FIRST
        or python_method(machine, left_kind, op.inplace) is not None
        or lookup(machine, left_kind, op.inplace) is None  # refused: `__iadd__ = None`
    ):
        result = _attempt(machine, left, op.inplace, right)
        if result is not NotImplemented:
            return result
    forward = python_method(machine, left_kind, op.left)
    backward = python_method(machine, right_kind, op.right) if right_kind is not left_kind else None
    if forward is None and backward is None:
        native: Any = op.function
        if left_kind is torch.SymInt and _wants_int(right_kind):
            return native(int(left), right)
        if right_kind is torch.SymInt and _wants_int(left_kind):
            return native(left, int(right))
        guard_operands(machine, op.left, left)
        guard_operands(machine, op.right, right)
        return native(left, right)
    attempts = [(left, op.left, right)]
    if right_kind is not left_kind:
        attempts.append((right, op.right, left))
        reflected = lookup(machine, right_kind, op.right)
        overridden = reflected is not lookup(machine, left_kind, op.right)
        if type.__subclasscheck__(left_kind, right_kind) and overridden:
            attempts.reverse()
    for receiver, name, other in attempts:
        result = _attempt(machine, receiver, name, other)
        if result is not NotImplemented:
            return result
    return refuse(op, left_kind, right_kind)


def _attempt(machine: Machine, receiver: Any, name: str, other: Any) -> Any:
    """The result of an operand's special method: interpreted if it is Python's, else native."""
    kind = type(receiver)
    method = python_method(machine, kind, name)
    if method is not None:
        return machine.call(method, (receiver, other), {})
    raw = lookup(machine, kind, name)
    if name == "__ne__" and raw is object.__ne__:  # which inverts __eq__
        result = _attempt(machine, receiver, "__eq__", other)
        return result if result is NotImplemented else not truth(machine, result)
    if raw is None:  # `__eq__ = None` refuses, for both operands
        raise TypeError("'NoneType' object is not callable")
    if type(raw) is not types.WrapperDescriptorType or raw.__objclass__ is object:
        return NotImplemented
    guard_native_read(machine, receiver)
    return raw(receiver, other)


_IN_PLACE_FIRST = frozenset({"__ior__", "__iand__", "__ixor__", "__isub__"})
"""In-place operators of sets and dicts, which precede `__or__`; of lists `__add__` is first."""


def _wants_int(kind: type) -> bool:
    """Whether a C type computes with plain ints only: `n * [0]`, `n * timedelta(1)`."""
    return kind not in _NUMBERS and not issubclass(kind, Proxy)


_LOGICAL = frozenset({"__and__", "__or__"})
_NUMBERS = frozenset({int, float, bool, complex, torch.SymInt, torch.SymFloat, torch.SymBool})


def _decided(value: Any) -> Any:
    """`value`; of a condition, its truth."""
    return bool(value) if type(value) is torch.SymBool else value


def _is_of_tensors(machine: Machine, op: BinaryOperator, left: Any, right: Any) -> bool:
    """Whether an operand is a tensor, and the other has no operators of the program."""
    if isinstance(left, torch.Tensor):
        other = type(right)
    elif isinstance(right, torch.Tensor):
        other = type(left)
    else:
        return False
    return (
        python_method(machine, other, op.left) is None
        and python_method(machine, other, op.right) is None
        and (not op.inplace or python_method(machine, other, op.inplace) is None)
    ) or lookup(machine, other, "__torch_function__") is not MISSING


def compare(machine: Machine, op: BinaryOperator, left: Any, right: Any) -> Any:
    """A rich comparison."""
    left_kind, right_kind = type(left), type(right)
    native: Any = op.function
    if left_kind is dict or right_kind is dict:
        left, right = machine.objects.read_whole(left), machine.objects.read_whole(right)
    if left_kind in _PLAIN and right_kind in _PLAIN:
        if left_kind is right_kind and left_kind in _HOLDERS and left is not right:
            return _compare_holders(machine, op, left, right)
        return native(left, right)
    if left_kind is torch.SymBool or right_kind is torch.SymBool:
        return compare(machine, op, _decided(left), _decided(right))
    if _is_of_tensors(machine, op, left, right):
        if left is None or right is None:
            return native(left, right)
        return machine.tape.call_function(native, (left, right))
    attempts = [(left, op.left, right), (right, op.right, left)]
    if left_kind is not right_kind and type.__subclasscheck__(left_kind, right_kind):
        attempts.reverse()
    methods = [python_method(machine, type(receiver), name) for receiver, name, _ in attempts]
    if op.left == "__ne__":  # the default __ne__ inverts __eq__
        methods = [
            m or python_method(machine, type(a[0]), "__eq__")
            for m, a in zip(methods, attempts, strict=True)
        ]
    if methods == [None, None]:
        if left_kind is right_kind and left is not right and left_kind.__eq__ is object.__eq__:
            tell_apart(machine, left, right)
        guard_operands(machine, op.left, left, right)
        if hasattr(left_kind, "__complex__") or hasattr(right_kind, "__complex__"):
            left, right = concrete(left), concrete(right)  # with a Decimal: compared exactly
        result = native(left, right)
        # What is in no tensor is decided at once: native code can do little with a condition.
        if type(result) is torch.SymBool and not machine.tape.is_open(from_symbolic(result)):
            return bool(result)
        return result
    for receiver, name, other in attempts:
        result = _attempt(machine, receiver, name, other)
        if result is not NotImplemented:
            return result
    if op.left in ("__eq__", "__ne__"):
        return identical(machine, left, right) is (op.left == "__eq__")
    return refuse(op, left_kind, right_kind)


def refuse(op: BinaryOperator, left_kind: type, right_kind: type) -> Any:
    """Raise CPython's TypeError for operands of types that do not go together."""
    native: Any = op.function
    return native(type(left_kind.__name__, (), {})(), type(right_kind.__name__, (), {})())


_HOLDERS = frozenset({list, tuple, dict, set, frozenset})


def _compare_holders(machine: Machine, op: BinaryOperator, left: Any, right: Any) -> Any:
    """A comparison of two containers of one type, item by item if items need `compare`."""
    native: Any = op.function
    kind = type(left)
    if kind is set or kind is frozenset:
        for item in left:
            native_key(machine, item, right)
        return native(left, right)
    items = (*left.values(), *right.values()) if kind is dict else (*left, *right)
    if not any(compares_in_python(machine, item) for item in items):
        return native(left, right)
    if kind is dict:
        if op.left not in ("__eq__", "__ne__"):
            return native(left, right)
        equal = len(left) == len(right) and all(
            contains(machine, right, key) and _same_or_equal(machine, item, right[key])
            for key, item in left.items()
        )
        return equal is (op.left == "__eq__")
    for a, b in zip(left, right, strict=False):
        if not _same_or_equal(machine, a, b):
            if op.left in ("__eq__", "__ne__"):
                return op.left == "__ne__"
            return compare(machine, op, a, b)
    return native(len(left), len(right))


def _same_or_equal(machine: Machine, left: Any, right: Any) -> bool:
    return left is right or truth(machine, compare(machine, COMPARISONS["=="], left, right))


def compares_in_python(machine: Machine, value: Any) -> bool:
    """Whether comparing a value calls a method of the program, or one of a tensor."""
    kind = type(value)
    if kind in _HOLDERS:
        items = value.values() if kind is dict else value
        return any(compares_in_python(machine, item) for item in items)
    return isinstance(value, torch.Tensor) or any(
        python_method(machine, kind, name) is not None for name in ("__eq__", "__lt__", "__gt__")
    )


def unary(machine: Machine, name: str, value: Any) -> Any:
    """-x, +x, ~x or abs(x)."""
    function = UNARY_FUNCTIONS[name]
    if isinstance(value, torch.Tensor):
        return machine.tape.call_function(function, (value,))
    if name == "__invert__" and type(value) is torch.SymInt:
        return -value - 1
    if name == "__invert__" and type(value) in (bool, torch.SymBool):
        if VERSION >= (3, 12):
            machine.call(warnings.warn, (_INVERTED_BOOL, DeprecationWarning), {})
        return ~int(truth(machine, value))
    method = python_method(machine, type(value), name)
    if method is not None:
        return machine.call(method, (value,), {})
    guard_operands(machine, name, value)
    return function(value)


_INVERTED_BOOL = (
    f"Bitwise inversion '~' on bool is deprecated"
    f"{' and will be removed in Python 3.16' if VERSION >= (3, 13) else ''}. This returns the "
    "bitwise inversion of the underlying int object and is usually not what you expect from "
    "negating a bool. Use the 'not' operator for boolean negation or ~int(x) if you really want "
    "the bitwise inversion of the underlying int."
)
"""How CPython warns from 3.12 on."""


def truth(machine: Machine, value: Any) -> bool:
    """`bool(value)`."""
    kind = type(value)
    if kind in _PLAIN:
        if kind is dict:
            guard_native_read(machine, value)
        return bool(value)
    if isinstance(value, torch.Tensor):
        return machine.tape.truth(value)
    method = python_method(machine, kind, "__bool__")
    if method is not None:
        return bool(accept(bool, "__bool__", machine.call(method, (value,), {})))
    method = python_method(machine, kind, "__len__")
    if method is not None and lookup(machine, kind, "__bool__") is MISSING:
        return bool(accept(len, "__len__", machine.call(method, (value,), {})))
    if (
        issubclass(kind, torch.nn.Module)
        and not hasattr(kind, "__bool__")
        and not hasattr(kind, "__len__")
    ):
        return True  # whatever it holds
    if lookup(machine, kind, "__bool__") is MISSING and lookup(machine, kind, "__len__") is MISSING:
        return True
    guard_native_read(machine, value)
    return bool(value)


def length(machine: Machine, value: Any) -> Any:
    """`len(value)`."""
    kind = type(value)
    if kind in _PLAIN:
        if kind is dict:
            guard_native_read(machine, value)
        return len(value)
    if isinstance(value, torch.Tensor):
        if not value.ndim:
            raise TypeError("len() of a 0-d tensor")
        return value.shape[0]
    if issubclass(kind, Proxy) and (seen_length := getattr(kind, "seen_length", None)) is not None:
        return seen_length(value)  # an array
    method = python_method(machine, kind, "__len__")
    if method is not None:
        return accept(len, "__len__", machine.call(method, (value,), {}))
    guard_native_read(machine, value)
    return len(value)


def contains(machine: Machine, container: Any, item: Any) -> bool:
    """`item in container`."""
    item = machine.objects.read_whole(readable(item))
    kind = type(container)
    method = python_method(machine, kind, "__contains__")
    if method is not None:
        return truth(machine, machine.call(method, (container, item), {}))
    if lookup(machine, kind, "__contains__") is None:
        raise TypeError(f"{kind.__name__!r} object is not a container")
    if isinstance(container, torch.Tensor):
        return truth(machine, machine.tape.call_method("__contains__", (container, item)))
    if machine.objects.is_known(container) and isinstance(container, dict):
        return lazy_dict_has(machine, container, item)
    if python_method(machine, kind, "__iter__") is not None or _needs_compare(
        machine, container, item
    ):
        eq = COMPARISONS["=="]
        return any(
            entry is item or truth(machine, compare(machine, eq, entry, item))
            for entry in native_iterable(machine, container)
        )
    guard_native_read(machine, container)
    if kind is list or kind is tuple:
        _tell_from_items(machine, container, item)
    if isinstance(container, (dict, set, frozenset)):
        item = native_key(machine, item, container)
    return item in container


def _tell_from_items(machine: Machine, container: Any, item: Any) -> None:
    """Guard that items which compare by identity and are not the item stay other objects."""
    kind = type(item)
    if kind not in _PLAIN and kind.__eq__ is object.__eq__:
        for entry in container:
            if entry is item:
                break
            if type(entry) is kind:
                tell_apart(machine, entry, item)


def _needs_compare(machine: Machine, container: Any, item: Any) -> bool:
    """Whether membership must compare through tensors or `__eq__`s written in Python."""
    if type(container) not in (list, tuple):
        return False
    if isinstance(item, torch.Tensor) or python_method(machine, type(item), "__eq__") is not None:
        return True
    return any(
        isinstance(entry, torch.Tensor) or python_method(machine, type(entry), "__eq__") is not None
        for entry in container
    )


def instance_of(machine: Machine, obj: Any, classes: Any) -> bool:
    """`isinstance(obj, classes)`: on the types that the program sees."""
    if isinstance(classes, tuple):
        return any(instance_of(machine, obj, cls) for cls in classes)
    if isinstance(classes, types.UnionType):
        return any(instance_of(machine, obj, cls) for cls in classes.__args__)
    check = python_method(machine, type(classes), "__instancecheck__")
    if check is not None and not _native_check(classes):
        return type(obj) is classes or truth(machine, machine.call(check, (classes, obj), {}))
    if check is not None and not isinstance(obj, (torch.Tensor, Proxy)):
        _rely_on_registration(machine, type(obj), classes)
    return instance_of_class(machine, obj, classes)


def _rely_on_registration(machine: Machine, kind: type, cls: Any) -> None:
    """Note an answer of an abstract class that `register` or a hook of the class may change."""
    if isinstance(cls, type) and cls not in type.__dict__["__mro__"].__get__(kind):
        machine.rely_on(cls, kind)


def instance_of_class(machine: Machine, obj: Any, classes: Any) -> bool:
    """What `type.__instancecheck__` does, or one of the standard library's."""
    if isinstance(obj, torch.Tensor):
        return machine.tape.tensor_instance_of(obj, classes)
    kind = type(obj)
    if kind is torch.SymInt:
        return issubclass(int, classes) or classes is torch.SymInt
    if kind is torch.SymFloat:
        return issubclass(float, classes) or classes is torch.SymFloat
    if kind is torch.SymBool:
        return issubclass(bool, classes) or classes is torch.SymBool
    if issubclass(kind, Proxy):
        seen = obj.seen_type()
        return kind.instance_of(classes) if seen is None else issubclass(seen, classes)
    return isinstance(obj, classes)


def _native_check(classes: Any) -> bool:
    """Whether an `__instancecheck__` in Python may run natively: it reads types only."""
    return isinstance(classes, type) and type(classes).__module__.partition(".")[0] in (
        "abc",
        "typing",
        "typing_extensions",
        "_py_abc",
        "torch",
        "enum",
    )
