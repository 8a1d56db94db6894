"""Which values a suspended frame keeps while a variable names them, though nothing reads it again.

    obj = Plain(); reference = weakref.ref(obj); gc.collect()      obj is dead here, and held

CPython holds a variable's value until the frame ends, or binds or deletes the variable. A program
sees the end of an object by weak references and finalizers, its own or those of what it holds.
"""

from __future__ import annotations

import types
from typing import Any

import torch

_ATOMS = frozenset({
    type(None), type(Ellipsis), type(NotImplemented), bool, int, float, complex, str, bytes, range,
    torch.Size, torch.dtype, torch.device, torch.layout, torch.memory_format, types.ModuleType,
    types.BuiltinFunctionType,
})  # fmt: skip
_UNWATCHED = (type, torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)


def may_be_watched(value: Any) -> bool:
    """Whether the program may see when a value dies.

    Tensors do not count: a dead intermediate result would become an output of the graph. Classes do
    not: they hold themselves, and only the collector frees them.
    """
    seen: set[int] = set()
    pending = [value]
    while pending:
        item = pending.pop()
        if type(item) in _ATOMS or isinstance(item, _UNWATCHED):
            continue
        if id(item) in seen:
            continue
        if type(item) is dict:
            pending += [*item.keys(), *item.values()]
        elif type(item) in (tuple, list):
            pending += item
        else:
            return True
        seen.add(id(item))
    return False
