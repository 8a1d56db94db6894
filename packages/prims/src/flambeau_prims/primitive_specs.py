"""The Spec of every primitive's result, by family of primitives.

Each function takes a primitive's positional arguments with Specs for tensors, and returns
the result's Spec. Views get the exact strides and offset of the operand's memory; everything else
is fresh memory, laid out like the operands where that is meaningful and row-major otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims import sizes
from flambeau_prims.philox import PATTERNS
from flambeau_prims.rules.view import view_stride
from flambeau_prims.sizes import size_max, size_min
from flambeau_prims.spec import Spec
from flambeau_prims.strides import elementwise_layout, product

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flambeau_prims.spec import Size

WIDE_FLOATS = frozenset({torch.float32, torch.float64})
INTEGERS = frozenset({
    torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32,
    torch.uint64,
})  # fmt: skip


# Pointwise


def _pointwise(
    domain: frozenset[torch.dtype], result: torch.dtype | None = None
) -> Callable[..., Spec]:
    """The rule of a pointwise primitive on `domain`; `result`: the dtype, unless the operands'."""

    def infer(*operands: Any) -> Spec:
        tensors = [operand for operand in operands if isinstance(operand, Spec)]
        if not tensors:
            raise TypeError("a pointwise primitive needs a tensor operand")
        dtype = _same_dtype(tensors)
        if dtype not in domain:
            raise TypeError(f"dtype {dtype} is outside this primitive's domain")
        return _fresh_like(tensors, dtype if result is None else result)

    return infer


arithmetic = _pointwise(WIDE_FLOATS | INTEGERS)
float_math = _pointwise(WIDE_FLOATS)
single = _pointwise(frozenset({torch.float32}))
any_real = _pointwise(WIDE_FLOATS | INTEGERS | {torch.bool})
integers = _pointwise(INTEGERS)
bits = _pointwise(INTEGERS | {torch.bool})
comparison = _pointwise(WIDE_FLOATS | INTEGERS | {torch.bool}, torch.bool)
float_predicate = _pointwise(WIDE_FLOATS, torch.bool)
arithmetic_predicate = _pointwise(WIDE_FLOATS | INTEGERS, torch.bool)


def where(condition: Spec, a: Any, b: Any) -> Spec:
    """The rule of `where`: any dtype, the condition bool."""
    if condition.dtype is not torch.bool:
        raise TypeError(f"where's condition is {condition.dtype}, not bool")
    branches = [branch for branch in (a, b) if isinstance(branch, Spec)]
    if not branches:
        raise TypeError("where needs a tensor among its branches")
    return _fresh_like([condition, *branches], _same_dtype(branches))


def cast(x: Spec, dtype: torch.dtype) -> Spec:
    """The same elements in another dtype."""
    return _fresh_like([x], dtype)


# Reductions


def _reduction(domain: frozenset[torch.dtype]) -> Callable[[Spec, tuple[int, ...]], Spec]:
    def infer(x: Spec, dims: tuple[int, ...]) -> Spec:
        _check_dims(x, dims)
        if x.dtype not in domain:
            raise TypeError(f"dtype {x.dtype} is outside this reduction's domain")
        return x.fresh(_without(x.shape, dims))

    return infer


reduce_arithmetic = _reduction(WIDE_FLOATS | INTEGERS)
reduce_any_real = _reduction(WIDE_FLOATS | INTEGERS | {torch.bool})
reduce_float = _reduction(WIDE_FLOATS)
reduce_bool = _reduction(frozenset({torch.bool}))


def reduce_index(x: Spec, dim: int) -> Spec:
    """The rule of argmax and argmin."""
    return reduce_any_real(x, (dim,)).replace(dtype=torch.int64)


# Scans and sorts


def _along(domain: frozenset[torch.dtype]) -> Callable[..., Spec]:
    """The rule of a primitive whose result has the operand's shape; `domain`: its dtypes."""

    def infer(x: Spec, dim: int, flag: bool) -> Spec:
        _check_dims(x, (dim,))
        if x.dtype not in domain:
            raise TypeError(f"dtype {x.dtype} is outside this primitive's domain")
        return _fresh_like([x], x.dtype)

    return infer


