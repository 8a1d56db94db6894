"""Symbolic numbers where Python needs a concrete one: as text and as keys.  Making one concrete guards its value."""

from __future__ import annotations

from typing import Any

import torch


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
