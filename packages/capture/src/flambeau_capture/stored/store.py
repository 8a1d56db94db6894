"""Where stored entries are kept, and by what: the function, and the types and sizes of arguments.

The key is only a way to find candidates quickly. Whether a candidate serves a call is decided by
its guards. Under a key few entries are kept, so that each is kept under several:

    values    sizes, numbers and texts of the arguments, of their modules and of closures
    sizes     sizes of the arguments
    types     neither: for entries with symbolic sizes

Equal layers that differ in a number or a shape of a parameter have keys of values each.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch

from flambeau_capture.stored.descriptions import Descriptions, type_text
from flambeau_capture.stored.entries import check_kind, decode_entry, encode_entry
from flambeau_capture.stored.reasons import NotStorable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import fx

    from flambeau_capture.entries.entry_parts import EntryParts
    from flambeau_capture.entries.violations import Violations
    from flambeau_capture.events import Event
    from flambeau_capture.sources import Scope
    from flambeau_capture.stored.frames import EntryContext
    from flambeau_capture.torch_state import UsualState

Json = Any

Detail = Literal["values", "sizes", "types"]

_DETAILS: tuple[Detail, ...] = ("values", "sizes", "types")
_LONGEST = 256
"""Characters of a text, and bits of an int, that a key holds."""
_DEPTH = 4
_PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)


class EntryStore(Protocol):
    """What keeps entries and graphs: `flambeau.stored_entries`, on the disk."""

    def read(self, key: tuple[str, ...]) -> list[Json]:
        """The entries under a key, the latest first."""

    def write(self, key: tuple[str, ...], entry: Json) -> None:
        """Keep an entry under a key; NotStorable where that is impossible."""

    def graph(self, graph_module: fx.GraphModule) -> Json:
        """The data by which a compiled graph is found again; NotStorable if it is not kept."""

    def load_graph(self, data: Json) -> Callable[..., Any] | None:
        """The compiled graph; None if it is not there any more."""


def find_entry(
    store: EntryStore,
    scope: Scope,
    state: UsualState,
    note: Callable[[Event], None],
    context: EntryContext,
    violations: Violations,
) -> Any:
    """A stored entry that serves a call, or None; one that the first process, too, would have taken
    behind these violations.
    """
    try:
        keys = _keys_of_call(scope, _DETAILS)
    except NotStorable:
        return None
    tried: list[Json] = []
    for key in keys:
        entries = [data for data in store.read(key) if data not in tried]
        for data in violations.candidates(entries):
            entry = decode_entry(data, scope, state, store.load_graph, note, context)
            if entry is not None:
                return entry
        tried += entries
    return None


def store_entry(store: EntryStore, parts: EntryParts, violations: Violations) -> str:
    """Keep an entry, which was captured behind these violations: "written", or why it is not
    kept.
    """
    try:
        check_kind(parts)  # first: a graph of such a kind is not stored for the same reason
        scope = parts.capture.scope
        graph = None if parts.graph_module is None else store.graph(parts.graph_module)
        data = {**encode_entry(parts, graph), "after": violations.as_json()}
        for key in _keys_of_call(scope, _DETAILS if data["symbols"] else _DETAILS[:-1]):
            store.write(key, data)
    except NotStorable as error:
        return str(error)
    if graph is not None:
        parts.info.graph_key = str(graph["key"])
    return "written"


def _keys_of_call(scope: Scope, details: tuple[Detail, ...]) -> list[tuple[str, ...]]:
    """What tells the calls of a function apart that need different entries, in less and less
    detail: several calls may have an entry in common.
    """
    described = Descriptions().of(scope.function.__code__)
    module = str(scope.function.__globals__.get("__name__"))
    texts = [
        ";".join(_described(value, detail, 0) for value in _values_of(scope, detail))
        for detail in details
    ]
    return [(described, module, text) for text in dict.fromkeys(texts)]


def _values_of(scope: Scope, detail: Detail) -> Iterator[Any]:
    yield from scope.arguments
    if detail == "values":
        for cell in scope.function.__closure__ or ():
            with contextlib.suppress(ValueError):  # an empty one
                yield cell.cell_contents


def _described(value: Any, detail: Detail, depth: int) -> str:
    kind = type(value)
    if isinstance(value, torch.Tensor):
        if any(name.startswith(("_dynamo", "_flambeau")) for name in value.__dict__):
            raise NotStorable("override", "a tensor is marked")
        if kind not in _PLAIN_TENSORS:  # whose sizes code of its class may answer, or refuse
            return type_text(kind)
        shape = value.dim() if detail == "types" else list(value.shape)
        return f"{type_text(kind)} {value.dtype} {value.device} {shape}"
    if isinstance(value, torch.nn.Module):
        return " ".join(_members(value, detail, set()))
    if kind in (bool, type(None)) or (detail == "values" and _is_short(value)):
        return repr(value)
    if depth < _DEPTH:
        if kind in (tuple, list):
            items = ",".join(_described(item, detail, depth + 1) for item in value)
            return f"{kind.__name__}({items})"
        if kind is dict:
            pairs = (
                f"{_key_text(key)}:{_described(item, detail, depth + 1)}"
                for key, item in value.items()
            )
            return f"dict({','.join(pairs)})"
    return type_text(kind)


def _is_short(value: Any) -> bool:
    """Whether a value is a number or a text that a key holds."""
    kind = type(value)
    if kind is int:
        return bool(value.bit_length() <= _LONGEST)
    return kind is float or kind is bool or (kind is str and len(value) <= _LONGEST)


def _key_text(key: Any) -> str:
    return key if type(key) is str else type_text(type(key))


def _members(module: torch.nn.Module, detail: Detail, seen: set[int]) -> Iterator[str]:
    """The classes of a module and its children, and whether they train."""
    if id(module) in seen:
        return
    seen.add(id(module))
    own = module.__dict__
    yield f"{type_text(type(module))}{'+' if own.get('training') is True else '-'}"
    if detail == "values":
        yield from (f"{name}={value!r}" for name, value in tuple(own.items()) if _is_short(value))
        for parameter in tuple((own.get("_parameters") or {}).values()):
            if type(parameter) in _PLAIN_TENSORS:
                yield f"{parameter.dtype} {list(parameter.shape)}"
    for child in (own.get("_modules") or {}).values():
        if isinstance(child, torch.nn.Module):
            yield from _members(child, detail, seen)
