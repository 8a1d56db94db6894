"""Whether a kernel may write a new buffer over a dead one while it reads that.

    for i: buf1[i] = tanh(buf0[i])         buf1 may take the memory of buf0
    for i: buf1[i] = buf0[i] + buf0[i+1]   may not: another point of the loop reads what is written

Each point of the loops must read the old buffer only where it writes the new one, and before that.
In a kernel with several loops over its rows a value may be computed again behind a store; so
nothing that comes from the old buffer may be used behind the nest that stores the new one, and that
nest must need all reductions of the kernel: otherwise its store runs in an earlier pass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flambeau_inductor.indexing.expressions import free_names
from flambeau_inductor.ir import Scan, Sort
from flambeau_inductor.nodes import ExternCall

if TYPE_CHECKING:
    from flambeau_inductor.nodes import LoopNest, Lowered
    from flambeau_inductor.scheduler.groups import Group

FRESH_RESULTS = frozenset({
    "aten.convolution.default", "aten.convolution_backward.default",
    "aten._scaled_dot_product_flash_attention.default",
    "aten._scaled_dot_product_flash_attention_for_cpu.default",
    "aten._scaled_dot_product_efficient_attention.default",
    "aten._scaled_dot_product_cudnn_attention.default",
    "aten.native_batch_norm.default", "aten.native_batch_norm_backward.default",
    "aten.cudnn_batch_norm.default", "aten.cudnn_batch_norm_backward.default",
    "aten._to_copy.default", "aten.index_put.default",
    "aten.bernoulli.p",
})  # fmt: skip
"""Calls whose results are known to have memory that nobody else holds."""


class Overwrites:
    """The judgement for one scheduled graph. `kept`: buffers of its outputs; `pinned`: buffers
    that others may alias.
    """

    def __init__(
        self, lowered: Lowered, groups: list[Group], kept: set[str], pinned: set[str]
    ) -> None:
        self.lowered = lowered
        self.pinned = pinned
        self.fresh = set()
        self.in_library: set[str] = set()
        for group in groups:
            node = group.nodes[0]
            if isinstance(node, ExternCall):
                self.in_library |= node.reads | node.writes
                if node.op in FRESH_RESULTS:
                    self.fresh |= node.writes
        # A recorded launch patches the addresses of what only our kernels touch; it copies others.
        private = lowered.graph.private_outputs
        public = lowered.outputs[: len(lowered.outputs) - private]
        self.public = {getattr(out, "buffer", None) for out in public} & kept

    def allows(self, group: Group, old: str, new: str) -> bool:
        """Whether `group`, the last to read `old`, may write `new` over it."""
        buffers = self.lowered.buffers
        role = buffers[old].role
        call = group.nodes[0]
        if isinstance(call, ExternCall):
            can = (old, new) in call.overwrites
            return can and old not in self.pinned and role == "computed"
        if (
            old in self.pinned
            or (role == "extern" and old not in self.fresh)
            or role == "input"
            or buffers[old].spec.dtype != buffers[new].spec.dtype
            or old in group.stores
            or old not in group.loads
            or group.loads[old] != group.stores.get(new)
            or len(group.loads[old]) != 1
        ):
            return False
        if new in self.public and group.device != "cpu":
            if old in self.in_library:
                return False
            self.in_library.discard(new)
        elif old in self.in_library:
            self.in_library.add(new)
        return self._reads_before_it_writes(group, old, new)

    def _reads_before_it_writes(self, group: Group, old: str, new: str) -> bool:
        (index,) = group.loads[old]
        axes = {axis.symbol.name for axis in group.outer}
        names = free_names(index)
        inner = {axis.symbol.name for axis in group.inner}
        values = {name for name in names if name[0] == "v" and name[1:].isdigit()}
        if values or not axes <= names:
            return False
        # What reduces columns is no pass over a row: it runs beside others, after its loads.
        nests = [node for node in group.nests if node.shares == 0]
        if any(isinstance(s, (Scan, Sort)) for nest in nests for s in nest.body):
            return False  # a row may be read in several passes
        writer = next(number for number, nest in enumerate(nests) if new in nest.stores)
        if any(load.mask for nest in group.nests for load in nest.loads.get(old, ())):
            return False
        reads = [number for number, nest in enumerate(nests) if old in nest.loads]
        if not reads or not inner:
            return bool(reads) and reads[0] <= writer
        derived = {old}
        last = 0
        for number, nest in enumerate(nests):
            if not derived.isdisjoint(nest.loads):
                derived.update(nest.stores)
                last = number
        return last <= writer and _in_last_pass(nests, writer)


def _in_last_pass(nests: list[LoopNest], writer: int) -> bool:
    """Whether a nest needs all reductions of its kernel. If not, its store may run with the first
    pass over a row, whatever its place in the program.
    """
    needed = set(nests[writer].loads)
    for number in range(writer - 1, -1, -1):
        if not needed.isdisjoint(nests[number].stores):
            needed |= nests[number].loads.keys()
        elif nests[number].inner:
            return False
    return not any(nest.inner for nest in nests[writer + 1 :])
