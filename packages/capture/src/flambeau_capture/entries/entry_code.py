"""Recipes and side effects -> the Python function of an entry: it calls the graph, replays side
effects and rebuilds the result.

    def entry(x, weight, cache):
        out0, out1 = graph(x, weight)
        v0 = [out1]
        set_attribute(cache, 'last', v0)
        return (out0, v0)

Values keep their identity: each recipe object is built once, where it is first needed, and a
container that (indirectly) holds itself is made empty first and filled later.
"""

from __future__ import annotations

import collections
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from flambeau_capture import record
from flambeau_capture.entries.entry_functions import entry_function
from flambeau_capture.entries.state_snapshot import StateSnapshot
from flambeau_capture.sources import Source, TensorSize, TensorStride

_RECIPES = (
    record.FromSource, record.FromGraph, record.Const, record.SizeValue, record.MakeTuple,
    record.MakeList, record.MakeDict, record.MakeSet, record.MakeObject,
    record.MakeCell, record.MakeFunction, record.CallRecipe,
)  # fmt: skip
_INLINE_CONSTANTS = (int, bool, str, bytes, type(None), type(Ellipsis))


def _is_long(value: Any) -> bool:
    return type(value) is int and value.bit_length() > 64


_NO_RECIPES = frozenset({"globals", "module_globals"})
"""Fields of recipes and side effects that hold dicts of the program."""


def _parts(item: Any) -> Iterator[record.Recipe]:
    """The recipes directly inside a recipe or a side effect."""
    if isinstance(item, _RECIPES):
        yield item
    elif isinstance(item, (list, tuple)):
        for part in item:
            yield from _parts(part)
    elif isinstance(item, dict):
        for part in item.values():
            yield from _parts(part)


def _children(item: record.Recipe | record.SideEffect) -> Iterator[record.Recipe]:
    if not isinstance(item, (record.Const, record.FromSource, record.FromGraph, record.SizeValue)):
        for field in fields(item):
            if field.name not in _NO_RECIPES:
                yield from _parts(getattr(item, field.name))


def _needed(capture: record.Capture) -> tuple[record.Recipe, ...]:
    """What the entry evaluates after the side effects: its result, or its frames' arguments."""
    if not capture.suspended:
        return (capture.result,)
    return tuple(recipe for frame in reversed(capture.suspended) for recipe in frame.arguments)


def recipes_in(capture: record.Capture) -> tuple[list[record.Recipe], frozenset[int]]:
    """Every recipe once, in the order of need; and the ids of recipes that contain themselves."""
    found: dict[int, record.Recipe] = {}
    open_recipes: set[int] = set()
    cyclic: set[int] = set()
    pending = [
        _children(side_effect)
        for side_effect in (*capture.side_effects, record.CallRecipe(tuple, _needed(capture)))
    ]
    pending.reverse()
    path: list[record.Recipe] = []
    depths: list[int] = []
    while pending:
        recipe = next(pending[-1], None)
        if recipe is None:
            pending.pop()
            if depths and depths[-1] == len(pending):
                depths.pop()
                open_recipes.discard(id(path.pop()))
        elif id(recipe) in found:
            if id(recipe) in open_recipes or id(recipe) in cyclic:
                # It leads back to itself, or to the outermost on the path that does.
                ids = [id(step) for step in path]
                entered = [recipe_id == id(recipe) for recipe_id in ids]
                if id(recipe) not in open_recipes:
                    entered = [recipe_id in cyclic for recipe_id in ids]
                if True in entered:
                    cyclic.update(ids[entered.index(True) :])
        else:
            found[id(recipe)] = recipe
            open_recipes.add(id(recipe))
            path.append(recipe)
            depths.append(len(pending))
            pending.append(_children(recipe))
    return list(found.values()), frozenset(cyclic)


