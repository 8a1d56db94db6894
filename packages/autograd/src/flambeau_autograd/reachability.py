"""Which results a gradient comes from, by the edges of autograd's graph: where none of them has a tangent, eager defines no gradient.

y, z = x * w, torch.ceil(v)             w: {y}    v: {z}, though its gradient is zero and computed from no tangent
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch


def results_reaching(
    results: Sequence[torch.Tensor], leaves: Sequence[torch.Tensor]
) -> list[frozenset[int]]:
    """For each leaf, the numbers of the results that are connected to it."""
    bits = {id(leaf): 1 << number for number, leaf in enumerate(leaves)}
    reached: dict[Any, int] = {}  # node -> the leaves below it, as bits
    for result in results:
        _visit(result.grad_fn, bits, reached)
    below = [reached[result.grad_fn] for result in results]
    return [
        frozenset(at for at, found in enumerate(below) if found >> number & 1)
        for number in range(len(leaves))
    ]


def _visit(root: Any, bits: dict[int, int], reached: dict[Any, int]) -> None:
    """Enter `root` and what is below it, children first (without recursion: graphs are deep)."""
    pending = [root]
    while pending:
        node = pending[-1]
        if node in reached:
            pending.pop()
            continue
        children = [child for child, _ in node.next_functions if child is not None]
        waiting = [child for child in children if child not in reached]
        if waiting:
            pending += waiting
            continue
        found = bits.get(id(getattr(node, "variable", None)), 0)
        for child in children:
            found |= reached[child]
        reached[node] = found
        pending.pop()