scan_arithmetic = _along(WIDE_FLOATS | INTEGERS)
scan_floats = _along(WIDE_FLOATS)
scan_any_real = _along(WIDE_FLOATS | INTEGERS | {torch.bool})
_sortable = _along(WIDE_FLOATS | INTEGERS | {torch.bool, torch.float16, torch.bfloat16})


def sort_values(x: Spec, dim: int, descending: bool, count: Size) -> Spec:
    """The rule of sort, which only moves: of halves, too."""
    spec = _sortable(x, dim, descending)
    if not (
        isinstance(count, int) and isinstance(x.shape[dim], int) and 0 <= count <= x.shape[dim]
    ):
        raise ValueError(f"{count} elements of dim {dim} of {x}, sorted")
    if count == x.shape[dim]:
        return spec
    return spec.fresh((*x.shape[:dim], count, *x.shape[dim + 1 :]))


def sort_index(x: Spec, dim: int, descending: bool, count: Size) -> Spec:
    """The rule of argsort."""
    return sort_values(x, dim, descending, count).replace(dtype=torch.int64)


# Views


def expand(x: Spec, shape: tuple[Size, ...]) -> Spec:
    """Repeat dims of size 1 and prepend dims, with stride 0."""
    new = len(shape) - x.ndim
    if new < 0:
        raise ValueError(f"cannot expand {x} to fewer dims {shape}")
    stride: list[Size] = [0] * new
    for have, step, want in zip(x.shape, x.stride, shape[new:], strict=True):
        if have is want or have == want or sizes.known_eq(have, want):
            stride.append(step)
        elif sizes.eq(have, 1):
            stride.append(0)
        elif sizes.eq(have, want):
            stride.append(step)
        else:
            raise ValueError(f"cannot expand {x} to {shape}")
    return x.replace(shape=shape, stride=stride)


def permute(x: Spec, dims: tuple[int, ...]) -> Spec:
    """Reorder dims."""
    _check_dims(x, dims)
    if len(dims) != x.ndim:
        raise ValueError(f"permute of {x} names {len(dims)} dims")
    return x.replace(shape=[x.shape[d] for d in dims], stride=[x.stride[d] for d in dims])


def reshape(x: Spec, shape: tuple[Size, ...]) -> Spec:
    """Row-major regrouping: a view where the strides allow it, else fresh and row-major."""
    have, want = x.numel, product(shape)
    if not (have is want or have == want or sizes.eq(have, want)):
        raise ValueError(f"cannot reshape {x} to {shape}")
    stride = view_stride(x.shape, x.stride, shape)
    if stride is None:
        return x.replace(shape=shape, stride=None, offset=0)
    return x.replace(shape=shape, stride=stride)


def unsqueeze(x: Spec, dim: int) -> Spec:
    """A new dim of size 1 before `dim`, with the stride that eager gives it."""
    step = 1 if dim == x.ndim else x.shape[dim] * x.stride[dim]
    return x.replace(
        shape=(*x.shape[:dim], 1, *x.shape[dim:]), stride=(*x.stride[:dim], step, *x.stride[dim:])
    )


def squeeze(x: Spec, dims: tuple[int, ...]) -> Spec:
    """Drop dims of size 1."""
    _check_dims(x, dims)
    if not all(sizes.eq(x.shape[d], 1) for d in dims):
        raise ValueError(f"squeeze of dims {dims} of {x}, not all of size 1")
    return x.replace(shape=_without(x.shape, dims), stride=_without(x.stride, dims))


def slice_(x: Spec, dim: int, start: Size, stop: Size, step: Size) -> Spec:
    """A range of one dim."""
    span = stop - start
    length = span if isinstance(step, int) and step == 1 else (span + step - 1) // step
    shape, stride = list(x.shape), list(x.stride)
    shape[dim], stride[dim] = length, x.stride[dim] * step
    return x.replace(shape=shape, stride=stride, offset=x.offset + start * x.stride[dim])


