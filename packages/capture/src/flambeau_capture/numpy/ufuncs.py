"""Universal functions: `np.add(x, y, out=..., where=...)`, operators, `reduce`, `accumulate`,
`outer` and `at`.

NumPy itself determines the dtypes of a ufunc's loop (`ufunc.resolve_dtypes`, NEP 50 included) and
raises the error where operands have no common loop. `kernels.py` has the torch calls of the loop.
Python's operators on arrays are ufuncs; with a tensor as the other operand they are torch's.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from flambeau_capture.numpy import kernels, layout
from flambeau_capture.numpy.arrays import (
    SYMBOLIC,
    ArrayBase,
    as_array,
    cast,
    is_array,
    is_constant,
    made_anew,
)
from flambeau_capture.numpy.indexing import tensor_index
from flambeau_capture.numpy.layout import NUMBERS, abstract, torch_dtype, unsupported

if TYPE_CHECKING:
    from collections.abc import Callable

    from flambeau_capture.numpy.arrays import Arrays

    Operator = Callable[[ArrayBase, Any], Any]

_OPTIONS = frozenset({"out", "where", "dtype", "casting", "order", "subok"})
_COMPARISONS = frozenset({"equal", "not_equal", "less", "less_equal", "greater", "greater_equal"})


def call_ufunc(arrays: Arrays, ufunc: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`ufunc(*args, **kwargs)`."""
    if is_constant(args) and is_constant(kwargs):
        return made_anew(arrays, ufunc(*args, **kwargs))
    if not kwargs.keys() <= _OPTIONS:
        raise unsupported(f"np.{ufunc.__name__}({', '.join(kwargs)}=...)")
    if not ufunc.nin <= len(args) <= ufunc.nargs:
        return ufunc(*args, **kwargs)  # raises NumPy's TypeError
    outs = _outs(ufunc, args, kwargs)
    if not kwargs and len(args) == ufunc.nin:
        folded = _of_known_integers(arrays, ufunc, args)
        if folded is not None:
            return folded
    operands = [_operand(arrays, arg) for arg in args[: ufunc.nin]]
    kinds = [_kind(operand) for operand in operands]
    if ufunc.__name__ in _COMPARISONS:
        kinds = _wide_enough(operands, kinds)
    options: dict[str, Any] = {"casting": kwargs.get("casting", "same_kind")}
    if kwargs.get("dtype") is not None:
        options["signature"] = (*[None] * ufunc.nin, *[np.dtype(kwargs["dtype"])] * ufunc.nout)
    wanted = [None if out is None else out.dtype for out in outs]
    resolved = ufunc.resolve_dtypes((*kinds, *wanted), **options)
    loop = [_loop_operand(arrays, ufunc, *pair) for pair in zip(operands, resolved, strict=False)]
    if ufunc.signature is None:
        check_broadcast(loop)
    elif ufunc is np.matmul:
        _check_matmul(loop)
    results = kernels.compute(arrays, ufunc, loop, resolved)
    results = [cast(arrays, *pair) for pair in zip(results, resolved[ufunc.nin :], strict=True)]
    if ufunc.signature is None:
        results = _ordered(arrays, results, operands, kwargs.get("order"))
    where = kwargs.get("where", True)
    made = [
        _finish(arrays, operands, result, out, where, as_scalar=kwargs.get("out") is not ...)
        for result, out in zip(results, outs, strict=True)
    ]
    if any(isinstance(arg, torch.Tensor) for arg in args[: ufunc.nin]):
        made = [
            wrapped_as_tensor(arrays, item) if out is None else item
            for item, out in zip(made, outs, strict=True)
        ]
    return made[0] if ufunc.nout == 1 else tuple(made)


def check_broadcast(operands: list[Any]) -> None:
    """NumPy's ValueError where shapes do not go together; symbolic sizes are left to torch."""
    shapes = [tuple(item.shape) for item in operands if isinstance(item, torch.Tensor)]
    longest = max(map(len, shapes), default=0)
    for axis in range(1, longest + 1):
        sizes = {
            shape[-axis] for shape in shapes if len(shape) >= axis and type(shape[-axis]) is int
        }
        if len(sizes - {1}) > 1:
            texts = " ".join(_text(shape) for shape in shapes)
            raise ValueError(f"operands could not be broadcast together with shapes {texts} ")


