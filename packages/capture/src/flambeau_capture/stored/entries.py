"""A made entry -> plain data, and back: its guards, its function's source and constants, and which
stored graph it calls.

    {"sources": [...], "objects": [...], "specs": [...], "places": [...],   tables (`encoding`)
     "definitions": [...],                                          what torch must define alike
     "guards": [...], "inputs": [...],                              what is checked and loaded
     "item": -1, "text": "def entry(...)", "constants": {...},      what is called
     "graph": {...}, "on_error": {...},
     "frames": [...], "frame_names": [...], "broken": [...]}       where a graph break goes on

Nothing in it is taken on trust. The objects are this process's own, found and compared; the guards
are evaluated on the call at hand before the entry is used; and what capture takes from torch and
the standard library without a guard (`definitions`) must be defined here as it was there. Functions
whose results the program declares constant are called again, and must return the same.
"""

from __future__ import annotations

import functools
from dataclasses import astuple
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.assumed_constants import call_marked_function
from flambeau_capture.entries.entry_functions import entry_function
from flambeau_capture.entries.graph_failure import OnError
from flambeau_capture.entries.new_entry import new_entry
from flambeau_capture.events import EntryInfo
from flambeau_capture.guards import program
from flambeau_capture.record import Assumption, Break
from flambeau_capture.stored.decoding import Decoder
from flambeau_capture.stored.encoding import Encoder
from flambeau_capture.stored.frames import decode_changing, decode_frames, encode_frames
from flambeau_capture.stored.reasons import NotStorable, Stale
from flambeau_prims.lazy_exports import import_apart

if TYPE_CHECKING:
    import types
    from collections.abc import Callable

    from flambeau_capture.entries.entry_parts import EntryParts
    from flambeau_capture.events import Event
    from flambeau_capture.sources import Scope
    from flambeau_capture.stored.frames import EntryContext
    from flambeau_capture.torch_state import UsualState

Json = Any


def encode_entry(parts: EntryParts, graph: Json) -> Json:
    """The data of an entry that calls the stored graph `graph`; NotStorable if it has none.

    Of parts that `check_kind` lets pass.
    """
    capture = parts.capture
    function = capture.scope.function
    definitions = capture.definitions
    encoder = Encoder(function, definitions)
    info, read = parts.info, parts.info.inputs
    on_error = parts.on_error
    names = {id(function): name for name, function in parts.constants.items()}
    frame_names = [names[id(function)] for function in parts.frames]
    data = {
        "guards": [encoder.guard(guard) for guard in info.guards],
        "inputs": [encoder.source(source) for source in parts.sources],
        "graph_inputs": [[encoder.source(source), encoder.value(spec)] for source, spec in read],
        "item": parts.item,
        "text": parts.text,
        "constants": {
            name: encoder.value(value)
            for name, value in parts.constants.items()
            if name not in ("graph", "save", *frame_names)
        },
        "assumptions": [[each.where, each.what] for each in capture.assumptions],
        "frame_names": frame_names,
        "hooked": capture.needs_hook,
        "broken": None if capture.cause is None else list(astuple(capture.cause)),
        "locks": [encoder.source(lock) for lock in capture.locks],
        "saves": [_devices_of(parts.snapshot.generators), parts.snapshot.nesting]
        if parts.snapshot
        else None,
        "graph": graph,
        "on_error": None if on_error is None else {
            "runs_again": on_error.runs_again,
            "direct": on_error.direct,
            "communicates": on_error.communicates,
            "switches": [encoder.value(setting) for setting in on_error.switches],
        },
        "definitions": [
            [
                encoder.value(holder),
                encoder.value(name),
                encoder.descriptions.of_definition(holder, name),
            ]
            for holder, name in definitions
        ],
        "assumed_constants": [
            [
                encoder.object(each.function),
                encoder.value(each.args),
                [[name, encoder.value(value)] for name, value in each.kwargs.items()],
                encoder.value(each.result),
            ]
            for each in capture.constants
        ],
    }  # fmt: skip
    data["frames"] = encode_frames(encoder, function, capture.suspended, parts.changing)
    return {**encoder.tables(info.guards), **data}


def check_kind(parts: EntryParts) -> None:
    """NotStorable for the kinds of entries that have no data."""
    capture = parts.capture
    if capture.of_the_process:
        raise NotStorable("of-the-process", capture.of_the_process)
    if capture.eager:
        raise NotStorable("eager")


def decode_entry(
    data: Json,
    scope: Scope,
    state: UsualState,
    load_graph: Callable[[Json], Callable[..., Any] | None],
    note: Callable[[Event], None],
    context: EntryContext,
) -> Any:
    """The entry for a call, if it is one of its calls; None otherwise."""
    try:
        return _decoded(data, scope, state, load_graph, note, context)
    except (Stale, LookupError, TypeError, ValueError, AttributeError, RecursionError):
        return None


