"""Jumps, loops and returns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flambeau_capture.bytecode.instructions import PAST_END_FOR
from flambeau_capture.interpreter.branches.raising_branches import as_condition, branch
from flambeau_capture.interpreter.frame import RETURN
from flambeau_capture.interpreter.semantics.items import EXHAUSTED, advance, iterate
from flambeau_capture.interpreter.semantics.operators import truth

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Frame


def RETURN_VALUE(frame: Frame, arg: Any) -> int:
    frame.value = frame.stack.pop()
    return RETURN


def RETURN_CONST(frame: Frame, arg: Any) -> int:
    frame.value = arg
    return RETURN


def JUMP_FORWARD(frame: Frame, arg: int) -> None:
    frame.ip = arg


def JUMP_BACKWARD(frame: Frame, arg: int) -> None:
    frame.ip = arg


def JUMP_BACKWARD_NO_INTERRUPT(frame: Frame, arg: int) -> None:
    frame.ip = arg


def POP_JUMP_IF_TRUE(frame: Frame, arg: int) -> None:
    value = frame.stack.pop()
    if value is True or (value is not False and branch(frame, value, arg, frame.ip)):
        frame.ip = arg


def POP_JUMP_IF_FALSE(frame: Frame, arg: int) -> None:
    value = frame.stack.pop()
    if value is False or (value is not True and not branch(frame, value, frame.ip, arg)):
        frame.ip = arg


def POP_JUMP_IF_NONE(frame: Frame, arg: int) -> None:
    if frame.stack.pop() is None:
        frame.ip = arg


def POP_JUMP_IF_NOT_NONE(frame: Frame, arg: int) -> None:
    if frame.stack.pop() is not None:
        frame.ip = arg


# 3.11 has one opcode for each direction; the target is resolved while decoding.
def POP_JUMP_FORWARD_IF_TRUE(frame: Frame, arg: int) -> None:
    POP_JUMP_IF_TRUE(frame, arg)


def POP_JUMP_BACKWARD_IF_TRUE(frame: Frame, arg: int) -> None:
    POP_JUMP_IF_TRUE(frame, arg)


def POP_JUMP_FORWARD_IF_FALSE(frame: Frame, arg: int) -> None:
    POP_JUMP_IF_FALSE(frame, arg)


def POP_JUMP_BACKWARD_IF_FALSE(frame: Frame, arg: int) -> None:
    POP_JUMP_IF_FALSE(frame, arg)


def POP_JUMP_FORWARD_IF_NONE(frame: Frame, arg: int) -> None:
    POP_JUMP_IF_NONE(frame, arg)


def POP_JUMP_BACKWARD_IF_NONE(frame: Frame, arg: int) -> None:
    POP_JUMP_IF_NONE(frame, arg)


def POP_JUMP_FORWARD_IF_NOT_NONE(frame: Frame, arg: int) -> None:
    POP_JUMP_IF_NOT_NONE(frame, arg)


def POP_JUMP_BACKWARD_IF_NOT_NONE(frame: Frame, arg: int) -> None:
    POP_JUMP_IF_NOT_NONE(frame, arg)


def JUMP_IF_TRUE_OR_POP(frame: Frame, arg: int) -> None:
    if truth(frame.machine, frame.stack[-1]):
        frame.ip = arg
    else:
        frame.stack.pop()


def JUMP_IF_FALSE_OR_POP(frame: Frame, arg: int) -> None:
    if truth(frame.machine, frame.stack[-1]):
        frame.stack.pop()
    else:
        frame.ip = arg


def TO_BOOL(frame: Frame, arg: Any) -> None:
    frame.stack[-1] = as_condition(frame, frame.stack[-1])


def GET_ITER(frame: Frame, arg: Any) -> None:
    frame.stack[-1] = iterate(frame.machine, frame.stack[-1])


def FOR_ITER(frame: Frame, arg: int) -> None:
    item = advance(frame.machine, frame.stack[-1])
    if item is EXHAUSTED:
        frame.stack.pop()
        frame.ip = arg + PAST_END_FOR
    else:
        frame.stack.append(item)