def _check_matmul(operands: list[Any]) -> None:
    left, right = operands
    if not all(isinstance(item, torch.Tensor) and item.ndim for item in operands):
        raise ValueError("matmul: Input operand 0 does not have enough dimensions")
    inner, outer = left.shape[-1], right.shape[0 if right.ndim == 1 else -2]
    if type(inner) is int and type(outer) is int and inner != outer:
        raise ValueError(
            f"matmul: Input operand 1 has a mismatch in its core dimension 0 (size {outer} "
            f"is different from {inner})"
        )


_MOST_FOLDED = 64


def _of_known_integers(arrays: Arrays, ufunc: Any, args: tuple[Any, ...]) -> Any:
    """A ufunc of few known integers, for sizes and ranges; None for other operands."""
    values: list[Any] = []
    for arg in args:
        known = arrays.contents(arg) if is_array(arg) else arg
        is_integral = isinstance(known, (int, np.integer)) or (
            isinstance(known, np.ndarray) and known.dtype.kind in "iu"
        )
        if not is_integral or np.size(known) > _MOST_FOLDED:
            return None
        values.append(known)
    try:
        with np.errstate(all="raise"):
            found = ufunc(*values)
    except (ArithmeticError, ValueError, TypeError):
        return None  # computed by the graph, which says so
    return made_anew(arrays, found) if np.size(found) <= _MOST_FOLDED else None


