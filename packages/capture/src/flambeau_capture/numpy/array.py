"""The stand-in of an ndarray: attributes, operators and methods as NumPy has them, each a few torch
calls on the tape.
"""

from __future__ import annotations

import operator
import types
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from flambeau_capture.numpy import indexing, layout
from flambeau_capture.numpy.arrays import ArrayBase, Flags, as_array, cast, is_array, plain
from flambeau_capture.numpy.layout import NUMBERS, TO_TORCH, unsupported
from flambeau_capture.numpy.linear_algebra import dot
from flambeau_capture.numpy.reductions import Reductions
from flambeau_capture.numpy.ufuncs import call_ufunc, comparison, operators, with_tensor
from flambeau_capture.reasons import GraphBreak

if TYPE_CHECKING:
    from collections.abc import Iterator


class Array(Reductions):
    """An ndarray, or with `scalar` a NumPy scalar."""

    __slots__ = ()
    __array_ufunc__ = None

    __add__, __radd__, __iadd__ = operators("add")
    __sub__, __rsub__, __isub__ = operators("subtract")
    __mul__, __rmul__, __imul__ = operators("multiply")
    __truediv__, __rtruediv__, __itruediv__ = operators("true_divide")
    __floordiv__, __rfloordiv__, __ifloordiv__ = operators("floor_divide")
    __mod__, __rmod__, __imod__ = operators("remainder")
    __divmod__, __rdivmod__ = operators("divmod")[:2]
    __matmul__, __rmatmul__, __imatmul__ = operators("matmul")
    __and__, __rand__, __iand__ = operators("bitwise_and")
    __or__, __ror__, __ior__ = operators("bitwise_or")
    __xor__, __rxor__, __ixor__ = operators("bitwise_xor")
    __lshift__, __rlshift__, __ilshift__ = operators("left_shift")
    __rshift__, __rrshift__, __irshift__ = operators("right_shift")
    __rpow__ = operators("power")[1]
    __eq__, __ne__ = comparison("equal"), comparison("not_equal")  # type: ignore[assignment]
    __lt__, __le__ = comparison("less"), comparison("less_equal")
    __gt__, __ge__ = comparison("greater"), comparison("greater_equal")

    def __pow__(self, other: Any) -> Any:
        return self._power(other, {})

    def __ipow__(self, other: Any) -> Any:
        return NotImplemented if self.scalar else self._power(other, {"out": self})

    def _power(self, other: Any, options: dict[str, Any]) -> Any:
        """NumPy's shortcuts for constant exponents, then the ufunc."""
        if isinstance(other, torch.Tensor):
            return with_tensor(self, other, "power")
        exponent = other if type(other) in NUMBERS else None
        if exponent == 2 and self.dtype.kind in "iufc":
            return self._ufunc(np.square, self, **options)
        if self.dtype.kind in "fc" and exponent in (1, -1, 0.5):
            quick = {1: np.positive, -1: np.reciprocal, 0.5: np.sqrt}[exponent]
            return self._ufunc(quick, self, **options)
        return self._ufunc(np.power, self, other, **options)

    def _ufunc(self, ufunc: Any, *args: Any, **options: Any) -> Any:
        return call_ufunc(self.arrays, ufunc, args, options)

    def __neg__(self) -> Any:
        return self._ufunc(np.negative, self)

    def __pos__(self) -> Any:
        return self._ufunc(np.positive, self)

    def __abs__(self) -> Any:
        return self._ufunc(np.absolute, self)

    def __invert__(self) -> Any:
        return self._ufunc(np.invert, self)

    def __hash__(self) -> int:
        if self.scalar:
            raise GraphBreak("data-dependent", "a NumPy scalar is hashed")
        raise TypeError("unhashable type: 'numpy.ndarray'")

    # ------------------------------------------------------------ as Python values

    def __bool__(self) -> bool:
        return self.tape.truth(self.base if self.base.ndim == 0 else self.tensor)

    def __int__(self) -> Any:
        return int(self.item())

    def __float__(self) -> Any:
        return float(self.item())

    def __complex__(self) -> Any:
        return complex(self.item())

    def __index__(self) -> Any:
        if self.dtype.kind not in "iu":
            raise TypeError("only integer scalar arrays can be converted to a scalar index")
        return operator.index(self.item())

    def __len__(self) -> int:
        return int(self.seen_length())

    def seen_length(self) -> Any:
        """The length, symbolic where it is."""
        if not self.ndim:
            if self.scalar:
                raise TypeError(
                    f"object of type '{self.seen_type().__module__}.{self.dtype.name}' has no len()"
                )
            raise TypeError("len() of unsized object")
        return self.base.shape[0]

    def __iter__(self) -> Iterator[Any]:
        if not self.ndim:
            raise TypeError("iteration over a 0-d array")
        return iter([self[at] for at in range(len(self))])

    def __contains__(self, item: Any) -> bool:
        return bool((self == item).any())

    def __repr__(self) -> str:
        raise GraphBreak("data-dependent", "an array is formatted as text")

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return repr(self)

    def item(self, *args: Any) -> Any:
        """A Python number."""
        source = (
            self[args[0] if len(args) == 1 and isinstance(args[0], tuple) else args]
            if args
            else self
        )
        if args and len(args) == 1 and not isinstance(args[0], tuple) and self.ndim != 1:
            raise unsupported("ndarray.item of a flat index")
        with self.tape.unbacked.defined():
            return self.call("item", source.base)

    def tolist(self) -> Any:
        """Nested lists of numbers."""
        with self.tape.unbacked.defined():
            return self.call("tolist", self.tensor)

    def __copy__(self) -> Any:
        return self.copy("K")

    def __deepcopy__(self, memo: Any) -> Any:
        return self.copy("K")

    def seen_attribute(self, name: str) -> Any:
        """An attribute or bound method that NumPy's type has."""
        if not hasattr(self.seen_type(), name):
            kind = self.seen_type()
            raise AttributeError(
                f"'{kind.__module__}.{kind.__qualname__}' object has no attribute '{name}'"
            )
        if name == "__class__":
            return self.seen_type()
        if name in _OWN or not hasattr(type(self), name):
            raise unsupported(f"ndarray.{name}")
        return getattr(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ArrayBase.__slots__:
            object.__setattr__(self, name, value)
        elif name == "shape":
            self.arrays.reshape(self, value)
        elif hasattr(np.ndarray, name):
            raise unsupported(f"ndarray.{name} is set")
        else:
            raise AttributeError(f"'numpy.ndarray' object has no attribute '{name}'")

    # ------------------------------------------------------------ attributes

    @property
    def size(self) -> Any:
        """Number of elements."""
        return self.base.numel()

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return int(self.dtype.itemsize)

    @property
    def nbytes(self) -> Any:
        """Bytes of all elements."""
        return self.size * self.itemsize

    @property
    def strides(self) -> tuple[Any, ...]:
        """Steps in bytes."""
        return tuple(
            step * self.itemsize * (-1 if axis in self.flips else 1)
            for axis, step in enumerate(self.base.stride())
        )

    @property
    def flags(self) -> Any:
        """What is known of the memory."""
        return Flags(self)

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        """What NumPy's functions give back of an array they have computed."""
        if return_scalar and not array.ndim:
            return array.new(array.base, scalar=True)
        return array

    @property
    def T(self) -> Any:
        """The axes reversed."""
        return self.transpose()

    @property
    def mT(self) -> Any:
        """The last two axes exchanged."""
        return self.swapaxes(-1, -2)

    @property
    def real(self) -> Any:
        """The real part, a view."""
        return (
            self.sharing(self.call(torch.real, self.base), self.flips)
            if self.dtype.kind == "c"
            else self
        )

    @property
    def imag(self) -> Any:
        """The imaginary part, a view; of a real array, zeros that cannot be written to."""
        if self.dtype.kind == "c":
            return self.sharing(self.call(torch.imag, self.base), self.flips)
        return self.new(self.call(torch.zeros_like, self.base), scalar=self.scalar, writeable=False)

    # ------------------------------------------------------------ items

    def __getitem__(self, key: Any) -> Any:
        return indexing.load(self.arrays, self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        indexing.store(self.arrays, self, key, value)

    def take(self, indices: Any, axis: Any = None, out: Any = None, mode: str = "raise") -> Any:
        """Items by their places along an axis."""
        if out is not None or mode != "raise":
            raise unsupported("ndarray.take with out= or mode=")
        source = self.ravel() if axis is None else self
        at = 0 if axis is None else axis % self.ndim
        places = indices if isinstance(indices, int) else as_array(self.arrays, indices)
        found = source[(slice(None),) * at + (places,)]
        if is_array(found) and found.ndim > 1:
            order = layout.c_order(found.ndim)
            found = found.new(layout.in_order(self.tape, found.tensor, order))
        return found

    def fill(self, value: Any) -> None:
        """Overwrite all elements by one."""
        self[...] = value

    def repeat(self, repeats: Any, axis: Any = None) -> Any:
        """Each item several times."""
        if axis is None:
            return self.ravel().repeat(repeats, 0)
        if not isinstance(repeats, int):
            raise GraphBreak("data-dependent", "repeat with an array of counts")
        found = self.call(torch.repeat_interleave, self.tensor, repeats, axis)
        return self.new(layout.in_order(self.tape, found, layout.c_order(found.ndim)))

    # ------------------------------------------------------------ shape

    def reshape(self, *shape: Any, order: str = "C", copy: Any = None) -> Any:
        """The elements in another shape: a view where strides allow it, else a copy."""
        wanted = _spread(plain(self.arrays, shape))
        if copy is not None:
            raise unsupported("ndarray.reshape with copy=")
        base = self.unflipped("reshape")
        self._check_count(wanted)
        fortran = order == "F" or (order == "A" and layout.is_only_fortran(base))
        if fortran:
            found = self.call("reshape", self._reversed(base), tuple(reversed(wanted)))
            return self.sharing(self._reversed(found))
        return self.sharing(self.call("reshape", base, wanted))

    def _check_count(self, wanted: tuple[Any, ...]) -> None:
        sizes = [*wanted, *self.base.shape]
        if all(type(size) is int for size in sizes):
            count = np.prod([size for size in wanted if size != -1], dtype=int)
            total = np.prod(self.base.shape, dtype=int)
            if wanted.count(-1) > 1:
                raise ValueError("can only specify one unknown dimension")
            if count != total and not (-1 in wanted and count and total % count == 0):
                raise ValueError(
                    f"cannot reshape array of size {total} into shape {_shape_text(wanted)}"
                )

    def _reversed(self, tensor: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.call("permute", tensor, tuple(range(tensor.ndim - 1, -1, -1)))
        return found

    def ravel(self, order: str = "C") -> Any:
        """One dimension: a view where the elements stand in this order, else a copy."""
        if self.flips:
            if order not in ("C", "F"):
                raise unsupported("ravel in memory order of an array with a negative stride")
            source = self._reversed(self.tensor) if order == "F" else self.tensor
            return self.new(self.call("reshape", source, (-1,)))
        if order == "K":
            axes = layout.k_order([self.base], self.ndim)
            moved = self.call("permute", self.base, axes)
            return self.sharing(self.call("reshape", moved, (-1,)))
        return self.reshape((-1,), order=order)

    def flatten(self, order: str = "C") -> Any:
        """One dimension, always a copy."""
        found = self.ravel(order)
        return found.copy()

    def transpose(self, *axes: Any) -> Any:
        """The axes in another order."""
        order = _spread(plain(self.arrays, axes))
        if not order or order == (None,):
            order = tuple(range(self.ndim - 1, -1, -1))
        if sorted(axis % self.ndim for axis in order) != list(range(self.ndim)):
            raise ValueError("axes don't match array")
        return self._permuted(tuple(axis % self.ndim for axis in order))

    def _permuted(self, order: tuple[int, ...]) -> Any:
        flips = frozenset(at for at, axis in enumerate(order) if axis in self.flips)
        return self.sharing(self.call("permute", self.base, order), flips)

    def swapaxes(self, first: int, second: int) -> Any:
        """Two axes exchanged."""
        order = list(range(self.ndim))
        order[first], order[second] = order[second], order[first]
        return self._permuted(tuple(order))

    def squeeze(self, axis: Any = None) -> Any:
        """Without axes of size 1."""
        axes = range(self.ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
        gone = [at % self.ndim for at in axes if axis is not None or self.base.shape[at] == 1]
        if any(self.base.shape[at] != 1 for at in gone):
            raise ValueError("cannot select an axis to squeeze out which has size not equal to one")
        kept = [at for at in range(self.ndim) if at not in gone]
        flips = frozenset(new for new, at in enumerate(kept) if at in self.flips)
        if not gone:
            return self.sharing(indexing.alias(self), flips)
        return self.sharing(self.call("squeeze", self.base, tuple(gone)), flips)

    def diagonal(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
        """A view of a diagonal, which cannot be written to."""
        base = self.unflipped("diagonal")
        return self.new(self.call(torch.diagonal, base, offset, axis1, axis2), writeable=False)

    def trace(
        self, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None, out: Any = None
    ) -> Any:
        """The sum of a diagonal."""
        diagonal = self.new(self.call(torch.diagonal, self.tensor, offset, axis1, axis2))
        return diagonal.sum(-1, dtype, out)

    # ------------------------------------------------------------ copies

    def copy(self, order: str = "C") -> Any:
        """A copy in this memory order."""
        if self.scalar:
            return self.new(self.base, scalar=True)
        wanted = layout.copied(order, self.base)
        if self.flips:
            return self.new(layout.in_order(self.tape, self.tensor, wanted))
        return self.new(layout.copy_in_order(self.tape, self.base, wanted))

    def astype(
        self,
        dtype: Any,
        order: str = "K",
        casting: Any = "unsafe",
        subok: bool = True,
        copy: bool = True,
    ) -> Any:
        """The elements in another dtype."""
        kind = np.dtype(dtype)
        if kind not in TO_TORCH:
            raise GraphBreak("numpy-dtype", f"ndarray.astype({kind})")
        if not np.can_cast(self.dtype, kind, casting):
            raise TypeError(
                f"Cannot cast array data from {self.dtype!r} to {kind!r} according to the "
                f"rule '{casting}'"
            )
        if kind == self.dtype:
            return self.copy(order) if copy else self
        found = cast(self.arrays, self.tensor, kind)
        if self.scalar:
            return self.new(found, scalar=True)
        return self.new(layout.in_order(self.tape, found, layout.copied(order, self.base)))

    def conj(self) -> Any:
        """Complex conjugate."""
        return self._ufunc(np.conjugate, self)

    conjugate = conj

    # ------------------------------------------------------------ products and order

    def dot(self, other: Any, out: Any = None) -> Any:
        """`np.dot`."""
        return dot(self.arrays, self, other, out)

    def sort(
        self, axis: int = -1, kind: Any = None, order: Any = None, *, stable: Any = None
    ) -> None:
        """Sort in place."""
        self.write(self._sorted(axis)[0])

    def _sorted(self, axis: int) -> Any:
        if self.dtype.kind == "c":
            raise unsupported("complex numbers are sorted")
        return self.call(torch.sort, self.tensor, dim=axis, stable=True)

    def argsort(
        self, axis: Any = -1, kind: Any = None, order: Any = None, *, stable: Any = None
    ) -> Any:
        """The places of the elements in ascending order."""
        if axis is None:
            return self.ravel().argsort()
        if kind not in ("stable", "mergesort") and not stable and self.dtype.kind in "biu":
            # The order of equal elements is NumPy's own; among integers they are common.
            raise unsupported("argsort of integers without kind='stable'")
        found = self._sorted(axis)[1]
        return self.new(layout.in_order(self.tape, found, layout.c_order(self.ndim)))

    def partition(
        self, kth: Any, axis: int = -1, kind: str = "introselect", order: Any = None
    ) -> None:
        """Sorted, which is a partition at every place."""
        self.sort(axis)

    def searchsorted(self, values: Any, side: str = "left", sorter: Any = None) -> Any:
        """Where values would be inserted."""
        if sorter is not None:
            raise unsupported("searchsorted with sorter=")
        wanted = as_array(self.arrays, values)
        scalar = wanted.ndim == 0
        kind = np.result_type(self.dtype, wanted.dtype)
        found = self.call(
            torch.searchsorted,
            cast(self.arrays, self.tensor, kind),
            cast(self.arrays, wanted.tensor, kind),
            right=side == "right",
        )
        return self.new(found, scalar=scalar)

    def nonzero(self) -> Any:
        """As many places as there are: data-dependent."""
        places = self.call(torch.nonzero, self.tensor)
        places = layout.copy_in_order(self.tape, places, (0, 1))
        return tuple(
            self.new(self.call(torch.select, places, 1, axis)) for axis in range(self.ndim)
        )


for _class in Array.__mro__[:-1]:
    for _name, _member in vars(_class).items():
        if isinstance(_member, types.FunctionType):
            _member.__name__ = _name  # by which a bound method is rebuilt, as the real array's

_OWN = frozenset(vars(ArrayBase)) - {"dtype", "shape", "ndim"}
"""Attributes of ours that are no attributes of an array."""


def _spread(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arguments given one by one or as one sequence."""
    return tuple(args[0]) if len(args) == 1 and isinstance(args[0], (tuple, list)) else args


def _shape_text(shape: tuple[Any, ...]) -> str:
    return f"({','.join(str(size) for size in shape)}{',' if len(shape) == 1 else ''})"
