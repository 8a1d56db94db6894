"""Subscripts of arrays: basic indexing gives views, advanced indexing copies, and masks can be
assigned through.

Negative steps are kept as `flips` of a view that runs forwards. What a boolean mask selects has no
shape at capture, so reading through one is data-dependent; assigning through one is a `where`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from flambeau_capture.numpy import layout
from flambeau_capture.numpy.arrays import as_array, cast, is_array, is_constant
from flambeau_capture.numpy.layout import torch_dtype
from flambeau_capture.reasons import GraphBreak

if TYPE_CHECKING:
    from flambeau_capture.numpy.arrays import Arrays

_INTEGERS = (int, np.integer)


def _is_basic(item: Any) -> bool:
    return (
        item is None
        or item is ...
        or (isinstance(item, _INTEGERS) and not isinstance(item, (bool, np.bool_)))
        or type(item) is torch.SymInt
        or isinstance(item, slice)
    )


def _items(arrays: Arrays, array: Any, key: Any) -> list[Any]:
    """The key with an entry per dimension and None: arrays for lists, the ellipsis expanded."""
    items = list(key) if type(key) is tuple else [key]
    items = [item if _is_basic(item) else _index_array(arrays, item) for item in items]
    used = sum(_consumed(item) for item in items)
    if used > array.ndim:
        raise IndexError(
            f"too many indices for array: array is {array.ndim}-dimensional, but {used} "
            f"were indexed"
        )
    full = [slice(None)] * (array.ndim - used)
    at = next((place for place, item in enumerate(items) if item is ...), None)
    if at is None:
        return [*items, *full]
    if any(item is ... for item in items[at + 1 :]):
        raise IndexError("an index can only have a single ellipsis ('...')")
    return [*items[:at], *full, *items[at + 1 :]]


def _index_array(arrays: Arrays, item: Any) -> Any:
    if is_array(item):
        return item
    return as_array(arrays, item, np.intp if type(item) is list and not item else None)


def _consumed(item: Any) -> int:
    if item is None or item is ...:
        return 0
    if _is_basic(item):
        return 1
    return item.ndim if item.dtype == np.bool_ else 1


def load(arrays: Arrays, array: Any, key: Any) -> Any:
    """`array[key]`."""
    known = arrays.contents(array)
    if known is not None and is_constant(key) and isinstance(known[key], np.generic):
        return known[key]
    items = [_integer(item) for item in _items(arrays, array, key)]
    if all(_is_basic(item) for item in items):
        found, flips = basic(array, items)
        parts = key if type(key) is tuple else (key,)
        if found.ndim == 0 and not any(part is ... for part in parts):
            return array.new(array.call("clone", found), scalar=True)
        return array.sharing(found, flips)
    return _advanced(arrays, array, items)


def _integer(item: Any) -> Any:
    """A NumPy integer as Python's: all that indexing needs of it."""
    return int(item) if isinstance(item, np.integer) else item


def basic(array: Any, items: list[Any]) -> tuple[torch.Tensor, frozenset[int]]:
    """The view that integers, slices and Nones select, and which of its axes run backwards."""
    key: list[Any] = []
    flips: set[int] = set()
    axis = out = 0
    for item in items:
        if item is None:
            key.append(None)
            out += 1
            continue
        size, backwards = array.base.shape[axis], axis in array.flips
        axis += 1
        if isinstance(item, slice):
            part, reverse = _forwards(item, size, backwards)
            key.append(part)
            if reverse:
                flips.add(out)
            out += 1
        else:
            if type(item) is int and type(size) is int and not -size <= item < size:
                raise IndexError(
                    f"index {item} is out of bounds for axis {axis - 1} with size {size}"
                )
            key.append(-1 - item if backwards else item)
    if all(type(item) is slice and item == slice(None) for item in key):
        return alias(array), frozenset(flips)
    found = array.tape.getitem(array.base, tuple(key))
    return found, frozenset(flips)


def alias(array: Any) -> torch.Tensor:
    """A view of the whole."""
    found: torch.Tensor = array.call("detach", array.base)
    return found


