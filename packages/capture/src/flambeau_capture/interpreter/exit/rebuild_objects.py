"""Recipes of exceptions, C iterators and generic types that the frame has made.

Exceptions keep their chain, notes and traceback. C iterators on the stack, or in locals, at a graph
break are made again as they pickle themselves:

    for i, x in enumerate(xs): ...      ->      enumerate(restored(iter(xs), 3), 3)

Those of dicts and sets iterate the same object again, and so notice when its size has changed.
Generic types are made again of their parts, because equal ones are often one object:

    Sequence[T]     ->      operator.getitem(typing.Sequence, T)
    tuple[T]        ->      types.GenericAlias(tuple, (T,))

Those without parts that the frame has made are the same objects in every call.
"""

from __future__ import annotations

import functools
import gc
import itertools
import operator
import sys
import types
import warnings
from typing import TYPE_CHECKING, Any, Protocol

from flambeau_capture.interpreter.protocols import RecipeMaker
from flambeau_capture.interpreter.tracebacks import made_part, traceback_recipe
from flambeau_capture.reasons import GraphBreak
from flambeau_capture.record import CallRecipe, Const, FromSource, MakeDict, MakeTuple

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Machine
    from flambeau_capture.interpreter.protocols import Args
    from flambeau_capture.record import Recipe


class RaisedGroups(dict[int, BaseException]):
    """What `except*` has taken and a `raise` has named, by id."""

    def named(self, error: BaseException) -> bool:
        """Whether a `raise` has named this part of a group, which makes it another one."""
        return id(error) in self


class MachineRecipes(RecipeMaker, Protocol):
    """A maker of recipes, with the capture that it works for."""

    @property
    def machine(self) -> Machine: ...


def exception_recipe(rebuild: MachineRecipes, error: BaseException) -> Recipe:
    """Makes the exception again, with the places where it was raised."""
    made, traceback = _untraced_recipe(rebuild, error), made_part(error)
    if traceback is None:
        return made
    return CallRecipe(_with_traceback, (made, traceback_recipe(rebuild, traceback)))


def _untraced_recipe(rebuild: MachineRecipes, error: BaseException) -> Recipe:
    kind = type(error)
    if rebuild.machine.state_of(RaisedGroups).named(error):
        raise GraphBreak("not-resumable", "which parts of a group were raised anew is not kept")
    args = MakeTuple(tuple(rebuild.recipe(item) for item in error.args))
    state: list[tuple[Recipe, Recipe]] = [
        (Const(name), rebuild.recipe(item)) for name, item in error.__dict__.items()
    ]
    state += _fields(rebuild, error)
    chain = error.__cause__, error.__context__
    if not state and chain == (None, None) and type(kind.__init__) is not types.FunctionType:
        return CallRecipe(kind, args.items)
    links = tuple(Const(None) if link is None else rebuild.recipe(link) for link in chain)
    flag = Const(error.__suppress_context__)
    return CallRecipe(_made, (Const(kind), args, *links, flag, MakeDict(list(state))))


def _fields(rebuild: MachineRecipes, error: BaseException) -> list[tuple[Recipe, Recipe]]:
    """What an exception holds besides `args` and `__dict__`: `name` of a NameError, slots."""
    kind = type(error)
    names = [name for name in _members(kind.__mro__) if getattr(error, name, None) is not None]
    if names and type(kind.__init__) is not types.FunctionType:
        again = kind(*error.args)
        names = [name for name in names if getattr(again, name, None) is not getattr(error, name)]
    found: list[tuple[Recipe, Recipe]] = []
    for name in names:
        try:
            found.append((Const(name), rebuild.recipe(getattr(error, name))))
        except GraphBreak:
            if name != "obj":  # for suggestions only: the object without the attribute
                raise
            rebuild.machine.breaks.forget()
    return found


@functools.cache
def _members(bases: tuple[type, ...]) -> tuple[str, ...]:
    """Fields that a program can set, of an exception type (by its `__mro__`) in C or with slots."""
    return tuple(
        name
        for base in bases
        for name, member in vars(base).items()
        if type(member) is types.MemberDescriptorType
        and not name.startswith("__")
        and name not in ("characters_written", "exceptions", "message")
    )


