"""The functions that entry functions call, by the names that they have there, and how an entry
function is made of its source.
"""

from __future__ import annotations

import collections
import math
import types
from typing import Any

import torch

from flambeau_capture.core import Tail
from flambeau_capture.entries.graph_failure import GraphFailed


def entry_function(text: str, name: str, constants: dict[str, Any]) -> types.FunctionType:
    """The function `entry` that the source defines, over these constants and `HELPERS`; `name` is
    what tracebacks call it.
    """
    namespace = {**HELPERS, **constants}
    exec(compile(text, f"<flambeau entry of {name}>", "exec"), namespace)
    made = namespace.pop("entry")
    assert isinstance(made, types.FunctionType)
    return made


def _instance_dict(obj: Any) -> dict[str, Any]:
    return object.__getattribute__(obj, "__dict__")


def _set_attribute(obj: Any, name: str, value: Any) -> None:
    if isinstance(obj, type):
        type.__setattr__(obj, name, value)
    elif isinstance(obj, types.ModuleType):
        setattr(obj, name, value)
    else:
        object.__setattr__(obj, name, value)


def _delete_attribute(obj: Any, name: str) -> None:
    if isinstance(obj, type):
        type.__delattr__(obj, name)
    else:
        object.__delattr__(obj, name)


def _new_tuple(cls: type, items: tuple[Any, ...]) -> Any:
    # tuple.__new__ refuses the subclasses that C makes: torch.Size and the struct sequences that
    # torch functions return.
    is_c_type = cls is torch.Size or hasattr(cls, "n_sequence_fields")
    return cls(items) if is_c_type else tuple.__new__(cls, items)


def _replace_list(obj: list[Any], items: list[Any]) -> None:
    list.__setitem__(obj, slice(None), items)


def _fill_dict(obj: dict[Any, Any], items: list[tuple[Any, Any]]) -> None:
    for key, value in items:
        dict.__setitem__(obj, key, value)


def _fill_ordered(obj: collections.OrderedDict[Any, Any], items: list[tuple[Any, Any]]) -> None:
    for key, value in items:
        collections.OrderedDict.__setitem__(obj, key, value)


def _replace_dict(obj: dict[Any, Any], items: list[tuple[Any, Any]]) -> None:
    if isinstance(obj, collections.OrderedDict):
        collections.OrderedDict.clear(obj)
        _fill_ordered(obj, items)
    else:
        dict.clear(obj)
        _fill_dict(obj, items)


def _replace_set(obj: set[Any], items: list[Any]) -> None:
    set.clear(obj)
    set.update(obj, items)


HELPERS: dict[str, Any] = {
    "min": min,
    "max": max,
    "math": math,
    "instance_dict": _instance_dict,
    "set_attribute": _set_attribute,
    "delete_attribute": _delete_attribute,
    "replace_list": _replace_list,
    "replace_dict": _replace_dict,
    "replace_set": _replace_set,
    "fill_dict": _fill_dict,
    "fill_ordered": _fill_ordered,
    "extend_list": list.extend,
    "new_object": object.__new__,
    "new_tuple": _new_tuple,
    "new_cell": types.CellType,
    "new_function": types.FunctionType,
    "Tail": Tail,
    "set_grad_enabled": torch._C._set_grad_enabled,
    "GraphFailed": GraphFailed,
}
