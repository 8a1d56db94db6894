"""Save less for the backward than the minimum cut does, where a budget asks for it.

    activation_memory_budget=1.0     what the minimum cut saves
    activation_memory_budget=0.5     half of these bytes: the backward computes the values again
                                     that cost the least time for their bytes
    activation_memory_budget=0.0     the inputs, and what cannot be computed twice

The choice is a knapsack, filled greedily: the value with the least time for a byte goes first. What
a value costs changes while others go, upwards only, so a stale cost is computed again when its turn
comes. Times are a roofline: a call takes as long as its memory traffic or its arithmetic, whichever
is longer.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flambeau_autograd.operators import Work, computed_from, happens_once, memory_of, work
from flambeau_autograd.recompute import compares_extremes, size_in_bytes
from flambeau_prims.graph import Value
from flambeau_prims.sizes import hint_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from flambeau_prims.graph import Graph, Node

OPERATIONS_PER_BYTE = {"cpu": 10.0, "cuda": 100.0}
"""How many multiplications a device does while it moves a byte."""

_PRODUCTS = frozenset({
    "mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot", "vdot", "linear", "_int_mm",
    "_scaled_mm",
})  # fmt: skip
_CONVOLUTIONS = frozenset({"convolution", "convolution_backward", "_convolution"})

_FUSED = 0.25
"""The time of a pointwise call, in that of writing its result, which its neighbours keep in
registers.
"""


def within_budget(
    graph: Graph,
    saved: Collection[Value],
    inputs: Iterable[Any],
    results: Iterable[Any],
    wanted: Iterable[Value],
    written: Collection[Value],
    budget: float,
) -> list[Value]:
    """The Values to save in place of `saved`, in at most `budget` times their bytes if that can be.

    `inputs` and `results` are those of the forward, `wanted` what the backward reads; `written` is
    memory that is overwritten before.
    """
    free = {value for value in (*inputs, *results) if isinstance(value, Value)}
    free = {value for value in free if memory_of(value) not in written}
    given = dict.fromkeys(value for value in inputs if isinstance(value, Value))
    cut = _Cut(set(saved), given, free)
    limit = budget * cut.bytes_of(saved)
    kept = dict.fromkeys(wanted)
    total = cut.bytes_of(cut.frontier(kept))
    queue = [
        (price, number, value)
        for number, value in enumerate(saved)
        if value not in free and value not in given and not cut.is_final(value)
        if (price := cut.price(value)) is not None
    ]
    heapq.heapify(queue)
    while queue and total > limit:
        price, number, value = heapq.heappop(queue)
        now = cut.price(value)
        if now is None:
            continue
        if now > price:
            heapq.heappush(queue, (now, number, value))
            continue
        cut.drop(value)
        total = cut.bytes_of(cut.frontier(kept))
    frontier = set(cut.frontier(kept))
    order = [*given, *(out for node in graph.nodes for out in node.outputs if out is not None)]
    return [value for value in order if value in frontier]


def seconds_of(node: Node) -> float:
    """What a call costs, in the time that moving a byte takes."""
    kind = work(node.op)
    outputs = [out for out in node.outputs if out is not None]
    if kind is Work.VIEW or not outputs:
        return 0.0
    written = sum(map(size_in_bytes, outputs))
    if kind in (Work.POINTWISE, Work.FACTORY):
        return _FUSED * written
    traffic = written + sum(size_in_bytes(value) for value in dict.fromkeys(node.operands()))
    device = outputs[0].spec.device.type
    rate = OPERATIONS_PER_BYTE.get(device, OPERATIONS_PER_BYTE["cuda"])
    return max(float(traffic), _operations(node, outputs[0]) / rate)


def _operations(node: Node, out: Value) -> float:
    """The multiplications of a product, convolution, attention or LSTM; 0 of other calls."""
    operands = [value for value in node.operands() if value.spec.ndim >= 2]
    name = getattr(getattr(node.op, "overloadpacket", node.op), "__name__", "")
    numel = hint_of(out.spec.numel)
    if len(operands) < 2:
        return 0.0
    if name in _CONVOLUTIONS:
        weight = operands[1].spec
        return float(numel * hint_of(weight.numel) // max(1, hint_of(weight.shape[0])))
    if name == "lstm_training_recurrence":
        return 4.0 * numel * hint_of(operands[1].spec.shape[-1])
    if "attention" in name:
        return 2.0 * numel * hint_of(operands[1].spec.shape[-2])
    if name in _PRODUCTS:
        return float(numel * hint_of(operands[-2].spec.shape[-1]))
    return 0.0


@dataclass
class _Cut:
    """A choice of saved Values: `kept` may be saved, what is `free` takes no memory that the
    caller does not hold.
    """

    kept: set[Value]
    given: Collection[Value]
    free: set[Value]

    def is_final(self, value: Value) -> bool:
        """Whether a value cannot be computed again: what is drawn, checked or compared for
        equality.
        """
        node = value.producer
        return node is None or happens_once(node) or compares_extremes(node)

    def bytes_of(self, values: Iterable[Value]) -> int:
        """The memory of saved Values beyond what the caller holds, views by what they view."""
        memories = {memory_of(value) for value in values if value not in self.free}
        return sum(map(size_in_bytes, memories - self.free))

    def frontier(self, wanted: Iterable[Value]) -> list[Value]:
        """The Values that must be saved to compute `wanted`."""
        return self._reached(wanted)[0]

    def price(self, value: Value) -> float | None:
        """The time for each byte that is gained if a value is computed again; None for no gain."""
        saved, nodes = self._reached([value], but=value)
        more = [x for x in saved if x not in self.kept]
        gained = size_in_bytes(value) - self.bytes_of(more)
        return sum(map(seconds_of, nodes)) / gained if gained > 0 else None

    def drop(self, value: Value) -> None:
        """Compute a value again, and save what that needs and no other call can compute."""
        saved, _ = self._reached([value], but=value)
        self.kept.discard(value)
        self.kept.update(x for x in saved if x not in self.given)

    def _reached(
        self, wanted: Iterable[Value], but: Value | None = None
    ) -> tuple[list[Value], list[Node]]:
        """The saved Values, and the calls made again, that `wanted` is computed by."""

        def stops(value: Value) -> bool:
            is_kept = value in self.kept and value is not but
            return is_kept or value in self.given or self.is_final(value)

        return computed_from(wanted, stops)
