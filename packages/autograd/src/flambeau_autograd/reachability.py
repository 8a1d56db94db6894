"""What eager's backward tells by the edges of autograd's graph, and a compiled one must be told.

Which results a gradient comes from: where none of them has a tangent, eager defines no gradient.

y, z = x * w, torch.ceil(v)             w: {y}    v: {z}, though its gradient is a constant zero

Which results have no kept tensors in common: a backward of one leaves those of the other alone.

y, z = x * w, (x + 1) * w               y: {y}    z: {z}    (each keeps another operand)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.autograd.function import BackwardCFunction

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch


def reachability(
    results: Sequence[torch.Tensor], leaves: Sequence[torch.Tensor]
) -> tuple[list[frozenset[int]], list[frozenset[int]]]:
    """For each leaf its connected results; for each result those that share kept tensors."""
    bits = {id(leaf): 1 << number for number, leaf in enumerate(leaves)}
    reached: dict[Any, int] = {}  # node -> the leaves below it, as bits
    for result in results:
        _visit(result.grad_fn, bits, reached)
    below = [reached[result.grad_fn] for result in results]
    reaching: list[list[int]] = [[] for _ in leaves]
    for index, found in enumerate(below):
        for number in _numbers(found):
            reaching[number].append(index)
    return [frozenset(numbers) for numbers in reaching], _sharing(results, list(reached))


def _numbers(bits: int) -> Iterator[int]:
    """The numbers of the bits that are set."""
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


def _sharing(results: Sequence[torch.Tensor], nodes: list[Any]) -> list[frozenset[int]]:
    """For each result, those with which it has a node in common that keeps tensors, itself among
    them where it has such nodes.

    `nodes` are listed children first. Results that share alike have one set: in large graphs nearly
    all do, or each shares with few.
    """
    above = dict.fromkeys(nodes, 0)  # node -> the results above it, as bits
    for number, result in enumerate(results):
        above[result.grad_fn] |= 1 << number
    keeping: dict[type, bool] = {}
    common = [0] * len(results)
    seen: set[int] = set()
    for node in reversed(nodes):
        found = above[node]
        for child, _ in node.next_functions:
            if child is not None:
                above[child] |= found
        if found and found not in seen and _keeps_tensors(node, keeping):
            seen.add(found)
            for number in _numbers(found):
                common[number] |= found
    sets = {shared: frozenset(_numbers(shared)) for shared in common}
    return [sets[shared] for shared in common]


def _keeps_tensors(node: Any, known: dict[type, bool]) -> bool:
    """Whether autograd frees something of a node after its backward; Python Functions may not."""
    kind = type(node)
    if kind not in known:
        known[kind] = isinstance(node, BackwardCFunction) or any(
            name.startswith("_raw_saved_") for name in dir(kind)
        )
    return known[kind]


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
        known = bits.get(id(getattr(node, "variable", None)), 0)
        for child in children:
            known |= reached[child]
        reached[node] = known
        pending.pop()
