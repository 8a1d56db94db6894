"""Calls of a capture record -> a torch.fx.GraphModule of torch-level calls.

    calls:  v1 = torch.cos(v0); v2 = torch.sin(v1); wanted: [v2]
    ->  graph():  x = placeholder; cos = torch.cos(x); sin = torch.sin(cos); return (sin,)

Calls without side effect whose results nobody uses are dropped; so are inputs that nothing reads.
The module has no parameters: what the user's modules hold are placeholders, with their source and
Spec in `meta`.
"""

from __future__ import annotations

import ast
import functools
import keyword
import linecache
import operator
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import fx
from torch.utils.checkpoint import CheckpointPolicy

from flambeau_capture.graphs.size_nodes import SizeNodes, symbol_sources
from flambeau_capture.record import Call, Capture, GraphValue, Input
from flambeau_capture.sources import RootOfSize, Source, TensorSize, TensorStride
from flambeau_prims.fork_safety import fork_safe_lock
from flambeau_prims.size_floats import FloatExpr
from flambeau_prims.sizes import Expr
from flambeau_prims.sizes_node import to_symint
from flambeau_prims.spec import Spec

Lifted: TypeAlias = "GraphValue | Expr | FloatExpr"
"""What a subgraph reads of the graph around it."""

_LITERALS = (
    int,
    float,
    bool,
    complex,
    str,
    bytes,
    type(None),
    type(Ellipsis),
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    range,
)


def values_in(arg: Any) -> Iterator[GraphValue]:
    """The graph values inside a (nested) argument."""
    return _inside(arg, GraphValue)


def sizes_in(arg: Any) -> Iterator[Expr | FloatExpr]:
    """The symbolic sizes inside a (nested) argument."""
    return _inside(arg, (Expr, FloatExpr))


def _inside(arg: Any, kinds: Any) -> Iterator[Any]:
    if isinstance(arg, kinds):
        yield arg
    elif isinstance(arg, (tuple, list)):
        for item in arg:
            yield from _inside(item, kinds)
    elif isinstance(arg, dict):
        for item in arg.values():
            yield from _inside(item, kinds)
    elif isinstance(arg, slice):
        yield from _inside((arg.start, arg.stop, arg.step), kinds)


_NONE: Mapping[str, GraphValue] = types.MappingProxyType({})


def live_calls(
    calls: list[Call], wanted: Iterable[GraphValue], unbacked: Mapping[str, GraphValue] = _NONE
) -> list[Call]:
    """The calls with side effects or used results, in order; sizes use their symbols' values."""
    used = set(wanted)
    live = []
    for call in reversed(calls):
        if not call.pure or call.mutates or any(value in used for value in values_in(call.result)):
            live.append(call)
            used.update(values_in(call.args))
            used.update(values_in(call.kwargs))
            if unbacked:
                for size in (*sizes_in(call.args), *sizes_in(call.kwargs)):
                    used.update(unbacked[name] for name in size.symbols() if name in unbacked)
    live.reverse()
    return live


def build_graph_module(
    capture: Capture, wanted: list[GraphValue]
) -> tuple[fx.GraphModule, list[Input]]:
    """The graph that returns the `wanted` values, and the inputs of its placeholders, in order."""
    calls = live_calls(capture.calls, wanted, capture.unbacked)
    builder = _CaptureBuilder(capture, calls, wanted)
    module = builder.module(calls, wanted)
    module.meta["size_env"] = capture.size_env
    module.meta["observed_is_compiling"] = capture.observed_is_compiling
    return module, builder.inputs


def build_subgraph(
    parameters: list[GraphValue], calls: list[Call], results: list[GraphValue]
) -> tuple[fx.GraphModule, list[Lifted]]:
    """A graph for calls that a node of another graph holds, and what it reads of that graph. Its
    placeholders are `parameters`, then these tensors and sizes.
    """
    calls = live_calls(calls, results)
    builder = _SubgraphBuilder(parameters, calls, results)
    return builder.module(calls, results), builder.lifted


_GENERATING = fork_safe_lock()
_GENERATED = ("_code", "_lineno_map", "_prologue_start")


