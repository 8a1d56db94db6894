"""Symbolic sizes inside an fx graph: `s0*4 + 1` becomes nodes that compute it from the graph's
inputs.

A symbol is `aten.sym_size.int(x, dim)` of the input tensor that defines it, or a placeholder that
is an int or float; arithmetic is `operator.*` nodes. Each size is computed once, before its first
use.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import fx

from flambeau_capture.record import Input
from flambeau_capture.sources import RootOfSize, Source, TensorSize, TensorStride
from flambeau_prims.size_floats import SYMBOLIC_FUNCTIONS, FloatExpr
from flambeau_prims.sizes import Atom, Expr, ExprEnv, Monomial, ordered_terms
from flambeau_prims.symbols import SymbolRead, symbol_reads

_OPAQUE: dict[str, Callable[..., Any]] = {
    "floordiv": operator.floordiv, "mod": operator.mod, "min": torch.sym_min, "max": torch.sym_max,
}  # fmt: skip


def symbol_sources(inputs: Iterable[Input]) -> dict[str, Source]:
    """The source of each symbol: an int, or a tensor with it (or a multiple) as its first size."""
    items = list(inputs)
    reads = symbol_reads([item.spec for item in items], strides=True, derived=True)
    return {name: _source(items[read.input].source, read) for name, read in reads.items()}


def _source(base: Source, read: SymbolRead) -> Source:
    if read.dim is None:
        return base
    if read.is_stride:
        return TensorStride(base, read.dim)
    if (read.scale, read.shift) == (1, 0):
        return TensorSize(base, read.dim)
    return RootOfSize(base, read.dim, read.scale, read.shift)


class SizeNodes:
    """The nodes of one graph that hold sizes.

    `placeholder_of(source)` gives the graph input loaded from a source, `unbacked(name)` the node
    of a symbol that the graph defines.
    """

    def __init__(
        self,
        graph: fx.Graph,
        sources: dict[str, Source],
        placeholder_of: Callable[[Source], fx.Node],
        unbacked: Callable[[str], fx.Node | None] = lambda name: None,
    ) -> None:
        self._graph = graph
        self._sources = sources
        self._placeholder_of = placeholder_of
        self._unbacked = unbacked
        self._emitted: dict[Any, Any] = {}
        """Nodes (or numbers) by what they compute: terms of a size, an atom, or a FloatExpr."""

    def node(self, number: Any) -> Any:
        """The node (or number) with the value of a size or symbolic float."""
        if isinstance(number, Expr):
            node = self._sum(number.env, tuple(ordered_terms(number)))
            if isinstance(node, fx.Node):
                node.meta["spec"] = number
            return node
        if not isinstance(number, FloatExpr):
            return number
        node = self._emitted.get(number)
        if node is None:
            name = number.symbol
            node = self._emitted[number] = (
                self._apply(SYMBOLIC_FUNCTIONS[number.op], *map(self.node, number.args))
                if name is None
                else self._symbol(name, number.env)
            )
            if isinstance(node, fx.Node):
                node.meta["spec"] = number
        return node

    def _sum(self, env: ExprEnv, terms: tuple[tuple[Monomial, int], ...]) -> Any:
        node = self._emitted.get(terms)
        if node is None:
            *rest, (monomial, coefficient) = terms
            if rest:
                left = self._sum(env, tuple(rest))
                function = operator.add if coefficient > 0 else operator.sub
                node = self._apply(function, left, self._sum(env, ((monomial, abs(coefficient)),)))
            else:
                node = self._product(env, monomial, coefficient)
            if isinstance(node, fx.Node) and node.meta["spec"] is None:
                node.meta["spec"] = env.make(dict(terms))
            self._emitted[terms] = node
        return node

    def _product(self, env: ExprEnv, monomial: Monomial, coefficient: int) -> Any:
        if not monomial:
            return coefficient
        if coefficient == -1:
            return self._apply(operator.neg, self._sum(env, ((monomial, 1),)))
        *rest, index = monomial
        if not rest and coefficient == 1:
            return self._atom(env, env.atoms[index])
        left = self._sum(env, ((tuple(rest), coefficient),))
        return self._apply(operator.mul, left, self._sum(env, (((index,), 1),)))

    def _atom(self, env: ExprEnv, atom: Atom) -> Any:
        node = self._emitted.get(atom)
        if node is None:
            node = self._emitted[atom] = (
                self._symbol(atom.name, env)
                if atom.kind == "symbol"
                else self._apply(_OPAQUE[atom.kind], *map(self.node, atom.args))
            )
        return node

    def _apply(self, function: Callable[..., Any], *args: Any) -> Any:
        if not any(isinstance(arg, fx.Node) for arg in args):
            return function(*args)
        node = self._graph.call_function(function, args)
        node.meta["spec"] = None
        return node

    def _symbol(self, name: str, env: ExprEnv) -> Any:
        defined = self._unbacked(name)
        if defined is not None:
            return defined
        source = self._sources[name]
        match source:
            case TensorSize(base=base, dim=dim):
                node = self._call(
                    torch.ops.aten.sym_size.int, self._placeholder_of(base), dim, name
                )
            case TensorStride(base=base, dim=dim):
                target = torch.ops.aten.sym_stride.int
                node = self._call(target, self._placeholder_of(base), dim, name)
            case RootOfSize(base=base, dim=dim, scale=scale, shift=shift):
                tensor = self._placeholder_of(base)
                node = self._call(torch.ops.aten.sym_size.int, tensor, dim)
                node.meta["spec"] = tensor.meta["spec"].shape[dim]
                if shift:
                    node = self._call(operator.sub, node, shift)
                    node.meta["spec"] = tensor.meta["spec"].shape[dim] - shift
                if scale != 1:
                    node = self._call(operator.floordiv, node, scale, name)
            case _:
                return self._placeholder_of(source)
        node.meta["spec"] = env.make({(env.symbols[name].index,): 1})
        return node

    def _call(self, target: Any, tensor: fx.Node, operand: int, name: str = "") -> fx.Node:
        """A node named as the symbol that it computes."""
        return self._graph.create_node("call_function", target, (tensor, operand), {}, name or None)
