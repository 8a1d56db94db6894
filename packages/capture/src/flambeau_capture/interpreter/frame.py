"""The run loop of one interpreted frame, and unwinding by the exception table.

A handler takes (frame, argument) and returns None, or a signal that ends the run: RETURN or YIELD,
with the value in `frame.value`.
"""

from __future__ import annotations

import dis
import os
from typing import TYPE_CHECKING, Any

from flambeau_capture.bytecode.resume_code import Raiser
from flambeau_capture.interpreter.code.data_flow import Use
from flambeau_capture.interpreter.tracebacks import made_part, raised_in
from flambeau_capture.interpreter.values.deferred_strings import DeferredString, shows_tensors
from flambeau_capture.interpreter.values.lazy_values import PARTIAL_READS, LazyValue, use_in
from flambeau_capture.interpreter.values.numbers import name_plainly
from flambeau_capture.reasons import GraphBreak
from flambeau_prims import error_texts
from flambeau_prims.unsupported import Unsupported

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Frame, Machine


class Sentinel:
    """A value of the stack or of a local slot that no program can hold."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


class Handled:
    """Lies under an exception that is being handled: the one handled before, or None."""

    __slots__ = ("previous",)

    def __init__(self, previous: BaseException | None) -> None:
        self.previous = previous


class Stopped(BaseException):
    """Ends an interpretation in front of the step it was to stop at.

    On its way out, `take` has the record made while every frame is as it was.
    """

    def __init__(self, frame: Frame) -> None:
        super().__init__()
        self.frame: Frame | None = frame

    def take(self, machine: Machine) -> None:
        """Called in the innermost frame first: the rest has nothing to do."""
        if self.frame is not None:
            frame, self.frame = self.frame, None
            machine.suspend(frame)


_DEFERRED_STRING_REFUSED = error_texts.type_refused(DeferredString)
_PACKAGE = os.path.dirname(os.path.dirname(__file__))
_OWN_READS = (
    "LOAD_GLOBAL", "LOAD_NAME", "LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_ATTR", "LOAD_METHOD",
)  # fmt: skip


def _is_ours(error: BaseException) -> bool:
    """Whether a name or attribute was missing in this package's own code.

    What the program does is done for it by calls (getattr, descriptors) and explicit raises, never
    by our own reads.
    """
    traceback = error.__traceback__
    if traceback is None or made_part(error) is not None:
        return False
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    code = traceback.tb_frame.f_code
    opcode = dis.opname[code.co_code[traceback.tb_lasti]]
    return code.co_filename.startswith(_PACKAGE) and opcode in _OWN_READS


NULL = UNBOUND = Sentinel("NULL")
"""One object, as in CPython: inlined comprehensions push an unbound local and store it back."""
RETURN = 1
YIELD = 2


_AS_USED = PARTIAL_READS | {DeferredString}


def local(frame: Frame, slot: int, above: int = 0) -> Any:
    """What a local slot holds, as the frame may see it; `above` other values are pushed upon it."""
    value = frame.locals[slot]
    if type(value) is LazyValue:
        use = Use.APPEND if value.for_append else use_in(frame, above)
        found = frame.machine.objects.wrap_for(value.value, value.source, use)
        if type(found) not in _AS_USED:  # the next load may be another matter
            frame.locals[slot] = found
        return found
    return value


def whole_local(frame: Frame, slot: int) -> Any:
    """What a local slot holds, to be used in whatever way."""
    value = frame.locals[slot]
    if type(value) is LazyValue:
        value = frame.locals[slot] = frame.machine.objects.whole(value)
    return value


def run(frame: Frame) -> int:
    """Run until the frame returns or yields; raises GraphBreak, and what the program raises."""
    instructions = frame.code.instructions
    machine = frame.machine
    progress = machine.progress
    step = 0
    previous, machine.frame = machine.frame, frame
    try:
        while True:
            try:
                while True:
                    progress.step = step = progress.step + 1
                    index = frame.ip
                    if step >= progress.next_check and progress.check(step):
                        raise Stopped(frame)
                    frame.ip = index + 1
                    handler, argument = instructions[index]
                    signal = handler(frame, argument)
                    if signal is not None:
                        return signal
            except Stopped as stopped:
                stopped.take(machine)
                raise
            except GraphBreak as error:
                machine.breaks.note(frame, error, step)
                raise
            except BaseException as error:
                unwind(frame, error, step)
    finally:
        machine.frame = previous


def unwind(frame: Frame, error: BaseException, step: int = 0) -> None:
    """Go to the handler of the instruction that raised; re-raise if the table has none."""
    index = frame.ip - 1
    target = frame.code.unwinds[index]
    error = _translated(frame, error, step)
    error.__traceback__ = raised_in(frame, error)
    if target is None:
        frame.machine.breaks.note_error(frame, error, step)
        raise error
    stack = frame.stack
    del stack[target.depth :]
    if target.push_lasti:
        stack.append(Raiser(frame.code.offsets[index]))
    stack.append(error)
    frame.ip = target.target


def _translated(frame: Frame, error: BaseException, step: int) -> BaseException:
    """The error as the program sees it; GraphBreak if the interpreter failed, not the program."""
    machine = frame.machine
    if isinstance(error, (NameError, AttributeError)) and _is_ours(error):
        broken: GraphBreak | None = GraphBreak("internal-error", f"{type(error).__name__}: {error}")
    elif isinstance(error, Unsupported):
        broken = GraphBreak.of_unsupported(error)
    elif isinstance(error, RecursionError):
        broken = GraphBreak("inline-depth", "the interpreter's own recursion limit was reached")
    elif shows_tensors(error):
        broken = None
    elif _DEFERRED_STRING_REFUSED.matches(error):
        broken = GraphBreak("data-dependent", "the text of a tensor is read by a C function")
    elif error_texts.SYMBOLIC_KEY_REFUSED.matches(error):
        broken = GraphBreak("operator-unsupported", "a symbolic size is used as a key")
    elif error_texts.SYMBOLIC_SIZES_REFUSED.matches(error):
        broken = GraphBreak("operator-unsupported", str(error).partition("\n")[0])
    else:
        broken = None
    if broken is not None:
        machine.breaks.note(frame, broken, step)
        raise broken from error
    if isinstance(error, (TypeError, AttributeError)):
        name_plainly(error)
    handling = machine.handling
    if handling is not None and handling is not error and error.__context__ is None:
        error.__context__ = handling
    return error
