"""Functional collectives: what one process gets from those of its group.

torch's own meta kernels are registered by a module of torch.distributed that a program which calls
`all_reduce` need not import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims.rules.registry import rule
from flambeau_prims.spec import Spec

if TYPE_CHECKING:
    from flambeau_prims.spec import Size


def _contiguous(x: Spec, shape: tuple[Size, ...]) -> Spec:
    return Spec.of(shape, dtype=x.dtype, device=x.device)


def same(input: Spec) -> Spec:
    """As large as the operand."""
    return _contiguous(input, input.shape)


def same_list(inputs: tuple[Spec, ...]) -> list[Spec]:
    """As large as the operands."""
    return [same(x) for x in inputs]


def wait_tensor(tensor: Spec) -> Spec:
    """The tensor itself."""
    return tensor


def gathered(input: Spec, group_size: int) -> Spec:
    """The operands of all processes, one after the other."""
    rows, *rest = input.shape or (1,)
    return _contiguous(input, (rows * group_size, *rest))


def gathered_list(inputs: tuple[Spec, ...], group_size: int) -> list[Spec]:
    """Several, each for itself."""
    return [gathered(x, group_size) for x in inputs]


def scattered(input: Spec, group_size: int) -> Spec:
    """One part of as many as there are processes."""
    rows, *rest = input.shape
    return _contiguous(input, (rows // group_size, *rest))


def scattered_list(inputs: tuple[Spec, ...], group_size: int) -> list[Spec]:
    """Several, each for itself."""
    return [scattered(x, group_size) for x in inputs]


def exchanged(input: Spec, output_split_sizes: tuple[Size, ...]) -> Spec:
    """Rows from every process."""
    return _contiguous(input, (sum(output_split_sizes), *input.shape[1:]))


_RULES: dict[str, Any] = {
    "all_reduce": same,
    "broadcast": same,
    "wait_tensor": wait_tensor,
    "all_reduce_coalesced": same_list,
    "all_gather_into_tensor": gathered,
    "all_gather_into_tensor_coalesced": gathered_list,
    "reduce_scatter_tensor": scattered,
    "reduce_scatter_tensor_coalesced": scattered_list,
    "all_to_all_single": exchanged,
}

if torch.distributed.is_available():
    for name, function in _RULES.items():
        rule(getattr(torch.ops._c10d_functional, name).default)(function)
