"""Interpreted frames as the program sees them: `sys._getframe` and what is built on it."""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING, Any

from flambeau_capture.interpreter.semantics.attributes import load_global_value
from flambeau_capture.interpreter.substitute_registry import substitute_for
from flambeau_capture.interpreter.substitutes.introspection import globals_of, locals_of
from flambeau_capture.interpreter.values.classes import Proxy
from flambeau_capture.reasons import GraphBreak

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Frame, Machine


class FrameView(Proxy):
    """A frame object of an interpreted frame."""

    __slots__ = ("frame",)

    def __init__(self, frame: Frame) -> None:
        self.frame = frame

    def seen_type(self) -> type:
        """The type that the program sees."""
        return types.FrameType

    @staticmethod
    def instance_of(classes: Any) -> bool:
        return issubclass(types.FrameType, classes)

    def seen_attribute(self, name: str) -> Any:
        """What an interpreted frame tells of itself; a break for the rest."""
        frame = self.frame
        match name:
            case "f_globals":
                return globals_of(frame)
            case "f_locals":
                return locals_of(frame)
            case "f_code":
                return frame.function.__code__
            case "f_lineno":
                return frame.code.line(max(frame.ip - 1, 0))
            case "f_back":
                return FrameView(_caller(frame))
        if not hasattr(types.FrameType, name):
            raise AttributeError(f"'frame' object has no attribute {name!r}", name=name, obj=self)
        raise GraphBreak("unknown-c-function", f"{name} of a frame is read")


def _caller(frame: Frame | None) -> Frame:
    if frame is None or frame.parent is None:
        raise GraphBreak("unknown-c-function", "a frame outside the captured call is read")
    return frame.parent


def _frame_at(machine: Machine, depth: int) -> Frame:
    frame = machine.frame
    assert frame is not None
    for _ in range(depth):
        frame = _caller(frame)
    return frame


@substitute_for(sys._getframe)
def _getframe(machine: Machine, args: Any, kwargs: Any) -> Any:
    return FrameView(_frame_at(machine, *args, **kwargs) if args else _frame_at(machine, 0))


if sys.version_info >= (3, 12):

    @substitute_for(sys._getframemodulename)  # type: ignore[attr-defined]
    def _getframemodulename(machine: Machine, args: Any, kwargs: Any) -> Any:
        frame = _frame_at(machine, args[0] if args else kwargs.get("depth", 0))
        try:
            return load_global_value(machine, frame.globals, "__name__")
        except KeyError:
            return None
