"""Recipes of C iterators that stand on the stack, or in locals, at a graph break: as they pickle themselves.

    for i, x in enumerate(xs): ...      ->      enumerate(restored(iter(xs), 3), 3)

An iterator over a dict goes on over the entries that are left.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from flambeau_capture.record import CallRecipe, Const

if TYPE_CHECKING:
    from flambeau_capture.interpreter.rebuild import Rebuilder
    from flambeau_capture.record import Recipe

_BUILTIN_ITERATORS: tuple[type, ...] = (
    type(iter([])), type(iter(())), type(iter(range(0))), type(iter(range(1 << 70))), type(iter("")), type(iter("ä")), type(iter(b"")),
    type(iter({})), type(iter({}.values())), type(iter({}.items())), type(iter(set())), type(reversed([])), reversed, enumerate, zip,
    map, filter,
)  # fmt: skip


def is_c_iterator(kind: type) -> bool:
    """Whether iterators of this type say how they can be made again."""
    return kind in _BUILTIN_ITERATORS or (
        kind.__module__ == "itertools" and hasattr(kind, "__next__")
    )


def iterator_recipe(rebuild: Rebuilder, iterator: Any) -> Recipe:
    """The iterator, where it stands."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # itertools objects from 3.12 on
        function, args, *state = iterator.__reduce__()
    made: Recipe = CallRecipe(function, tuple(rebuild.recipe(arg) for arg in args))
    if state and state[0] is not None:
        made = CallRecipe(_restored, (made, rebuild.recipe(state[0])))
    return made


def sequence_iterator_recipe(rebuild: Rebuilder, sequence: Any, index: int) -> Recipe:
    """The iterator of an object that has only `__getitem__`."""
    return CallRecipe(_restored, (CallRecipe(iter, (rebuild.recipe(sequence),)), Const(index)))


def _restored(iterator: Any, state: Any) -> Any:
    iterator.__setstate__(state)
    return iterator