def select(x: Spec, dim: int, index: Size) -> Spec:
    """One index of one dim, which is dropped."""
    return x.replace(
        shape=_without(x.shape, (dim,)),
        stride=_without(x.stride, (dim,)),
        offset=x.offset + index * x.stride[dim],
    )


def diagonal(x: Spec, offset: Size, dim1: int, dim2: int) -> Spec:
    """The diagonal `offset` of two dims, as a new last dim."""
    rows, columns = x.shape[dim1], x.shape[dim2]
    if sizes.ge(offset, 0):
        length = size_max(size_min(rows, columns - offset), 0)
        first = offset * x.stride[dim2]
    else:
        length = size_max(size_min(rows + offset, columns), 0)
        first = -offset * x.stride[dim1]
    if isinstance(length, int) and length == 0:
        first = 0
    return x.replace(
        shape=(*_without(x.shape, (dim1, dim2)), length),
        stride=(*_without(x.stride, (dim1, dim2)), x.stride[dim1] + x.stride[dim2]),
        offset=x.offset + first,
    )


def as_strided(x: Spec, shape: tuple[Size, ...], stride: tuple[Size, ...], offset: Size) -> Spec:
    """Any window on the memory of x."""
    return x.replace(shape=shape, stride=stride, offset=offset)


# Index


def flip(x: Spec, dims: tuple[int, ...]) -> Spec:
    """Reversed along dims."""
    _check_dims(x, dims)
    return _fresh_like([x], x.dtype)


def gather(x: Spec, dim: int, index: Spec) -> Spec:
    """Of the index's shape and the operand's dtype."""
    if index.dtype is not torch.int64 or index.ndim != x.ndim:
        raise TypeError(f"gather from {x} by an index {index}")
    return x.fresh(index.shape)


def index(x: Spec, indices: Sequence[Spec | None]) -> Spec:
    """aten.index.Tensor's shape: the indices' shape replaces adjacent dims, or comes first."""
    given = [d for d, item in enumerate(indices) if item is not None]
    tensors = [item for item in indices if item is not None]
    if not tensors or any(item.dtype is not torch.int64 for item in tensors):
        raise TypeError("index takes at least one index tensor, all int64")
    _same_shape(tensors)
    kept = [x.shape[d] for d in range(x.ndim) if d not in given]
    adjacent = given == list(range(given[0], given[-1] + 1))
    axis = given[0] if adjacent else 0
    return x.fresh((*kept[:axis], *tensors[0].shape, *kept[axis:]))


def index_put(x: Spec, indices: Sequence[Spec | None], source: Spec, accumulate: bool) -> Spec:
    """The operand's Spec; the source has the shape that `index` would give."""
    wanted = index(x, indices).shape
    if source.ndim != len(wanted) or not all(map(sizes.eq, source.shape, wanted)):
        raise ValueError(f"index_put of {source} where {wanted} is indexed")
    _same_dtype([x, source])
    return x.fresh()


def index_reduce(x: Spec, indices: Sequence[Spec | None], source: Spec, mode: str) -> Spec:
    """As index_put; of the dtypes that have an order."""
    if mode not in ("mul", "max", "min") or x.dtype is torch.bool:
        raise ValueError(f"index_reduce of {x} with {mode!r}")
    return index_put(x, indices, source, False)


def searchsorted(boundaries: Spec, x: Spec, right: bool) -> Spec:
    """A place for each value."""
    if boundaries.ndim == 0:
        raise TypeError(f"a search of {x} in {boundaries}")
    _same_dtype([boundaries, x])
    if boundaries.ndim != 1:
        _same_shape([each.replace(shape=each.shape[:-1], stride=None) for each in (boundaries, x)])
    return _fresh_like([x], torch.int64)


def pad(x: Spec, lows: Sequence[Size], highs: Sequence[Size], value: Any) -> Spec:
    """Grown at both ends of each dim."""
    shape = [low + size + high for size, low, high in zip(x.shape, lows, highs, strict=True)]
    return x.fresh(shape)