class CapturedGraphModule(fx.GraphModule):
    """A GraphModule that generates its code when run or printed: most backends read the graph."""

    def __init__(self, root: torch.nn.Module, graph: fx.Graph) -> None:
        object.__setattr__(self, "_deferred", True)
        super().__init__(root, graph, class_name="CapturedGraph")
        object.__setattr__(self, "_deferred", False)

    def recompile(self) -> Any:
        """Generate the code of the graph as it is now; during construction, put that off."""
        return None if self.__dict__.get("_deferred") else super().recompile()

    def forward(self, *args: Any) -> Any:
        """Run the graph. Code generation replaces this method in the module's own class."""
        own = vars(type(self))  # each GraphModule has another class
        if "forward" not in own:
            with _GENERATING:
                if "forward" not in own:
                    self.recompile()
        return own["forward"](self, *args)

    def print_readable(self, *args: Any, **kwargs: Any) -> str:
        """As torch.fx prints a graph, with the shapes and lines of this one."""
        with annotated(self.graph):
            return super().print_readable(*args, **kwargs)  # type: ignore[no-any-return]

    def __getattr__(self, name: str) -> Any:
        if name in _GENERATED and not self.__dict__.get("_deferred"):
            self.recompile()
            return self.__dict__[name]
        return super().__getattr__(name)


def _defined_by(
    unbacked: Mapping[str, GraphValue], nodes: Mapping[GraphValue, Any]
) -> Callable[[str], fx.Node | None]:
    """The node of a symbol that the graph defines. A method would keep the inputs alive."""

    def node(name: str) -> fx.Node | None:
        value = unbacked.get(name)
        return None if value is None else nodes[value]

    return node


class _Builder:
    """Makes nodes of calls; where the sizes in their arguments come from is a subclass's to say."""

    def __init__(self) -> None:
        self.graph = fx.Graph()
        self.constants = torch.nn.Module()
        self.nodes: dict[Any, Any] = {}
        self._names: set[str] = set()

    def size(self, size: Expr | FloatExpr) -> Any:
        """The node (or number) that a symbolic size is."""
        raise NotImplementedError

    def module(self, calls: list[Call], results: list[GraphValue]) -> CapturedGraphModule:
        """The module of the graph that makes these calls and returns these results."""
        for call in calls:
            self._add(call)
        output = self.graph.output(tuple(self.nodes[value] for value in results))
        output.meta["spec"] = tuple(value.spec for value in results)
        return CapturedGraphModule(self.constants, self.graph)

    def new_placeholder(self, hint: str, spec: Any, *, requires_grad: bool) -> fx.Node:
        """The next placeholder, named after what the user calls it."""
        node = self.graph.placeholder(self._placeholder_name(hint))
        node.meta.update(spec=spec, requires_grad=requires_grad)
        return node

    def _placeholder_name(self, hint: str) -> str:
        """A name that no placeholder has: it is also the name of a parameter."""
        base = re.sub(r"\W", "_", hint) or "arg"
        if base[0].isdigit() or keyword.iskeyword(base):
            base = f"_{base}"
        name, at = base, 0
        while name in self._names:
            at += 1
            name = f"{base}_{at}"
        self._names.add(name)
        return name

    def _add(self, call: Call) -> None:
        """Append the node of one call, and getitem nodes for the parts of its result."""
        args, kwargs = self._argument(call.args), self._argument(call.kwargs)
        result = call.result
        name = result.name if isinstance(result, GraphValue) and result.name else None
        node = self.graph.create_node(f"call_{call.kind}", call.target, args, kwargs, name)
        node.meta.update(where=call.where, stack_trace=call.where, pure=call.pure)
        if call.untraced:
            node.meta["untraced"] = True
        if call.region:
            # The last two are what torch's own partitioner looks for.
            policy = CheckpointPolicy.PREFER_RECOMPUTE
            node.meta.update(region=call.region, recompute=policy, ac_graph_id=call.region)
            if call.saves is not None:
                node.meta["region_saves"] = call.saves
        self._bind(node, result)

    def _bind(self, node: fx.Node, result: Any) -> None:
        node.meta["spec"] = _specs(result)
        if isinstance(result, GraphValue):
            # An in-place call may give its operand back: later readers take the newer node.
            self.nodes[result] = node
            node.meta["requires_grad"] = result.requires_grad
        elif isinstance(result, (tuple, list)):
            for at, item in enumerate(result):
                if any(True for _ in values_in(item)):
                    part = self.graph.call_function(operator.getitem, (node, at))
                    part.meta["where"] = node.meta["where"]
                    self._bind(part, item)
        elif isinstance(result, dict):
            for key, item in result.items():
                if any(True for _ in values_in(item)):
                    self._bind(self.graph.call_function(operator.getitem, (node, key)), item)

    def _argument(self, arg: Any) -> Any:
        if isinstance(arg, GraphValue):
            return self.nodes[arg]
        if isinstance(arg, (Expr, FloatExpr)):
            return self.size(arg)
        if isinstance(arg, torch.Size):
            return tuple(self._argument(item) for item in arg)
        if isinstance(arg, tuple):
            items = [self._argument(item) for item in arg]
            return type(arg)(*items) if hasattr(arg, "_fields") else tuple(items)
        if isinstance(arg, list):
            return [self._argument(item) for item in arg]
        if isinstance(arg, dict):
            return {key: self._argument(item) for key, item in arg.items()}
        if isinstance(arg, type):
            return _dtype_of_class(arg)
        if isinstance(arg, slice):
            return slice(
                self._argument(arg.start), self._argument(arg.stop), self._argument(arg.step)
            )
        if type(arg) in _LITERALS or isinstance(arg, (type, types.BuiltinFunctionType)):
            return arg
        return self._constant(arg)

    def _constant(self, value: Any) -> fx.Node:
        """An object that a node cannot hold: an attribute of the module, read by get_attr."""
        for name, held in self.constants.__dict__.items():
            if held is value:
                return self.graph.get_attr(name)
        name = f"constant_{sum(name.startswith('constant_') for name in self.constants.__dict__)}"
        object.__setattr__(self.constants, name, value)
        return self.graph.get_attr(name)


