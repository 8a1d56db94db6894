"""Graph export: capture one call whole and hand it over as a value.

    exported = export(model, (x,), {"mask": m}, dynamic_shapes={"x": {0: Dim("batch")}})
    exported(y, mask=m2)              the same program, without the model
    exported.print_readable()
    exported.save(path)               and load(path), where the model's source is not

A call that cannot be captured whole, a size that the program fixes although `dynamic_shapes` says
that it varies, and a side effect that a graph cannot have are CaptureErrors that name the user's
line.

The `Lifter` turns the record of the capture into an ExportedGraph. Each placeholder is an argument
of the call, or a tensor that the program read elsewhere, which is lifted into the state. The result
becomes a tree, and side effects become mutations.
"""

from __future__ import annotations

import functools
import inspect
import re
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch

from flambeau_capture import record
from flambeau_capture.entries.entry import all_guards, graph_of, written_inputs
from flambeau_capture.entries.new_entry import current_state
from flambeau_capture.exported import tree as trees
from flambeau_capture.exported.contents import (
    Ambient,
    GraphInput,
    Mutation,
    SizeCondition,
    SizeSymbol,
)
from flambeau_capture.exported.dims import Dim, check_promises
from flambeau_capture.exported.graph import ExportedGraph
from flambeau_capture.exported.signature import bind_call, frame_sources, local_indices
from flambeau_capture.guards.constants import EXTENT
from flambeau_capture.guards.kinds import guard_text
from flambeau_capture.interpreter.capture import capture_frame
from flambeau_capture.interpreter.substitutes.modules import GLOBAL_HOOKS, OWN_HOOKS
from flambeau_capture.options import CaptureOptions
from flambeau_capture.reasons import REASONS
from flambeau_capture.sources import Argument, DictEntry, InstanceDict, Scope, Source, SourceLost
from flambeau_prims.size_floats import condition_of
from flambeau_prims.sizes import Expr
from flambeau_prims.spec import Spec, spec_of

if TYPE_CHECKING:
    from flambeau_capture.exported.dims import DeclaredSymbols
    from flambeau_capture.exported.signature import BoundCall


def export(
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
) -> ExportedGraph:
    """The graph of `fn(*args, **kwargs)`; CaptureError, with the user's line, where the call cannot
    be captured whole.

    `fn` is a function, a method, a functools.partial or an nn.Module. `dynamic_shapes` says which
    sizes may vary: a dict by parameter or a tuple by position, nested as the arguments are, with
    {dimension: Dim} or a tuple of Dims for each tensor, a Dim for an int that may vary, and None
    for what is static; `Dim.AUTO` alone lets every size vary that the program allows to.
    """
    if not isinstance(args, tuple):
        raise TypeError(
            f"args is the tuple of positional arguments, not a {type(args).__name__}: "
            f"export(fn, (x,))"
        )
    target = _target(fn)
    given, named = target.args + args, target.kwargs | (kwargs or {})
    sources = frame_sources(target.function, given, named, len(target.args))
    call = bind_call(target.signature, args, kwargs or {}, sources, dynamic_shapes)
    state, ambient = current_state(), Ambient.now()
    varies = any(True for _ in call.dims.declarations())
    dims: record.DynamicDims = call.dims if varies else record.DynamicDims(False)
    scope = _scope(target.function, given, named)
    captured = capture_frame(scope, CaptureOptions(fullgraph=True, exporting=True), dims)
    if isinstance(captured, record.Break):
        raise record.CaptureError(captured)
    symbols = next((made for made in call.dims.made if made.env is captured.size_env), None)
    if symbols is not None:
        check_promises(symbols)
    own = (*target.args, *target.kwargs.values())
    lifter = Lifter(captured, target.owner, own, call, symbols)
    guards = [_guard_text(guard) for guard in all_guards(captured, state)]
    return lifter.exported(_name(fn), guards, ambient)


def _guard_text(guard: record.Guard) -> str:
    """A guard in the user's terms, symbols by their names: `batch >= 2`."""
    if guard.kind != "RELATION":
        return guard_text(guard)
    extent = guard.payload.names.get(EXTENT.symbol)
    names = {} if extent is None else {EXTENT.symbol: extent.text()}
    text: str = guard.payload.condition.format(names)
    return text


