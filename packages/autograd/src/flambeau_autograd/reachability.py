"""What eager's backward tells by the edges of autograd's graph, and a compiled one must be told.

Which results an input is connected to: where none of them has a tangent, eager does not visit it.

y, z = x * w, torch.ceil(v)             w: {y}    v: {z}, though its gradient is a constant zero

Which of them its gradient comes from: where none of these has a tangent, it is undefined, as one is
that the backward of a custom Function returns None for.

Which results have no kept tensors in common: a backward of one leaves those of the other alone.

y, z = x * w, (x + 1) * w               y: {y}    z: {z}    (each keeps another operand)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch.autograd.function import BackwardCFunction

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    import torch

    from flambeau_autograd.backward_places import FunctionNodes


@dataclass(frozen=True)
class Reachability:
    """For each leaf the results that it is `connected` to, and those `reaching` it, which its
    gradient comes from; for each result those `sharing` kept tensors with it. `functions`: whether
    custom Functions are among the nodes, which may bring in what no result is connected to.
    """

    connected: list[frozenset[int]]
    reaching: list[frozenset[int]]
    sharing: list[frozenset[int]]
    functions: bool


def reachability(
    results: Sequence[torch.Tensor],
    leaves: Sequence[torch.Tensor],
    functions: FunctionNodes,
) -> Reachability:
    """What the graph of some results tells; `functions` is what is noted of custom ones in it."""
    bits = {id(leaf): 1 << number for number, leaf in enumerate(leaves)}
    reached = _reached(results, bits, ())
    connected = _results_above(results, reached, len(leaves))
    # A Function gets zeros in the place of None, unless it says otherwise.
    cut = {
        (node, at) for node, at in functions.undefined if not _is_custom(node.next_functions[at][0])
    }
    reaching = connected
    if cut:
        reaching = _results_above(results, _reached(results, bits, cut), len(leaves))
    sharing = _sharing(results, list(reached), functions.saving)
    return Reachability(connected, reaching, sharing, any(map(_is_custom, reached)))


def _is_custom(node: Any) -> bool:
    """Whether a node is of a custom Function of the program: those of this package hand None on."""
    if not isinstance(node, BackwardCFunction):
        return False
    return not type(node)._forward_cls.__module__.startswith(__package__)  # type: ignore[attr-defined]


def _reached(
    results: Sequence[torch.Tensor], bits: dict[int, int], cut: Collection[tuple[Any, int]]
) -> dict[Any, int]:
    """For each node, children first, the leaves below it, as bits; edges in `cut` lead nowhere."""
    reached: dict[Any, int] = {}
    for result in results:
        _visit(result.grad_fn, bits, reached, cut)
    return reached


def _results_above(
    results: Sequence[torch.Tensor], reached: dict[Any, int], count: int
) -> list[frozenset[int]]:
    above: list[list[int]] = [[] for _ in range(count)]
    for index, result in enumerate(results):
        for number in _numbers(reached[result.grad_fn]):
            above[number].append(index)
    return list(map(frozenset, above))


def _numbers(bits: int) -> Iterator[int]:
    """The numbers of the bits that are set."""
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


def _sharing(
    results: Sequence[torch.Tensor], nodes: list[Any], saving: Collection[Any]
) -> list[frozenset[int]]:
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
        if found and found not in seen and _keeps_tensors(node, keeping, saving):
            seen.add(found)
            for number in _numbers(found):
                common[number] |= found
    sets = {shared: frozenset(_numbers(shared)) for shared in common}
    return [sets[shared] for shared in common]


def _keeps_tensors(node: Any, known: dict[type, bool], saving: Collection[Any]) -> bool:
    """Whether autograd frees something of a node after its backward."""
    kind = type(node)
    if isinstance(node, BackwardCFunction):
        return node in saving
    if kind not in known:
        known[kind] = any(name.startswith("_raw_saved_") for name in dir(kind))
    return known[kind]


def _visit(
    root: Any, bits: dict[int, int], reached: dict[Any, int], cut: Collection[tuple[Any, int]]
) -> None:
    """Enter `root` and what is below it, children first (without recursion: graphs are deep)."""
    pending = [root]
    while pending:
        node = pending[-1]
        if node in reached:
            pending.pop()
            continue
        children = [
            child
            for at, (child, _) in enumerate(node.next_functions)
            if child is not None and (not cut or (node, at) not in cut)
        ]
        waiting = [child for child in children if child not in reached]
        if waiting:
            pending += waiting
            continue
        known = bits.get(id(getattr(node, "variable", None)), 0)
        for child in children:
            known |= reached[child]
        reached[node] = known
        pending.pop()
