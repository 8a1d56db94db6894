"""Symbolic sizes inside an fx graph: `s0*4 + 1` becomes nodes that compute it from the graph's
inputs.

A symbol is `aten.sym_size.int(x, dim)` of the input tensor that defines it, or a placeholder that
is an int or float; arithmetic is `operator.*` nodes. Each size is computed once, before its first
use.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import fx

from flambeau_capture.record import Input
from flambeau_capture.sources import RootOfSize, Source, TensorSize, TensorStride
from flambeau_prims import sizes
from flambeau_prims.size_floats import FloatExpr, is_float_symbol
from flambeau_prims.sizes import Expr, SizeEnv
from flambeau_prims.spec import Spec

BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
"""The arithmetic that the text of a size may hold."""
_CALLS: dict[str, Callable[..., Any]] = {
    "min": torch.sym_min, "max": torch.sym_max, "float": torch.sym_float, "abs": abs,
}  # fmt: skip


def symbol_name(size: Any) -> str | None:
    """The name of a size or float that is one plain symbol, else None."""
    if isinstance(size, FloatExpr):
        return size.symbol
    return str(size) if isinstance(size, Expr) and str(size) in size.env.symbols else None


def symbol_sources(inputs: Iterable[Input]) -> dict[str, Source]:
    """Where each symbol's int is read from: the first input tensor with it as a size, or the int
    input that it is.
    """
    found: dict[str, Source] = {}
    tensors: list[tuple[Source, Spec]] = []
    for item in inputs:
        if isinstance(item.spec, Spec):
            tensors.append((item.source, item.spec))
        elif (name := symbol_name(item.spec)) is not None:
            found.setdefault(name, item.source)
    for source, spec in tensors:
        for extents, kind in ((spec.shape, TensorSize), (spec.stride, TensorStride)):
            for dim, size in enumerate(extents):
                name = symbol_name(size)
                if name is not None:
                    found.setdefault(name, kind(source, dim))
    for source, spec in tensors:
        for dim, size in enumerate(spec.shape):
            if isinstance(size, Expr) and (affine := affine_in_a_symbol(size)) is not None:
                name, scale, shift = affine
                found.setdefault(name, RootOfSize(source, dim, scale, shift))
    return found


def affine_in_a_symbol(size: Expr) -> tuple[str, int, int] | None:
    """(s, scale, shift) if the size is scale*s + shift for one symbol s and scale > 0."""
    terms = dict(size.terms)
    shift = terms.pop((), 0)
    if len(terms) != 1:
        return None
    ((monomial, scale),) = terms.items()
    atom = size.env.atoms[monomial[0]]
    return (
        (atom.name, scale, shift)
        if len(monomial) == 1 and atom.kind == "symbol" and scale > 0
        else None
    )


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
        self._made: dict[str, tuple[Any, Any]] = {}

    def node(self, expr: Expr | FloatExpr) -> Any:
        """The node (or number) with the value of a size or symbolic float."""
        text = str(expr)
        found = self._made.get(text)
        if found is None:
            found = self._made[text] = self._emit(ast.parse(text, mode="eval").body, expr.env)
            if isinstance(found[0], fx.Node):
                found[0].meta["spec"] = expr
        return found[0]

    def _emit(self, tree: ast.expr, env: SizeEnv) -> tuple[Any, Any]:
        """(node or number, the size it is) of a subexpression; the size is None where it is a
        float.
        """
        text = ast.unparse(tree)
        if text in self._made:
            return self._made[text]
        match tree:
            case ast.Constant(value=value):
                made: tuple[Any, Any] = (value, value)
            case ast.Name(id=name):
                made = self._symbol(name, env)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                made = self._apply(operator.neg, operator.neg, [self._emit(operand, env)])
            case ast.BinOp(left=left, op=op, right=right):
                function = BINARY[type(op)]
                made = self._apply(
                    function, function, [self._emit(left, env), self._emit(right, env)]
                )
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=args):
                on_sizes = {"min": sizes.size_min, "max": sizes.size_max}.get(name)
                function = _CALLS.get(name) or getattr(math, name)
                made = self._apply(function, on_sizes, [self._emit(arg, env) for arg in args])
            case _:
                raise TypeError(f"no graph nodes for the size {text}")
        self._made[text] = made
        return made

    def _apply(
        self,
        function: Callable[..., Any],
        on_sizes: Callable[..., Any] | None,
        operands: list[tuple[Any, Any]],
    ) -> tuple[Any, Any]:
        args = tuple(node for node, _ in operands)
        values = [size for _, size in operands]
        exact = (
            on_sizes is not None
            and all(type(size) in (int, Expr) for size in values)
            and function is not operator.truediv
        )
        size = on_sizes(*values) if exact and on_sizes is not None else None
        if not any(isinstance(arg, fx.Node) for arg in args):
            return function(*args), size
        node = self._graph.call_function(function, args)
        node.meta["spec"] = size
        return node, size

    def _symbol(self, name: str, env: SizeEnv) -> tuple[Any, Any]:
        defined = self._unbacked(name)
        if defined is not None:
            return defined, None if is_float_symbol(name) else env.bare_symbol(name)
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
                return self._placeholder_of(source), self._placeholder_of(source).meta["spec"]
        size = env.make({(env.symbols[name].index,): 1})
        node.meta["spec"] = size
        return node, size

    def _call(self, target: Any, tensor: fx.Node, operand: int, name: str = "") -> fx.Node:
        """A node named as the symbol that it computes."""
        return self._graph.create_node("call_function", target, (tensor, operand), {}, name or None)
