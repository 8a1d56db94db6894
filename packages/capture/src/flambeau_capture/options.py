"""Options of capture: one frozen value that travels with each compiled callable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flambeau_capture.guards.filtering import GuardFilter
    from flambeau_capture.marks import MarksBySource


@dataclass(frozen=True, slots=True)
class CaptureOptions:
    """How frames are captured and when to stop trying.

    fullgraph: a frame that cannot be captured whole is an error (CaptureError) rather than left to
    the interpreter. dynamic: True makes every size and int input symbolic, False none, None those
    that were seen to change. recompile_limit: entries one callable may have. For a further call
    that none serves one is made for all sizes and numbers, unless `dynamic`
        is False; calls that it does not serve either run eagerly. One warning says which guard kept
        failing.
    inline_depth: calls nested deeper than this are not followed.
    instruction_limit: a frame that runs this many instructions of bytecode without a call for the
    graph is given up, and runs eagerly. call_limit: a frame that makes more calls of torch than
    this for one graph is given up, and runs eagerly. verbose: print each capture, recompilation and
    break as it happens. dynamic_shapes: marks of sizes by the source of a tensor
    (`marks.marks_by_origin`); with None, marks on tensors do not count. speculate: where the
    program decides by what is in a tensor, go the way that the call being captured goes, and check
    that as the graph runs;
        otherwise that is a graph break.
    exporting: what torch.compiler.is_exporting answers; set by `export`.
    own_frames: tracebacks of the program's errors keep the frames of this package and of those it
    is used with. guard_filter_fn: says which guards to keep (guards/filtering.py), at the user's
    own risk; None keeps all.
    background: compile in a worker thread; calls run eagerly until the entry is there
    (`background.py`). background_limit: how many compiles of the process may wait or run; beyond
    them, calls run eagerly and are not captured.
    """

    fullgraph: bool = False
    dynamic: bool | None = None
    recompile_limit: int = 8
    inline_depth: int = 200
    instruction_limit: int = 200_000
    call_limit: int = 30_000
    verbose: bool = False
    dynamic_shapes: MarksBySource | None = ()
    speculate: bool = True
    exporting: bool = False
    own_frames: bool = False
    guard_filter_fn: GuardFilter | None = None
    background: bool = False
    background_limit: int = 16
