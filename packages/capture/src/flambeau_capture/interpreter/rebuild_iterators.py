"""Recipes of C iterators that stand on the stack, or in locals, at a graph break: as they pickle themselves.

    for i, x in enumerate(xs): ...      ->      enumerate(restored(iter(xs), 3), 3)

Those of dicts and sets are iterators of the same object again, which find out when its size has changed.
"""

from __future__ import annotations

import gc
import itertools
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


_FORGETFUL = (itertools.groupby, itertools._grouper)  # type: ignore[attr-defined]
"""Between two items of a group, `groupby.__reduce__` leaves the group out."""


def is_c_iterator(kind: type) -> bool:
    """Whether iterators of this type say how they can be made again."""
    return kind in _BUILTIN_ITERATORS or (
        kind.__module__ == "itertools" and hasattr(kind, "__next__") and kind not in _FORGETFUL
    )


_OF_DICTS: dict[type, Any] = {
    type(iter({})): iter,
    type(iter({}.values())): lambda mapping: iter(dict.values(mapping)),
    type(iter({}.items())): lambda mapping: iter(dict.items(mapping)),
    type(iter(set())): iter,
}
"""Type of iterator -> how one of a dict or a set is made."""


def iterator_recipe(rebuild: Rebuilder, iterator: Any) -> Recipe:
    """The iterator, where it stands."""
    begin = _OF_DICTS.get(type(iterator))
    if begin is not None:
        container = _iterated(iterator)
        if container is not None:
            function = _spoiled if _is_spoiled(iterator) else _advanced
            position = Const(len(container) - iterator.__length_hint__())
            return CallRecipe(function, (Const(begin), rebuild.recipe(container), position))
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


def _iterated(iterator: Any) -> Any:
    """The dict or set that an iterator is on; None if it is exhausted."""
    return next(
        (held for held in gc.get_referents(iterator) if isinstance(held, (dict, set, frozenset))),
        None,
    )


def _is_spoiled(iterator: Any) -> bool:
    """Whether the next step raises, since the container has changed its size."""
    try:
        iterator.__reduce__()  # which runs a copy of it to its end
    except RuntimeError:
        return True
    return False


def _advanced(begin: Any, container: Any, position: int) -> Any:
    iterator = begin(container)
    next(itertools.islice(iterator, position, position), None)
    return iterator


def _spoiled(begin: Any, container: Any, position: int) -> Any:
    """An iterator whose container has changed its size: the next step says so."""
    other: Any = {None: None} if isinstance(container, dict) else {None}
    iterator = begin(other)
    other.clear()
    return iterator


def _restored(iterator: Any, state: Any) -> Any:
    iterator.__setstate__(state)
    return iterator