class EntryCode:
    """The source of one entry function and the constants it refers to.

    `inputs` are the sources it takes as positional parameters: the graph's first, then what recipes
    read. Containers of `cyclic` recipes are filled only when the whole value they belong to has
    been made; others each at once, so that what hashes or iterates them sees their contents.
    """

    def __init__(
        self,
        graph_inputs: Iterable[Source],
        outputs: list[record.GraphValue],
        symbols: Mapping[str, Source | record.GraphValue],
        source_of: dict[record.GraphValue, Source],
        *,
        cyclic: frozenset[int],
    ) -> None:
        self.text = ""
        self._source_of = source_of
        self._cyclic = cyclic
        self.inputs: list[Source] = list(graph_inputs)
        self._graph_input_count = len(self.inputs)
        self._parameters = {source: f"a{at}" for at, source in enumerate(self.inputs)}
        self._outputs = {value: f"out{at}" for at, value in enumerate(outputs)}
        self._symbols = symbols
        self.constants: dict[str, Any] = {}
        self._constant_names: dict[int, str] = {}
        self._pinned: dict[int, Source] = {}
        self._symbol_names: dict[str, str] = {}
        self._built: dict[int, str] = {}
        self._kept: list[record.Recipe] = []
        self._lines: list[str] = []
        self._fills: list[Callable[[], None]] = []
        self._building = 0

    def function(
        self,
        capture: record.Capture,
        graph: Callable[..., Any] | None,
        frames: Sequence[Callable[..., Any]] = (),
        *,
        may_run_again: bool = False,
        state_snapshot: StateSnapshot | None = None,
    ) -> types.FunctionType:
        """The entry function of a capture whose graph runs as `graph` (None: nothing to run).

        `frames` take up the capture's suspended frames: a Tail of the outermost is what the
        function returns. With `may_run_again`, it raises GraphFailed where the graph raises, with
        what `snapshots of state` save.
        """
        self._pinned = {id(value): source for value, source in capture.pinned}
        for side_effect in capture.side_effects:
            self._effect(side_effect)
        if capture.suspended:
            result = self._suspended(capture.suspended, frames)
        else:
            result = self.value(capture.result)
        head: list[str] = []
        if graph is not None:
            self.constants["graph"] = graph
            head = self._graph_call(capture, state_snapshot, may_run_again=may_run_again)
        parameters = ", ".join(self._parameters[source] for source in self.inputs)
        body = "".join(f"    {line}\n" for line in [*head, *self._lines, f"return {result}"])
        self.text = f"def entry({parameters}):\n{body}"
        name = getattr(capture.scope.function, "__qualname__", "function")
        return entry_function(self.text, name, self.constants)

    def _graph_call(
        self, capture: record.Capture, state_snapshot: StateSnapshot | None, *, may_run_again: bool
    ) -> list[str]:
        """The lines that call the graph and name its results."""
        arguments = ", ".join(
            self._parameters[source] for source in self.inputs[: self._graph_input_count]
        )
        targets = "".join(f"{name}, " for name in self._outputs.values())
        call = f"graph({arguments})"
        if not (capture.enables_grad or may_run_again):
            return [f"{targets}= {call}" if targets else call]
        lines = [f"outs = {call}"]
        if capture.enables_grad:
            lines = [
                "set_grad_enabled(True)",
                *_tried(lines),
                "finally:",
                "    set_grad_enabled(False)",
            ]
        if may_run_again:
            before = "before" if state_snapshot else "None"
            failed = f"    raise GraphFailed(error, {before}) from None"
            lines = [*_tried(lines), "except BaseException as error:", failed]
            if state_snapshot:
                self.constants["save"] = state_snapshot.save
                written = ", ".join([self.source(source) for source in state_snapshot.written])
                lines.insert(0, f"before = save({written})")
        return [*lines, f"{targets}= outs"] if targets else lines

    def _suspended(
        self, suspended: Sequence[record.SuspendedFrame], frames: Sequence[Callable[..., Any]]
    ) -> str:
        """The call of the frames; each gets a Tail of the next one as its last argument."""
        parts: list[str] = []
        for frame, function in zip(reversed(suspended), reversed(frames), strict=True):
            values = [self.value(recipe) for recipe in frame.arguments]
            if parts:
                values.append(f"Tail({', '.join(parts)})")
            parts = [self.constant(function), *values]
        return f"Tail({', '.join(parts)})"

    # ------------------------------------------------------------ values

    def value(self, recipe: record.Recipe) -> str:
        """An expression for the recipe's value; building it appends lines."""
        found = self._built.get(id(recipe))
        if found is not None:
            return found
        self._kept.append(recipe)
        self._building += 1
        text = _BUILDERS[type(recipe)](self, recipe)
        self._built[id(recipe)] = text
        self._building -= 1
        if self._building == 0:
            # Only whole values are handed out: fill the containers that were made empty on the way.
            while self._fills:
                self._building += 1
                self._fills.pop(0)()
                self._building -= 1
        return text

    def source(self, source: Source) -> str:
        """The parameter that holds what a source held when the call began."""
        found = self._parameters.get(source)
        if found is None:
            found = self._parameters[source] = f"a{len(self.inputs)}"
            self.inputs.append(source)
        return found

    def constant(self, value: Any) -> str:
        """An expression for an object known now."""
        if type(value) in _INLINE_CONSTANTS and not _is_long(value):
            return repr(value)  # of a long int, sys.set_int_max_str_digits may refuse it
        if id(value) in self._pinned:
            return self.source(self._pinned[id(value)])
        name = self._constant_names.get(id(value))
        if name is None:
            name = self._constant_names[id(value)] = f"k{len(self._constant_names)}"
            self.constants[name] = value
        return name

    def assign(self, expression: str) -> str:
        """A new variable with the value of an expression."""
        name = f"v{len(self._lines)}"
        self._lines.append(f"{name} = {expression}")
        return name

    def line(self, text: str) -> None:
        """One statement."""
        self._lines.append(text)

    def begin(self, recipe: record.Recipe, expression: str, fill: Callable[[str], None]) -> str:
        """A new empty object; `fill(name)` appends its contents after it can be referred to."""
        name = self.assign(expression)
        self._built[id(recipe)] = name
        if id(recipe) in self._cyclic:
            self._fills.append(lambda: fill(name))
        else:
            fill(name)
        return name

    def size(self, recipe: record.SizeValue) -> str:
        """An int (or float) computed from the inputs' sizes."""
        expr = recipe.expr
        if isinstance(expr, (int, float)):
            return self.constant(expr)
        names = {name: self._symbol(name) for name in sorted(expr.symbols())}
        text = expr.format(names)
        return self.assign(
            text if recipe.numeric is int else f"{self.constant(recipe.numeric)}({text})"
        )

    def _symbol(self, name: str) -> str:
        found = self._symbol_names.get(name)
        if found is None:
            match self._symbols[name]:
                case TensorSize(base=base, dim=dim):
                    found = self.assign(f"{self.source(base)}.shape[{dim}]")
                case TensorStride(base=base, dim=dim):
                    found = self.assign(f"{self.source(base)}.stride({dim})")
                case record.GraphValue() as value:
                    found = self.output(value)
                case source:
                    found = self.source(source)
            self._symbol_names[name] = found
        return found

    def output(self, value: record.GraphValue) -> str:
        """The variable of a graph output; an input that passes through is its parameter."""
        return self._outputs.get(value) or self.source(self._source_of[value])

    # ------------------------------------------------------------ side effects

    def _effect(self, side_effect: record.SideEffect) -> None:
        value = self.value
        match side_effect:
            case record.SetAttr(obj=obj, name=name, value=new, raw=raw):
                setter = "set_attribute" if raw else "setattr"
                self.line(f"{setter}({value(obj)}, {name!r}, {value(new)})")
            case record.DelAttr(obj=obj, name=name, raw=raw):
                self.line(f"{'delete_attribute' if raw else 'delattr'}({value(obj)}, {name!r})")
            case record.ReplaceList(obj=obj, items=items):
                self.line(f"replace_list({value(obj)}, [{self.items(items)}])")
            case record.ReplaceDict(obj=obj, items=items):
                self.line(f"replace_dict({value(obj)}, [{self.pairs(items)}])")
            case record.ReplaceSet(obj=obj, items=items):
                self.line(f"replace_set({value(obj)}, [{self.items(items)}])")
            case record.StoreGlobal(module_globals=module_globals, name=name, value=None):
                self.line(f"del {self.constant(module_globals)}[{name!r}]")
            case record.StoreGlobal(module_globals=module_globals, name=name, value=new):
                assert new is not None
                self.line(f"{self.constant(module_globals)}[{name!r}] = {value(new)}")
            case record.StoreCell(cell=cell, value=None):
                self.line(f"del {value(cell)}.cell_contents")
            case record.StoreCell(cell=cell, value=new):
                assert new is not None
                self.line(f"{value(cell)}.cell_contents = {value(new)}")
            case record.CallSideEffect(function=function, args=args, kwargs=kwargs):
                self.line(f"{self.constant(function)}({self.call_arguments(args, kwargs)})")
            case _:
                raise TypeError(f"effect {type(side_effect).__name__} cannot be replayed")

    def call_arguments(
        self, args: Iterable[record.Recipe], kwargs: dict[str, record.Recipe]
    ) -> str:
        """The text between the parentheses of a call."""
        parts = [self.value(arg) for arg in args]
        parts += [f"**{{{name!r}: {self.value(arg)}}}" for name, arg in kwargs.items()]
        return ", ".join(parts)

    def items(self, recipes: Iterable[record.Recipe]) -> str:
        """Comma-separated values."""
        return ", ".join([self.value(recipe) for recipe in recipes])

    def pairs(self, items: Iterable[tuple[record.Recipe, record.Recipe]]) -> str:
        """Comma-separated pairs."""
        return ", ".join([f"({self.value(key)}, {self.value(item)})" for key, item in items])