def _check_assumed_constant(decoder: Decoder, function: types.FunctionType, data: Json) -> None:
    """Call a function whose result the program declares constant, as a capture would: Stale unless
    this process gets the stored result.
    """
    marked, args, kwargs, result = data
    callee = decoder.object(marked)
    given = decoder.value(args), {name: decoder.value(value) for name, value in kwargs}
    try:
        returned = call_marked_function(callee, *given)
    except Exception as error:
        raise Stale(f"{callee.__qualname__} raised {type(error).__name__}") from None
    try:
        same = Encoder(function).value(returned) == result
    except NotStorable:
        same = False
    if not same:
        raise Stale(f"{callee.__qualname__} returned another constant")


def _devices_of(generators: tuple[torch.Generator, ...]) -> list[str]:
    """The devices of torch's own generators; "cuda" stands for all GPUs of a process."""
    names = [str(generator.device) for generator in generators]
    gpus = [name for name in names if name != "cpu"]
    return ["cpu", "cuda"] if gpus and len(gpus) == torch.cuda.device_count() else names


def _generators_of(devices: list[str]) -> tuple[torch.Generator, ...]:
    """The generators that `_devices_of` named; Stale for a GPU that this process lacks."""
    found: list[torch.Generator] = []
    for device in map(torch.device, devices):
        of_gpus = torch.cuda.default_generators
        if device.type == "cpu":
            found.append(torch.default_generator)
        elif device.index is None:
            found += of_gpus
        elif device.index < len(of_gpus):
            found.append(of_gpus[device.index])
        else:
            raise Stale(f"there is no GPU {device}")
    return tuple(found)


def _snapshot(devices: list[str], nesting: bool) -> Any:
    stage = import_apart("flambeau_capture.entries.state_snapshot")
    return stage.StateSnapshot(generators=_generators_of(devices), nesting=nesting)


def _decoded(
    data: Json,
    scope: Scope,
    state: UsualState,
    load_graph: Callable[[Json], Callable[..., Any] | None],
    note: Callable[[Event], None],
    context: EntryContext,
) -> Any:
    decoder = Decoder(data, scope, state)
    guards = tuple(decoder.guard(guard) for guard in data["guards"])
    inputs = [decoder.source(at) for at in data["inputs"]]
    checked = program.guard_program(guards, inputs, len(scope.arguments))
    if checked.failed(scope.function, scope.arguments) is not None:
        return None
    for definition in data["definitions"]:
        decoder.check_definition(definition)
    for constant in data["assumed_constants"]:
        _check_assumed_constant(decoder, scope.function, constant)
    constants = {name: decoder.value(value) for name, value in data["constants"].items()}
    if data["saves"] is not None:
        constants["save"] = _snapshot(*data["saves"]).save
    on_error = None
    assumptions = tuple(Assumption(*each) for each in data["assumptions"])
    name = getattr(scope.function, "__qualname__", "function")
    if data["on_error"] is not None:
        described = data["on_error"]
        switches = [decoder.value(setting) for setting in described["switches"]]
        on_error = OnError(
            name,
            note,
            runs_again=described["runs_again"],
            switches=switches,
            assumptions=assumptions,
            communicates=described["communicates"],
        )
        on_error.direct = described["direct"]
    specs = tuple(
        (decoder.source(source), decoder.value(spec)) for source, spec in data["graph_inputs"]
    )
    suspended = decode_frames(decoder, scope.function, data["frames"])
    graph = None if data["graph"] is None else load_graph(data["graph"])
    if graph is None and data["graph"] is not None:
        return None
    if suspended:
        functions = context.functions(suspended, decode_changing(data["frames"]))
        constants |= zip(data["frame_names"], functions, strict=True)
    broken = None if data["broken"] is None else Break(*data["broken"])
    text = data["text"]
    target: Any = graph
    if text:
        target = entry_function(text, name, {**constants, "graph": graph})
    info = EntryInfo(
        guards=guards,
        inputs=specs,
        text=text,
        broken=broken,
        assumptions=assumptions,
        stored="read",
    )
    if on_error is not None:
        on_error.violated = functools.partial(context.violated, info)
    if data["graph"] is not None:
        info.graph_key = str(data["graph"]["key"])
    item = data["item"]
    if data["locks"]:
        locks = tuple(map(decoder.source, data["locks"]))
        entry = import_apart("flambeau_capture.entries.entry")
        checked, target, item = entry.under_locks(locks, scope, guards, checked, target, item)
    return new_entry(
        checked,
        target,
        item=item,
        info=info,
        handler=context.handler() if data["hooked"] else None,
        on_error=on_error,
        runs_to_end=context.to_end and bool(suspended),
    )
