"""Find the caller's tensors whose versions a backward checks (`saved_versions`).

y = exp(w); return y.sum(), y       eager's backward reads output 1, ours input 0
->  Watched("output", 1, {0, 1}), Watched("input", 0, {0, 1}, ...)
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, cast

from flambeau_autograd.operators import memory_of
from flambeau_autograd.saved_versions import Watched
from flambeau_prims.graph import Value

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from flambeau_autograd.aliases import Alias, AliasMap
    from flambeau_autograd.partition import Partition
    from flambeau_prims.graph import Node


def reads_of_backward(
    nodes: Sequence[Node], aliases: AliasMap, tangents: Iterable[Value]
) -> dict[Alias, int]:
    """The memories that the backward's `nodes` read, each with the numbers, as bits, of the
    `tangents` whose presence makes eager run such a node.
    """
    result: Counter[Alias] = Counter()
    for value, numbers in _needed(nodes, tangents).items():
        result[aliases[value].root] |= numbers
    return dict(result)


def reads_of_partition(part: Partition, tangents: Sequence[int]) -> dict[tuple[str, int], set[int]]:
    """The inputs and outputs of the forward that the compiled backward reads, each with the results
    (`tangents` are those with a tangent) whose gradients need it.
    """
    places = list(zip(part.saved, part.backward.inputs, strict=True))
    numbers = [tangents[index] for (kind, index), _ in places if kind == "tangent"]
    values = [value for (kind, _), value in places if kind == "tangent"]
    needed = _needed(part.backward.nodes, cast("list[Value]", values))
    return {
        source: {number for k, number in enumerate(numbers) if needed[value] >> k & 1}
        for source, value in places
        if isinstance(value, Value) and source[0] in ("input", "output")
    }


def _needed(nodes: Sequence[Node], tangents: Iterable[Value]) -> Counter[Value]:
    """For each Value the numbers, as bits, of the `tangents` whose gradients need it."""
    reached = {value: 1 << index for index, value in enumerate(tangents)}
    for node in nodes:
        result = 0
        for value in node.operands():
            result |= reached.get(value, 0)
        if result:
            for out in node.outputs:
                if out is not None:
                    reached[out] = reached.get(out, 0) | result
    needed: Counter[Value] = Counter()
    for node in reversed(nodes):
        own = 0
        for out in node.outputs:
            if out is not None:
                own |= reached.get(out, 0)
        # A formula that reads no tangent belongs to the nodes that read its results.
        if not own:
            for out in node.outputs:
                if out is not None:
                    own |= needed[out]
        for value in node.operands():
            needed[value] |= own
    return needed


def watched_tensors(
    part: Partition,
    reads: Iterable[Watched],
    results: int,
    tangents: Sequence[int],
    unversioned: Collection[int],
) -> list[Watched]:
    """What of eager's `reads` the partition does not save itself, the caller's tensors that share
    memory with an intermediate which it saves, and what it saves for some results only.

    `results` counts the forward's results, `tangents` are those with a tangent, and `unversioned`
    the inputs that are inference tensors.
    """
    saved: set[tuple[Literal["input", "output"], int]] = {
        (kind, index)  # type: ignore[misc]
        for kind, index in part.saved
        if kind == "input" or (kind == "output" and index < results)
    }
    owners: dict[Value, tuple[Literal["input", "output"], int]] = {}
    for index, value in enumerate(part.forward.inputs):
        if isinstance(value, Value):
            owners.setdefault(value, ("input", index))
    for index, out in enumerate(part.forward.outputs[:results]):
        if isinstance(out, Value):
            owners.setdefault(memory_of(out), ("output", index))
    everything = frozenset(tangents)
    compiled = reads_of_partition(part, tangents)
    result: dict[tuple[str, int], Watched] = {}
    for kind, index in part.saved:
        if kind == "output" and index >= results:
            owner = owners.get(memory_of(part.forward.outputs[index]))  # type: ignore[arg-type]
            if owner is not None and owner not in saved:
                needing = frozenset(compiled[kind, index])
                earlier = result.get(owner)
                needing |= earlier.results if earlier is not None else frozenset()
                result[owner] = Watched(*owner, needing, shares=True)
    for each in reads:
        key = (each.side, each.position)
        if key in result:
            result[key] = replace(result[key], results=result[key].results | each.results)
        elif key not in saved:
            result[key] = each
    of_eager = {(each.side, each.position): each for each in reads}
    for key in sorted(saved):
        each = of_eager.get(key) or Watched(*key, frozenset())
        needing = each.results | compiled[key]
        if needing != everything:
            result[key] = replace(each, results=needing, saved=True)
    return [
        each
        for each in result.values()
        if each.side == "output" or each.position not in unversioned
    ]
