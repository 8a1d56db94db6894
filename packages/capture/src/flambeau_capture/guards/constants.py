"""Constants compared exactly, and values told briefly; neither runs code of the user's."""

from __future__ import annotations

import types
from typing import Any

import torch

from flambeau_capture import origins

_CONSTANT_TYPES: tuple[type, ...] = (
    int, bool, float, complex, str, bytes, type(None), type(Ellipsis), torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size,
)  # fmt: skip


def is_constant(value: Any) -> bool:
    """Whether `repr(value)` runs no user code and says all there is to know."""
    if type(value) in (tuple, frozenset, set):
        return all(is_constant(item) for item in value)
    return type(value) in _CONSTANT_TYPES


HEAP_TYPE = 1 << 9
"""`Py_TPFLAGS_HEAPTYPE`: types made by class statements (or by a C extension's spec), whose `__eq__` may be the user's."""


def constants_equal(a: Any, b: Any) -> bool:
    """Equality exact in type at every level and in the bits of floats (so 1 is not True, 0.0 is not -0.0, nan is nan).

    It runs no user code: objects of heap types are equal only to themselves.
    """
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, tuple):
        return tuple.__len__(a) == tuple.__len__(b) and all(
            map(constants_equal, tuple.__iter__(a), tuple.__iter__(b))
        )
    if type(a).__flags__ & HEAP_TYPE:
        return False
    if isinstance(a, float):
        return a.hex() == b.hex()
    if isinstance(a, complex):
        return constants_equal(a.real, b.real) and constants_equal(a.imag, b.imag)
    if isinstance(a, slice):
        return constants_equal((a.start, a.stop, a.step), (b.start, b.stop, b.step))
    if isinstance(a, (set, frozenset)):
        return {(type(item), item) for item in a} == {(type(item), item) for item in b}
    return bool(a == b)


_PRINTED_BITS = 1024
"""Longer ints are not printed in base ten: that is slow, and refused from `sys.get_int_max_str_digits()` on."""


def brief(value: Any) -> str:
    """A short text of a value that runs no user code."""
    if value is origins.ABSENT:
        return "absent"
    if isinstance(value, int) and value.bit_length() > _PRINTED_BITS:
        return f"an int of {value.bit_length()} bits"
    if is_constant(value):
        text = repr(value)
        return text if len(text) <= 80 else text[:77] + "..."
    if isinstance(value, type):
        return type_name(value)
    if isinstance(value, (types.FunctionType, types.BuiltinFunctionType)):
        return f"<function {value.__qualname__}>"
    if isinstance(value, torch.Tensor):
        return f"a {type_name(type(value))}"
    return f"<{type_name(type(value))} at {id(value):#x}>"


def type_name(cls: type) -> str:
    """The name of a type, qualified unless everyone knows where it is."""
    return (
        cls.__qualname__
        if cls.__module__ in ("builtins", "torch", "__main__", "torch.nn.parameter")
        else f"{cls.__module__}.{cls.__qualname__}"
    )
