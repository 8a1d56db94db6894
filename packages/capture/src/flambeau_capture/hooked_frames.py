"""Frames reached below a graph break: each frame that the hook offers is captured like a compiled
callable.

    sorted(items, key=score)      breaks the graph; C code calls score, whose frames use entries

One object stands behind one compiled callable; it knows what to do with each code object it has
met.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from flambeau_capture.compiler_functions import disabled_reason
from flambeau_capture.core import core
from flambeau_capture.frame_hook import hook_works
from flambeau_capture.interpreter.calling import HIGHER_ORDER_OPERATORS
from flambeau_capture.interpreter.substitutes.triton_kernels import LAUNCHERS
from flambeau_capture.interpreter.values.classes import is_trusted
from flambeau_prims.fork_safety import fork_safe_lock

_GENERATED = ("<flambeau", "<eval_with_key>")


class Holder:
    """Where the entries of one code object are kept, as a compiled callable keeps its own."""

    def __init__(self) -> None:
        self.entries: tuple[Any, ...] = ()


class HookedFrames:
    """The handler of one callable's frames, made at its first break at a call of Python code."""

    def __init__(self, new_state: Callable[[types.FunctionType], Any]) -> None:
        self._new_state = new_state
        self._states: dict[int, tuple[Any, Holder]] = {}
        self._handler: Any = None
        self._lock = fork_safe_lock()

    @property
    def handler(self) -> Any:
        """The FrameHandler to put in force; None where the hook does not work."""
        if core is None or not hook_works():
            return None
        with self._lock:
            if self._handler is None:
                self._handler = core.FrameHandler(self._answer_for)
            return self._handler

    def clear(self) -> None:
        """Forget every frame; entries that are running go on."""
        with self._lock:
            self._handler = None
            self._states.clear()

    def _answer_for(self, function: types.FunctionType, arguments: tuple[Any, ...]) -> Any:
        """What `_on_frame` returns; None if the program's recursion limit leaves it no stack."""
        try:
            return self._on_frame(function, arguments, sys._getframe(1).f_code)
        except RecursionError:
            return None

    def _on_frame(
        self, function: types.FunctionType, arguments: tuple[Any, ...], caller: types.CodeType
    ) -> Any:
        """An entry; None runs this frame, False all frames of its code, True all that they call."""
        disabled = disabled_reason(function)
        if disabled is not None:
            return disabled[0] == "compiler-disable"
        module = function.__globals__.get("__name__") or ""
        if module.startswith((*LAUNCHERS, HIGHER_ORDER_OPERATORS)):
            return True
        if not _is_program(function):
            return False
        if not any(_holds_tensors(argument) for argument in arguments):
            return None
        if caller.co_name == "nonrecursive_disable_wrapper":
            # torch.compiler.disable(recursive=False): the function itself, not what it calls
            return None
        key = id(function.__code__)
        with self._lock:
            if key not in self._states:
                state, holder = self._new_state(function), Holder()
                state.attach(holder)
                self._states[key] = state, holder
            state, holder = self._states[key]
        entry = state.on_frame(function, arguments)
        if entry is None:
            return None if _may_serve(holder.entries) else False
        if entry.target is None or not _computes(entry):
            return None if entry.info.skipped is not None else False
        return entry


def _may_serve(entries: tuple[Any, ...]) -> bool:
    """Whether there are entries for other calls of the function, or nothing is known of it yet."""
    return not entries or any(entry.target is not None for entry in entries)


def _is_program(function: types.FunctionType) -> bool:
    """Whether a function is the program's, or a forward of torch's modules; not generated code."""
    module = function.__globals__.get("__name__")
    if not isinstance(module, str) or function.__code__.co_filename.startswith(_GENERATED):
        return False
    if module.partition(".")[0].startswith("flambeau"):
        return False
    return not is_trusted(module) or (
        # Not `nn.Module`, which calls hooks, some of which broke the graph, around a forward.
        module.startswith("torch.nn.modules.") and module != torch.nn.Module.__module__
    )


def _holds_tensors(value: Any, depth: int = 2) -> bool:
    # Not `isinstance`, which asks a weak proxy's object: it may be dead.
    if issubclass(type(value), (torch.Tensor, torch.nn.Module)):
        return True
    if depth and type(value) in (list, tuple):
        return any(_holds_tensors(item, depth - 1) for item in value)
    if depth and type(value) is dict:
        return any(_holds_tensors(item, depth - 1) for item in value.values())
    return False


def _computes(entry: Any) -> bool:
    """Whether the entry runs a graph that is not empty, or continues in others."""
    graph_module = entry.info.graph_module
    if entry.info.broken is not None:
        return True
    if graph_module is None:
        return bool(entry.info.graph_key)
    return any(node.op not in ("placeholder", "output") for node in graph_module.graph.nodes)
