"""Whole entries on disk: a process that finds its entry captures nothing.

    function, arguments' types and sizes, options, torch's state  ->  key  ->  [entry, ...]

An entry is what `flambeau_capture.stored` describes: guards, the entry function, and the key of its
compiled graph (`stored_graphs`). A key may have several entries; the first whose guards hold on the
call at hand, over this process's objects, serves it. The key holds the versions, the processor and
the options besides, so that nothing else is ever read.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from flambeau import stored_graphs
from flambeau.logs import shows_stages
from flambeau.surroundings import surroundings
from flambeau_capture.stored.reasons import NotStorable
from flambeau_runtime.cache import binding, key_of
from flambeau_runtime.cache_locks import one_at_a_time
from flambeau_runtime.environment_errors import CacheError
from flambeau_runtime.object_stores import cache_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import fx

    from flambeau.compile_context import Context
    from flambeau.report import GraphReport

KIND = "entry"
FORMAT = 2
LIMIT = 8
"""Entries that are kept under one key."""
PATIENCE = 5.0
"""Seconds for which a writer waits for another: after that, one of two entries may be lost."""


class StoredEntries:
    """The entries of one compiled callable: an `EntryStore` of `flambeau_capture`."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def read(self, key: tuple[str, ...]) -> list[Any]:
        """The entries under a key, the latest first; none where stages are to be shown."""
        if shows_stages(self._context.options.environment):
            return []
        return self._read(self._key(key))

    def _read(self, key: str) -> list[Any]:
        return _entries(stored_graphs.read_text(KIND, key, self._context))

    def write(self, key: tuple[str, ...], entry: Any) -> None:
        """Keep an entry under a key."""
        hashed = self._key(key)
        cache = cache_of(self._context.options.runtime)
        try:
            with one_at_a_time(cache, KIND, hashed, PATIENCE):
                entries = [entry, *(kept for kept in self._read(hashed) if kept != entry)][:LIMIT]
                stored_graphs.store_text(KIND, hashed, _text(hashed, entries), self._context)
        except CacheError as error:
            raise NotStorable("graph", str(error)) from None

    def graph(self, graph_module: fx.GraphModule) -> Any:
        """The key of a compiled graph, and how many calls it has."""
        for graph in self._graphs():
            if graph.gm is graph_module:
                if graph.stored not in ("read", "written") and not graph.for_entry:
                    raise NotStorable("graph", graph.stored)
                return {"key": graph.key, "calls": graph.calls}
        raise NotStorable("graph")

    def _graphs(self) -> Sequence[GraphReport]:
        """The reports of the graphs that these entries call."""
        return self._context.report.graphs

    def load_graph(self, data: Any) -> Callable[..., Any] | None:
        """The compiled graph of a key."""
        return stored_graphs.load_graph(data["key"], data["calls"], self._context)

    def _key(self, key: tuple[str, ...]) -> str:
        described = [FORMAT, *surroundings(self._context), *key]
        return key_of(json.dumps(described, allow_nan=False))


def joined(key: str, present: bytes | None, more: bytes) -> bytes:
    """The text of the entries of two texts under one key, those of `more` first."""
    added = _entries(more)
    kept = [entry for entry in _entries(present) if entry not in added]
    return _text(key, [*added, *kept][:LIMIT])


def _entries(text: bytes | None) -> list[Any]:
    try:
        entries = json.loads(text or b"")["entries"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []
    return entries if isinstance(entries, list) else []


def _text(key: str, entries: list[Any]) -> bytes:
    data = {"binding": binding(KIND, key), "entries": entries}
    return json.dumps(data, separators=(",", ":"), allow_nan=False).encode()


def store_of(context: Context, backend: Any) -> StoredEntries | None:
    """Where the entries of a callable are kept; None if its options keep none."""
    options = context.options
    asked = options.runtime.graph_cache and options.runtime.use_cache and backend == "inductor"
    if not asked or options.environment.check or context.report.folder:
        return None
    if options.inductor.tunes or options.autograd.freezing:
        return None
    return StoredEntries(context)
