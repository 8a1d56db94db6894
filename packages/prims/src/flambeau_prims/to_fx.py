"""Graph -> torch.fx.GraphModule, built in bulk.

    graph(x: f32[s0, 8]) {                               placeholder x
      y: f32[s0*8] = aten.view.default(x, [8*s0])   ->   s0 = aten.sym_size.int(x, 0); mul = operator.mul(s0, 8)
      return (y,)                                        y = aten.view.default(x, [mul]); output
                                                         (y,)
    }

`node.meta["spec"]` is the Spec (a tuple of them for several results, an Expr for a size). Sizes
become nodes, since fx arguments hold no Exprs: a symbol is read from the first input with a dim
that is that symbol. Constants become buffers of the module. `graph.writes` become `aten.copy_`
calls at the end.
"""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.fx._lazy_graph_module import _LazyGraphModule

from flambeau_prims.graph import Graph, Node, Value
from flambeau_prims.size_floats import FloatExpr
from flambeau_prims.sizes import Expr, Size, SizeEnv

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from flambeau_prims.sizes import Atom

aten = torch.ops.aten


class FxBuilder:
    """Appends nodes to an fx.Graph at a fifth of the cost of `fx.Graph.create_node`, with the same
    result.

    Arguments must hold nothing but what fx allows there, symbolic torch values excluded.
    """

    def __init__(self) -> None:
        self.graph = fx.Graph()
        self._namespace = self.graph._graph_namespace
        self._insert = self.graph._insert
        self._find = self.graph._find_nodes_lookup_table.insert

    def node(
        self,
        op: str,
        target: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        name: str,
        spec: Any = None,
    ) -> fx.Node:
        """A new node at the end; `name` is made unique, `spec` goes to `meta["spec"]`."""
        graph = self.graph
        unique = self._namespace.create_name(name, None)
        made = fx.Node(graph, unique, op, target, args, kwargs or {})
        self._namespace.associate_name_with_obj(unique, made)
        self._insert(made)
        self._find(made)
        graph._len += 1
        if spec is not None:
            made.meta["spec"] = spec
        return made

    def placeholder(self, name: str, spec: Any = None) -> fx.Node:
        """An input."""
        target = self._namespace.create_name(name, None)
        made = fx.Node(self.graph, target, "placeholder", target, (), {})
        self._namespace.associate_name_with_obj(target, made)
        self._insert(made)
        self._find(made)
        self.graph._len += 1
        made.meta["spec"] = spec
        return made

    def call(
        self,
        target: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        name: str = "",
        spec: Any = None,
        where: str = "",
    ) -> fx.Node:
        """A call_function node; `where` ("file.py:12") becomes `meta["where"]`, and
        `meta["stack_trace"]` for fx.
        """
        made = self.node(
            "call_function", target, args, kwargs, name=name or target.__name__, spec=spec
        )
        if where:
            made.meta["where"] = where
            file, _, line = where.rpartition(":")
            made.meta["stack_trace"] = f'File "{file}", line {line}' if line.isdigit() else where
        return made

    def output(self, result: Any) -> fx.Node:
        """The output node."""
        return self.node("output", "output", (result,), name="output")


class SizeNodes:
    """fx nodes that compute sizes, each symbol and subexpression once."""

    def __init__(self, builder: FxBuilder) -> None:
        self._builder = builder
        self._made: dict[Any, fx.Node] = {}
        self._sources: dict[Expr, tuple[fx.Node, int]] = {}

    def give(self, size: Expr, node: fx.Node) -> None:
        """Say that a node's value is this size."""
        self._made.setdefault(size, node)

    def give_shape(self, shape: tuple[Size, ...], tensor: fx.Node) -> None:
        """Say that a tensor node has this shape; sizes are read from it at first need."""
        for dim, size in enumerate(shape):
            if isinstance(size, Expr):
                self._sources.setdefault(size, (tensor, dim))

    def convert(self, arg: Any) -> Any:
        """An argument with every Expr and FloatExpr replaced by a node."""
        if isinstance(arg, Expr):
            return self._size(arg)
        if isinstance(arg, FloatExpr):
            return self._float(arg)
        if isinstance(arg, tuple):
            return tuple(self.convert(item) for item in arg)
        if isinstance(arg, list):
            return [self.convert(item) for item in arg]
        return arg

    def _size(self, size: Expr) -> fx.Node:
        found = self._made.get(size)
        if found is None:
            source = self._sources.get(size)
            if source is not None:
                name = str(size) if str(size).isidentifier() else "size"
                found = self._builder.call(aten.sym_size.int, source, name=name, spec=size)
            else:
                found = self._polynomial(size)
            self._made[size] = found
        return found

    def _polynomial(self, size: Expr) -> fx.Node:
        env = size.env
        if len(size.terms) == 1 and len(size.terms[0][0]) == 1 and size.terms[0][1] == 1:
            return self._atom(env, env.atoms[size.terms[0][0][0]])
        total: Any = None
        for monomial, coefficient in sorted(size.terms, key=lambda term: (-len(term[0]), term[0])):
            product: Any = None
            for index in monomial:
                factor = self.convert(env.make({(index,): 1}))
                product = (
                    factor
                    if product is None
                    else self._builder.call(operator.mul, (product, factor))
                )
            if product is None:
                product = coefficient
            elif coefficient != 1:
                product = self._builder.call(operator.mul, (product, coefficient))
            total = product if total is None else self._builder.call(operator.add, (total, product))
        total.meta["spec"] = size
        return total

    def _atom(self, env: SizeEnv, atom: Atom) -> fx.Node:
        if atom.kind == "symbol":
            raise ValueError(
                f"no input has a dim that is the symbol {atom.name}, so its value cannot be had"
            )
        target: Callable[..., Any] = {
            "floordiv": operator.floordiv,
            "mod": operator.mod,
            "min": torch.sym_min,
            "max": torch.sym_max,
        }[atom.kind]
        args = tuple(self.convert(arg) for arg in atom.args)
        return self._builder.call(target, args, spec=env.make({(atom.index,): 1}))

    def _float(self, number: FloatExpr) -> fx.Node:
        if isinstance(number.args[0], Expr) and number.op == "symbol":
            return self._size(number.args[0])
        args = tuple(self.convert(arg) for arg in number.args)
        return self._builder.call(_FLOAT_TARGETS[number.op], args, spec=number)


