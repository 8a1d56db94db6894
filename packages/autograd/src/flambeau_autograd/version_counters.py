"""Version counters of the tensors of a trace: how far the program moves each, and which share one.

    d = x.data; d.add_(1); x.mul_(2); return d     x counts 1; d counts 1, apart from x

Fake tensors have version counters as real ones do, and eager's own code moves them while the graph
is traced. The counters are read when the forward has run: nothing is deduced from operators.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

set_versions = torch._C._autograd._unsafe_set_version_counter
"""`set_versions((x, y), (1, 2))`: the counters of x and y stand at 1 and 2."""


def version_of(tensor: torch.Tensor) -> int:
    """What the tensor's counter stands at; 0 for an inference tensor, which has none."""
    return 0 if tensor.is_inference() else tensor._version


def shared_counters(tensors: Sequence[torch.Tensor]) -> dict[int, int]:
    """For each tensor, by its id, a number that those with the same counter have in common;
    inference tensors, which have no counter, have one number.
    """
    found = {id(tensor): -1 for tensor in tensors}
    counted = tuple(tensor for tensor in tensors if not tensor.is_inference())
    before = tuple(tensor._version for tensor in counted)
    set_versions(counted, tuple(range(len(counted))))
    found.update((id(tensor), tensor._version) for tensor in counted)
    set_versions(counted, before)
    return found