def _tried(lines: list[str]) -> list[str]:
    return ["try:", *(f"    {line}" for line in lines)]


# ---------------------------------------------------------------- one builder a recipe


def _tuple(code: EntryCode, recipe: record.MakeTuple) -> str:
    items = code.items(recipe.items)
    text = f"({items}{',' if len(recipe.items) == 1 else ''})"
    return code.assign(
        text if recipe.cls is tuple else f"new_tuple({code.constant(recipe.cls)}, {text})"
    )


def _list(code: EntryCode, recipe: record.MakeList) -> str:
    def fill(name: str) -> None:
        if recipe.items:
            code.line(f"extend_list({name}, [{code.items(recipe.items)}])")
        _fill_state(code, name, recipe.state)
        _fill_slots(code, name, recipe.slots)

    cls = code.constant(recipe.cls)
    return code.begin(recipe, "[]" if recipe.cls is list else f"{cls}.__new__({cls})", fill)


def _dict(code: EntryCode, recipe: record.MakeDict) -> str:
    ordered = issubclass(recipe.cls, collections.OrderedDict)

    def fill(name: str) -> None:
        if recipe.items:
            filler = "fill_ordered" if ordered else "fill_dict"
            code.line(f"{filler}({name}, [{code.pairs(recipe.items)}])")
        if recipe.factory is not None:
            code.line(f"{name}.default_factory = {code.value(recipe.factory)}")
        _fill_state(code, name, recipe.state)
        _fill_slots(code, name, recipe.slots)

    cls = code.constant(recipe.cls)
    is_plain = recipe.cls in (dict, collections.OrderedDict, collections.defaultdict)
    return code.begin(recipe, f"{cls}()" if is_plain else f"{cls}.__new__({cls})", fill)


