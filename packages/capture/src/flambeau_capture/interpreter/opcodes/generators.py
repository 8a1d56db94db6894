"""Generators: their creation, suspension, and delegation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flambeau_capture.bytecode.instructions import VERSION
from flambeau_capture.interpreter.frame import RETURN, YIELD
from flambeau_capture.interpreter.generator import InterpretedGenerator
from flambeau_capture.interpreter.semantics.attributes import load_attr
from flambeau_capture.interpreter.semantics.items import EXHAUSTED, advance, iterate
from flambeau_capture.reasons import GraphBreak

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Frame


_COROUTINE = 0x80 | 0x200  # CO_COROUTINE, CO_ASYNC_GENERATOR


def RETURN_GENERATOR(frame: Frame, arg: Any) -> int:
    if frame.code.flags & _COROUTINE:
        raise GraphBreak("coroutine", f"call of async function {frame.code.name}")
    frame.value = InterpretedGenerator(frame)
    return RETURN


def YIELD_VALUE(frame: Frame, arg: Any) -> int:
    frame.value = frame.stack.pop()
    return YIELD


def GET_YIELD_FROM_ITER(frame: Frame, arg: Any) -> None:
    frame.stack[-1] = iterate(frame.machine, frame.stack[-1])


def SEND(frame: Frame, arg: int) -> None:
    machine, stack = frame.machine, frame.stack
    sent = stack.pop()
    receiver = stack[-1]
    machine.stop_value = None
    try:
        if sent is None:
            result = advance(machine, receiver)
        else:
            result = machine.call(load_attr(machine, receiver, "send"), (sent,), {})
    except StopIteration as stop:
        result, machine.stop_value = EXHAUSTED, stop.value
    if result is not EXHAUSTED:
        stack.append(result)
        return
    if VERSION < (3, 12):
        stack.pop()
    stack.append(machine.stop_value)
    frame.ip = arg


def END_SEND(frame: Frame, arg: Any) -> None:
    stack = frame.stack
    value = stack.pop()
    stack[-1] = value


def CLEANUP_THROW(frame: Frame, arg: Any) -> None:
    stack = frame.stack
    error = stack.pop()
    if not isinstance(error, StopIteration):
        raise error
    del stack[-2:]
    stack.append(None)
    stack.append(error.value)
