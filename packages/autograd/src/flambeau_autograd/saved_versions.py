"""Version checks of the caller's tensors that eager's backward reads.

    y = exp(w); return y.sum(), y       eager saves y; the compiled backward computes it from w

`save_for_backward` checks what the compiled backward reads. Eager raises for more: for each input
and output that one of its own nodes has saved, if the caller has written to it before that node
runs. The compiled forward records the versions of those, and the backward compares them. Eager also
raises for less: a node that no gradient needs does not run. What some results only need is saved
under another version counter, and watched.
"""

from __future__ import annotations

import weakref
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from flambeau_autograd.operators import memory_of
from flambeau_prims.graph import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    import torch

    from flambeau_autograd.aliases import Alias, AliasMap
    from flambeau_autograd.partition import Partition
    from flambeau_prims.graph import Node

    Recorded: TypeAlias = "tuple[Callable[[], torch.Tensor | None], int, frozenset[int]]"
    """A watched tensor, its version when the call returns, and the results that need it."""

_MODIFIED = (
    "one of the variables needed for gradient computation has been modified by an inplace operation"
)
_HINT = (
    "Hint: enable anomaly detection to find the operation that failed to compute its gradient, "
    "with torch.autograd.set_detect_anomaly(True)."
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
    return RuntimeError(
        f"{_MODIFIED}: [{tensor.type()} {list(tensor.shape)}] is at version {tensor._version}; "
        f"expected version {expected} instead. {_HINT}"
    )
