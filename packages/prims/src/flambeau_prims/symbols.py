"""Which symbol a size is, and where the inputs of a graph hold the value of each symbol.

    x: f32[s0, 2*s1 + 1], n = s2   ->   s0: size 0 of x;  s1: (size 1 of x - 1) // 2;  s2: n

An int input of a graph is listed as its Expr, a float input as the int symbol of its bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from flambeau_prims.graph import Value
from flambeau_prims.size_floats import FloatExpr
from flambeau_prims.sizes import Expr, current
from flambeau_prims.spec import Spec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from flambeau_prims.graph import Graph


class SymbolRead(NamedTuple):
    """Where a symbol's value is read: from the int (or float) input number `input`, or from its
    size or stride in dimension `dim`, which is scale*symbol + shift.
    """

    input: int
    dim: int | None = None
    is_stride: bool = False
    scale: int = 1
    shift: int = 0

    def value(self, inputs: Sequence[Any]) -> Any:
        """The symbol's value for these inputs."""
        value = inputs[self.input]
        if self.dim is None:
            return value
        extent = value.stride(self.dim) if self.is_stride else value.shape[self.dim]
        if self.scale == 1 and not self.shift:
            return extent
        return (extent - self.shift) // self.scale


def symbol_name(size: object) -> str | None:
    """The name of a size or symbolic float that is one plain symbol, else None."""
    return size.symbol if isinstance(size, (Expr, FloatExpr)) else None


def affine(size: object) -> tuple[str, int, int] | None:
    """(s, scale, shift) if the size is scale*s + shift for one symbol s, else None."""
    if not isinstance(size, Expr):
        return None
    terms = dict(size.terms)
    shift = terms.pop((), 0)
    if len(terms) != 1:
        return None
    ((monomial, scale),) = terms.items()
    atom = size.env.atoms[monomial[0]]
    if len(monomial) != 1 or atom.kind != "symbol":
        return None
    return atom.name, scale, shift


def symbol_reads(
    inputs: Iterable[object], *, strides: bool = False, derived: bool = False
) -> dict[str, SymbolRead]:
    """For each symbol that the inputs (Specs or Values; Exprs or FloatExprs) hold, where.

    Plain symbols come first: int inputs, then sizes (with `strides`, strides too) of tensors in
    order. `derived` adds symbols that can only be solved from a size that is affine in them.
    """
    reads: dict[str, SymbolRead] = {}
    tensors: list[tuple[int, Spec]] = []
    for position, item in enumerate(inputs):
        spec = item.spec if isinstance(item, Value) else item
        if isinstance(spec, Spec):
            if spec.env is not None:
                tensors.append((position, spec))
        elif (name := symbol_name(spec)) is not None:
            reads.setdefault(name, SymbolRead(position))
    for position, spec in tensors:
        for is_stride, extents in ((False, spec.shape), (True, spec.stride if strides else ())):
            for dim, size in enumerate(extents):
                if (name := symbol_name(size)) is not None:
                    reads.setdefault(name, SymbolRead(position, dim, is_stride))
    for position, spec in tensors if derived else ():
        for dim, size in enumerate(spec.shape):
            if (parts := affine(size)) is not None:
                name, scale, shift = parts
                read = SymbolRead(position, dim, scale=scale, shift=shift)
                reads.setdefault(name, read)
    return reads


def missing_symbols(graph: Graph) -> list[Expr]:
    """The symbols that `graph` uses and its inputs do not give, as bare Exprs; those too that its
    sizes have by equalities which were found since they were made.
    """
    if graph.env is None:
        return []
    used: set[str] = set()
    for expr in _sizes_in(graph):
        used |= expr.symbols()
        now = current(expr)
        if isinstance(now, Expr):
            used |= now.symbols()
    missing = used - symbol_reads(graph.inputs).keys()
    return [graph.env.bare_symbol(name) for name in graph.env.symbols if name in missing]


def _sizes_in(graph: Graph) -> set[Expr]:
    result: set[Expr] = set()
    specs: set[int] = set()
    _collect_exprs(graph.inputs, result, specs)
    for node in graph.nodes:
        _collect_exprs((node.args, node.kwargs, node.outputs), result, specs)
    _collect_exprs(graph.outputs, result, specs)
    return result


def _collect_exprs(args: Iterable[Any], found: set[Expr], specs: set[int]) -> None:
    """Add the Exprs in arguments to `found`, those of a Spec once: `specs` has the ids of these."""
    for arg in args:
        kind = type(arg)
        if kind is Value:
            spec = arg.spec
            if spec.env is not None and id(spec) not in specs:
                specs.add(id(spec))
                _collect_exprs((*spec.shape, *spec.stride, spec.offset), found, specs)
        elif isinstance(arg, Expr):
            found.add(arg)
        elif isinstance(arg, FloatExpr):
            _collect_exprs(arg.args, found, specs)
        elif isinstance(arg, (tuple, list)):
            _collect_exprs(arg, found, specs)
        elif isinstance(arg, dict):
            _collect_exprs(arg.values(), found, specs)