def _forwards(item: slice, size: Any, backwards: bool) -> tuple[slice, bool]:
    """A slice with a positive step in memory order, and whether it is read in reverse."""
    item = slice(*(_bound(bound) for bound in (item.start, item.stop, item.step)))
    step = 1 if item.step is None else item.step
    if step == 0:
        raise ValueError("slice step cannot be zero")
    if not backwards and step > 0:
        return item, False
    if item.start is None and item.stop is None and abs(step) == 1:
        return slice(None), backwards != (step < 0)
    length = int(size)
    places = range(*item.indices(length))
    if not places:
        return slice(0, 0), False
    if backwards:
        places = range(length - 1 - places.start, length - 1 - places.stop, -places.step)
    reverse = places.step < 0
    if reverse:
        places = places[::-1]
    return slice(places.start, places[-1] + 1, places.step), reverse


def _bound(bound: Any) -> Any:
    if bound is None or type(bound) in (int, torch.SymInt):
        return bound
    if is_array(bound):
        return bound.item()
    return bound.__index__()


# ---------------------------------------------------------------- advanced


def tensor_index(arrays: Arrays, item: Any) -> Any:
    """One index as torch takes it beside an advanced one: integers select as arrays of one do."""
    if isinstance(item, slice) or item is None:
        return item
    if type(item) in (int, torch.SymInt) or isinstance(item, np.integer):
        return arrays.full(item, torch.int64, (1,))
    array = as_array(arrays, item)
    if array.dtype.kind not in "biu":
        raise IndexError(
            "arrays used as indices must be of integer (or boolean) type"
            if array.ndim
            else "only integers, slices (`:`), ellipsis (`...`), numpy.newaxis (`None`) and "
            "integer or boolean arrays are valid indices"
        )
    tensor = array.tensor
    if array.dtype.kind == "u":  # torch takes uint8 for a mask
        tensor = cast(arrays, tensor, np.intp)
    return tensor


def _torch_key(arrays: Arrays, items: list[Any]) -> tuple[Any, ...]:
    key = [tensor_index(arrays, item) for item in items]
    return tuple(  # torch reads an index without dimensions as a number
        arrays.record("reshape", item, (1,))
        if isinstance(item, torch.Tensor) and item.ndim == 0
        else item
        for item in key
    )


def _advanced(arrays: Arrays, array: Any, items: list[Any]) -> Any:
    advanced = [item for item in items if is_array(item)]
    if any(item.dtype == np.bool_ for item in advanced):
        return _selected(arrays, array, items)
    items, source = _slices_first(arrays, array, items)
    key = _torch_key(arrays, items)
    found = arrays.tape.getitem(source, key)
    if all(item.ndim == 0 for item in advanced):
        return _without_axis(arrays, array, items, found)
    return array.new(_as_numpy_lays_out(arrays, found, items))


def _selected(arrays: Arrays, array: Any, items: list[Any]) -> Any:
    """What a boolean mask selects: of a size that is known when the graph runs, or a break."""
    mask, at = _mask_of(array, items)
    if not mask.ndim:
        raise GraphBreak("data-dependent", "a boolean mask is combined with other indices")
    return array.new(arrays.tape.getitem(array.tensor, (*[slice(None)] * at, mask.tensor)))


def _mask_of(array: Any, items: list[Any]) -> tuple[Any, int]:
    """The one boolean mask of a key whose other items are whole axes, and its first axis."""
    at = next(place for place, item in enumerate(items) if is_array(item))
    mask = items[at]
    rest = [*items[:at], *items[at + 1 :]]
    if not all(isinstance(item, slice) and item == slice(None) for item in rest):
        raise GraphBreak("data-dependent", "a boolean mask is combined with other indices")
    for axis, size in enumerate(mask.shape, at):
        if size != array.shape[axis]:
            raise IndexError(
                f"boolean index did not match indexed array along axis {axis}; size of axis is "
                f"{array.shape[axis]} but size of corresponding boolean axis is {size}"
            )
    return mask, at


def _slices_first(arrays: Arrays, array: Any, items: list[Any]) -> tuple[list[Any], torch.Tensor]:
    """The array with slices and Nones applied, and the rest of the key."""
    views = [slice(None) if is_array(item) or type(item) is int else item for item in items]
    found, flips = basic(array, views)
    if flips:
        found = arrays.record(torch.flip, found, sorted(flips))
    left = [slice(None) if item is None or isinstance(item, slice) else item for item in items]
    return left, found