def _with_traceback(error: BaseException, traceback: types.TracebackType) -> BaseException:
    error.__traceback__ = traceback
    return error


def _made(
    kind: Any,
    args: Args,
    cause: BaseException | None,
    context: BaseException | None,
    suppress_context: bool,
    state: dict[str, Any],
) -> BaseException:
    # An __init__ of the program's has run when the frame made the exception.
    written = type(kind.__init__) is types.FunctionType
    error: BaseException = kind.__new__(kind, *args) if written else kind(*args)
    error.__cause__, error.__context__ = cause, context
    error.__suppress_context__ = suppress_context
    for name, value in state.items():
        if name in _members(kind.__mro__):
            setattr(error, name, value)
        else:
            error.__dict__[name] = value
    return error


# ---------------------------------------------------------------- rebuild iterators

_BUILTIN_ITERATORS: tuple[type, ...] = (
    type(iter([])), type(iter(())), type(iter(range(0))), type(iter(range(1 << 70))),
    type(iter("")), type(iter("ä")), type(iter(b"")), type(iter({})), type(iter({}.values())),
    type(iter({}.items())), type(iter(set())), type(reversed([])), reversed, enumerate, zip, map,
    filter,
)  # fmt: skip


_FORGETFUL = (itertools.groupby, itertools._grouper)  # type: ignore[attr-defined]
"""Between two items of a group, `groupby.__reduce__` leaves the group out."""


def is_c_iterator(kind: type) -> bool:
    """Whether iterators of this type say how they can be made again."""
    return kind in _BUILTIN_ITERATORS or (
        kind.__module__ == "itertools" and hasattr(kind, "__next__") and kind not in _FORGETFUL
    )


def iter_values(mapping: dict[Any, Any]) -> Any:
    """An iterator over the values of a dict. (Entries that are stored find it by its name.)"""
    return iter(dict.values(mapping))


def iter_items(mapping: dict[Any, Any]) -> Any:
    """An iterator over the items of a dict."""
    return iter(dict.items(mapping))


_OF_DICTS: dict[type, Any] = {
    type(iter({})): iter,
    type(iter({}.values())): iter_values,
    type(iter({}.items())): iter_items,
    type(iter(set())): iter,
}
"""Type of iterator -> how one of a dict or a set is made."""


def iterator_recipe(rebuild: MachineRecipes, iterator: Any) -> Recipe:
    """The iterator, where it stands."""
    begin = _OF_DICTS.get(type(iterator))
    if begin is not None:
        container = _iterated(iterator)
        if container is not None:
            function = _spoiled if _is_spoiled(iterator) else _advanced
            position = Const(len(container) - iterator.__length_hint__())
            parts = Const(begin), rebuild.recipe(container), position
            if function is _advanced and isinstance(container, (set, frozenset)):
                left = [rebuild.recipe(item) for item in iterator.__reduce__()[1][0]]
                return CallRecipe(_advanced_in_set, (*parts, MakeTuple(tuple(left))))
            return CallRecipe(function, parts)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # itertools objects from 3.12 on
        function, args, *state = iterator.__reduce__()
    made: Recipe = CallRecipe(function, tuple(rebuild.recipe(arg) for arg in args))
    if state and state[0] is not None:
        made = CallRecipe(_restored, (made, rebuild.recipe(state[0])))
    return made


def sequence_iterator_recipe(rebuild: MachineRecipes, sequence: Any, index: int) -> Recipe:
    """The iterator of an object that has only `__getitem__`."""
    return CallRecipe(_restored, (CallRecipe(iter, (rebuild.recipe(sequence),)), Const(index)))


def _iterated(iterator: Any) -> Any:
    """The dict or set that an iterator is on; None if it is exhausted."""
    containers = (dict, set, frozenset)
    return next((held for held in gc.get_referents(iterator) if isinstance(held, containers)), None)


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