def _outs(ufunc: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The arrays to write the results to, None where one is to be made."""
    given = kwargs.get("out")
    if given is ...:  # an array even where the result has no dimensions
        given = None
    outs = list(args[ufunc.nin :]) or (
        [None] if given is None else list(given) if isinstance(given, tuple) else [given]
    )
    outs += [None] * (ufunc.nout - len(outs))
    for out in outs:
        if out is not None and not (is_array(out) and not out.scalar):
            raise TypeError("return arrays must be of ArrayType")
    return outs


def _operand(arrays: Arrays, arg: Any) -> Any:
    """An array or scalar as it takes part: numbers stay numbers, which are promoted weakly."""
    kept = is_array(arg) or type(arg) in (*NUMBERS, *SYMBOLIC) or isinstance(arg, np.generic)
    return arg if kept else as_array(arrays, arg)


def _kind(operand: Any) -> Any:
    return operand.dtype if hasattr(operand, "dtype") else abstract(operand)


def _loop_operand(arrays: Arrays, ufunc: Any, operand: Any, dtype: Any) -> Any:
    """An operand as its loop takes it: a tensor of the loop's dtype, or a Python number."""
    if is_array(operand):
        return cast(arrays, operand.tensor, dtype)
    if type(operand) in SYMBOLIC:
        if ufunc.__name__ in _COMPARISONS or dtype.kind in "iu":
            return operand
        return arrays.full(operand, torch_dtype(dtype))
    if isinstance(operand, np.generic):
        return operand.astype(dtype).item()
    return dtype.type(operand).item()


def _wide_enough(operands: list[Any], kinds: list[Any]) -> list[Any]:
    """Integers are compared exactly with Python's, also with those that their dtype cannot hold."""
    for operand, kind in zip(operands, reversed(kinds), strict=True):
        if type(operand) is int and isinstance(kind, np.dtype) and kind.kind in "iu":
            limits = np.iinfo(kind)
            if not limits.min <= operand <= limits.max:
                wide = np.iinfo(np.int64)
                if not wide.min <= operand <= wide.max:
                    raise unsupported(f"comparison of {kind} with {operand}")
                return [int if each is int else np.dtype(np.int64) for each in kinds]
    return kinds


def _ordered(
    arrays: Arrays, results: list[torch.Tensor], operands: list[Any], order: Any
) -> list[torch.Tensor]:
    """Results in NumPy's memory order."""
    tensors = [operand.base for operand in operands if is_array(operand)]
    ndim = results[0].ndim
    has_choice = bool(tensors) and ndim >= 2
    wanted = layout.wanted(order, tensors, ndim) if has_choice else layout.c_order(ndim)
    return [layout.in_order(arrays.tape, result, wanted) for result in results]


def _finish(
    arrays: Arrays, operands: list[Any], result: Any, out: Any, where: Any, *, as_scalar: bool
) -> Any:
    """The outcome in `out`, at the places `where`."""
    if where is not True:
        mask = as_array(arrays, where).tensor
        if out is None:  # elsewhere NumPy leaves what memory held
            zero = arrays.record(torch.zeros_like, result)
            result = arrays.record(torch.where, mask, result, zero)
        else:
            result = arrays.record(torch.where, mask, cast(arrays, result, out.dtype), out.tensor)
    if out is None:
        return arrays.new(result, scalar=as_scalar and result.ndim == 0)
    store(out, result)
    return out


def store(out: Any, result: torch.Tensor) -> None:
    """Write a result to an array given as `out`, as ufuncs do."""
    shape, wanted = tuple(result.shape), tuple(out.base.shape)
    if not layout.fits(shape, wanted):
        raise ValueError(
            f"non-broadcastable output operand with shape {_text(wanted)} doesn't match "
            f"the broadcast shape {_text(shape)}"
        )
    out.write(result, "output array")


def _text(shape: tuple[Any, ...]) -> str:
    return f"({','.join(str(int(size)) for size in shape)}{',' if len(shape) == 1 else ''})"


def wrapped_as_tensor(arrays: Arrays, array: Any) -> torch.Tensor:
    """What torch makes of an array that NumPy has computed, where an operand was a tensor."""
    tensor = array.tensor
    return arrays.record("to", tensor, torch.uint8) if tensor.dtype is torch.bool else tensor


# ---------------------------------------------------------------- methods of ufuncs


def call_ufunc_method(
    arrays: Arrays, ufunc: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """`ufunc.reduce(...)` and the like."""
    if is_constant(args) and is_constant(kwargs):
        return made_anew(arrays, getattr(ufunc, name)(*args, **kwargs))
    method = _METHODS.get((ufunc.__name__, name))
    if method is not None:
        made = _as_method(as_array(arrays, args[0]), method, args[1:], kwargs)
        return wrapped_as_tensor(arrays, made) if isinstance(args[0], torch.Tensor) else made
    if name == "outer" and len(args) == 2 and not kwargs:
        left, right = (as_array(arrays, arg) for arg in args)
        spread = left.reshape(left.shape + (1,) * right.ndim)
        return call_ufunc(arrays, ufunc, (spread, right), {})
    if name == "at" and ufunc.__name__ in ("add", "subtract") and len(args) == 3 and not kwargs:
        return _accumulate_at(arrays, ufunc, *args)
    raise unsupported(f"np.{ufunc.__name__}.{name}")


def _as_method(array: Any, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A reduction or scan by a ufunc's method, along axis 0 if none is given."""
    given = {
        "axis": 0,
        **dict(zip(("axis", "dtype", "out", "keepdims", "initial", "where"), args, strict=False)),
        **kwargs,
    }
    if method in ("max", "min", "all", "any") and given.pop("dtype", None) not in (None, bool):
        raise unsupported(f"{method} with dtype=")
    given = {name: value for name, value in given.items() if value is not np._NoValue}
    return getattr(array, method)(**given)


_METHODS = {
    ("add", "reduce"): "sum",
    ("multiply", "reduce"): "prod",
    ("maximum", "reduce"): "max",
    ("minimum", "reduce"): "min",
    ("logical_and", "reduce"): "all",
    ("logical_or", "reduce"): "any",
    ("add", "accumulate"): "cumsum",
    ("multiply", "accumulate"): "cumprod",
}


def _accumulate_at(arrays: Arrays, ufunc: Any, target: Any, index: Any, values: Any) -> None:
    """`np.add.at(target, index, values)`: repeated places accumulate."""
    base = target.unflipped("np.add.at")
    if not target.writeable:
        raise ValueError("output array is read-only")
    places = index if isinstance(index, tuple) else (index,)
    indices = [tensor_index(arrays, place) for place in places]
    if not all(isinstance(place, torch.Tensor) for place in indices):
        raise unsupported(f"np.{ufunc.__name__}.at with slices")
    arrays.forget(target)
    change = cast(arrays, as_array(arrays, values).tensor, target.dtype)
    if ufunc.__name__ == "subtract":
        change = arrays.record(torch.neg, change)
    arrays.record("index_put_", base, tuple(indices), change, accumulate=True)


# ---------------------------------------------------------------- array operators


def operators(name: str) -> tuple[Operator, Operator, Operator]:
    """A ufunc as an operator: on an array, with the array on the right, in place."""
    ufunc = getattr(np, name)

    def operator_of(*, reflected: bool = False, in_place: bool = False) -> Operator:
        def operate(self: ArrayBase, other: Any) -> Any:
            if not _takes(other) or (in_place and self.scalar):
                return NotImplemented
            if isinstance(other, torch.Tensor):
                return with_tensor(self, other, name, reflected=reflected)
            operands = (other, self) if reflected else (self, other)
            return call_ufunc(self.arrays, ufunc, operands, {"out": self} if in_place else {})

        return operate

    return operator_of(), operator_of(reflected=True), operator_of(in_place=True)


def comparison(name: str) -> Operator:
    """A ufunc as a comparison; with what is no number, by identity."""
    ufunc = getattr(np, name)

    def compare(self: ArrayBase, other: Any) -> Any:
        if not _takes(other):
            if name not in ("equal", "not_equal") or self.scalar:
                return NotImplemented
            if other is not None:
                raise unsupported(f"an array is compared with {other!r}")
            made = self.call(torch.full_like, self.tensor, name == "not_equal", dtype=torch.bool)
            return self.new(made)
        if isinstance(other, torch.Tensor):
            return with_tensor(self, other, name)
        return call_ufunc(self.arrays, ufunc, (self, other), {})

    return compare


_OPERATORS = {
    name: function for name, function in kernels.OPERATORS.items() if "bitwise" not in name
} | {
    "add": operator.add, "true_divide": operator.truediv, "floor_divide": operator.floordiv,
    "remainder": operator.mod, "power": operator.pow,
}  # fmt: skip
_HALVES = (torch.float16, torch.bfloat16)


def with_tensor(
    array: ArrayBase, tensor: torch.Tensor, name: str, *, reflected: bool = False
) -> Any:
    """An operator of a tensor and an array, as torch has it: NumPy scalars are numbers."""
    if not array.scalar:
        if not reflected or name in _COMPARISONS or name == "divmod":
            raise unsupported("an array is combined with a tensor")
        return call_ufunc(array.arrays, getattr(np, name), (tensor, array), {})
    function = _OPERATORS.get(name)
    if function is None or array.base.dtype is torch.bool or tensor.dtype in _HALVES:
        raise unsupported(f"np.{name} of a NumPy scalar and a tensor")
    number = array.call("to", array.base, _weak_dtype(array.base.dtype, tensor.dtype))
    return array.call(function, *((tensor, number) if reflected else (number, tensor)))


def _weak_dtype(scalar: torch.dtype, tensor: torch.dtype) -> torch.dtype:
    """The dtype that torch uses with a number: the tensor's, or a higher category's default."""
    real = torch.get_default_dtype()
    for is_in, default in (
        (lambda dtype: dtype.is_complex, torch.promote_types(real, torch.complex64)),
        (lambda dtype: dtype.is_floating_point, real),
        (lambda dtype: dtype is not torch.bool, torch.int64),
    ):
        if is_in(tensor):
            return tensor
        if is_in(scalar):
            return default
    return tensor


def _takes(other: Any) -> bool:
    """Whether an array takes part in operators with this value; not with strings or None."""
    return not (other is None or isinstance(other, (str, bytes, dict, set)))
