"""Decide which values of a graph get separate memory, and which are computed inside their
readers.

    a = exp(x); b = add(a, 1)  ->  b only, if a has no other reader
    s = sum(a)                 ->  s

A value is realized if it must be: inputs, extern calls' results and operands, reductions, scans,
sorts, outputs and writes, operands of as_strided, padded bytes, boundaries of searches; or if that
pays: several readers of something that is costly or reads much, a costly value that is broadcast or
read in windows. Views are never realized themselves: they are windows on their root's memory, or
index maps inlined with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch

from flambeau_inductor.lowering.body_builder import HALF_DTYPES
from flambeau_inductor.lowering.extern import updated_operands
from flambeau_inductor.scalar_ops import SCALAR_OPS
from flambeau_prims.flex_attention import EAGER, SCORES_OF, values_of_scores
from flambeau_prims.graph import Value, values_in
from flambeau_prims.primitives import PRIMS, STORED_DTYPES, Kind, Prim
from flambeau_prims.rules.view import view_stride
from flambeau_prims.sizes import hint_of

if TYPE_CHECKING:
    from flambeau_inductor.options import InductorOptions
    from flambeau_prims.graph import Graph, Node
    from flambeau_prims.spec import Size

CHEAP = {"cpu": 4, "cuda": 16}
"""A value below this cost may be computed again for every element of a broadcast: on a GPU that
waits for memory, sooner than one more kernel is launched.
"""

RECOMPUTED = {"cpu": 1, "cuda": 4}
"""A value of several readers is recomputed up to this many times `InductorOptions.inline_cost`: on
a GPU arithmetic is cheap beside memory.
"""

MAX_INLINE_CAT = 4
"""A cat of more tensors is realized, each part by a separate loop nest."""

FEWEST_PADDED = 1 << 18
"""Elements of a part that is worth a separate kernel beside its padding..."""

PADDED_RATIO = 16
"""...which has this many times fewer."""

PADDED_DEVICES = {"cuda"}
"""Where masks keep a kernel from computing once a row what it could."""

MAX_CHAIN = 200
"""A value whose expression costs more than this is realized, to bound the size of bodies."""

MAX_DEPTH = 40
"""Deeper expressions are realized, as elements are computed by Python recursion."""

MOVED_COST = 96
"""A value read at several places for one element of its readers (pooling reads a window) is stored
when recomputing it for each costs more adds than this.
"""


NESTS = frozenset((Kind.REDUCTION, Kind.SCAN, Kind.SORT, Kind.SCATTER))
"""Kinds that are loop nests of their own: their results have memory."""
_COSTS = {"random_words": SCALAR_OPS["philox"].cost}
"""Of primitives that are no scalar operators."""


@dataclass(slots=True)
class Traits:
    """The cost of one element of an unrealized value; `depth`: the nesting of operators."""

    cost: int
    depth: int
    reads: frozenset[Value]  # the realized roots it loads from


@dataclass(slots=True)
class Realized:
    """The decision: `values` have memory; `roots` maps views to the value they are windows on;
    `parted` are cats that keep parts of a value which they may overwrite, and those values;
    `overwritten` are written inputs, and the values that their memory may hold before the last one.
    """

    values: set[Value]
    roots: dict[Value, Value]
    parted: dict[Node, Value] = field(default_factory=dict)
    overwritten: set[Value] = field(default_factory=set)
    compared: set[Value] = field(default_factory=set)
    """Values whose elements are compared with their extremes: one kernel computes them, and others
    read them. A loop that computed them again could round otherwise.
    """

    def in_parts(self, node: Node) -> bool:
        """Whether each part of a cat is copied by a separate nest."""
        return is_written_in_parts(node) or node in self.parted

    def root(self, value: Value) -> Value:
        """The value whose memory this one is a window on: itself, unless it is a view."""
        return self.roots.get(value, value)


def result_of(node: Node) -> Value:
    """The one result of a primitive."""
    (value,) = node.outputs
    assert value is not None
    return value


def is_written_in_parts(node: Node) -> bool:
    """Whether a cat has many parts; or a large one that is computed, and would be under a mask, and
    small ones that pad it.
    """
    parts: list[Value] = node.args[0]
    if len(parts) > MAX_INLINE_CAT:
        return True
    *small, large = sorted(map(_elements, parts))
    main = next(part for part in parts if _elements(part) == large)
    return (
        main.spec.device.type in PADDED_DEVICES
        and large >= FEWEST_PADDED
        and sum(small) * PADDED_RATIO <= large
        and main.producer is not None
        and isinstance(main.producer.op, Prim)
        and main.producer.op.kind is Kind.POINTWISE
    )


def is_view(node: Node) -> bool:
    """Whether the node's result is a window on its operand's memory."""
    if not isinstance(node.op, Prim) or node.op.kind is not Kind.VIEW:
        return False
    if node.op.name != "reshape":
        return True
    x = node.args[0].spec
    return view_stride(x.shape, x.stride, result_of(node).spec.shape) is not None


def view_roots(graph: Graph) -> dict[Value, Value]:
    """For every view of a graph the value whose memory it is a window on."""
    roots: dict[Value, Value] = {}
    for node in graph.nodes:
        if is_view(node):
            x: Value = node.args[0]
            roots[result_of(node)] = roots.get(x, x)
    return roots


def compared_with_extremes(graph: Graph) -> set[Value]:
    """The pointwise results that are compared for equality and of which an extreme is taken."""
    equalities: set[Value] = set()
    extremes: set[Value] = set()
    for node in graph.nodes:
        if node.op in (PRIMS["amax"], PRIMS["amin"]):
            extremes.add(_widened_from(node.args[0]))
        elif node.op in (PRIMS["eq"], PRIMS["ne"]) and len(set(node.operands())) > 1:
            equalities.update(_widened_from(value) for value in node.operands())
    return {
        value
        for value in equalities & extremes
        if value.spec.dtype.is_floating_point
        and value.producer is not None
        and isinstance(value.producer.op, Prim)
        and value.producer.op.kind is Kind.POINTWISE
    }


def _widened_from(value: Value) -> Value:
    """What a value is a view or a wider form of."""
    while (maker := value.producer) is not None and isinstance(maker.op, Prim):
        if maker.op.kind is not Kind.VIEW and maker.op is not PRIMS["cast"]:
            break
        x: Value = maker.args[0]
        if x.spec.dtype.itemsize >= value.spec.dtype.itemsize and maker.op is PRIMS["cast"]:
            break
        value = x
    return value


def realize(graph: Graph, options: InductorOptions) -> Realized:
    """The values that get memory."""
    return _Realizer(graph, options).run()


def _is_narrow(image: Value) -> bool:
    """Whether an image is of bytes that are computed, on a CPU: to copy these costs less than to
    compute them beside the margin. The kernel of the product before them does, from sums in the
    cache. Bytes that are only moved are read where they lie.
    """
    if image.spec.device.type != "cpu" or image.spec.dtype not in (torch.int8, torch.uint8):
        return False
    maker = image.producer
    while maker is not None and isinstance(maker.op, Prim) and maker.op.kind is Kind.VIEW:
        maker = maker.args[0].producer
    return maker is not None and isinstance(maker.op, Prim)


class _Realizer:
    def __init__(self, graph: Graph, options: InductorOptions) -> None:
        self.graph = graph
        self.options = options
        self.must: set[Value] = set()
        self.broadcast: set[Value] = set()
        self.searched: set[Value] = set()
        """The values whose places among boundaries are searched."""
        self.compared = compared_with_extremes(graph)
        self.roots = view_roots(graph)
        self.readers: dict[Value, int] = {}
        """How many computing nodes read each value that is no view, through views or not."""
        self.users = graph.users()
        self.kernels: dict[Value, set[object]] = {}
        """The same, with reductions of one shape as one: these share a kernel."""
        self.parted: dict[Node, Value] = {}
        self.overwritten = {target for target, _ in graph.writes}
        self.windows: dict[Value, set[Value]] = {}
        """The slices through which each value is read."""
        self.traits: dict[Value, Traits] = {}
        self.scores = values_of_scores(graph)
        """What kernels of attention compute for each score."""

    def run(self) -> Realized:
        graph = self.graph
        self.must.update(value for value in graph.inputs if isinstance(value, Value))
        for value in graph.live_at_exit():
            self.require(value)
        for node in graph.nodes:
            self.scan(node)
        for node in graph.nodes:
            self.decide(node)
        return Realized(self.must, self.roots, self.parted, self.overwritten, self.compared)

    def kernel_of(self, node: Node) -> object:
        """What stands for the kernel of a node: for a reduction, and what only one reads, the dims
        that it reduces.
        """
        if isinstance(node.op, Prim) and node.op.kind is Kind.POINTWISE:
            users = self.users[result_of(node)]
            if len(users) == 1 and isinstance(users[0].op, Prim):
                node = users[0] if users[0].op.kind is Kind.REDUCTION else node
        if isinstance(node.op, Prim) and node.op.kind is Kind.REDUCTION:
            return (node.args[0].spec.shape, node.args[1])
        return node

    def require(self, value: Value) -> None:
        self.must.add(self.root(value))

    def root(self, value: Value) -> Value:
        return self.roots.get(value, value)

    def is_view(self, node: Node) -> bool:
        return bool(node.outputs) and node.outputs[0] in self.roots

    def scan(self, node: Node) -> None:
        """Note what a node demands of its operands, and that it reads them."""
        if not self.is_view(node):
            for root in dict.fromkeys(self.root(value) for value in node.operands()):
                self.readers[root] = self.readers.get(root, 0) + 1
                self.kernels.setdefault(root, set()).add(self.kernel_of(node))
            for value in node.operands():
                if value in self.roots and value.producer.op.name == "slice":  # type: ignore[union-attr]
                    self.windows.setdefault(self.root(value), set()).add(value)
        if node.op in EAGER:
            for value in node.operands():
                if value not in self.scores:
                    self.require(value)
            self.must.update(out for out in node.outputs if out and out not in self.scores)
        elif not isinstance(node.op, Prim) or node.op.name == "to_device" or not _in_kernels(node):
            updated = updated_operands(node)
            kept = [arg for at, arg in enumerate(node.args) if at not in updated]
            for value in values_in((kept, list(node.kwargs.values()))):
                self.require(value)
            self.must.update(out for out in node.outputs if out is not None)
        elif node.op.kind in NESTS:
            self.must.add(result_of(node))
        elif node.op.name == "as_strided" or (node.op.name == "pad" and _is_narrow(node.args[0])):
            self.require(node.args[0])
        elif node.op.name == "searchsorted":
            self.require(node.args[0])
            self.searched.add(self.root(node.args[1]))
        elif node.op.name == "expand":
            x, out = node.args[0], result_of(node)
            if _elements(out) > _elements(x):
                self.broadcast.add(self.root(x))
        elif node.op.name == "index":
            for position in node.args[1]:
                if position is not None and _elements(result_of(node)) > _elements(position):
                    self.broadcast.add(self.root(position))
        elif node.op.name == "cat":
            if is_written_in_parts(node):
                self.must.add(result_of(node))
            elif (base := self.kept_base(node)) is not None:
                self.parted[node] = base
                self.must.add(result_of(node))
                self.overwritten.add(result_of(node))
                self.require(base)
        scatters = isinstance(node.op, Prim) and node.op.kind is Kind.SCATTER
        copied = (0,) if scatters else updated_operands(node)
        for at, result in zip(copied, node.outputs, strict=False):
            if result is not None and self.root(node.args[at]) in self.overwritten:
                self.overwritten.add(result)

    def kept_base(self, node: Node) -> Value | None:
        """The written input, or what its memory holds, that a cat keeps parts of at their place."""
        parts, dim = node.args
        out = result_of(node).spec
        start: Size = 0
        for x in parts:
            base = self.root(x)
            if (
                base is not x
                and base in self.overwritten
                and base.spec.numel == out.numel
                and x.spec.stride == out.stride
                and x.spec.offset - base.spec.offset == start * out.stride[dim]
            ):
                return base
            start = start + x.spec.shape[dim]
        return None

    def decide(self, node: Node) -> None:
        if node.op in SCORES_OF:
            self.traits |= {out: Traits(0, 0, frozenset()) for out in node.outputs if out}
        if not isinstance(node.op, Prim) or node.op.kind in NESTS:
            return
        out = result_of(node)
        operands = list(dict.fromkeys(values_in(node.args)))
        if self.is_view(node):
            if self.root(out) not in self.must:
                traits = self.traits_of(node.args[0], within=out)
                self.traits[out] = replace(traits, depth=traits.depth + 1)
            return
        traits = self.combine(node, operands)
        self.traits[out] = traits
        if out in self.must:
            return
        if self.is_recomputed(out, traits) or out in self.scores:
            return
        several = self.readers.get(out, 0) > 1
        options = self.options
        if (
            traits.cost > MAX_CHAIN
            or traits.depth > MAX_DEPTH
            or (several and traits.cost > options.inline_cost * RECOMPUTED[out.spec.device.type])
            or self.is_cheaper_stored(out, traits)
            or traits.cost * (len(self.windows.get(out, ())) - 1) > MOVED_COST
            # The boundaries may come from the other reader: a value must equal its copy there.
            or (several and out in self.searched)
            or out in self.compared
            or (out in self.broadcast and traits.cost >= self.cheap(out, traits))
        ):
            self.store(out, node)

    def store(self, out: Value, node: Node) -> None:
        """Give a result memory: to a half-precision value that is widened, as it is rounded."""
        if node.op is PRIMS["cast"]:
            x: Value = node.args[0]
            if x not in self.roots and x.spec.dtype in HALF_DTYPES and x in self.traits:
                self.must.add(x)
                self.traits[out] = Traits(1, 1, frozenset((x,)))
                return
        self.must.add(out)

    def cheap(self, value: Value, traits: Traits) -> int:
        """The cost from which a value that is broadcast is stored: what is computed of results of
        reductions alone is stored by their kernel, without one more launch.
        """
        producers = [root.producer for root in traits.reads]
        reduced = bool(producers) and all(
            node is not None and isinstance(node.op, Prim) and node.op.kind is Kind.REDUCTION
            for node in producers
        )
        return CHEAP["cpu"] if reduced else CHEAP.get(value.spec.device.type, CHEAP["cpu"])

    def is_recomputed(self, value: Value, traits: Traits) -> bool:
        """Whether a value is index arithmetic, which tiles of a GPU compute once a row or lane."""
        on_gpu = value.spec.device.type != "cpu"
        return on_gpu and not traits.reads and max(traits.cost, traits.depth) <= MAX_CHAIN

    def is_cheaper_stored(self, value: Value, traits: Traits) -> bool:
        """Whether its readers move less memory if the value has some.

        Stored by the kernel of one reader, it is written once and read by the other ones; otherwise
        each other reader reads what it is computed from.
        """
        size = _elements(value)
        large = [root for root in traits.reads if 2 * _elements(root) >= size]
        reads: float = len(large)
        if value.spec.device.type != "cpu":
            # On a GPU, bytes count: half-precision operands of a float32 value take half its size.
            width = value.spec.dtype.itemsize
            reads = sum(min(1.0, root.spec.dtype.itemsize / width) for root in large)
        others = self.readers.get(value, 0) - 1
        if value.spec.device.type != "cpu":
            others = len(self.kernels.get(value, ())) - 1
        return others * reads > others + self.options.store_cost

    def combine(self, node: Node, operands: list[Value]) -> Traits:
        name = node.op.name
        own = SCALAR_OPS[name].cost if name in SCALAR_OPS else _COSTS.get(name, 2)
        parts = [self.traits_of(value, within=result_of(node)) for value in operands]
        reads = frozenset().union(*(part.reads for part in parts))
        depth = 1 + max((part.depth for part in parts), default=0)
        return Traits(own + sum(part.cost for part in parts), depth, reads)

    def traits_of(self, value: Value, within: Value) -> Traits:
        """The traits of an operand for each element of `within`."""
        root = self.root(value)
        if root in self.must:
            return Traits(0, 0, frozenset((root,)))
        traits = self.traits[value]
        if traits.cost > 1 and self.is_recomputed(value, traits):
            fewer = max(1, _elements(within)) // max(1, _elements(value))
            return Traits(max(1, traits.cost // max(1, fewer)), min(traits.depth, 1), traits.reads)
        return traits


def _in_kernels(node: Node) -> bool:
    """Whether kernels take the dtype of a primitive's result; else ATen copies it."""
    return node.op.kind is Kind.VIEW or result_of(node).spec.dtype in STORED_DTYPES


def _elements(value: Value) -> int:
    total = 1
    for size in value.spec.shape:
        total *= hint_of(size)
    return total