@dataclass(frozen=True, slots=True)
class _Target:
    """What is captured: a function, its leading arguments, and the signature for the caller."""

    function: types.FunctionType
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    signature: inspect.Signature
    owner: torch.nn.Module | None


def _target(fn: Any) -> _Target:
    if isinstance(fn, functools.partial):
        inner = _target(fn.func)
        return _Target(
            inner.function,
            inner.args + fn.args,
            inner.kwargs | fn.keywords,
            inspect.signature(fn),
            inner.owner,
        )
    if isinstance(fn, torch.nn.Module):
        method: Any = fn.forward if _only_forward(fn) else types.MethodType(type(fn).__call__, fn)
        return _Target(method.__func__, (fn,), {}, inspect.signature(fn.forward), fn)
    if isinstance(fn, types.MethodType) and isinstance(fn.__func__, types.FunctionType):
        owner = fn.__self__ if isinstance(fn.__self__, torch.nn.Module) else None
        return _Target(fn.__func__, (fn.__self__,), {}, inspect.signature(fn), owner)
    if isinstance(fn, types.FunctionType):
        return _Target(fn, (), {}, inspect.signature(fn), None)
    called = inspect.getattr_static(type(fn), "__call__", None)
    if not isinstance(called, types.FunctionType):
        raise TypeError(f"export takes a Python function, a method or an nn.Module, not {fn!r}")
    return _Target(called, (fn,), {}, inspect.signature(fn), None)


def _only_forward(module: torch.nn.Module) -> bool:
    """Whether calling the module is calling its class's forward and nothing else."""
    return (
        type(module).__call__ is torch.nn.Module.__call__
        and module._compiled_call_impl is None
        and isinstance(module.forward, types.MethodType)
        and isinstance(module.forward.__func__, types.FunctionType)
        and module.forward.__self__ is module
        and not any(getattr(module, name) for name in OWN_HOOKS)
        and not any(getattr(torch.nn.modules.module, name) for name in GLOBAL_HOOKS)
    )


