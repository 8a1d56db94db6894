"""Opcodes that only move values of the stack, and those that do nothing here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flambeau_capture.interpreter.frame import NULL

if TYPE_CHECKING:
    from flambeau_capture.interpreter.frame import Frame


def NOP(frame: Frame, arg: Any) -> None:
    pass


def RESUME(frame: Frame, arg: Any) -> None:
    pass


def CACHE(frame: Frame, arg: Any) -> None:
    pass


def PRECALL(frame: Frame, arg: Any) -> None:
    pass


def POP_TOP(frame: Frame, arg: Any) -> None:
    frame.stack.pop()


def PUSH_NULL(frame: Frame, arg: Any) -> None:
    frame.stack.append(NULL)


def COPY(frame: Frame, arg: int) -> None:
    frame.stack.append(frame.stack[-arg])


def SWAP(frame: Frame, arg: int) -> None:
    stack = frame.stack
    stack[-1], stack[-arg] = stack[-arg], stack[-1]


def END_FOR(frame: Frame, arg: Any) -> None:
    # FOR_ITER jumps past it; it is reached only by falling through, which compiled code never does.
    frame.stack.pop()