def _set(code: EntryCode, recipe: record.MakeSet) -> str:
    return code.assign(f"{code.constant(recipe.cls)}([{code.items(recipe.items)}])")


def _object(code: EntryCode, recipe: record.MakeObject) -> str:
    def fill(name: str) -> None:
        _fill_state(code, name, recipe.state)
        _fill_slots(code, name, recipe.slots)

    return code.begin(recipe, f"new_object({code.constant(recipe.cls)})", fill)


def _fill_state(code: EntryCode, name: str, state: dict[str, record.Recipe] | None) -> None:
    if state:
        entries = ", ".join([f"{key!r}: {code.value(value)}" for key, value in state.items()])
        code.line(f"instance_dict({name}).update({{{entries}}})")


def _fill_slots(code: EntryCode, name: str, slots: dict[str, record.Recipe]) -> None:
    for slot, value in slots.items():
        code.line(f"set_attribute({name}, {slot!r}, {code.value(value)})")


def _cell(code: EntryCode, recipe: record.MakeCell) -> str:
    def fill(name: str) -> None:
        if recipe.contents is not None:
            code.line(f"{name}.cell_contents = {code.value(recipe.contents)}")

    return code.begin(recipe, "new_cell()", fill)


_FUNCTION_PARTS = ("defaults", "kwdefaults", "annotations", "doc", "module", "type_params")


def _function(code: EntryCode, recipe: record.MakeFunction) -> str:
    closure = "None" if recipe.closure is None else f"({code.items(recipe.closure)},)"
    constants = f"{code.constant(recipe.code)}, {code.constant(recipe.globals)}"
    made = f"new_function({constants}, {recipe.name!r}, None, {closure})"

    def fill(name: str) -> None:
        code.line(f"{name}.__qualname__ = {recipe.qualname!r}")
        for attribute in _FUNCTION_PARTS:
            part = getattr(recipe, attribute)
            if part is not None:
                code.line(f"{name}.__{attribute}__ = {code.value(part)}")
        _fill_state(code, name, recipe.state)

    return code.begin(recipe, made, fill)


def _call(code: EntryCode, recipe: record.CallRecipe) -> str:
    return code.assign(
        f"{code.constant(recipe.function)}({code.call_arguments(recipe.args, recipe.kwargs)})"
    )


_BUILDERS: dict[type, Callable[[EntryCode, Any], str]] = {
    record.FromSource: lambda code, recipe: code.source(recipe.source),
    record.FromGraph: lambda code, recipe: code.output(recipe.value),
    record.Const: lambda code, recipe: code.constant(recipe.value),
    record.SizeValue: EntryCode.size,
    record.MakeTuple: _tuple,
    record.MakeList: _list,
    record.MakeDict: _dict,
    record.MakeSet: _set,
    record.MakeObject: _object,
    record.MakeCell: _cell,
    record.MakeFunction: _function,
    record.CallRecipe: _call,
}