def _scope(function: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Scope:
    """The call, with arguments bound in the order of the frame's fast locals."""
    bound = inspect.signature(function, follow_wrapped=False).bind(*args, **kwargs)
    bound.apply_defaults()
    order = local_indices(bound.signature)
    return Scope(function, tuple(bound.arguments[name] for name in order))


def _name(fn: Any) -> str:
    if isinstance(fn, functools.partial):
        return _name(fn.func)
    if isinstance(fn, torch.nn.Module):
        return type(fn).__name__
    return getattr(fn, "__qualname__", type(fn).__qualname__).rpartition("<locals>.")[2]


# ---------------------------------------------------------------- lifting


class Lifter:
    """Names the inputs of one captured call and turns its recipes into trees."""

    def __init__(
        self,
        capture: record.Capture,
        owner: torch.nn.Module | None,
        own: tuple[Any, ...],
        call: BoundCall,
        symbols: DeclaredSymbols | None,
    ) -> None:
        self.own = own
        """Arguments that the caller does not write: the module, what a partial binds."""
        self.capture, self.call, self.symbols = capture, call, symbols
        self.place = record.defined_at(capture.scope.function)
        self.state: dict[str, torch.Tensor] = {}
        self._leaf_of = {id(value): at for at, value in enumerate(call.inputs)}
        self._container_of = {id(value): at for at, value in enumerate(call.containers)}
        self._names = _state_names(owner)
        self._input_of = {item.value: item for item in capture.inputs}
        self._trees: dict[int, trees.Tree] = {}
        self._open: set[int] = set()
        for made in capture.calls:
            if made.untraced:
                raise self._error(
                    "export-effect", f"{made.where}: the program sets a state of torch"
                )
        self._graph_inputs = {item.value: self._graph_input(item) for item in capture.inputs}
        for item in capture.inputs:
            item.value.name = self._graph_inputs[item.value].name
        self.parts = graph_of(capture)
        read = {self._graph_inputs[item.value].name for item in self.parts.inputs}
        self.state = {name: tensor for name, tensor in self.state.items() if name in read}

    def exported(self, name: str, guards: list[str], ambient: Ambient) -> ExportedGraph:
        """The whole."""
        graph_module = self.parts.graph_module
        inputs = tuple(self._graph_inputs[item.value] for item in self.parts.inputs)
        mutations = (*self._writes(), *self._rebinds())
        result = self.tree(self.capture.result)
        return ExportedGraph(
            name=name,
            graph_module=graph_module,
            signature=self.call.signature,
            inputs=inputs,
            input_specs=tuple(map(self._leaf_spec, self.call.inputs)),
            result=result,
            state=self.state,
            symbols=tuple(self._symbols()),
            conditions=tuple(self._conditions()),
            guards=tuple(guards),
            mutations=mutations,
            ambient=ambient,
        )

    def _error(self, id: str, text: str) -> record.CaptureError:
        reason = REASONS[id]
        return record.CaptureError(
            record.Break(id, f"{text}: {reason.explanation}", self.place, reason.hint)
        )

    # ------------------------------------------------------------ inputs

    def _graph_input(self, item: record.Input) -> GraphInput:
        leaf = self._leaf(item)
        if leaf is not None:
            return GraphInput("argument", self.call.signature.paths[leaf], leaf)
        if not isinstance(item.example, torch.Tensor):
            raise self._error("export-input", f"{item.source.text()} is a number that varies")
        kind, names = self._lift(item.example, item.source)
        return GraphInput(kind, names[0], also=tuple(names[1:]))

    def _leaf(self, item: record.Input) -> int | None:
        """The leaf of the arguments that an input is."""
        if isinstance(item.example, torch.Tensor):
            return self._leaf_of.get(id(item.example))
        return next(
            (
                at
                for at, path in enumerate(self.call.signature.paths)
                if (said := self.call.dims.ints.get(item.source)) is not None and said.path == path
            ),
            None,
        )

    def _lift(
        self, tensor: torch.Tensor, source: Source
    ) -> tuple[Literal["parameter", "buffer", "constant"], list[str]]:
        """The kind and names of a tensor that is no argument; it joins the state."""
        found = self._names.get(id(tensor))
        if found is None:
            if self._is_callers(source):
                raise self._error(
                    "export-input",
                    f"a tensor is read from {source.text()}, inside an argument that "
                    f"export does not look into",
                )
            kind: Literal["parameter", "buffer", "constant"] = "constant"
            if isinstance(tensor, torch.nn.Parameter):
                kind = "parameter"
            elif (
                isinstance(source, DictEntry)
                and isinstance(source.base, DictEntry)
                and source.base.key == "_buffers"
            ):
                kind = "buffer"
            name = base = re.sub(r"\b[LG]\['(\w+)'\]", r"\1", source.text()).removeprefix("self.")
            at = 1
            while name in self.state:
                name, at = f"{base}_{at}", at + 1
            found = self._names[id(tensor)] = (kind, [name])
        self.state[found[1][0]] = tensor
        return found

    def _leaf_spec(self, value: Any) -> Spec | Expr:
        if not isinstance(value, torch.Tensor):
            (said,) = (
                item
                for item in self.capture.inputs
                if item.example is value and isinstance(item.spec, Expr)
            )
            assert isinstance(said.spec, Expr)
            return said.spec
        for item in self.capture.inputs:
            if item.example is value:
                assert isinstance(item.spec, Spec)
                return item.spec
        return spec_of(value)

    # ------------------------------------------------------------ sizes

    def _symbols(self) -> Iterator[SizeSymbol]:
        if self.symbols is None:
            return
        env = self.symbols.env
        for name, source in self.symbols.sources.items():
            lower, upper = getattr(source.dim, "min", 2), getattr(source.dim, "max", None)
            named = isinstance(source.dim, Dim)
            yield SizeSymbol(name, env.symbols[name].hint, lower, upper, source.path, named)

    def _conditions(self) -> Iterator[SizeCondition]:
        if self.capture.size_env is not None:
            known = set() if self.symbols is None else self.symbols.sources.keys()
            for guard in self.capture.size_env.guards:
                if condition_of(guard).symbols() <= known:
                    yield SizeCondition(str(guard), guard.where)

    # ------------------------------------------------------------ mutations

    def _writes(self) -> Iterator[Mutation]:
        for item in written_inputs(self.capture):
            at = next((at for at, used in enumerate(self.parts.inputs) if used is item), None)
            if at is not None:
                described = self._graph_inputs[item.value]
                yield Mutation("write", described.kind, described.name)

    def _rebinds(self) -> Iterator[Mutation]:
        """Attributes of the model that become graph outputs; other side effects are errors."""
        code = self.capture.scope.function.__code__
        own = (
            len(self.capture.scope.arguments) - 1
            if code.co_flags & inspect.CO_VARKEYWORDS
            else None
        )
        for side_effect in self.capture.side_effects:
            target = getattr(getattr(side_effect, "obj", None), "source", None)
            if own is not None and isinstance(target, Argument) and target.index == own:
                continue  # the dict of **kwargs is made for the call
            yield from self._rebind(side_effect)

    def _rebind(self, side_effect: record.SideEffect) -> Iterator[Mutation]:
        match side_effect:
            case record.SetAttr(obj=record.FromSource(source=owner), name=name, value=value):
                state = InstanceDict(owner)
                places = (DictEntry(DictEntry(state, "_buffers"), name), DictEntry(state, name))
                pairs = [(place, value) for place in places if self._has(place)]
            case record.ReplaceDict(
                obj=record.FromSource(source=DictEntry() as table), items=items
            ):
                pairs = [
                    (DictEntry(table, key.value), value)
                    for key, value in items
                    if isinstance(key, record.Const) and not _is_itself(value, table, key.value)
                ]
            case _:
                pairs = []
        if not pairs:
            raise self._error("export-effect", _side_effect_text(side_effect))
        for source, value in pairs:
            before = _loaded(source, self.capture)
            if before is self._existing(value):
                continue
            after = isinstance(value, record.FromGraph) and value.value in self.parts.outputs
            if not isinstance(before, torch.Tensor) or not after:
                raise self._error("export-effect", f"{source.text()} is set")
            assert isinstance(value, record.FromGraph)
            kind, names = self._lift(before, source)
            yield Mutation("rebind", kind, names[0], self.parts.outputs.index(value.value))

    def _is_callers(self, source: Source) -> bool:
        """Whether a source reads from an argument that the caller wrote."""
        base: Source | None = source
        while base is not None:
            source = base
            if any(_loaded(source, self.capture) is own for own in self.own):
                return False
            base = next(source.parents(), None)
        return isinstance(source, Argument)

    def _has(self, source: Source) -> bool:
        try:
            _loaded(source, self.capture)
        except SourceLost:
            return False
        return True

    def _existing(self, recipe: record.Recipe) -> Any:
        """The object from before the call that a recipe fetches, else the recipe itself."""
        if isinstance(recipe, record.FromGraph) and recipe.value in self._input_of:
            return self._input_of[recipe.value].example
        return (
            _loaded(recipe.source, self.capture)
            if isinstance(recipe, record.FromSource)
            else recipe
        )

    # ------------------------------------------------------------ results

    def tree(self, recipe: record.Recipe) -> trees.Tree:
        """The tree of a recipe; a recipe used twice is one node."""
        key = id(recipe)
        found = self._trees.get(key)
        if found is None:
            if key in self._open:
                raise self._error("export-result", "the result holds itself")
            self._open.add(key)
            found = self._trees[key] = self._tree(recipe)
            self._open.discard(key)
        return found

    def _tree(self, recipe: record.Recipe) -> trees.Tree:
        match recipe:
            case record.FromGraph(value=value):
                if value in self.parts.outputs:
                    return trees.Leaf(self.parts.outputs.index(value))
                return self._given(self._input_of[value].source)
            case record.FromSource(source=source):
                return self._given(source)
            case record.Const(value=value):
                if type(value) not in trees.PLAIN:
                    raise self._error("export-result", f"a {type(value).__qualname__} is returned")
                return trees.Constant(value)
            case record.SizeValue(expr=expr) if str(expr) in self.capture.unbacked:
                return trees.Leaf(self.parts.outputs.index(self.capture.unbacked[str(expr)]))
            case record.SizeValue(expr=expr):
                if any(name in self.capture.unbacked for name in expr.symbols()):
                    text = f"{expr} is returned, computed from a number that is in the data"
                    raise self._error("export-result", text)
                return trees.SizeOf(str(expr)) if expr.symbols() else trees.Constant(expr)
            case record.MakeTuple(items=items, cls=cls):
                return trees.Items(cls, tuple(map(self.tree, items)))
            case record.MakeSet(items=items, cls=cls):
                return trees.Items(cls, tuple(map(self.tree, items)))
            case record.MakeList(items=items, cls=cls, state=state):
                return trees.Items(cls, tuple(map(self.tree, items)), self._state(state))
            case record.MakeDict(items=pairs, cls=cls, factory=factory, state=state):
                made = None if factory is None else self._factory(factory)
                return trees.Entries(
                    cls,
                    tuple((self.tree(key), self.tree(item)) for key, item in pairs),
                    self._state(state),
                    made,
                )
            case record.MakeObject(cls=cls, state=state, slots=slots):
                return trees.Fields(cls, self._state({**state, **slots}))
            case record.CallRecipe(function=function, args=args, kwargs=kwargs):
                return self._made(function, args, kwargs)
        raise self._error(
            "export-result",
            f"{type(recipe).__name__.removeprefix('Make').lower()}: a function or a cell is "
            f"returned",
        )

    def _state(self, state: dict[str, record.Recipe] | None) -> tuple[tuple[str, trees.Tree], ...]:
        return tuple((name, self.tree(item)) for name, item in (state or {}).items())

    def _factory(self, recipe: record.Recipe) -> type | None:
        value = recipe.value if isinstance(recipe, record.Const) else None
        if value is not None and value not in trees.FACTORIES.values():
            raise self._error("export-result", f"a defaultdict of {value!r} is returned")
        return value

    def _made(
        self, function: Any, args: tuple[record.Recipe, ...], kwargs: dict[str, record.Recipe]
    ) -> trees.Tree:
        name = getattr(function, "__qualname__", "")
        if getattr(function, "__module__", "") == "torch.return_types":
            name = f"torch.return_types.{name}"
        if name not in trees.MAKERS:
            raise self._error("export-result", f"a {name or function!r} is returned")
        items = (*map(self.tree, args), *map(self.tree, kwargs.values()))
        return trees.Made(name, items, tuple(kwargs))

    def _given(self, source: Source) -> trees.Tree:
        """A result from before the call: an argument, a tensor of the state, a plain value."""
        value = _loaded(source, self.capture)
        if id(value) in self._leaf_of:
            return trees.Given(self._leaf_of[id(value)])
        if isinstance(value, torch.Tensor):
            return trees.Held(self._lift(value, source)[1][0])
        if type(value) in trees.PLAIN:
            return trees.Constant(value)
        if id(value) in self._container_of:
            return trees.GivenContainer(self._container_of[id(value)])
        if isinstance(value, tuple) and all(type(item) in trees.PLAIN for item in value):
            return trees.Items(type(value), tuple(map(trees.Constant, value)))
        raise self._error(
            "export-result",
            f"{source.text()}, a {type(value).__qualname__} that existed before the call, is "
            f"returned",
        )


def _state_names(
    owner: torch.nn.Module | None,
) -> dict[int, tuple[Literal["parameter", "buffer", "constant"], list[str]]]:
    """The tensors of a module by identity: kind and every name, as in `state_dict()`."""
    found: dict[int, tuple[Literal["parameter", "buffer", "constant"], list[str]]] = {}
    if owner is not None:
        for name, parameter in owner.named_parameters(remove_duplicate=False):
            found.setdefault(id(parameter), ("parameter", []))[1].append(name)
        for name, buffer in owner.named_buffers(remove_duplicate=False):
            found.setdefault(id(buffer), ("buffer", []))[1].append(name)
    return found


def _loaded(source: Source, capture: record.Capture) -> Any:
    return source.load(capture.scope)


def _is_itself(recipe: record.Recipe, table: Source, key: Any) -> bool:
    return isinstance(recipe, record.FromSource) and recipe.source is DictEntry(table, key)


def _side_effect_text(side_effect: record.SideEffect) -> str:
    match side_effect:
        case record.SetAttr(obj=record.FromSource(source=source), name=name):
            return f"{source.text()}.{name} is set"
        case record.CallSideEffect(function=function):
            return f"{getattr(function, '__qualname__', function)} is called for its effect"
    target = getattr(side_effect, "obj", None)
    if isinstance(target, record.FromSource):
        return f"{target.source.text()} is changed"
    name = getattr(side_effect, "name", "")
    return f"{type(side_effect).__name__} {name}".strip()
