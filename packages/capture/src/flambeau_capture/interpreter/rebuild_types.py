"""Recipes of generic types, made again of their parts: equal ones are often one object.

    Sequence[T]     ->      operator.getitem(typing.Sequence, T)
    tuple[T]        ->      types.GenericAlias(tuple, (T,))

Those that hold nothing that the frame has made are the same objects in every call, as are the names of the typing module.
"""

from __future__ import annotations

import operator
import sys
import types
from typing import TYPE_CHECKING, Any

from flambeau_capture.record import CallRecipe, Const, FromOrigin, MakeTuple

if TYPE_CHECKING:
    from flambeau_capture.interpreter.rebuild import Rebuilder
    from flambeau_capture.record import Recipe


def alias_recipe(rebuild: Rebuilder, alias: types.GenericAlias) -> Recipe:
    """`list[T]`, or `*tuple[T]`."""
    args = [rebuild.recipe(arg) for arg in alias.__args__]
    if all(isinstance(arg, (Const, FromOrigin)) for arg in args):
        return Const(alias)
    made = CallRecipe(
        types.GenericAlias, (rebuild.recipe(alias.__origin__), MakeTuple(tuple(args)))
    )
    return CallRecipe(_unpacked, (made,)) if getattr(alias, "__unpacked__", False) else made


def typing_recipe(rebuild: Rebuilder, value: Any) -> Recipe | None:
    """An object of the typing module, as it pickles itself; None for what the frame may have made."""
    reduced = value.__reduce__()
    if isinstance(reduced, str):
        module = sys.modules.get(value.__module__)
        return Const(value) if getattr(module, reduced, None) is value else None
    if reduced[0] is not operator.getitem:
        return None
    return CallRecipe(operator.getitem, tuple(rebuild.recipe(part) for part in reduced[1]))


def _unpacked(alias: Any) -> Any:
    return next(iter(alias))
