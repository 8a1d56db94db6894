"""check_prims_graph: the rules of a graph of primitives, asserted. Run at the border in tests and
by the debug option.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims import sizes
from flambeau_prims.graph import Graph, Node, Value, format_node
from flambeau_prims.primitives import Kind, Prim
from flambeau_prims.size_floats import FloatExpr
from flambeau_prims.sizes import Expr

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_prims.spec import Spec


class GraphError(Exception):
    """A graph breaks a rule; the text has the node and the rule."""


def check_prims_graph(graph: Graph) -> None:
    """Raise GraphError unless every Value is defined once and before use, and every primitive call
    obeys its declaration.
    """
    defined = {value for value in graph.inputs if isinstance(value, Value)}
    if len(set(graph.inputs)) != len(graph.inputs):
        raise GraphError("an input occurs twice")
    names = {value.name for value in defined}
    for node in graph.nodes:
        for value in node.operands():
            if value not in defined:
                raise GraphError(f"{value} is used before it is defined: {format_node(node)}")
        for out in node.outputs:
            if out is None:
                continue
            if out in defined or out.name in names:
                raise GraphError(f"{out} is defined twice: {format_node(node)}")
            if out.producer is not node:
                raise GraphError(f"{out} does not know its producer: {format_node(node)}")
            defined.add(out)
            names.add(out.name)
        if isinstance(node.op, Prim):
            _check_call(node)
    for value in graph.live_at_exit():
        if value not in defined:
            raise GraphError(f"{value} leaves the graph undefined")
    for target, value in graph.writes:
        if target not in graph.inputs:
            raise GraphError(f"a write to {target}, which is no input")
        if not _same(target.spec.shape, value.spec.shape):
            raise GraphError(f"a write of {value.spec} to {target}: {target.spec}")


def _check_call(node: Node) -> None:
    prim = node.op
    if node.kwargs or len(node.args) != len(prim.params):
        raise GraphError(
            f"{prim} takes {len(prim.params)} positional arguments: {format_node(node)}"
        )
    for (name, kind), arg in zip(prim.params, node.args, strict=True):
        if not _MATCHES[kind](arg):
            raise GraphError(f"{prim}: {name} is {arg!r}, not {kind}: {format_node(node)}")
    if len(node.outputs) != 1 or node.outputs[0] is None:
        raise GraphError(f"{prim} has one result: {format_node(node)}")
    try:
        inferred = prim.infer(*[_specs(arg) for arg in node.args])
    except (TypeError, ValueError) as error:
        raise GraphError(f"{error}: {format_node(node)}") from error
    _check_result(node, inferred, node.outputs[0].spec)


def _check_result(node: Node, inferred: Spec, spec: Spec) -> None:
    if (
        spec.dtype is not inferred.dtype
        or spec.device != inferred.device
        or not _same(spec.shape, inferred.shape)
    ):
        raise GraphError(f"the result should be {inferred}: {format_node(node)}")
    if node.op.kind is Kind.VIEW and not _same_addresses(inferred, spec):
        raise GraphError(f"a view's result should be {inferred}: {format_node(node)}")


def _same_addresses(a: Spec, b: Spec) -> bool:
    """Whether two Specs of one shape address the same memory."""
    if any(sizes.known_eq(size, 0) for size in a.shape):
        return True
    return sizes.known_eq(a.offset, b.offset) and all(
        sizes.known_eq(x, y) or sizes.known_eq(size, 1)
        for x, y, size in zip(a.stride, b.stride, a.shape, strict=True)
    )


def _same(a: Sequence[Any], b: Sequence[Any]) -> bool:
    return len(a) == len(b) and all(map(sizes.known_eq, a, b))


def _specs(arg: Any) -> Any:
    if isinstance(arg, Value):
        return arg.spec
    return type(arg)(map(_specs, arg)) if isinstance(arg, (list, tuple)) else arg


def _is_size(arg: Any) -> bool:
    return isinstance(arg, (int, Expr)) and not isinstance(arg, bool)


def _is_number(arg: Any) -> bool:
    return isinstance(arg, (bool, int, float, Expr, FloatExpr))


def _is_dim(arg: Any) -> bool:
    return type(arg) is int and arg >= 0


_MATCHES = {
    "tensor": lambda arg: isinstance(arg, Value),
    "tensors": lambda arg: (
        isinstance(arg, (list, tuple)) and bool(arg) and all(isinstance(x, Value) for x in arg)
    ),
    "operand": lambda arg: isinstance(arg, Value) or _is_number(arg),
    "indices": lambda arg: (
        isinstance(arg, (list, tuple)) and all(x is None or isinstance(x, Value) for x in arg)
    ),
    "dim": _is_dim,
    "dims": lambda arg: isinstance(arg, tuple) and all(map(_is_dim, arg)),
    "size": _is_size,
    "sizes": lambda arg: isinstance(arg, tuple) and all(map(_is_size, arg)),
    "number": _is_number,
    "dtype": lambda arg: isinstance(arg, torch.dtype),
    "device": lambda arg: isinstance(arg, torch.device),
}
