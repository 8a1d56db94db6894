"""Version checks of the caller's tensors that eager's backward reads.

    y = exp(w); return y.sum(), y       eager saves y; the compiled backward computes it from w

`save_for_backward` checks what the compiled backward reads. Eager raises for more: for each input
and output that one of its own nodes has saved, if the caller has written to it before that node
runs. The compiled forward records the versions of those, and the backward compares them. Eager also
raises for less: a node that no gradient needs does not run. What some results only need is saved
under another version counter, and watched. `watched_tensors` finds all these.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    Recorded: TypeAlias = "tuple[Callable[[], torch.Tensor | None], int, frozenset[int]]"
    """A watched tensor, its version when the call returns, and the results that need it."""

_MODIFIED = (
    "one of the variables needed for gradient computation has been modified by an inplace operation"
)
_HINT = (
    "Hint: enable anomaly detection to find the operation that failed to compute its gradient, "
    "with torch.autograd.set_detect_anomaly(True, check_nan=False)."
)
_HINT_OF_ANOMALY = (
    "Hint: the backtrace further above shows the operation that failed to compute its gradient. "
    "The variable in question was changed in there or anywhere later. Good luck!"
)


@dataclass(frozen=True)
class Watched:
    """A tensor of the caller whose version must not change between forward and backward.

    `position` is among the forward graph's inputs or outputs, `results` are the results whose
    gradients need it. `pending` counts the writes that follow the forward within the call.
    `shares`: the compiled backward reads its memory through another tensor. `saved`: it reads the
    tensor itself, for whose results `save_for_backward` must not check it.
    """

    side: Literal["input", "output"]
    position: int
    results: frozenset[int]
    pending: int = 0
    shares: bool = False
    saved: bool = False


def recorded(
    watched: Iterable[Watched], args: Sequence[Any], returned: Sequence[Any]
) -> list[Recorded]:
    """The versions of a call's watched tensors. Tuples, since this is part of each call.

    A weak reference lives as long as any view of the tensor does. Memory that the compiled backward
    reads is watched through a detached tensor, which counts all writes: not through the result
    itself, which holds the autograd node that holds the record.
    """
    result: list[Recorded] = []
    for each in watched:
        tensor = (args if each.side == "input" else returned)[each.position]
        strong = each.shares or each.saved
        holder = partial(_same, tensor.detach()) if strong else weakref.ref(tensor)
        result.append((holder, tensor._version + each.pending, each.results))
    return result


def handed_on(
    records: Iterable[Recorded], returned: Sequence[tuple[torch.Tensor, torch.Tensor]]
) -> list[Recorded]:
    """`records` where the caller gets another tensor of the same memory, second in its pair, in the
    place of what the call has returned.
    """
    weak: dict[Any, Any] = {weakref.ref(inner): weakref.ref(outer) for inner, outer in returned}
    return [(weak.get(holder, holder), version, results) for holder, version, results in records]


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def check_versions(records: Iterable[Recorded], spent: frozenset[int]) -> None:
    """Raise as eager does if a tensor that gradients of the results `spent` need has changed."""
    for holder, version, results in records:
        tensor = holder()
        if tensor is not None and tensor._version != version and not results.isdisjoint(spent):
            raise modified(tensor, version)


def modified(tensor: torch.Tensor, expected: int) -> RuntimeError:
    """Eager's error for a saved tensor that is no longer at the expected version."""
    hint = _HINT_OF_ANOMALY if torch.is_anomaly_enabled() else _HINT
    return RuntimeError(
        f"{_MODIFIED}: [{tensor.type()} {list(tensor.shape)}] is at version {tensor._version}; "
        f"expected version {expected} instead. {hint}"
    )
