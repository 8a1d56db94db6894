"""The checker of graphs: what every Graph promises, in tests and under the debug option.

    check_graph(graph)                       # after any pass
    check_graph(graph, functional=True)      # after functionalization: no operator writes
    check_graph(graph, specs=True)           # each Spec of an ATen call is what the rule says

Calls of primitives are always checked against their declarations, views' addresses among them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._ops import OpOverload

from flambeau_prims.graph import Graph, Node, Value, format_graph, map_values, values_in
from flambeau_prims.philox import PATTERNS
from flambeau_prims.primitives import Kind, Prim
from flambeau_prims.rules.registry import infer, is_mutating
from flambeau_prims.size_floats import FloatExpr
from flambeau_prims.sizes import Expr, known_eq
from flambeau_prims.spec import Spec

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

_ARGUMENTS = (
    int, float, complex, bool, str, type(None), torch.dtype, torch.device, torch.layout,
    torch.memory_format, torch.Generator, Value, Expr, FloatExpr,
)  # fmt: skip
_PLAIN = frozenset(_ARGUMENTS) - {Expr, FloatExpr}
"""Of those types, the ones that belong to no SizeEnv."""


class GraphError(AssertionError):
    """A graph breaks a promise: a bug in the pass that made it. The text names the node."""


class SoundCalls:
    """Calls of primitives that agree with their declarations, and what they were when checked."""

    def __init__(self) -> None:
        self._checked: dict[Node, tuple[Any, ...]] = {}

    @staticmethod
    def _state(node: Node) -> tuple[Any, ...]:
        """All that the declaration speaks of: Specs are interned, and compare by identity."""
        specs = [value.spec for value in node.operands()]
        results = [out and out.spec for out in node.outputs]
        return node.op, node.args, node.kwargs, specs, results

    def holds(self, node: Node) -> bool:
        """Whether this very call was checked, and nothing in it was assigned since."""
        known = self._checked.get(node)
        if known is None:
            return False
        state = self._state(node)
        return all(a is b for a, b in zip(known[:3], state[:3], strict=True)) and (
            known[3:] == state[3:]
        )

    def add(self, node: Node) -> None:
        """Remember a call that has no problem."""
        self._checked[node] = self._state(node)


def check_graph(
    graph: Graph,
    *,
    functional: bool = False,
    specs: bool = False,
    constants: Collection[Value] = (),
    sound: SoundCalls | None = None,
) -> None:
    """Raise `GraphError` unless the graph keeps its promises; `constants` are outside it. A
    pipeline hands one `sound` to its checks: each pass leaves most calls as they were.
    """
    for problem in problems(
        graph, functional=functional, specs=specs, constants=constants, sound=sound
    ):
        raise GraphError(f"{problem}\n{format_graph(graph)}")


def problems(
    graph: Graph,
    *,
    functional: bool = False,
    specs: bool = False,
    constants: Collection[Value] = (),
    sound: SoundCalls | None = None,
) -> Iterator[str]:
    """Every broken promise, as text."""
    sound = SoundCalls() if sound is None else sound
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
        if isinstance(node.op, Prim):
            if not sound.holds(node):
                broken = list(_prim_problems(node))
                yield from broken
                if not broken:
                    sound.add(node)
        elif specs:
            yield from _spec_problems(node)
    yield from _exit_problems(graph, known)


def _node_problems(
    node: Node, known: set[Value], names: dict[str, Value], graph: Graph, functional: bool
) -> Iterator[str]:
    for arg in (*node.args, *node.kwargs.values()):
        if not _is_plain(arg):
            yield from (f"{node}: {text}" for text in _argument_problems(arg, graph))
    operands = list(node.operands())
    if operands != list(values_in((node.args, node.kwargs))):
        yield f"{node}: an argument was changed in place after its operands were read"
    for value in operands:
        if value not in known:
            yield f"{node}: {value} is read before it is defined"
    mutating = isinstance(node.op, OpOverload) and is_mutating(node.op)
    if mutating and functional:
        yield f"{node}: writes to an argument in a functional graph"
    for out in node.outputs:
        if out is None:
            continue
        if out in known:
            if not mutating:
                yield f"{node}: {out} is defined twice"
            continue
        known.add(out)
        if out.producer is not node:
            yield f"{node}: the producer of {out} is {out.producer}"
        yield from _value_problems(out, names, graph)


def _is_plain(arg: Any) -> bool:
    """Whether an argument, or each item of a list, has a type that may stand in any graph."""
    kind = type(arg)
    return kind in _PLAIN or (kind in (tuple, list) and _PLAIN.issuperset(map(type, arg)))


def _argument_problems(arg: Any, graph: Graph) -> Iterator[str]:
    if isinstance(arg, (tuple, list)):
        for item in arg:
            yield from _argument_problems(item, graph)
    elif isinstance(arg, (Expr, FloatExpr)):
        if arg.env is not graph.env:
            yield f"the size {arg} belongs to another SizeEnv than the graph's"
    elif not isinstance(arg, _ARGUMENTS):
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
            yield f"the output {value} is defined nowhere"
    for item in graph.outputs:
        if not isinstance(item, (Value, Expr, FloatExpr, int, float, type(None))):
            yield f"the output {item!r} is neither a Value nor a number nor None"
    for target, value in graph.writes:
        if target not in graph.inputs:
            yield f"{target} is written at exit but is no input"
        if value not in known:
            yield f"{value}, to be written to {target}, is defined nowhere"
        elif not _same(target.spec.shape, value.spec.shape):
            yield f"{value}: {value.spec!r} is to be written to {target}: {target.spec!r}"


def _spec_problems(node: Node) -> Iterator[str]:
    """Differences between the Specs of an ATen call's results and what the operator's rule says."""
    if is_mutating(node.op):
        return
    args = map_values(node.args, lambda value: value.spec)
    kwargs = map_values(node.kwargs, lambda value: value.spec)
    expected = infer(node.op, args, kwargs)
    expected = tuple(expected) if isinstance(expected, (tuple, list)) else (expected,)
    if len(expected) != len(node.outputs):
        yield f"{node}: {len(node.outputs)} results, where its operator gives {len(expected)}"
        return
    for value, spec in zip(node.outputs, expected, strict=True):
        if value is None or spec is None:
            continue
        have = value.spec
        strides = zip(have.shape, have.stride, spec.stride, strict=False)
        if not _same_kind(have, spec) or not all(
            size == 1 or known_eq(a, b) for size, a, b in strides
        ):
            yield f"{node}: {value} should be {spec!r}"


def _prim_problems(node: Node) -> Iterator[str]:
    """What in the call of a primitive its declaration forbids."""
    prim = node.op
    if node.kwargs or len(node.args) != len(prim.params):
        yield f"{node}: {prim} takes {len(prim.params)} positional arguments"
        return
    for (name, kind), arg in zip(prim.params, node.args, strict=True):
        if not _MATCHES[kind](arg):
            yield f"{node}: {name} is {arg!r}, not {kind}"
            return
    if len(node.outputs) != 1 or node.outputs[0] is None:
        yield f"{node}: {prim} has one result"
        return
    try:
        inferred = prim.infer(*map_values(node.args, lambda value: value.spec))
    except (TypeError, ValueError) as error:
        yield f"{node}: {error}"
        return
    spec = node.outputs[0].spec
    if not _same_kind(spec, inferred):
        yield f"{node}: the result should be {inferred}"
    elif prim.kind is Kind.VIEW and not _same_addresses(inferred, spec):
        yield f"{node}: a view's result should be {inferred}"


def _same_kind(a: Spec, b: Spec) -> bool:
    return (a.dtype, a.device) == (b.dtype, b.device) and _same(a.shape, b.shape)


def _same_addresses(a: Spec, b: Spec) -> bool:
    """Whether two Specs of one shape address the same memory."""
    if any(known_eq(size, 0) for size in a.shape):
        return True
    return known_eq(a.offset, b.offset) and all(
        known_eq(x, y) or known_eq(size, 1)
        for x, y, size in zip(a.stride, b.stride, a.shape, strict=True)
    )


def _same(a: Sequence[Any], b: Sequence[Any]) -> bool:
    return len(a) == len(b) and all(map(known_eq, a, b))


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
    "flag": lambda arg: isinstance(arg, bool),
    "dtype": lambda arg: isinstance(arg, torch.dtype),
    "device": lambda arg: isinstance(arg, torch.device),
    "pattern": PATTERNS.__contains__,
    "mode": ("mul", "max", "min").__contains__,
}
