"""The inverse of each view call: the base's new contents, given the view's new contents.

    y = aten.select.int(x, 0, 1); y <- v        x <- aten.select_scatter(x, v, 0, 1)
    y = aten.permute(x, [1, 0]);  y <- v        x <- aten.permute(v, [1, 0])

`SCATTERS[op](emit, base, new, alias)` gives the Value of the base after the write.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from flambeau_autograd.reasons import ViewWrite
from flambeau_prims import sizes

if TYPE_CHECKING:
    from collections.abc import Callable

    from flambeau_autograd.aliases import Alias
    from flambeau_prims.graph import Value

    Emit: TypeAlias = "Callable[..., Value]"
    Scatter: TypeAlias = "Callable[[Emit, Value, Value, Alias], Value]"

aten = torch.ops.aten


def scatter(emit: Emit, base: Value, new: Value, alias: Alias) -> Value:
    """`base`, the contents of `alias.parent`, with the part viewed by `alias` replaced by `new`."""
    assert alias.step is not None
    inverse = SCATTERS.get(alias.step.op)
    if inverse is None:
        raise ViewWrite(
            f"a write through {alias.step.op}, whose inverse is not known", alias.step.op
        )
    return inverse(emit, base, new, alias)


def reshaped(emit: Emit, value: Value, shape: Any) -> Value:
    """`value` with another shape of as many elements, as a view where its strides allow."""
    try:
        return emit(aten.view.default, value, list(shape))
    except (RuntimeError, ValueError):
        dense = emit(aten.clone.default, value, memory_format=torch.contiguous_format)
        return emit(aten.view.default, dense, list(shape))


def _parameters(alias: Alias, *names: str) -> list[Any]:
    """The values of a view call's parameters, defaults filled in."""
    node = alias.step
    assert node is not None
    result = []
    schema = node.op._schema.arguments
    for position, argument in enumerate(schema):
        if argument.name in names:
            default = argument.default_value
            given = (
                node.args[position]
                if position < len(node.args)
                else node.kwargs.get(argument.name, default)
            )
            result.append(given)
    return result


def _identity(emit: Emit, base: Value, new: Value, alias: Alias) -> Value:
    return new


def _reshape(emit: Emit, base: Value, new: Value, alias: Alias) -> Value:
    return reshaped(emit, new, base.spec.shape)


def _expand(emit: Emit, base: Value, new: Value, alias: Alias) -> Value:
    if not sizes.eq(new.spec.numel, base.spec.numel):
        # Most of eager's operators refuse this; some (masked_fill_, index_put_) only warn.
        raise ViewWrite(
            "a write to an expanded tensor, several of whose elements are one place in memory"
        )
    return reshaped(emit, new, base.spec.shape)


def _t(emit: Emit, base: Value, new: Value, alias: Alias) -> Value:
    return emit(aten.t.default, new)


def _transpose(emit: Emit, base: Value, new: Value, alias: Alias) -> Value:
    return emit(aten.transpose.int, new, *_parameters(alias, "dim0", "dim1"))


def _permute(emit: Emit, base: Value, new: Value, alias: Alias) -> Value:
    (dims,) = _parameters(alias, "dims")
    inverse = [0] * len(dims)
    for position, dim in enumerate(dims):
        inverse[dim % len(dims)] = position
    return emit(aten.permute.default, new, inverse)


def _slice(emit: Emit, base: Value, new: Value, alias: Alias) -> Value:
    return emit(
        aten.slice_scatter.default, base, new, *_parameters(alias, "dim", "start", "end", "step")
    )


def _select(emit: Emit, base: Value, new: Value, alias: Alias) -> Value:
    return emit(aten.select_scatter.default, base, new, *_parameters(alias, "dim", "index"))


def _diagonal(emit: Emit, base: Value, new: Value, alias: Alias) -> Value:
    return emit(
        aten.diagonal_scatter.default, base, new, *_parameters(alias, "offset", "dim1", "dim2")
    )


def _as_strided(emit: Emit, base: Value, new: Value, alias: Alias) -> Value:
    size, stride, offset = _parameters(alias, "size", "stride", "storage_offset")
    offset = offset - alias.root.spec.offset + base.spec.offset
    return emit(aten.as_strided_scatter.default, base, new, size, stride, offset)


def _unbind(emit: Emit, base: Value, new: Value, alias: Alias) -> Value:
    (dim,) = _parameters(alias, "dim")
    return emit(aten.select_scatter.default, base, new, dim, alias.index)


def _split(emit: Emit, base: Value, new: Value, alias: Alias) -> Value:
    assert alias.step is not None
    (dim,) = _parameters(alias, "dim")
    start: Any = 0
    for out in alias.step.outputs[: alias.index]:
        assert out is not None
        start = start + out.spec.shape[dim]
    return emit(aten.slice_scatter.default, base, new, dim, start, start + alias.spec.shape[dim], 1)


def _view_dtype(emit: Emit, base: Value, new: Value, alias: Alias) -> Value:
    return emit(aten.view.dtype, new, base.spec.dtype)


def _view_as_real(emit: Emit, base: Value, new: Value, alias: Alias) -> Value:
    return emit(aten.view_as_complex.default, new)


def _view_as_complex(emit: Emit, base: Value, new: Value, alias: Alias) -> Value:
    return emit(aten.view_as_real.default, new)


LAZY = {aten._conj.default: aten._conj_physical.default, aten._neg_view.default: aten.neg.default}
"""Views whose elements are computed when read, by a function that is its own inverse."""


def _turned(emit: Emit, base: Value, new: Value, alias: Alias) -> Value:
    assert alias.step is not None
    return emit(LAZY[alias.step.op], new)


SCATTERS: dict[Any, Scatter] = {
    aten.alias.default: _identity,
    aten.detach.default: _identity,
    aten.lift_fresh.default: _identity,
    aten.view.default: _reshape,
    aten._unsafe_view.default: _reshape,
    aten._reshape_alias.default: _reshape,
    aten.unsqueeze.default: _reshape,
    aten.squeeze.default: _reshape,
    aten.squeeze.dim: _reshape,
    aten.squeeze.dims: _reshape,
    aten.expand.default: _expand,
    aten.t.default: _t,
    aten.transpose.int: _transpose,
    aten.permute.default: _permute,
    aten.slice.Tensor: _slice,
    aten.select.int: _select,
    aten.diagonal.default: _diagonal,
    aten.as_strided.default: _as_strided,
    aten.unbind.int: _unbind,
    aten.split.Tensor: _split,
    aten.split_with_sizes.default: _split,
    aten.unsafe_split.Tensor: _split,
    aten.unsafe_split_with_sizes.default: _split,
    aten.view.dtype: _view_dtype,
    aten._conj.default: _turned,
    aten._neg_view.default: _turned,
    aten.view_as_real.default: _view_as_real,
    aten.view_as_complex.default: _view_as_complex,
}