def _advanced_in_set(begin: Any, container: Any, position: int, left: tuple[Any, ...]) -> Any:
    """Where hashes collide, a set that is made again may have another order: only items count."""
    rest = tuple(_advanced(begin, container, position))
    if len(rest) == len(left) and all(map(operator.is_, rest, left)):
        return _advanced(begin, container, position)
    return iter(list(left))


def _spoiled(begin: Any, container: Any, position: int) -> Any:
    """An iterator whose container has changed its size: the next step says so."""
    other: Any = {None: None} if isinstance(container, dict) else {None}
    iterator = begin(other)
    other.clear()
    return iterator


def _restored(iterator: Any, state: Any) -> Any:
    if type(iterator).__module__ != "itertools":
        iterator.__setstate__(state)
        return iterator
    with warnings.catch_warnings():  # as in `iterator_recipe`
        warnings.simplefilter("ignore", DeprecationWarning)
        iterator.__setstate__(state)
    return iterator


# ---------------------------------------------------------------- rebuild objects of C types


def reduced_recipe(rebuild: MachineRecipes, value: Any) -> Recipe | None:
    """An object of a C type that the frame has made, as it pickles itself; None for what does not,
    or in a way of the program, and for iterators, which may forget a part of their state.
    """
    kind = type(value)
    ways = [getattr(kind, name, None) for name in _PICKLE_WAYS]
    own = {name for base in kind.__mro__[:-1] for name in _PICKLE_WAYS[:3] if name in vars(base)}
    is_iterator = hasattr(kind, "__next__") and "__getstate__" not in own
    if types.FunctionType in map(type, ways) or not own or is_iterator:
        return None
    try:
        reduced = value.__reduce_ex__(4)
    except TypeError:
        return None
    if not isinstance(reduced, tuple):
        return None
    function, args, *rest = reduced
    parts = [part if part is None or index == 0 else list(part) for index, part in enumerate(rest)]
    recipes = [rebuild.recipe(part) for part in (*parts, None, None, None)[:3]]
    made = CallRecipe(function, tuple(rebuild.recipe(arg) for arg in args))
    return CallRecipe(_filled, (made, *recipes)) if any(rest) else made


_PICKLE_WAYS = (
    "__reduce_ex__", "__reduce__", "__getstate__", "__setstate__", "__getnewargs__",
    "__getnewargs_ex__", "__new__", "__init__", "__setattr__", "__setitem__", "extend",
)  # fmt: skip


def _filled(made: Any, state: Any, items: list[Any] | None, entries: list[Any] | None) -> Any:
    """What unpickling does with an object once it is made."""
    if state is not None and hasattr(made, "__setstate__"):
        made.__setstate__(state)
    elif state is not None:
        attributes, slots = state if isinstance(state, tuple) else (state, None)
        vars(made).update(attributes or {})
        for name, value in (slots or {}).items():
            setattr(made, name, value)
    if items:
        made.extend(items)
    for key, value in entries or ():
        made[key] = value
    return made


# ---------------------------------------------------------------- rebuild types


def alias_recipe(rebuild: MachineRecipes, alias: types.GenericAlias) -> Recipe:
    """`list[T]`, or `*tuple[T]`."""
    args = [rebuild.recipe(arg) for arg in alias.__args__]
    if all(isinstance(arg, (Const, FromSource)) for arg in args):
        return Const(alias)
    parts = rebuild.recipe(alias.__origin__), MakeTuple(tuple(args))
    made = CallRecipe(types.GenericAlias, parts)
    return CallRecipe(_unpacked, (made,)) if getattr(alias, "__unpacked__", False) else made


def typing_recipe(rebuild: MachineRecipes, value: Any) -> Recipe | None:
    """An object of the typing module, as it pickles; None for what the frame may have made."""
    reduced = value.__reduce__()
    if isinstance(reduced, str):
        module = sys.modules.get(value.__module__)
        return Const(value) if getattr(module, reduced, None) is value else None
    if reduced[0] is not operator.getitem:
        return None
    return CallRecipe(operator.getitem, tuple(rebuild.recipe(part) for part in reduced[1]))


def _unpacked(alias: Any) -> Any:
    return next(iter(alias))
