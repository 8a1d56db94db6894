"""Symbolic numbers, and texts of them, where Python needs what they are: as keys.  Making one concrete guards its value."""

from __future__ import annotations

import re
from typing import Any

import torch

from flambeau_capture.interpreter.pending_text import PendingText, readable
from flambeau_prims.concrete_sizes import concrete

_TYPE_NAMES = {"SymInt": "int", "SymFloat": "float", "SymBool": "bool", "FakeTensor": "Tensor"}
_TYPE_NAME = re.compile(rf"\b({'|'.join(_TYPE_NAMES)})\b")


def concrete_key(key: Any) -> Any:
    """A key of a dict or set: symbolic numbers have no hash."""
    kind = type(key)
    if kind is PendingText:
        return readable(key)
    return concrete(key) if kind in (torch.SymInt, torch.SymFloat, tuple, torch.Size) else key


def name_plainly(error: BaseException) -> None:
    """Have the text of Python's complaint about a type name the type of what the program has: `'int' object is not iterable`."""
    match error.args:
        case (str(text),) if _TYPE_NAME.search(text):
            error.args = (_TYPE_NAME.sub(lambda name: _TYPE_NAMES[name[0]], text),)
