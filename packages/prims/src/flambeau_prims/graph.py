"""The compiler's own graph: values, nodes, and the text they print as.

One Graph type serves every stage below the capture border. What differs is which operators may
appear (the stage borders check that): ATen overloads while tracing, functional ATen after
functionalization, primitives and extern ATen calls after decomposition.

    graph(x: f32[4, 8], w: f32[8, 8]) {
      y: f32[4, 8] = aten.mm.default(x, w)
      z: f32[4, 8] = prims.tanh(y)            # model.py:12
      return (z,)
    }
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from flambeau_prims.per_operator import per_operator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from flambeau_prims.sizes import Expr, SizeEnv
    from flambeau_prims.spec import Size, Spec


class Value:
    """A tensor in a graph: an input, or an output of a Node (`producer`). Compared by identity."""

    __slots__ = ("name", "producer", "spec")

    def __init__(self, name: str, spec: Spec, producer: Node | None = None) -> None:
        self.name = name
        self.spec = spec
        self.producer = producer

    def __repr__(self) -> str:
        return self.name


class Place(str):
    """The user's line of a call, its checkpointed region, whether it is in the backward, and the
    number of the custom Function that makes it there (0: none that takes several gradients).
    """

    __slots__ = ("function", "in_backward", "region")
    region: int
    in_backward: bool
    function: int

    def __new__(
        cls, line: str, region: int = 0, *, in_backward: bool = False, function: int = 0
    ) -> Place:
        """`line` is "file.py:12" or ""."""
        result = super().__new__(cls, line)
        result.region = region
        result.in_backward = in_backward
        result.function = function
        return result


Argument: TypeAlias = Any
"""Value | Size | float | bool | str | None | dtype | device | layout | memory_format, or lists and
tuples of these.
"""


class Node:
    """One call of one operator. `op` is a torch `OpOverload` (ATen) or a
    `flambeau_prims.primitives.Prim`.

    `outputs` has one entry a result, in order; an entry is None where the operator returns no
    tensor there. `where` is the user's source line that caused the call ("file.py:12"), or ""; a
    `Place` in a checkpointed region, or in the backward. `args` and `kwargs` may be assigned, but
    nothing inside of them changes: `operands` remembers what they hold.
    """

    __slots__ = ("_operands", "args", "kwargs", "op", "outputs", "where")

    def __init__(
        self,
        op: Any,
        args: tuple[Argument, ...],
        kwargs: dict[str, Argument],
        outputs: tuple[Value | None, ...] = (),
        where: str = "",
    ) -> None:
        self.op = op
        self.args = args
        self.kwargs = kwargs
        self.outputs = outputs
        self.where = where
        self._operands: tuple[Any, Any, tuple[Value, ...]] | None = None

    @property
    def region(self) -> int:
        """The number of the region whose results the backward recomputes; 0 outside any."""
        where = self.where
        return where.region if type(where) is Place else 0

    @property
    def in_backward(self) -> bool:
        """Whether a joint graph's backward makes the call."""
        where = self.where
        return type(where) is Place and where.in_backward

    @property
    def function(self) -> int:
        """The number of the custom Function whose backward makes the call; 0 outside of those."""
        where = self.where
        return where.function if type(where) is Place else 0

    def operands(self) -> tuple[Value, ...]:
        """Every Value this node reads, in argument order, repeats included."""
        args, kwargs, known = self.args, self.kwargs, self._operands
        if known is not None and known[0] is args and known[1] is kwargs:
            return known[2]
        found: list[Value] = []
        _collect_values(args, found)
        if kwargs:
            _collect_values(kwargs.values(), found)
        result = tuple(found)
        self._operands = args, kwargs, result
        return result

    def __repr__(self) -> str:
        return format_node(self)


@dataclass(eq=False)
class Graph:
    """A straight-line program over tensors.

    An input that is an Expr is an int argument: a bare symbol that no tensor input has as a dim.
    Every other symbol takes its value from the first tensor input with a dim that is the bare
    symbol. `outputs` may hold Values, Sizes (a symbolic int the program returns) and None. `writes`
    lists the mutations of inputs that remain after functionalization, as (input, new value): at
    exit the input's memory must hold the value, cast and laid out as the input is. `write_counts`
    says how far the version counter of an input moves: where it says nothing, by one if the input
    is written. Eager counts no write of batch norm's statistics, and counts `x.copy_(x)`. `env`
    owns the symbolic sizes, or is None when every size is an int. The last
    `private_outputs` outputs are read by the compiler's own backward only, not by the caller.
    `aligned` holds inputs that the caller can check to be aligned to 16 bytes, each with whether it
    must be: eager's draws depend on it. `frozen` holds inputs that are the same tensors, with the
    same numbers, in nearly all calls: what depends on nothing else may be computed once for them.
    """

    inputs: list[Value | Expr] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    outputs: list[Value | Size | None] = field(default_factory=list)
    writes: list[tuple[Value, Value]] = field(default_factory=list)
    env: SizeEnv | None = None
    name: str = "graph"
    write_counts: dict[Value, int] = field(default_factory=dict)
    private_outputs: int = 0
    aligned: dict[Value, bool] = field(default_factory=dict)
    frozen: frozenset[Value] = frozenset()
    stored_as: str = ""
    """What tells this graph apart from others that are made of one captured graph; "" where nothing
    but its text does.
    """
    short: ShortGraph | None = None
    """The same with fewer of its equal layers, where a stage before has it."""

    def counted_writes(self) -> list[tuple[Value, int]]:
        """Each input that is written, or whose version counter moves, and how far it moves."""
        written = dict.fromkeys([target for target, _ in self.writes], 1)
        counted = {**written, **self.write_counts}
        return [(value, count) for value, count in counted.items() if count or value in written]

    def users(self) -> dict[Value, list[Node]]:
        """For each Value, the nodes that read it, each once, in order."""
        result: dict[Value, list[Node]] = {
            value: [] for value in self.inputs if isinstance(value, Value)
        }
        for node in self.nodes:
            for value in dict.fromkeys(node.operands()):
                result.setdefault(value, []).append(node)
            for out in node.outputs:
                if out is not None:
                    result.setdefault(out, [])
        return result

    def live_at_exit(self) -> list[Value]:
        """The Values that outputs and writes keep alive."""
        return [out for out in self.outputs if isinstance(out, Value)] + [
            value for _, value in self.writes
        ]

    def __str__(self) -> str:
        return format_graph(self)


