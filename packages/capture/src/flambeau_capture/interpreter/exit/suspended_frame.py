"""Suspended frames in terms of the program's own code: instruction, slots, recipes of the stack.

A generator that leaves the frame is a suspended frame, too:

def gen(): ...; yield a; ...    ->    a generator function whose prologue restores the frame and
                                      yields once, where gen did; from there it goes on as gen would
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flambeau_capture.bytecode.instructions import HANDLED, VALUE, NotResumable
from flambeau_capture.bytecode.instructions import NULL as NULL_KIND
from flambeau_capture.bytecode.resume_code import (
    FrameCode,
    Layout,
    Raiser,
    argument_order,
    generator_function,
    resumed_from,
)
from flambeau_capture.interpreter.code.data_flow import live_slots, sees_locals
from flambeau_capture.interpreter.code.decode import decode
from flambeau_capture.interpreter.frame import NULL, UNBOUND, Handled
from flambeau_capture.interpreter.generator import delegates
from flambeau_capture.interpreter.tracebacks import raised_in
from flambeau_capture.interpreter.values.lifetimes import may_be_watched
from flambeau_capture.reasons import GraphBreak
from flambeau_capture.record import CallRecipe, Const

if TYPE_CHECKING:
    from flambeau_capture.interpreter.generator import InterpretedGenerator
    from flambeau_capture.interpreter.machine import Frame
    from flambeau_capture.interpreter.protocols import RecipeMaker
    from flambeau_capture.record import Recipe


class Original:
    """A frame in terms of the program's own code, also if it is already the rest of a function."""

    def __init__(self, frame: Frame) -> None:
        code = frame.code.code_reference()
        assert code is not None
        self.decoded = frame.code
        self.resumed = resumed_from(code)
        if self.resumed is None:
            function = frame.function
            names = function.__name__, function.__qualname__
            self.frame_code = FrameCode(code, frame.globals, *names)
        else:
            self.frame_code = self.resumed.frame_code
            self.decoded = decode(self.frame_code.code, frame.machine.operations.handlers)
        shift = 0 if self.resumed is None else self.resumed.shift
        count = self.frame_code.code.co_nlocals
        slots = range(self.decoded.n_locals)
        values = [frame.locals[slot if slot < count else slot + shift] for slot in slots]
        self.bound = {slot: value for slot, value in enumerate(values) if value is not UNBOUND}

    def index(self, index: int) -> int:
        """The instruction's number in the program's code."""
        if self.resumed is None:
            return index
        if index < self.resumed.first:
            raise GraphBreak("not-resumable", "a resume function breaks before it has begun")
        return index - self.resumed.first

    def arguments(
        self, layout: Layout, stack: dict[int, Recipe], rebuild: RecipeMaker
    ) -> list[Recipe]:
        """What the frame passes for a layout, in parameter order; `stack`: recipes by position."""
        kept = set(layout.locals)
        recipes: list[Recipe] = []
        for kind, at in argument_order(self.frame_code.code, layout):
            if kind == "stack":
                recipes.append(stack[at])
            else:
                recipes.append(rebuild.recipe(self.bound[at]) if at in kept else Const(None))
        return recipes

    def offset(self, offset: int) -> int:
        """The unit in the program's code."""
        return offset if self.resumed is None else offset - self.resumed.start


def _handled_recipe(frame: Frame, rebuild: RecipeMaker, error: BaseException | None) -> Recipe:
    """An exception being handled; CPython 3.11 relies on its traceback where a `with` ends."""
    if error is None:
        return Const(None)
    if error.__traceback__ is None:  # the program has taken it away
        error.__traceback__ = raised_in(frame, error)
    return rebuild.recipe(error)


def stack_recipes(
    frame: Frame, original: Original, rebuild: RecipeMaker, handling: BaseException | None
) -> tuple[tuple[str | int, ...], dict[int, Recipe], BaseException | None]:
    """The kinds of the stack's entries, recipes of those that are handed over, and the exception
    handled outside of the frame.

    `handling` is the one that is being handled in it.
    """
    kinds: list[str | int] = []
    values: dict[int, Recipe] = {}
    for at, entry in reversed(list(enumerate(frame.stack))):
        if entry is NULL:
            kinds.append(NULL_KIND)
        elif isinstance(entry, Handled):
            kinds.append(HANDLED)
            values[at] = _handled_recipe(frame, rebuild, handling)
            handling = entry.previous
        elif isinstance(entry, Raiser):
            kinds.append(original.offset(entry))
        else:
            kinds.append(VALUE)
            values[at] = rebuild.recipe(entry)
    return tuple(reversed(kinds)), values, handling


# ---------------------------------------------------------------- generators


def generator_recipe(rebuild: RecipeMaker, generator: InterpretedGenerator) -> Recipe:
    """The generator as it is suspended; a break where it is running, or delegates to another."""
    frame = generator.frame
    if generator.finished:
        return CallRecipe(_finished)
    original = Original(frame)
    at = frame.ip
    if not generator.started:
        at += 1  # past the POP_TOP of what the first send gives
    elif original.decoded.names_at[at - 1] != "YIELD_VALUE" or delegates(original.decoded, at):
        detail = "a generator that runs, or delegates, is returned or stored"
        raise GraphBreak("generator-escapes", detail)
    if sees_locals(original.frame_code.code):
        detail = "a generator that looks at its locals is returned or stored"
        raise GraphBreak("generator-escapes", detail)
    kinds, values, _ = stack_recipes(frame, original, rebuild, generator.handling)
    live = live_slots(original.decoded, at)
    handler = original.decoded.unwinds[at - 1]
    if handler is not None and generator.started:
        live |= live_slots(original.decoded, handler.target)
    held = {slot for slot, value in original.bound.items() if may_be_watched(value)}
    layout = Layout(tuple(sorted((live & original.bound.keys()) | held)), kinds)
    try:
        function = generator_function(original.frame_code, at, layout, suspended=generator.started)
    except NotResumable as error:
        raise GraphBreak("generator-escapes", str(error)) from error
    arguments = original.arguments(layout, values, rebuild)
    return CallRecipe(_suspended, (Const(function), Const(generator.started), *arguments))


def _suspended(function: Any, started: bool, *arguments: Any) -> Any:
    generator = function(*arguments)
    if started:
        next(generator)
    return generator


def _finished() -> Any:
    nothing: tuple[Any, ...] = ()
    generator = (item for item in nothing)
    next(generator, None)
    return generator