class _CaptureBuilder(_Builder):
    """Builds the graph of a capture, whose placeholders are the inputs that it reads."""

    def __init__(self, capture: Capture, calls: list[Call], wanted: list[GraphValue]) -> None:
        super().__init__()
        self.symbols = symbol_sources(capture.inputs)
        self.inputs = list(self._used_inputs(capture, calls, wanted))
        self.placeholders = {item.source: self._placeholder(item) for item in self.inputs}
        self._sizes = SizeNodes(
            self.graph,
            self.symbols,
            self.placeholders.__getitem__,
            _defined_by(capture.unbacked, self.nodes),
        )

    def size(self, size: Expr | FloatExpr) -> Any:
        """The nodes that compute it from the inputs."""
        return self._sizes.node(size)

    def _used_inputs(
        self, capture: Capture, calls: list[Call], wanted: list[GraphValue]
    ) -> Iterator[Input]:
        used = set(wanted)
        defining: set[Source] = set()
        for call in calls:
            used.update(values_in(call.args))
            used.update(values_in(call.kwargs))
            for size in (*sizes_in(call.args), *sizes_in(call.kwargs)):
                defining.update(
                    self._tensor_behind(self.symbols[name])
                    for name in size.symbols()
                    if name not in capture.unbacked
                )
        for item in capture.inputs:
            if item.value in used or item.source in defining:
                yield item

    @staticmethod
    def _tensor_behind(source: Source) -> Source:
        return source.base if isinstance(source, (RootOfSize, TensorSize, TensorStride)) else source

    def _placeholder(self, item: Input) -> fx.Node:
        requires_grad = getattr(item.example, "requires_grad", False)
        node = self.new_placeholder(item.value.name, item.spec, requires_grad=requires_grad)
        node.meta["source"] = item.source.text()
        if item.hooked:
            node.meta["hooked"] = True
        self.nodes[item.value] = node
        return node