def cat(xs: Sequence[Spec], dim: int) -> Spec:
    """Joined along one dim."""
    first = xs[0]
    dtype = _same_dtype(xs)
    total: Size = 0
    for x in xs:
        total = x.shape[dim] + total
        for d in range(first.ndim):
            if d != dim and not sizes.eq(first.shape[d], x.shape[d]):
                raise ValueError(f"cat of {first} and {x} along {dim}")
    return first.fresh((*first.shape[:dim], total, *first.shape[dim + 1 :]), dtype=dtype)


# Factories and layout


def full(shape: Sequence[Size], value: Any, dtype: torch.dtype, device: torch.device) -> Spec:
    """Row-major."""
    return Spec.of(shape, dtype=dtype, device=device)


def empty(shape: Sequence[Size], dtype: torch.dtype, device: torch.device) -> Spec:
    """Row-major."""
    return Spec.of(shape, dtype=dtype, device=device)


def iota(length: Size, start: Size, step: Size, dtype: torch.dtype, device: torch.device) -> Spec:
    """One dim, of an integer dtype."""
    if dtype not in INTEGERS:
        raise TypeError(f"iota of {dtype}; cast the integers instead")
    return Spec.of((length,), dtype=dtype, device=device)


def random_words(
    state: Spec, shape: Sequence[Size], threads: Size, pattern: str, word: Size,
    device: torch.device,
) -> Spec:  # fmt: skip
    """Row-major words, as int64."""
    if (state.shape, state.dtype, state.device.type) != ((2,), torch.int64, "cpu"):
        raise TypeError(f"the state of a generator is int64[2] on the CPU, not {state}")
    if not 0 <= word < PATTERNS[pattern].words:
        raise ValueError(f"elements of the pattern {pattern} have no word {word}")
    return Spec.of(shape, dtype=torch.int64, device=device)


def random_member(shape: Sequence[Size], threads: Size, pattern: str, device: torch.device) -> Spec:
    """Row-major places, as int64."""
    return Spec.of(shape, dtype=torch.int64, device=device)


def clone(x: Spec) -> Spec:
    """In the operand's dim order; the result's Value may ask for any other dense strides."""
    return _fresh_like([x], x.dtype)


def to_device(x: Spec, device: torch.device) -> Spec:
    """As the operand, elsewhere."""
    return _fresh_like([x], x.dtype).replace(device=device)


# Shared


def _same_dtype(tensors: Sequence[Spec]) -> torch.dtype:
    dtype = tensors[0].dtype
    for spec in tensors:
        if spec.dtype is not dtype:
            raise TypeError(f"operands of dtypes {dtype} and {spec.dtype}")
    return dtype


def _same_shape(tensors: Sequence[Spec]) -> tuple[Size, ...]:
    shape = tensors[0].shape
    for spec in tensors:
        if spec.shape is shape or spec.shape == shape:
            continue
        if len(spec.shape) != len(shape) or not all(map(sizes.eq, spec.shape, shape)):
            raise ValueError(f"operands of shapes {shape} and {spec.shape}")
    return shape


def _fresh_like(tensors: Sequence[Spec], dtype: torch.dtype) -> Spec:
    shape = _same_shape(tensors)
    first = tensors[0]
    for spec in tensors:
        if spec.device != first.device:
            raise ValueError(f"operands on {first.device} and {spec.device}")
    _, stride = elementwise_layout([(shape, spec.stride) for spec in tensors])
    return first.fresh(shape, stride, dtype=dtype)


def _check_dims(x: Spec, dims: tuple[int, ...]) -> None:
    if len(set(dims)) != len(dims) or not all(0 <= d < x.ndim for d in dims):
        raise ValueError(f"dims {dims} of {x}")


def _without(items: Sequence[Size], dims: Sequence[int]) -> tuple[Size, ...]:
    return tuple(item for d, item in enumerate(items) if d not in dims)
