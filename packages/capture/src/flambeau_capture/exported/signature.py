"""How an exported graph is called: the parameters of the function, the trees of their arguments,
and the inputs at the leaves.

f(x, *, masks={"a": m}, scale=2)   ->   x: Leaf(0);  scale: Constant(2);
                                        masks: Entries(dict, (('a', Leaf(1)),))
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from flambeau_capture.exported.dims import Declaration, DeclaredDims, Hint, checked_dim
from flambeau_capture.exported.tree import (
    PLAIN,
    Constant,
    Entries,
    Fields,
    Items,
    Leaf,
    Opaque,
    Tree,
    class_name,
    is_dataclass_instance,
)
from flambeau_capture.guards.constants import brief, constants_equal
from flambeau_capture.sources import Argument, DictEntry, InstanceDict, Item, Source, TensorSize


class InputMismatch(ValueError):
    """An exported graph was called with inputs that it was not exported for."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter and the tree of its argument; without `given`, the export used the default."""

    name: str
    kind: inspect._ParameterKind
    tree: Tree
    given: bool = True
    default: Tree | None = None


@dataclass(frozen=True, slots=True)
class CallSignature:
    """The parameters of an exported function; `paths` says what the user calls each input."""

    parameters: tuple[Parameter, ...]
    paths: tuple[str, ...]
    positional: int
    """How many arguments the export's call gave by position."""
    keywords: tuple[str, ...]
    """The names of those that it gave by keyword, in order."""

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments by parameter, without those that keep the export's value."""
        python = []
        for parameter in self.parameters:
            default: Any = inspect.Parameter.empty
            if parameter.kind not in (
                inspect.Parameter.VAR_POSITIONAL,
                inspect.Parameter.VAR_KEYWORD,
            ):
                if isinstance(parameter.default, Constant):
                    default = parameter.default.value
                elif not parameter.given:
                    default = _AS_EXPORTED
            python.append(inspect.Parameter(parameter.name, parameter.kind, default=default))
        bound = inspect.Signature(python).bind(*args, **kwargs)
        bound.apply_defaults()
        return {name: value for name, value in bound.arguments.items() if value is not _AS_EXPORTED}

    def match(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[list[Any], list[Any]]:
        """The inputs at the leaves, and the containers; InputMismatch says what does not fit."""
        matcher = _Matcher(len(self.paths))
        bound = self.bind(args, kwargs)
        for parameter in self.parameters:
            if parameter.name in bound:
                matcher.match(parameter.tree, bound[parameter.name], parameter.name)
        missing = [
            path
            for path, value in zip(self.paths, matcher.inputs, strict=True)
            if value is _MISSING
        ]
        if missing:
            raise InputMismatch(f"no value is given for {', '.join(missing)}")
        return matcher.inputs, matcher.containers


class _Sentinel:
    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


_AS_EXPORTED = _Sentinel("<as exported>")
_MISSING = _Sentinel("<missing>")


class _Matcher:
    """Walks an argument along its tree."""

    def __init__(self, count: int) -> None:
        self.inputs: list[Any] = [_MISSING] * count
        self.containers: list[Any] = []

    def match(self, tree: Tree, value: Any, path: str) -> None:
        match tree:
            case Leaf(index=index):
                known = self.inputs[index]
                if known is not _MISSING and known is not value:
                    raise InputMismatch(
                        f"{path} was the same object as another argument in the export, and is "
                        f"not now"
                    )
                self.inputs[index] = value
            case Constant(value=expected):
                if not constants_equal(value, expected):
                    raise InputMismatch(
                        f"{path} was {expected!r} in the export and is {brief(value)} now"
                    )
            case Opaque(type_name=name):
                if class_name(type(value)) != name:
                    raise InputMismatch(
                        f"{path} was a {name} in the export and is {brief(value)} now"
                    )
            case Items(cls=cls) | Entries(cls=cls) | Fields(cls=cls):
                if type(value) is not cls:
                    raise InputMismatch(
                        f"{path} was a {cls.__qualname__} in the export and is {brief(value)} now"
                    )
                self.containers.append(value)
                self._inside(tree, value, path)
            case _:
                raise TypeError(f"a {type(tree).__name__} has no place in arguments")

    def _inside(self, tree: Tree, value: Any, path: str) -> None:
        match tree:
            case Items(items=items):
                found = list(
                    list.__iter__(value) if isinstance(value, list) else tuple.__iter__(value)
                )
                if len(found) != len(items):
                    raise InputMismatch(
                        f"{path} had {len(items)} items in the export and has {len(found)} now"
                    )
                for at, (item, part) in enumerate(zip(items, found, strict=True)):
                    self.match(item, part, f"{path}[{at}]")
            case Entries(items=entries):
                keys = [key.value for key, _ in entries]  # type: ignore[union-attr]
                if len(keys) != dict.__len__(value) or not all(key in value for key in keys):
                    raise InputMismatch(
                        f"{path} had the keys {keys} in the export and has {list(value)} now"
                    )
                for key, (_, item) in zip(keys, entries, strict=True):
                    self.match(item, dict.__getitem__(value, key), f"{path}[{key!r}]")
            case Fields(items=fields):
                for name, item in fields:
                    self.match(item, getattr(value, name, None), f"{path}.{name}")


# ---------------------------------------------------------------- made from an export's call


@dataclass(frozen=True, slots=True)
class BoundCall:
    """An export's call: signature, values at the leaves, declared sizes."""

    signature: CallSignature
    inputs: list[Any]
    containers: list[Any]
    dims: DeclaredDims
    """What `dynamic_shapes` says."""


Place = tuple[str, int | str]
"""Where the caller wrote an argument: ("args", 1) or ("kwargs", "mask")."""


def bind_call(
    python: inspect.Signature,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    sources: Mapping[Place, Source],
    dynamic_shapes: Any,
) -> BoundCall:
    """The trees of a call's arguments; `sources` says where the frame reads each of them."""
    places = python.bind(
        *(("args", at) for at in range(len(args))), **{name: ("kwargs", name) for name in kwargs}
    )
    bound = python.bind(*args, **kwargs)
    given = set(bound.arguments)
    bound.apply_defaults()
    said = _by_name(dynamic_shapes, list(python.parameters))
    reader = _Reader()
    parameters = []
    for name, parameter in python.parameters.items():
        value, shapes = bound.arguments[name], said.get(name)
        tree = _argument_tree(reader, parameter, value, shapes, places.arguments.get(name), sources)
        default = parameter.default
        plain = default is not inspect.Parameter.empty and type(default) in PLAIN
        parameters.append(
            Parameter(
                name,
                parameter.kind,
                tree,
                name in given or parameter.kind in _VARIADIC,
                Constant(default) if plain else None,
            )
        )
    signature = CallSignature(tuple(parameters), tuple(reader.paths), len(args), tuple(kwargs))
    dims = DeclaredDims(tensors=reader.tensors, ints=reader.ints)
    return BoundCall(signature, reader.inputs, reader.containers, dims)


def _argument_tree(
    reader: _Reader,
    parameter: inspect.Parameter,
    value: Any,
    shapes: Any,
    places: Any,
    sources: Mapping[Place, Source],
) -> Tree:
    """The tree of one argument; `places` says where the caller wrote it, or a star's items."""
    name = parameter.name
    if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
        wanted = reader.sequence(shapes, len(value), name)
        return Items(tuple, tuple(
            reader.read(item, wanted[at], f"{name}[{at}]", sources.get(places[at]))
            for at, item in enumerate(value)
        ))  # fmt: skip
    if parameter.kind is inspect.Parameter.VAR_KEYWORD:
        by_key = reader.mapping(shapes, list(value), name)
        items = []
        for key, item in value.items():
            source = sources.get(places[key])
            tree = reader.read(item, by_key.get(key), f"{name}[{key!r}]", source)
            items.append((Constant(key), tree))
        return Entries(dict, tuple(items))
    return reader.read(value, shapes, name, None if places is None else sources.get(places))


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _by_name(dynamic_shapes: Any, names: list[str]) -> dict[str, Any]:
    """What `dynamic_shapes` says of each parameter."""
    if dynamic_shapes is None:
        return {}
    if isinstance(dynamic_shapes, Hint):
        return dict.fromkeys(names, dynamic_shapes)
    if isinstance(dynamic_shapes, Mapping):
        unknown = [name for name in dynamic_shapes if name not in names]
        if unknown:
            raise ValueError(f"dynamic_shapes names {unknown}, but the parameters are {names}")
        return dict(dynamic_shapes)
    if isinstance(dynamic_shapes, (tuple, list)):
        if len(dynamic_shapes) > len(names):
            raise ValueError(
                f"dynamic_shapes has {len(dynamic_shapes)} items for the parameters {names}"
            )
        return dict(zip(names, dynamic_shapes, strict=False))
    raise TypeError(
        f"dynamic_shapes is a dict by parameter, a tuple by position, or Dim.AUTO; not "
        f"{dynamic_shapes!r}"
    )


class _Reader:
    """Builds the trees of arguments, numbers their leaves, and collects declared sizes."""

    def __init__(self) -> None:
        self.inputs: list[Any] = []
        self.paths: list[str] = []
        self.containers: list[Any] = []
        self.tensors: dict[int, tuple[torch.Tensor, dict[int, Declaration]]] = {}
        self.ints: dict[Source, Declaration] = {}
        self._leaf_of: dict[int, Leaf] = {}

    def read(self, value: Any, said: Any, path: str, source: Source | None) -> Tree:
        """The tree of one value."""
        if isinstance(value, torch.Tensor):
            return self._tensor(value, said, path, source)
        if type(value) is int and said is not None and not isinstance(said, (dict, list, tuple)):
            declared = checked_dim(said, value, path)
            if declared is not None and source is not None:
                self.ints[source] = Declaration(path, source, value, declared)
                return self._leaf(value, path)
            return Constant(value)
        if isinstance(value, (list, tuple)) and type(value) not in PLAIN:
            return self._items(value, said, path, source)
        if isinstance(value, dict):
            return self._entries(value, said, path, source)
        if is_dataclass_instance(value):
            return self._fields(value, said, path, source)
        if said not in (None, {}, (), []) and not isinstance(said, Hint):
            raise ValueError(
                f"dynamic_shapes says {said!r} of {path}, which is a {type(value).__name__}"
            )
        return Constant(value) if type(value) in PLAIN else Opaque(class_name(type(value)))

    def _leaf(self, value: Any, path: str) -> Leaf:
        self.inputs.append(value)
        self.paths.append(path)
        return Leaf(len(self.inputs) - 1)

    def _tensor(self, value: torch.Tensor, said: Any, path: str, source: Source | None) -> Leaf:
        found = self._leaf_of.get(id(value))
        if found is None:
            found = self._leaf_of[id(value)] = self._leaf(value, path)
            self.tensors[id(value)] = (value, {})
        by_dim = self.tensors[id(value)][1]
        for dim, wanted in _dims_of(said, value, path).items():
            declared = checked_dim(wanted, value.shape[dim], f"{path}.size({dim})")
            if declared is not None and source is not None:
                place = TensorSize(source, dim)
                by_dim[dim] = Declaration(f"{path}.size({dim})", place, value.shape[dim], declared)
        return found

    def _items(self, value: Any, said: Any, path: str, source: Source | None) -> Tree:
        self.containers.append(value)
        parts = list(list.__iter__(value) if isinstance(value, list) else tuple.__iter__(value))
        wanted = self.sequence(said, len(parts), path)
        items = []
        for at, part in enumerate(parts):
            place = source and Item(source, at)
            items.append(self.read(part, wanted[at], f"{path}[{at}]", place))
        return Items(type(value), tuple(items))

    def _entries(self, value: dict[Any, Any], said: Any, path: str, source: Source | None) -> Tree:
        self.containers.append(value)
        keys = list(dict.keys(value))
        if any(type(key) not in PLAIN for key in keys):
            return Opaque(class_name(type(value)))
        wanted = self.mapping(said, keys, path)
        items = []
        for key in keys:
            item, place = dict.__getitem__(value, key), source and DictEntry(source, key)
            tree = self.read(item, wanted.get(key), f"{path}[{key!r}]", place)
            items.append((Constant(key), tree))
        return Entries(type(value), tuple(items))

    def _fields(self, value: Any, said: Any, path: str, source: Source | None) -> Tree:
        self.containers.append(value)
        names = list(vars(value)) if hasattr(value, "__dict__") else list(value.__slots__)
        if said is not None and type(said) is type(value):
            said = {name: getattr(said, name) for name in names}
        wanted = self.mapping(said, names, path)
        state = source and InstanceDict(source)
        items = []
        for name in names:
            item, place = getattr(value, name), state and DictEntry(state, name)
            items.append((name, self.read(item, wanted.get(name), f"{path}.{name}", place)))
        return Fields(type(value), tuple(items))

    @staticmethod
    def sequence(said: Any, length: int, path: str) -> list[Any]:
        """The declaration of each item of a sequence."""
        if said is None or isinstance(said, Hint):
            return [said] * length
        if not isinstance(said, (tuple, list)) or len(said) != length:
            raise ValueError(
                f"dynamic_shapes says {said!r} of {path}, which is a sequence of {length}"
            )
        return list(said)

    @staticmethod
    def mapping(said: Any, keys: list[Any], path: str) -> dict[Any, Any]:
        """The declaration of each entry of a mapping."""
        if said is None or isinstance(said, Hint):
            return dict.fromkeys(keys, said)
        if not isinstance(said, Mapping):
            raise ValueError(f"dynamic_shapes says {said!r} of {path}, which has the keys {keys}")
        unknown = [key for key in said if key not in keys]
        if unknown:
            raise ValueError(f"dynamic_shapes names {unknown} in {path}, which has the keys {keys}")
        return dict(said)


def _dims_of(said: Any, tensor: torch.Tensor, path: str) -> dict[int, Any]:
    """The declaration of each dimension of a tensor."""
    if said is None:
        return {}
    if isinstance(said, Hint):
        return dict.fromkeys(range(tensor.ndim), said)
    if isinstance(said, Mapping):
        found = {}
        for dim, wanted in said.items():
            if type(dim) is not int or not -tensor.ndim <= dim < tensor.ndim:
                raise ValueError(
                    f"dynamic_shapes names dimension {dim!r} of {path}, which has {tensor.ndim}"
                )
            found[dim % tensor.ndim] = wanted
        return found
    if isinstance(said, (tuple, list)):
        if len(said) != tensor.ndim:
            raise ValueError(
                f"dynamic_shapes has {len(said)} dimensions for {path}, which has {tensor.ndim}"
            )
        return dict(enumerate(said))
    raise TypeError(
        f"dynamic_shapes says {said!r} of the tensor {path}; a dict by dimension or a "
        f"tuple is meant"
    )


# ---------------------------------------------------------------- the frame


def frame_sources(
    function: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any], skipped: int
) -> dict[Place, Source]:
    """Where the frame reads the caller's arguments, which follow `skipped` ones of ours."""
    signature = inspect.signature(function, follow_wrapped=False)
    bound = signature.bind(*range(len(args)), **{name: name for name in kwargs})
    places: dict[Any, Place] = {at: ("args", at - skipped) for at in range(skipped, len(args))}
    places |= {name: ("kwargs", name) for name in kwargs}
    found: dict[Place, Source] = {}
    for name, index in local_indices(signature).items():
        if name not in bound.arguments:
            continue
        source, value = Argument(name, index), bound.arguments[name]
        match signature.parameters[name].kind:
            case inspect.Parameter.VAR_POSITIONAL:
                found |= {places[v]: Item(source, at) for at, v in enumerate(value) if v in places}
            case inspect.Parameter.VAR_KEYWORD:
                found |= {places[v]: DictEntry(source, k) for k, v in value.items() if v in places}
            case _ if value in places:
                found[places[value]] = source
    return found


_ORDER = (
    (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD),
    (inspect.Parameter.KEYWORD_ONLY,),
    (inspect.Parameter.VAR_POSITIONAL,),
    (inspect.Parameter.VAR_KEYWORD,),
)


def local_indices(signature: inspect.Signature) -> dict[str, int]:
    """The parameters in the order of the frame's fast locals."""
    ordered = [
        name
        for kinds in _ORDER
        for name, parameter in signature.parameters.items()
        if parameter.kind in kinds
    ]
    return {name: at for at, name in enumerate(ordered)}