class _SubgraphBuilder(_Builder):
    """Builds a graph whose inputs are parameters and what it reads of the graph around it."""

    def __init__(
        self, parameters: list[GraphValue], calls: list[Call], results: list[GraphValue]
    ) -> None:
        super().__init__()
        self.lifted = _read_from_outside(parameters, calls, results)
        for value in parameters:
            node = self._parameter(value)
            self.nodes.setdefault(value, node)
        for lifted in self.lifted:
            self.nodes[lifted] = self._parameter(lifted)

    def _parameter(self, value: Lifted) -> fx.Node:
        if isinstance(value, GraphValue):
            return self.new_placeholder(value.name, value.spec, requires_grad=value.requires_grad)
        return self.new_placeholder("size", value, requires_grad=False)

    def size(self, size: Expr | FloatExpr) -> Any:
        """The placeholder of a size, which is computed outside and passed as an int."""
        return self.nodes[size]


def _read_from_outside(
    parameters: list[GraphValue], calls: list[Call], results: list[GraphValue]
) -> list[Lifted]:
    """The values and sizes that calls read and do not compute, in the order of their first use."""
    known: set[Any] = set(parameters)
    found: dict[Lifted, None] = {}
    for call in calls:
        for arg in (call.args, call.kwargs):
            found.update((value, None) for value in values_in(arg) if value not in known)
            found.update((size, None) for size in sizes_in(arg))
        known.update(values_in(call.result))
    found.update((value, None) for value in results if value not in known)
    return list(found)


def _specs(result: Any) -> Any:
    if isinstance(result, GraphValue):
        return result.spec
    if isinstance(result, (tuple, list)):
        return (
            type(result)(map(_specs, result))
            if type(result) in (tuple, list)
            else tuple(map(_specs, result))
        )
    if isinstance(result, dict):
        return {key: _specs(item) for key, item in result.items()}
    return result


# ---------------------------------------------------------------- print_readable

_PRINTED = ("tensor_meta", "val", "stack_trace")


@contextmanager
def annotated(graph: torch.fx.Graph) -> Iterator[None]:
    """Give the nodes of a graph the meta that torch.fx prints."""
    before = [(node, {name: node.meta.get(name) for name in _PRINTED}) for node in graph.nodes]
    try:
        for node, _ in before:
            node.meta.update(_printed_meta(node))
        yield
    finally:
        for node, meta in before:
            for name, value in meta.items():
                node.meta[name] = value
                if value is None:
                    del node.meta[name]


def _dtype_of_class(cls: type) -> Any:
    """What a class names as a dtype (`dtype=int`, `x.type(torch.LongTensor)`), as generated code
    can spell it; other classes as they are.
    """
    if type(cls) is type(torch.FloatTensor):
        return f"{cls.__module__}.{cls.__name__}"
    return _DTYPES.get(cls, cls)


_DTYPES = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}


def _printed_meta(node: torch.fx.Node) -> Iterator[tuple[str, Any]]:
    from torch.fx.passes.shape_prop import TensorMetadata

    spec = node.meta.get("spec")
    if isinstance(spec, Spec):
        yield (
            "tensor_meta",
            TensorMetadata(
                torch.Size(spec.shape) if spec.env is None else spec.shape,  # type: ignore[arg-type]
                spec.dtype,
                bool(node.meta.get("requires_grad")),
                spec.stride,  # type: ignore[arg-type]
                None,
                False,
                {},
            ),
        )
    elif isinstance(spec, Expr):
        yield "val", to_symint(spec)
    file, _, line = str(node.meta.get("where", "")).rpartition(":")
    if file and line.isdigit():
        code = linecache.getline(file, int(line)).strip() or "?"
        yield (
            "stack_trace",
            f'File "{file}", line {line}, in {_function_at(file, int(line))}\n    {code}',
        )


def _function_at(file: str, line: int) -> str:
    """The name of the innermost function or class of a file that holds a line."""
    holders = [
        item for item in _functions("".join(linecache.getlines(file))) if item[0] <= line <= item[1]
    ]
    return max(holders)[2] if holders else "<module>"


@functools.lru_cache(maxsize=16)
def _functions(source: str) -> tuple[tuple[int, int, str], ...]:
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return ()
    return tuple(
        (node.lineno, node.end_lineno or node.lineno, getattr(node, "name", "<lambda>"))
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda))
    )