Address: TypeAlias = "tuple[int, int]"
"""What corresponds in all copies (the position in a copy), and the copy."""


@dataclass
class ShortGraph:
    """A graph of equal layers and one of fewer of them (`repeated_regions`).

    `graph` has `dropped` copies fewer than `whole`.

    `inputs`: of each input of the short graph, its position in the whole one. `input_classes`: of
    inputs that one copy reads, by position in the short graph, and `input_at` by address in the
    whole one. `values`: addresses of the Values that copies compute, by name in the short graph,
    None for others; `names`: their names and lines by address in the whole one. `outputs`: of each
    output of the whole graph its position in the short one, or the address of what it is.
    """

    whole: Graph
    graph: Graph
    dropped: int
    inputs: list[int] = field(default_factory=list)
    input_classes: dict[int, Address] = field(default_factory=dict)
    input_at: dict[Address, int] = field(default_factory=dict)
    values: dict[str, Address | None] = field(default_factory=dict)
    names: dict[Address, tuple[str, str]] = field(default_factory=dict)
    outputs: list[int | Address] = field(default_factory=list)


def discard(nodes: Iterable[Node], *kept: Graph) -> None:
    """Free calls that nobody uses any more, but for those that `kept` graphs hold. A call and its
    results refer to one another: else only the cyclic collector frees them, which visits all that
    was made while compiling.
    """
    held = {id(node) for graph in kept for node in graph.nodes}
    for node in nodes:
        if id(node) not in held:
            node.outputs = ()


def values_in(arg: Argument) -> Iterator[Value]:
    """The Values inside a (nested) argument, in order."""
    result: list[Value] = []
    _collect_values((arg,), result)
    return iter(result)


_LEAVES = frozenset((int, bool, float, complex, str, type(None), torch.dtype, torch.device))
"""The types of most arguments that hold no Values."""


def _collect_values(args: Iterable[Argument], found: list[Value]) -> None:
    # A list filled by plain recursion: passes spend much of their time here, and nested generators
    # take four times as long.
    for arg in args:
        kind = type(arg)
        if kind is Value:
            found.append(arg)
        elif kind in _LEAVES:
            continue
        elif isinstance(arg, (tuple, list)):
            _collect_values(arg, found)
        elif isinstance(arg, dict):
            _collect_values(arg.values(), found)


def map_values(arg: Argument, fn: Callable[[Value], Argument]) -> Argument:
    """A copy of a (nested) argument with each Value replaced by `fn(value)`."""
    kind = type(arg)
    if kind is Value:
        return fn(arg)
    if kind in _LEAVES:
        return arg
    if isinstance(arg, (tuple, list)):
        # Most items are plain: they need no call.
        items = [
            fn(item)
            if type(item) is Value
            else item
            if type(item) in _LEAVES
            else map_values(item, fn)
            for item in arg
        ]
        return items if isinstance(arg, list) else tuple(items)
    if isinstance(arg, dict):
        return {key: map_values(item, fn) for key, item in arg.items()}
    return arg


class _SpecTexts(dict["Spec", str]):
    """The texts of the Specs of a graph, which many Values share."""

    def __missing__(self, spec: Spec) -> str:
        text = self[spec] = repr(spec)
        return text


_name = per_operator(str)


def format_node(node: Node, texts: Mapping[Spec, str] | None = None) -> str:
    """One line: typed results, operator, arguments, and the user's line as a comment."""
    texts = _SpecTexts() if texts is None else texts
    results = ", ".join(
        "_" if out is None else f"{out.name}: {texts[out.spec]}" for out in node.outputs
    )
    args = [arg.name if type(arg) is Value else repr(arg) for arg in node.args] + [
        f"{key}={arg!r}" for key, arg in node.kwargs.items()
    ]
    line = (
        f"{results} = {_name(node.op)}({', '.join(args)})"
        if results
        else f"{_name(node.op)}({', '.join(args)})"
    )
    return f"{line}  # {node.where}" if node.where else line


def format_graph(graph: Graph) -> str:
    """The graph as text, as in this module's docstring."""
    texts = _SpecTexts()
    head = ", ".join(
        f"{value.name}: {texts[value.spec]}" if isinstance(value, Value) else f"{value}: int"
        for value in graph.inputs
    )
    lines = [f"{graph.name}({head}) {{"]
    lines += [f"  {format_node(node, texts)}" for node in graph.nodes]
    new = dict(graph.writes)
    lines += [
        f"  write {target.name} <- {new.get(target, target).name}"
        + (f" (counted {count})" if count != 1 or target not in new else "")
        for target, count in graph.counted_writes()
    ]
    lines += [f"  return ({', '.join(repr(out) for out in graph.outputs)})", "}"]
    return "\n".join(lines)
