"""The checker of graphs of ATen calls: what every Graph promises, and on demand what stage borders
add.

    check_graph(graph)                       # after any pass, in tests and under the debug flag
    # after functionalization: no operator writes to an argument
    check_graph(graph, functional=True)
    check_graph(graph, specs=True)           # also that each Spec is what the operator's rule says

Raises `MalformedGraph`, whose text names the node and prints the graph. `check.check_prims_graph`
adds the laws of primitives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._ops import OpOverload

from flambeau_prims.graph import Graph, Node, Value, format_graph, map_values, values_in
from flambeau_prims.rules.registry import infer, is_mutating
from flambeau_prims.size_floats import FloatExpr
from flambeau_prims.sizes import Expr, Size, known_eq
from flambeau_prims.spec import Spec

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

_ATOMS = (
    int,
    float,
    complex,
    bool,
    str,
    type(None),
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)
_OTHERS = (Value, Expr, FloatExpr, torch.Generator)


class MalformedGraph(AssertionError):
    """A graph breaks a promise: a bug in the pass that made it."""


def check_graph(
    graph: Graph,
    *,
    functional: bool = False,
    specs: bool = False,
    constants: Collection[Value] = (),
) -> None:
    """Raise `MalformedGraph` unless the graph, whose `constants` stand outside it, keeps its
    promises.
    """
    for problem in problems(graph, functional=functional, specs=specs, constants=constants):
        raise MalformedGraph(f"{problem}\n{format_graph(graph)}")


def problems(
    graph: Graph,
    *,
    functional: bool = False,
    specs: bool = False,
    constants: Collection[Value] = (),
) -> Iterator[str]:
    """Every broken promise, as text."""
    known: set[Value] = set(constants)
    names: dict[str, Value] = {}
    for item in graph.inputs:
        if isinstance(item, Value):
            if item in known:
                yield f"input {item} stands twice"
            known.add(item)
            yield from _value_problems(item, names, graph)
            if item.producer is not None:
                yield f"input {item} has a producer"
        elif not isinstance(item, Expr):
            yield f"input {item!r} is neither a Value nor an Expr"
    for node in graph.nodes:
        yield from _node_problems(node, known, names, graph, functional)
        if specs:
            yield from _spec_problems(node)
    yield from _exit_problems(graph, known)


def _node_problems(
    node: Node, known: set[Value], names: dict[str, Value], graph: Graph, functional: bool
) -> Iterator[str]:
    for arg in (*node.args, *node.kwargs.values()):
        yield from (f"{node}: {text}" for text in _argument_problems(arg, graph))
    for value in node.operands():
        if value not in known:
            yield f"{node}: {value} is read before it is made"
    mutating = isinstance(node.op, OpOverload) and is_mutating(node.op)
    if mutating and functional:
        yield f"{node}: writes to an argument in a functional graph"
    for out in node.outputs:
        if out is None:
            continue
        if out in known:
            if not mutating:
                yield f"{node}: {out} is made twice"
            continue
        known.add(out)
        if out.producer is not node:
            yield f"{node}: the producer of {out} is {out.producer}"
        yield from _value_problems(out, names, graph)


def _argument_problems(arg: Any, graph: Graph) -> Iterator[str]:
    if isinstance(arg, (tuple, list)):
        for item in arg:
            yield from _argument_problems(item, graph)
    elif isinstance(arg, (Expr, FloatExpr)):
        if arg.env is not graph.env:
            yield f"the size {arg} belongs to another SizeEnv than the graph's"
    elif not isinstance(arg, (*_ATOMS, *_OTHERS)):
        yield f"{arg!r} of type {type(arg).__name__} is no argument of a graph"


def _value_problems(value: Value, names: dict[str, Value], graph: Graph) -> Iterator[str]:
    if names.setdefault(value.name, value) is not value:
        yield f"two Values are called {value.name}"
    if not isinstance(value.spec, Spec):
        yield f"{value.name} has no Spec but {value.spec!r}"
    elif value.spec.env is not None and value.spec.env is not graph.env:
        yield f"the Spec of {value.name} belongs to another SizeEnv than the graph's"


def _exit_problems(graph: Graph, known: set[Value]) -> Iterator[str]:
    for value in values_in(list(graph.outputs)):
        if value not in known:
            yield f"the output {value} is made nowhere"
    for item in graph.outputs:
        if not isinstance(item, (Value, Expr, FloatExpr, int, float, type(None))):
            yield f"the output {item!r} is neither a Value nor a number nor None"
    for target, value in graph.writes:
        if target not in graph.inputs:
            yield f"{target} is written at exit but is no input"
        if value not in known:
            yield f"{value}, to be written to {target}, is made nowhere"
        elif not _same(target.spec.shape, value.spec.shape):
            yield f"{value} of shape {value.spec.shape} is to be written to {target} of shape {target.spec.shape}"


def _spec_problems(node: Node) -> Iterator[str]:
    """Differences between the Specs of a node's results and what the operator says; prims leave
    strides open.
    """
    args = map_values(node.args, lambda value: value.spec)
    kwargs = map_values(node.kwargs, lambda value: value.spec)
    is_aten = isinstance(node.op, OpOverload)
    if is_aten and is_mutating(node.op):
        return
    expected = infer(node.op, args, kwargs) if is_aten else node.op.infer(*args, **kwargs)
    expected = tuple(expected) if isinstance(expected, (tuple, list)) else (expected,)
    if len(expected) != len(node.outputs):
        yield f"{node}: {len(node.outputs)} results, where its operator gives {len(expected)}"
        return
    for value, spec in zip(node.outputs, expected, strict=True):
        if value is None or spec is None:
            continue
        have = value.spec
        same = (have.dtype, have.device) == (spec.dtype, spec.device) and _same(
            have.shape, spec.shape
        )
        if same and is_aten:
            strides = zip(have.shape, have.stride, spec.stride, strict=True)
            same = all(size == 1 or known_eq(a, b) for size, a, b in strides)
        if not same:
            yield f"{node}: {value} should be {spec!r}"


def _same(a: tuple[Size, ...], b: tuple[Size, ...]) -> bool:
    return len(a) == len(b) and all(known_eq(x, y) for x, y in zip(a, b, strict=True))
