"""Let updates happen in the memory of what they update, and drop the copies that lowering made.

    nest (copy) store buf0[i] load arg0[i]
    extern aten.index_add_(buf0, 0, arg1, arg2)       extern aten.index_add_(arg0, 0, arg1, arg2)
    nest buf1[i] = tanh(buf0[i])                 ->   nest buf1[i] = tanh(arg0[i])
    nest (copy) store arg0[i] load buf0[i]

A copy goes if its source and its target can share memory: the source is an input that the program
overwrites, or is read by nobody else afterwards; whoever reads what the source held comes before
the first write to the target. Nodes are put in an order that has these properties, if there is one.
A node that may raise comes before every write to an input; so checks of indices are split from
nests that write to inputs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from flambeau_inductor.indexing.expressions import free_names, sympify
from flambeau_inductor.ir import CheckIndex, Load, Store, index_of
from flambeau_inductor.lowering.body_builder import drop_dead
from flambeau_inductor.nodes import ExternCall, LoopNest, TensorRef
from flambeau_inductor.scheduler.groups import Order, dependencies
from flambeau_inductor.scheduler.memory import extent_of
from flambeau_inductor.scheduler.overwrite import FRESH_RESULTS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from flambeau_inductor.ir import Axis, Statement
    from flambeau_inductor.nodes import Lowered, Node


def update_in_place(lowered: Lowered) -> None:
    """Rewrite the nodes of a lowered graph."""
    copies = [copy for node in lowered.nodes if (copy := copy_of(node)) is not None]
    targets = {copy.target for copy in copies}
    partly = {copy.target for copy in copies if not copy.whole(lowered)}
    scattered = {name for n in lowered.nodes if isinstance(n, LoopNest) for name in n.scattered}
    updated = targets & (lowered.updated | partly | scattered)
    if not updated:
        return
    split_checks(lowered, updated)
    sharing = _Sharing(lowered)
    for target in [name for name in lowered.buffers if name in updated]:
        sharing.merge(target)
    if sharing.root:
        sharing.apply()


@dataclass(frozen=True, slots=True)
class Copy:
    """A nest that only copies elements of a buffer to the same places of another."""

    node: LoopNest
    source: str
    target: str

    def whole(self, lowered: Lowered) -> bool:
        """Whether every element of the target is copied."""
        points: Any = 1
        for axis in self.node.outer:
            points = points * axis.size
        sizes = lowered.sizes
        total: Any = 1
        for size in sizes.convert_all(lowered.buffers[self.target].spec.shape):
            total = total * size
        return bool(points == total)


def copy_of(node: Node) -> Copy | None:
    """The copy that a nest is, or None."""
    if not isinstance(node, LoopNest) or len(node.body) != 2 or node.inner:
        return None
    match node.body:
        case (
            Load(name=value, buffer=source, index=place, mask=None),
            Store(buffer=target, index=index, value=stored, mode="", mask=None),
        ) if stored == value and index == place and source != target:
            return Copy(node, source, target)
    return None


def split_checks(lowered: Lowered, updated: set[str]) -> None:
    """Check the indices of nests that update in separate nests: what writes to an input must not
    raise.
    """
    result: list[Node] = []
    for node in lowered.nodes:
        if isinstance(node, LoopNest) and node.can_raise and not updated.isdisjoint(node.stores):
            checks = drop_dead([s for s in node.body if not isinstance(s, Store)])
            rest = drop_dead([s for s in node.body if not isinstance(s, CheckIndex)])
            result += [
                replace(node, outer=axes_of(checks, node.outer), body=checks, label="check"),
                replace(node, body=rest),
            ]
        else:
            result.append(node)
    lowered.nodes = result
    _number(lowered)


def axes_of(body: Sequence[Statement], axes: Sequence[Axis]) -> tuple[Axis, ...]:
    """The axes that a body without stores needs: those that it varies with, and those that may be
    empty.
    """
    names = {name for s in body if (index := index_of(s)) is not None for name in free_names(index)}
    return tuple(
        axis
        for axis in axes
        if axis.symbol.name in names or not sympify(axis.size).is_Integer or not axis.size
    )


class _Sharing:
    """Which buffers share memory, and the order of nodes that makes that possible."""

    def __init__(self, lowered: Lowered) -> None:
        self.lowered = lowered
        self.nodes = lowered.nodes
        self.root: dict[str, str] = {}  # buffer -> the one whose memory it has
        self.order = Order()
        for needs in dependencies(lowered):
            self.order.add(needs)
        self.readers: dict[str, list[int]] = {}
        self.writers: dict[str, list[int]] = {}
        self.copies: dict[int, Copy] = {}
        self.raising: set[int] = set()
        aliased: set[str] = set()
        fresh: set[str] = set()
        for number, node in enumerate(self.nodes):
            if (copy := copy_of(node)) is not None:
                self.copies[number] = copy
            for name in node.reads:
                self.readers.setdefault(name, []).append(number)
            for name in node.writes:
                self.writers.setdefault(name, []).append(number)
            if node.can_raise:
                self.raising.add(number)
            if isinstance(node, ExternCall):
                if node.may_alias:
                    aliased |= node.reads | node.writes
                if node.op in FRESH_RESULTS:
                    fresh |= node.writes
        buffers = lowered.buffers
        kept = {out.buffer for out in lowered.outputs if isinstance(out, TensorRef)}
        self.free = {
            name
            for name, buffer in buffers.items()
            if name not in aliased
            and name not in kept
            and (buffer.role != "input" or name in lowered.write_counts)
            and (buffer.role != "extern" or name in fresh)
        }
        """The buffers whose contents may be overwritten."""
        self.kept = kept
        self.taken: set[str] = set()

    def merge(self, target: str) -> None:
        """Have an updated buffer share the memory of the one that it is a copy of, if it can."""
        copies = [copy for copy in map(self.copies.get, self.writers[target]) if copy is not None]
        for source in dict.fromkeys(copy.source for copy in copies):
            if self.shares(source, target):
                self.root[target] = self.root.get(source, source)
                self.taken.add(source)
                self.lowered.updated.add(self.root[target])
                return

    def shares(self, source: str, target: str) -> bool:
        """Whether the target can share the memory of the source; orders the nodes accordingly."""
        root = self.root.get(source, source)
        buffers = self.lowered.buffers
        is_input = buffers[root].role == "input"
        if (
            source not in self.free
            or source in self.taken
            or buffers[target].role != "computed"
            or (is_input and target in self.kept)
            or not self.same_memory(root, target)
        ):
            return False
        return self.arrange(source, target, is_input=is_input)

    def same_memory(self, one: str, other: str) -> bool:
        """Whether two buffers have memory of one kind and size."""
        a, b = (self.lowered.buffers[name].spec for name in (one, other))
        extents = [extent_of(spec, self.lowered.sizes) for spec in (a, b)]
        return (a.dtype, a.device, extents[0]) == (b.dtype, b.device, extents[1])

    def arrange(self, source: str, target: str, *, is_input: bool) -> bool:
        """Put all that reads or writes the source's contents before the writes to the target."""
        writes = [
            number
            for number in self.writers[target]
            if not ((copy := self.copies.get(number)) and copy.source == source)
        ]
        is_argument = self.lowered.buffers[source].role == "input"
        before = set(self.readers.get(source, ()))
        before.update(() if is_argument else self.writers.get(source, ()))
        before -= {
            number
            for number, copy in self.copies.items()
            if (copy.source, copy.target) == (source, target)
        }
        if is_input:
            if any(number in self.raising for number in writes):
                return False
            before |= self.raising
        if any(n in before and not self.only_in_place(n, source, target) for n in writes):
            return False
        saved = list(self.order.before)
        behind = dict.fromkeys(writes, before)
        if is_input:
            behind.update(self.overwritten_last(source, target))
        for number, needs in behind.items():
            bits = self.order.closure(needs - {number})
            if bits >> number & 1:
                self.order.before = saved
                return False
            self.order.extend(number, bits)
        return True

    def overwritten_last(self, source: str, target: str) -> dict[int, set[int]]:
        """What comes before each write to an input whose memory the target has: all that writes or
        reads the target there.
        """
        root = self.root.get(source, source)
        users = {*self.readers.get(target, ()), *self.writers[target]}
        return {
            number: users
            for number in self.writers[root]
            if (copy := self.copies.get(number)) is None or copy.source != target
        }

    def only_in_place(self, number: int, source: str, target: str) -> bool:
        """Whether a node reads the source only where it writes the target."""
        node = self.nodes[number]
        if isinstance(node, ExternCall) or node.inner or source not in node.loads:
            return False
        reads = {load.index for load in node.loads[source]}
        places = {store.index for store in node.stores[target]}
        values = {name for place in places for name in free_names(place) if name[0] == "v"}
        return len(places) == 1 and reads == places and not values

    def apply(self) -> None:
        """Rename the buffers that share memory, drop the copies, and sort."""
        lowered = self.lowered
        dropped = {
            number
            for number, copy in self.copies.items()
            if self.root.get(copy.source, copy.source) == self.root.get(copy.target, copy.target)
        }
        waiting = [n for n in range(len(self.nodes)) if n not in dropped]
        done = sum(1 << number for number in dropped)
        ordered = []
        while waiting:
            number = next(n for n in waiting if not self.order.before[n] & ~done)
            waiting.remove(number)
            done |= 1 << number
            ordered.append(number)
        lowered.nodes = [self.renamed(self.nodes[number]) for number in ordered]
        _number(lowered)
        lowered.outputs = [self.renamed_argument(out) for out in lowered.outputs]
        for name in self.root:
            del lowered.buffers[name]

    def renamed(self, node: Node) -> Node:
        if self.root.keys().isdisjoint(node.reads | node.writes):
            return node
        root = self.root
        if isinstance(node, LoopNest):
            return replace(
                node,
                body=tuple(
                    replace(s, buffer=root.get(s.buffer, s.buffer))
                    if isinstance(s, (Load, Store))
                    else s
                    for s in node.body
                ),
            )
        return replace(
            node,
            args=self.renamed_argument(node.args),
            kwargs={key: self.renamed_argument(arg) for key, arg in node.kwargs.items()},
            out=tuple((key, root.get(name, name)) for key, name in node.out),
            reads={root.get(name, name) for name in node.reads},
            mutates=tuple(root.get(name, name) for name in node.mutates),
            attention=node.attention and node.attention.renamed(root),
        )

    def renamed_argument(self, arg: Any) -> Any:
        """An argument or output with each tensor in the memory that it has now."""
        if isinstance(arg, (list, tuple)):
            return type(arg)(self.renamed_argument(item) for item in arg)
        if not isinstance(arg, TensorRef) or arg.buffer not in self.root:
            return arg
        name = self.root[arg.buffer]
        old, new = self.lowered.buffers[arg.buffer].spec, self.lowered.buffers[name].spec
        if arg.spec is old and (old.shape, old.stride) == (new.shape, new.stride):
            return TensorRef(name, new)
        return TensorRef(name, arg.spec.replace(offset=arg.spec.offset - old.offset + new.offset))


def _number(lowered: Lowered) -> None:
    for order, node in enumerate(lowered.nodes):
        node.order = order
