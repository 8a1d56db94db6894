"""An entry taken apart, for who wants to keep it for other processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import types

    from torch import fx

    from flambeau_capture.entries.graph_failure import OnError
    from flambeau_capture.entries.state_snapshot import StateSnapshot
    from flambeau_capture.events import EntryInfo
    from flambeau_capture.record import Capture
    from flambeau_capture.sources import Source


@dataclass(frozen=True, slots=True)
class EntryParts:
    """An entry that has just been made, taken apart, with the capture that it was made of.

    `graph_module` is None where no graph runs. `text` and `constants` are the entry function's; the
    graph itself is called where `text` is "". `snapshot` is what is saved before the graph runs.
    `frames` rebuild the capture's suspended frames; `changing`: the dynamic dims of
    what these pass on, by the numbers of a frame and of what follows in it, and text of the source.
    """

    capture: Capture
    graph_module: fx.GraphModule | None
    info: EntryInfo
    sources: list[Source]
    item: int
    text: str
    constants: dict[str, Any]
    on_error: OnError | None
    snapshot: StateSnapshot
    frames: list[types.FunctionType]
    changing: dict[tuple[int, int], dict[str, frozenset[int]]]
