"""Trees: how the arguments of a call, and its result, are nested around tensors.

    {"ids": x, "masks": [m, None]}   ->   Entries(dict, (
                                              (Constant('ids'), Leaf(0)),
                                              (Constant('masks'), Items(list, (Leaf(1), ...))))

Trees are plain data: they print, are written to files, and rebuild what they describe without
running code of the program. A tree node that occurs twice is one object, built once.
"""

from __future__ import annotations

import collections
import dataclasses
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import fx


@dataclass(frozen=True, slots=True, eq=False)
class Leaf:
    """In arguments: the `index`-th input, a tensor or int. In a result: the `index`-th output."""

    index: int


@dataclass(frozen=True, slots=True, eq=False)
class Given:
    """In a result: the `index`-th input itself."""

    index: int


@dataclass(frozen=True, slots=True, eq=False)
class GivenContainer:
    """In a result: a container of the arguments, the `index`-th of those that `match` returns."""

    index: int


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """In a result: a tensor of the state (a parameter, say), by its name."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class SizeOf:
    """In a result: a number computed from the inputs' sizes."""

    text: str


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """A plain value: in arguments it must be equal to this one."""

    value: Any


@dataclass(frozen=True, slots=True, eq=False)
class Opaque:
    """In arguments: an object that export does not look into; only its type is compared."""

    type_name: str


