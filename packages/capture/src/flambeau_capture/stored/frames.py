"""Suspended frames of a graph break <-> JSON: the code that each one runs, and where it goes on.

SuspendedFrame(code of Model.forward, at 12, layout)   <->   {"code": {"object": 3}, "at": 12}
"""

from __future__ import annotations

import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flambeau_capture.bytecode.instructions import Successor
from flambeau_capture.bytecode.resume_code import FrameCode, Layout, Raiser
from flambeau_capture.record import SuspendedFrame
from flambeau_capture.stored.descriptions import is_module_globals
from flambeau_capture.stored.reasons import NotStorable

if TYPE_CHECKING:
    import types
    from collections.abc import Callable, Mapping, Sequence

    from flambeau_capture.entries.continuations import Changing
    from flambeau_capture.events import EntryInfo
    from flambeau_capture.record import Assumption
    from flambeau_capture.stored.decoding import Decoder
    from flambeau_capture.stored.encoding import Encoder

Json = Any


@dataclass(frozen=True, slots=True)
class EntryContext:
    """What a compiled callable makes for the entries that it reads."""

    functions: Callable[[list[SuspendedFrame], Callable[[int, int], Changing]], list[Any]]
    """The function that rebuilds each frame (`entries.continuations.frame_functions`)."""
    handler: Callable[[], Any]
    """The handler of the frames that are reached below a break."""
    violated: Callable[[EntryInfo, Assumption], None]
    """The graph of an entry contradicts an assumption about data."""
    to_end: bool
    """Whether an entry runs its frames to the end."""


# ---------------------------------------------------------------- written


def encode_frames(
    encoder: Encoder,
    function: types.FunctionType,
    suspended: Sequence[SuspendedFrame],
    changing: Mapping[tuple[int, int], Mapping[str, frozenset[int]]],
) -> list[Json]:
    """The frames of an entry of `function`, and the dynamic dims of what they pass on."""
    return [
        _encode_frame(
            encoder,
            function,
            frame,
            [changing.get((number, at), {}) for at in range(len(frame.following))],
        )
        for number, frame in enumerate(suspended)
    ]


def _encode_frame(
    encoder: Encoder,
    function: types.FunctionType,
    frame: SuspendedFrame,
    changing: list[Mapping[str, frozenset[int]]],
) -> dict[str, Json]:
    frame_code = frame.frame_code
    return {
        "code": encoder.object(frame_code.code),
        "globals": _module_of(function, frame_code),
        "names": [frame_code.name, frame_code.qualname],
        "at": frame.index,
        "performs": frame.performs,
        "layout": _layout(frame.layout),
        "keywords": list(frame.keyword_names),
        "following": [
            [[to.index, _stack(to.stack), to.jumps, to.pops], _layout(layout)]
            for to, layout in frame.following
        ],
        "changing": [{source: sorted(dims) for source, dims in each.items()} for each in changing],
    }


def _module_of(function: types.FunctionType, frame_code: FrameCode) -> str | None:
    if frame_code.globals is function.__globals__:
        return None
    name = is_module_globals(frame_code.globals)
    if not name:
        raise NotStorable("dict", f"the globals of {frame_code.qualname}")
    return name


def _layout(layout: Layout) -> Json:
    return [list(layout.locals), _stack(layout.stack)]


def _stack(stack: Sequence[str | int]) -> Json:
    return [{"raiser": int(item)} if isinstance(item, Raiser) else item for item in stack]


# ---------------------------------------------------------------- read


def decode_frames(
    decoder: Decoder, function: types.FunctionType, data: Sequence[Json]
) -> list[SuspendedFrame]:
    """The frames that `encode_frames` wrote, over this process's code; Stale where it differs."""
    return [_decode_frame(decoder, function, item) for item in data]


def decode_changing(data: Sequence[Json]) -> Callable[[int, int], Changing]:
    """The dynamic dims that `encode_frames` wrote."""
    dims = [
        [
            {str(source): frozenset(map(int, dims)) for source, dims in each.items()}
            for each in item["changing"]
        ]
        for item in data
    ]
    return lambda number, at: lambda names: dims[number][at]


def _decode_frame(
    decoder: Decoder, function: types.FunctionType, item: dict[str, Json]
) -> SuspendedFrame:
    code = decoder.object(item["code"])
    module = item["globals"]
    mapping = function.__globals__ if module is None else decoder.value({"globals": module})
    return SuspendedFrame(
        frame_code=FrameCode(code, mapping, *item["names"]),
        index=item["at"],
        performs=item["performs"],
        layout=_read_layout(item["layout"]),
        keyword_names=tuple(item["keywords"]),
        arguments=[],
        following=[
            (Successor(at, _read_stack(stack), jumps, pops), _read_layout(layout))
            for (at, stack, jumps, pops), layout in item["following"]
        ],
    )


def _read_layout(data: Json) -> Layout:
    slots, stack = data
    return Layout(tuple(slots), _read_stack(stack))


def _read_stack(stack: Sequence[Json]) -> tuple[str | int, ...]:
    return tuple(Raiser(item["raiser"]) if isinstance(item, dict) else item for item in stack)