_FLOAT_TARGETS: dict[str, Callable[..., Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
    "min": torch.sym_min,
    "max": torch.sym_max,
    "float": torch.sym_float,
    "abs": operator.abs,
    "math.sqrt": torch.sym_sqrt,
} | {
    f"math.{name}": getattr(math, name)
    for name in (
        "cos",
        "cosh",
        "sin",
        "sinh",
        "tan",
        "tanh",
        "acos",
        "asin",
        "atan",
        "log2",
        "exp",
        "log",
    )
}


def to_fx(graph: Graph, constants: Mapping[Value, torch.Tensor] | None = None) -> fx.GraphModule:
    """The graph as a GraphModule; call it with one argument per graph input, it returns a tuple."""
    builder = FxBuilder()
    sizes = SizeNodes(builder)
    nodes: dict[Value, fx.Node] = {}
    root = torch.nn.Module()
    for item in graph.inputs:
        if isinstance(item, Value):
            nodes[item] = made = builder.placeholder(item.name, item.spec)
            sizes.give_shape(item.spec.shape, made)
        else:
            sizes.give(item, builder.placeholder(str(item), item))
    for value, real in (constants or {}).items():
        root.register_buffer(value.name, real, persistent=False)
        nodes[value] = builder.node("get_attr", value.name, name=value.name, spec=value.spec)
    for node in graph.nodes:
        _add_call(builder, sizes, nodes, node)
    for target, value in graph.writes:
        builder.call(
            aten.copy_.default, (nodes[target], nodes[value]), name="copy_", spec=target.spec
        )
    outputs = [_fx_argument(item, nodes, sizes) for item in graph.outputs]
    builder.output(tuple(outputs))
    module = lazy_graph_module(root, builder.graph, graph.name)
    module.meta["size_env"] = graph.env
    return module


def lazy_graph_module(
    root: torch.nn.Module, graph: fx.Graph, name: str = "GraphModule"
) -> fx.GraphModule:
    """A GraphModule that generates its Python code at first need: most are read node by node and
    never called.
    """
    return _LazyGraphModule(root, graph, name)


def _add_call(
    builder: FxBuilder, sizes: SizeNodes, nodes: dict[Value, fx.Node], node: Node
) -> None:
    args = tuple([_fx_argument(arg, nodes, sizes) for arg in node.args])
    kwargs = {key: _fx_argument(arg, nodes, sizes) for key, arg in node.kwargs.items()}
    outputs = node.outputs
    if len(outputs) == 1 and outputs[0] is not None and not _returns_sequence(node):
        value = outputs[0]
        made = builder.call(
            node.op, args, kwargs, name=value.name, spec=value.spec, where=node.where
        )
        # A written argument is its operator's result too: later readers must come after the write.
        nodes[value] = made
        return
    specs = tuple(None if value is None else value.spec for value in outputs)
    name = _call_name(node)
    made = builder.call(node.op, args, kwargs, name=name, spec=specs, where=node.where)
    for index, out in enumerate(outputs):
        if out is not None:
            nodes[out] = builder.call(operator.getitem, (made, index), name=out.name, spec=out.spec)


def _fx_argument(arg: Any, nodes: dict[Value, fx.Node], sizes: SizeNodes) -> Any:
    kind = type(arg)
    if kind is Value:
        return nodes[arg]
    if kind is list:
        return [_fx_argument(item, nodes, sizes) for item in arg]
    if kind is tuple:
        return tuple([_fx_argument(item, nodes, sizes) for item in arg])
    if kind is Expr or kind is FloatExpr:
        return sizes.convert(arg)
    return arg


def _returns_sequence(node: Node) -> bool:
    """Whether an operator with one recorded result returns a list of one (`aten.split`)."""
    schema = getattr(node.op, "_schema", None)
    return (
        schema is not None
        and len(schema.returns) == 1
        and isinstance(schema.returns[0].type, torch.ListType)
    )


def _call_name(node: Node) -> str:
    schema = getattr(node.op, "_schema", None)
    return node.op.__name__ if schema is None else schema.name.split("::")[-1]