@dataclass(frozen=True, slots=True, eq=False)
class Items:
    """A list, tuple, set or frozenset, or an instance of a subclass with its attributes."""

    cls: type
    items: tuple[Tree, ...]
    state: tuple[tuple[str, Tree], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """A dict or an instance of a subclass, with its attributes; `factory` is a builtin type."""

    cls: type
    items: tuple[tuple[Tree, Tree], ...]
    state: tuple[tuple[str, Tree], ...] = ()
    factory: type | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Fields:
    """A dataclass instance, or another plain object: its attributes."""

    cls: type
    items: tuple[tuple[str, Tree], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Made:
    """An object of a C type that is made by calling it: see MAKERS."""

    maker: str
    items: tuple[Tree, ...]
    names: tuple[str, ...] = ()


Tree: TypeAlias = (
    Leaf | Given | GivenContainer | Held | SizeOf | Constant | Opaque | Items | Entries | Fields
    | Made
)  # fmt: skip

NODES: dict[str, Any] = {
    "leaf": Leaf, "given": Given, "container": GivenContainer, "held": Held, "computed": SizeOf,
    "constant": Constant, "opaque": Opaque, "items": Items, "entries": Entries, "fields": Fields,
    "made": Made,
}  # fmt: skip
"""The kinds of trees by the names that files have for them."""

MAKERS: dict[str, Callable[..., Any]] = {
    "slice": slice,
    "range": range,
    "deque": lambda items, maxlen: collections.deque(items, maxlen),
    "SimpleNamespace": types.SimpleNamespace,
    **{
        f"torch.return_types.{name}": getattr(torch.return_types, name)
        for name in torch.return_types.__all__
    },
}
"""What `Made` may call, by name."""

FACTORIES: dict[str, type] = {
    cls.__name__: cls for cls in (int, float, list, dict, set, str, tuple)
}
"""What a defaultdict of a result may make its values by, by name."""

PLAIN = (
    int, float, complex, str, bytes, bool, type(None), type(...),
    torch.dtype, torch.device, torch.layout, torch.memory_format,
)  # fmt: skip
"""Types of Constants."""


def is_dataclass_instance(value: Any) -> bool:
    """Whether a value is a dataclass instance whose fields are in its `__dict__` or slots."""
    return dataclasses.is_dataclass(value) and not isinstance(value, (type, dict, list, tuple))


def parts(tree: Tree) -> Iterator[Tree]:
    """The trees directly inside a tree."""
    match tree:
        case Items(items=items, state=state):
            yield from items
            yield from (item for _, item in state)
        case Entries(items=items, state=state):
            for key, item in items:
                yield key
                yield item
            yield from (item for _, item in state)
        case Fields(items=items):
            yield from (item for _, item in items)
        case Made(items=items):
            yield from items


def walk(tree: Tree) -> Iterator[Tree]:
    """A tree and all that is inside it, each node once."""
    seen: set[int] = set()
    pending = [tree]
    while pending:
        node = pending.pop()
        if id(node) not in seen:
            seen.add(id(node))
            yield node
            pending.extend(reversed(list(parts(node))))


def class_name(cls: type) -> str:
    """The name by which a file knows a class."""
    return f"{cls.__module__}.{cls.__qualname__}"


CONTAINERS: dict[str, type] = {
    class_name(cls): cls
    for cls in (
        list, tuple, set, frozenset, dict, torch.Size, collections.OrderedDict,
        collections.defaultdict,
    )
}  # fmt: skip
"""Classes that files need not look up."""


@dataclass(frozen=True, slots=True)
class Values:
    """What the leaves of a result stand for on one call."""

    outputs: tuple[Any, ...]
    inputs: list[Any]
    containers: list[Any]
    state: Mapping[str, torch.Tensor]
    size: Callable[[str], Any]


def build(tree: Tree, values: Values) -> Any:
    """The object that a tree describes."""
    return _Builder(values).build(tree)


class _Builder:
    def __init__(self, values: Values) -> None:
        self.values = values
        self.made: dict[int, Any] = {}

    def build(self, tree: Tree) -> Any:
        key = id(tree)
        if key not in self.made:
            self.made[key] = self._make(tree)
        return self.made[key]

    def _make(self, tree: Tree) -> Any:
        values = self.values
        match tree:
            case Leaf(index=index):
                return values.outputs[index]
            case Given(index=index):
                return values.inputs[index]
            case GivenContainer(index=index):
                return values.containers[index]
            case Held(name=name):
                return values.state[name]
            case SizeOf(text=text):
                return values.size(text)
            case Constant(value=value):
                return value
            case Items(cls=cls, items=items, state=state):
                return _with_state(
                    new_items(cls, [self.build(item) for item in items]), self._pairs(state)
                )
            case Entries(cls=cls, items=items, state=state, factory=factory):
                pairs = [(self.build(key), self.build(item)) for key, item in items]
                return _with_state(new_entries(cls, pairs, factory), self._pairs(state))
            case Fields(cls=cls, items=items):
                return _with_state(object.__new__(cls), self._pairs(items))
            case Made(maker=maker, items=items, names=names):
                built = [self.build(item) for item in items]
                plain = len(built) - len(names)
                return MAKERS[maker](*built[:plain], **dict(zip(names, built[plain:], strict=True)))
        raise TypeError(f"a {type(tree).__name__} has no place in a result")

    def _pairs(self, items: tuple[tuple[str, Tree], ...]) -> list[tuple[str, Any]]:
        return [(name, self.build(item)) for name, item in items]


def new_items(cls: type, items: list[Any]) -> Any:
    """A list, tuple or set of a class, filled past any method of the class."""
    if issubclass(cls, tuple):
        plain = cls is tuple or cls is torch.Size
        return cls(items) if plain else tuple.__new__(cls, items)
    if issubclass(cls, frozenset):
        return frozenset.__new__(cls, items)
    base = list if issubclass(cls, list) else set
    made = base.__new__(cls)
    (list.extend if base is list else set.update)(made, items)  # type: ignore[arg-type]
    return made


def new_entries(cls: type, pairs: list[tuple[Any, Any]], factory: type | None) -> Any:
    """A dict of a class, filled past any method of the class."""
    if cls is dict:
        return dict(pairs)
    if issubclass(cls, collections.OrderedDict):
        ordered: Any = collections.OrderedDict.__new__(cls)
        for key, item in pairs:
            collections.OrderedDict.__setitem__(ordered, key, item)
        return ordered
    made: Any = dict.__new__(cls)  # type: ignore[type-var]
    if isinstance(made, collections.defaultdict):
        made.default_factory = factory
    for key, item in pairs:
        dict.__setitem__(made, key, item)
    return made


def _with_state(made: Any, state: list[tuple[str, Any]]) -> Any:
    for name, item in state:
        object.__setattr__(made, name, item)
    return made


# ---------------------------------------------------------------- text


def argument_text(arg: Any) -> str:
    """An argument of a node, nodes by their names."""
    if isinstance(arg, fx.Node):
        return arg.name
    if isinstance(arg, tuple):
        items = ", ".join(map(argument_text, arg))
        return f"({items},)" if len(arg) == 1 else f"({items})"
    if isinstance(arg, list):
        return f"[{', '.join(map(argument_text, arg))}]"
    if isinstance(arg, dict):
        return "{" + ", ".join(f"{key!r}: {argument_text(item)}" for key, item in arg.items()) + "}"
    if isinstance(arg, slice):
        bounds = map(argument_text, (arg.start, arg.stop, arg.step))
        return f"slice({', '.join(bounds)})"
    return "..." if arg is ... else repr(arg)


def tree_text(tree: Tree, outputs: list[str], paths: Sequence[str]) -> str:
    """A tree as a Python-like expression, over the texts of outputs and inputs."""

    def text(part: Tree) -> str:
        return tree_text(part, outputs, paths)

    match tree:
        case Leaf(index=index):
            return outputs[index]
        case Given(index=index):
            return paths[index]
        case GivenContainer(index=index):
            return f"<container {index} of the arguments>"
        case Held(name=name):
            return repr(name)
        case SizeOf(text=size):
            return size
        case Constant(value=value):
            return argument_text(value)
        case Opaque(type_name=name):
            return f"<{name}>"
        case Items(cls=cls, items=items):
            inner = ", ".join(map(text, items))
            if cls is tuple:
                return f"({inner},)" if len(items) == 1 else f"({inner})"
            return f"[{inner}]" if cls is list else f"{cls.__qualname__}({inner})"
        case Entries(cls=cls, items=entries):
            inner = ", ".join(f"{text(key)}: {text(item)}" for key, item in entries)
            return f"{{{inner}}}" if cls is dict else f"{cls.__qualname__}({{{inner}}})"
        case Fields(cls=cls, items=fields):
            inner = ", ".join(f"{name}={text(item)}" for name, item in fields)
            return f"{cls.__qualname__}({inner})"
        case Made(maker=maker, items=items):
            return f"{maker}({', '.join(map(text, items))})"
    raise TypeError(f"no text for a {type(tree).__name__}")
