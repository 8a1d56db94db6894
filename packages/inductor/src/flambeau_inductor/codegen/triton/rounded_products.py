"""Which products must be rounded before a sum reads them.

    v1 = mul v0 v0; v2 = reduce sum v1; v3 = div v2 n; v4 = sub v1 v3      ->  {v1}
    v2 = mul v0 v1; v3 = add v2 bias                                       ->  {}

LLVM contracts a product and a sum that reads it: `v4` becomes fma(v0, v0, -v3). The product in it
is exact, the one that `v3` was computed from is rounded. Where the two cancel in eager, their
difference remains here. So a product is rounded where the other operand of the sum

- is computed from the same product: a mean, a greatest element, a running sum;
- is loaded, and an earlier kernel computed it from all that the product's factors are loaded from,
  as that kernel may have computed the product, too;
- is a product as well: `a * b - b * a`;

and where a Reduce or a Scan subtracts from the product what it finds by the way. Other products are
contracted, which is more exact. The first kind costs nothing: as something else reads the product,
it is computed anyway. Triton contracts nothing where numerics are strict.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

import torch

from flambeau_inductor.codegen.triton.reductions import SUBTRACTING
from flambeau_inductor.ir import Compute, Load, Reduce, Scan, TileReduce, defined_name, operands

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from flambeau_inductor.ir import Body, LoopKernel, ScheduledKernel
    from flambeau_inductor.nodes import Node

CONTRACTED = frozenset({torch.float32, torch.float64})
"""The dtypes of arithmetic in floating point (law 6 of `ir`)."""

SUMS = frozenset({"add", "sub", "floor_divide"})
"""Operators that add to an operand: floor_divide subtracts the remainder."""

NOTHING: frozenset[str] = frozenset()


def rounded_products(
    body: Body, sources: Mapping[str, frozenset[str]] = MappingProxyType({})
) -> set[str]:
    """The products that must be rounded. `sources`: by buffer, those that earlier kernels computed
    it from.
    """
    products: dict[str, str] = {}
    """Of each product, and of each negated one, the name of the former."""
    within: dict[str, frozenset[str]] = {}
    """The products that a value is computed from."""
    loaded: dict[str, frozenset[str]] = {}
    """The buffers that a value is loaded from, or computed from loads of."""
    earlier: dict[str, frozenset[str]] = {}
    """The buffers that these were computed from."""
    rounded: set[str] = set()
    for statement in body:
        read = operands(statement)
        if isinstance(statement, Compute) and statement.op in SUMS:
            first, second = read
            for term, rest in ((first, second), (second, first)):
                product = products.get(term)
                if product is not None and (
                    (statement.op == "floor_divide" and term == first)
                    or rest in products
                    or product in within[rest]
                    or (loaded[product] and loaded[product] <= earlier[rest])
                ):
                    rounded.add(product)
        elif isinstance(statement, (Reduce, TileReduce, Scan)) and statement.kind in SUBTRACTING:
            rounded.update(products[name] for name in read if name in products)
        name = defined_name(statement)
        if name is None:
            continue
        of_buffer = {statement.buffer} if isinstance(statement, Load) else NOTHING
        within[name] = NOTHING.union(*(within[each] for each in read))
        loaded[name] = NOTHING.union(of_buffer, *(loaded[each] for each in read))
        earlier[name] = NOTHING.union(
            *(sources.get(each, NOTHING) for each in of_buffer), *(earlier[each] for each in read)
        )
        if isinstance(statement, Compute) and statement.dtype in CONTRACTED:
            if statement.op == "mul":
                products[name] = name
                within[name] |= {name}
            elif statement.op == "neg" and read[0] in products:
                products[name] = products[read[0]]
    return rounded


def factors(kernel: LoopKernel) -> set[tuple[str, ...]]:
    """The operands of each product of a kernel that must be rounded."""
    names = rounded_products(kernel.body) | set(kernel.rounded)
    return {s.args for s in kernel.body if isinstance(s, Compute) and s.name in names}


class Ancestors:
    """What each buffer of a program is computed from, in any number of steps."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.bits: dict[str, int] = {}
        self.above: dict[str, int] = {}
        """By buffer, a set of others, as bits of an integer: thousands of buffers are common."""
        for node in nodes:
            above = 0
            for name in node.reads:
                above |= self.above.get(name, 0) | self.bit(name)
            for name in node.writes:
                self.above[name] = self.above.get(name, 0) | above

    def bit(self, name: str) -> int:
        """The bit of a buffer."""
        return self.bits.setdefault(name, 1 << len(self.bits))

    def rounded(self, launch: ScheduledKernel, replaced: Mapping[str, str]) -> tuple[str, ...]:
        """The products of a launch that only other launches make it round. `replaced`: buffers
        whose memory others take, which this one writes.
        """
        kernel = launch.kernel
        sums = [s for s in kernel.body if isinstance(s, Compute) and s.op in ("add", "sub")]
        if not sums or not any(isinstance(s, Compute) and s.op == "mul" for s in kernel.body):
            return ()
        read = {new: old for old, new in replaced.items()}
        buffers = [read.get(name, name) for name in launch.buffers]
        names = [param.name for param in kernel.params]
        sources = {
            name: frozenset(self.among(self.above.get(buffer, 0), names, buffers))
            for name, buffer in zip(names, buffers, strict=True)
        }
        rounded = rounded_products(kernel.body, sources) if any(sources.values()) else set()
        return tuple(sorted(rounded - rounded_products(kernel.body))) if rounded else ()

    def among(self, above: int, names: Sequence[str], buffers: Sequence[str]) -> list[str]:
        """The parameters whose buffers are in a set."""
        pairs = zip(names, buffers, strict=True)
        return [name for name, buffer in pairs if above & self.bits.get(buffer, 0)]
