"""Where stored entries are kept, and by what: the function, and the types and sizes of arguments.

The key is only a way to find candidates quickly. Whether a candidate serves a call is decided by
its guards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

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
    for sizes in (True, False):
        try:
            key = key_of_call(scope, sizes=sizes)
        except NotStorable:
            return None
        for data in violations.candidates(store.read(key)):
            entry = decode_entry(data, scope, state, store.load_graph, note, context)
            if entry is not None:
                return entry
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
        for sizes in (True, False) if data["symbols"] else (True,):
            store.write(key_of_call(scope, sizes=sizes), data)
    except NotStorable as error:
        return str(error)
    if graph is not None:
        parts.info.graph_key = str(graph["key"])
    return "written"


def key_of_call(scope: Scope, *, sizes: bool) -> tuple[str, ...]:
    """What tells the calls of a function apart that need different entries; without `sizes`, those
    of which an entry with symbolic sizes may serve several.
    """
    described = Descriptions().of(scope.function.__code__)
    module = str(scope.function.__globals__.get("__name__"))
    arguments = ";".join(_described(value, sizes, 0) for value in scope.arguments)
    return described, module, arguments


def _described(value: Any, sizes: bool, depth: int) -> str:
    kind = type(value)
    if isinstance(value, torch.Tensor):
        if any(name.startswith(("_dynamo", "_flambeau")) for name in value.__dict__):
            raise NotStorable("override", "a tensor is marked")
        if kind not in _PLAIN_TENSORS:  # whose sizes code of its class may answer, or refuse
            return type_text(kind)
        shape = list(value.shape) if sizes else value.dim()
        return f"{type_text(kind)} {value.dtype} {value.device} {shape}"
    if isinstance(value, torch.nn.Module):
        return " ".join(_members(value, set()))
    if kind in (bool, type(None)):
        return repr(value)
    if depth < _DEPTH:
        if kind in (tuple, list):
            items = ",".join(_described(item, sizes, depth + 1) for item in value)
            return f"{kind.__name__}({items})"
        if kind is dict:
            pairs = (
                f"{_key_text(key)}:{_described(item, sizes, depth + 1)}"
                for key, item in value.items()
            )
            return f"dict({','.join(pairs)})"
    return type_text(kind)


def _key_text(key: Any) -> str:
    return key if type(key) is str else type_text(type(key))


def _members(module: torch.nn.Module, seen: set[int]) -> Iterator[str]:
    """The classes of a module and its children, and whether they train."""
    if id(module) in seen:
        return
    seen.add(id(module))
    own = module.__dict__
    yield f"{type_text(type(module))}{'+' if own.get('training') is True else '-'}"
    for child in (own.get("_modules") or {}).values():
        if isinstance(child, torch.nn.Module):
            yield from _members(child, seen)
