"""What is computed once from tensors that nearly never change, and kept while they stay.

    prepared(w) { buf1 = pack w; return (buf1,) };  program(x, w, buf1)
->  run(x, w): program(x, w, buf1); before it prepared(w), if w is another tensor than before, has
    been written to (`Tensor._version`) or given other data (`w.data = ...`)
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter, is_, itemgetter
from typing import TYPE_CHECKING, Any

import torch

from flambeau_runtime.fused_steps import fused_steps, watch_optimizers

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
    steps: tuple[tuple[int, int], ...] = ()

    def are_of(self, tensors: tuple[torch.Tensor, ...]) -> bool:
        """Whether they are the results of these tensors as they are now."""
        return (
            self.results is not None
            and len(self.tensors) == len(tensors)
            and all(map(is_, self.tensors, tensors))
            and tuple(map(_version, tensors)) == self.versions
            and tuple(map(_address, tensors)) == self.addresses
            and fused_steps(tensors) == self.steps
        )


def kept_results(
    compute: Callable[..., tuple[Any, ...]], tensors: tuple[torch.Tensor, ...]
) -> KeptResults:
    """Compute results, to keep them."""
    watch_optimizers()
    versions = tuple(map(_version, tensors))
    addresses = tuple(map(_address, tensors))
    steps = fused_steps(tensors)
    with torch.inference_mode(False), torch.no_grad():
        data = tuple(tensor.detach() for tensor in tensors)
        results = compute(*tensors)
    return KeptResults(tensors, versions, addresses, data, results, steps)


def getter(positions: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """The items at these positions, as a tuple."""
    if len(positions) == 1:
        (only,) = positions
        return lambda items: (items[only],)
    return itemgetter(*positions) if positions else lambda items: ()


class PreparedExecutable:
    """An executable whose last inputs are computed from others and kept (`Program.prepared`)."""

    def __init__(
        self,
        run: Callable[..., tuple[Any, ...]],
        prepare: Callable[..., tuple[Any, ...]],
        read: Sequence[int],
    ) -> None:
        """`read`: the positions of what `prepare` takes among the arguments of a call."""
        self.run = run
        self.prepare = prepare
        self.read = getter(read)
        self.kept = KeptResults()

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        return self.run(*args, *self.results(args))

    def spend(self, args: list[Any]) -> tuple[Any, ...]:
        """A call with the items of a list, which it empties: inputs go after their last use."""
        args.extend(self.results(args))
        return self.run.spend(args)  # type: ignore[attr-defined, no-any-return]

    def results(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """What was prepared of these arguments."""
        tensors = self.read(args)
        kept = self.kept  # one reference: another thread may replace it meanwhile
        if not kept.are_of(tensors):
            kept = self.kept = kept_results(self.prepare, tensors)
        assert kept.results is not None
        return kept.results
