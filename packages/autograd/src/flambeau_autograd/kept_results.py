"""What was computed from tensors that nearly never change, kept while they stay as they were.

The runtime has the like for what a Program prepares: either package is used without the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter, is_, itemgetter
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_version = attrgetter("_version")
_address = torch.Tensor.data_ptr


@dataclass(frozen=True, slots=True)
class KeptResults:
    """What was computed from tensors as they were at these versions, with this data.

    The data is held, so no other data has its address.
    """

    tensors: tuple[torch.Tensor, ...] = ()
    versions: tuple[int, ...] = ()
    addresses: tuple[int, ...] = ()
    data: tuple[torch.Tensor, ...] = ()
    results: tuple[Any, ...] | None = None

    def are_of(self, tensors: tuple[torch.Tensor, ...]) -> bool:
        """Whether they are the results of these tensors as they are now."""
        return (
            self.results is not None
            and len(self.tensors) == len(tensors)
            and all(map(is_, self.tensors, tensors))
            and tuple(map(_version, tensors)) == self.versions
            and tuple(map(_address, tensors)) == self.addresses
        )


def kept_results(
    compute: Callable[..., tuple[Any, ...]], tensors: tuple[torch.Tensor, ...]
) -> KeptResults:
    """Compute results, to keep them."""
    versions = tuple(map(_version, tensors))
    addresses = tuple(map(_address, tensors))
    with torch.inference_mode(False), torch.no_grad():
        data = tuple(tensor.detach() for tensor in tensors)
        results = compute(*tensors)
    return KeptResults(tensors, versions, addresses, data, results)


def getter(positions: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """The items at these positions, as a tuple."""
    if len(positions) == 1:
        (only,) = positions
        return lambda items: (items[only],)
    return itemgetter(*positions) if positions else lambda items: ()
