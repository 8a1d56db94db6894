"""Symbolic numbers where Python needs a concrete one: as text and as keys.  Making one concrete guards its value."""

from __future__ import annotations

import re
from typing import Any

import torch

_TYPE_NAMES = {"SymInt": "int", "SymFloat": "float", "SymBool": "bool", "FakeTensor": "Tensor"}
_TYPE_NAME = re.compile(rf"\b({'|'.join(_TYPE_NAMES)})\b")


def concrete(value: Any) -> Any:
    """The value with every symbolic number in it (in tuples, lists and dicts, too) made concrete."""
    kind = type(value)
    if kind is torch.SymInt:
        return int(value)
    if kind is torch.SymFloat:
        return float(value)
    if kind is torch.SymBool:
        return bool(value)
    if kind is tuple or kind is torch.Size or kind is list:
        items = [concrete(item) for item in value]
        changed = any(new is not old for new, old in zip(items, value, strict=True))
        return kind(items) if changed else value
    if kind is dict:
        table = {key: concrete(item) for key, item in value.items()}
        changed = any(table[key] is not item for key, item in value.items())
        return table if changed else value
    return value


def concrete_key(key: Any) -> Any:
    """A key of a dict or set: symbolic numbers have no hash."""
    kind = type(key)
    return concrete(key) if kind in (torch.SymInt, torch.SymFloat, tuple, torch.Size) else key


def name_plainly(error: BaseException) -> None:
    """Have the text of Python's complaint about a type name the type of what the program has: `'int' object is not iterable`."""
    match error.args:
        case (str(text),) if _TYPE_NAME.search(text):
            error.args = (_TYPE_NAME.sub(lambda name: _TYPE_NAMES[name[0]], text),)