def _without_axis(arrays: Arrays, array: Any, items: list[Any], found: torch.Tensor) -> Any:
    """The result without the axis that torch needed for 0-dim indices."""
    found = arrays.record("squeeze", found, _fancy_place(items))
    return array.new(found, scalar=found.ndim == 0)


def _fancy_place(items: list[Any]) -> int:
    """At which axis of the result the advanced indices' dimensions stand."""
    places = [at for at, item in enumerate(items) if not isinstance(item, slice)]
    adjacent = places == list(range(places[0], places[-1] + 1))
    return places[0] if adjacent else 0


def _as_numpy_lays_out(arrays: Arrays, found: torch.Tensor, items: list[Any]) -> torch.Tensor:
    """NumPy allocates advanced indices' dimensions outermost, wherever they stand in the result."""
    at = _fancy_place(items)
    count = found.ndim - sum(isinstance(item, slice) for item in items)
    fancy = range(at, at + count)
    order = (*fancy, *(axis for axis in range(found.ndim) if axis not in fancy))
    return layout.in_order(arrays.tape, found, order)


# ---------------------------------------------------------------- assignment


def store(arrays: Arrays, array: Any, key: Any, value: Any) -> None:
    """`array[key] = value`."""
    if array.scalar:
        raise TypeError(
            f"'{array.seen_type().__module__}.{array.seen_type().__name__}' object does "
            f"not support item assignment"
        )
    if not array.writeable:
        raise ValueError("assignment destination is read-only")
    known = arrays.contents(array)
    items = [_integer(item) for item in _items(arrays, array, key)]
    new = assigned(arrays, value, array.dtype)
    if all(_is_basic(item) for item in items):
        found, flips = basic(array, items)
        array.sharing(found, flips).write(_fitting(arrays, new, tuple(found.shape)))
        if known is not None and is_constant(key) and is_constant(value):
            known = known.copy()
            known[key] = value
            arrays.learn(array, known)
        return
    if any(is_array(item) and item.dtype == np.bool_ for item in items):
        _store_masked(arrays, array, items, new)
        return
    array.unflipped("assignment to items")
    arrays.forget(array)
    left, view = _slices_first(arrays, array, items)
    arrays.tape.setitem(view, _torch_key(arrays, left), array.apart(new))


def assigned(arrays: Arrays, value: Any, dtype: Any) -> torch.Tensor:
    """The value of an assignment in the dtype of the array that is written."""
    if type(value) in (bool, int, float, complex):
        holder = np.empty((), dtype)
        holder[...] = value  # raises what NumPy raises
        value = holder[()]
        return arrays.full(value.item(), torch_dtype(dtype))
    return cast(arrays, as_array(arrays, value).tensor, dtype)


def _fitting(arrays: Arrays, value: torch.Tensor, shape: tuple[Any, ...]) -> torch.Tensor:
    """The value without leading dimensions of 1; ValueError if it cannot be broadcast."""
    given = value
    while value.ndim > len(shape) and value.shape[0] == 1:
        value = arrays.record("squeeze", value, 0)
    if not layout.fits(tuple(value.shape), shape):
        raise ValueError(
            f"could not broadcast input array from shape {tuple(map(int, given.shape))} into "
            f"shape {tuple(map(int, shape))}"
        )
    return value


def _store_masked(arrays: Arrays, array: Any, items: list[Any], value: torch.Tensor) -> None:
    """Assignment through one boolean mask, beside whole axes: keep or replace each element."""
    mask, at = _mask_of(array, items)
    rest = array.ndim - at - mask.ndim
    while value.ndim > rest and value.shape[0] == 1:
        value = arrays.record("squeeze", value, 0)
    if value.ndim > rest:
        raise GraphBreak("data-dependent", "as many values as a boolean mask selects are assigned")
    chosen = arrays.record("reshape", mask.tensor, (*mask.base.shape, *[1] * rest))
    array.write(arrays.record(torch.where, chosen, value, array.tensor))
