"""Recipes of generators: a suspended interpreted frame as a real generator, suspended at the same
yield.

def gen(): ...; yield a; ...    ->    a generator function whose prologue restores the frame and
                                      yields once, where gen did; from there it goes on as gen would
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flambeau_capture.bytecode.resume_code import Layout, generator_function
from flambeau_capture.bytecode.successors import NotResumable
from flambeau_capture.interpreter.code.liveness import live_slots, sees_locals
from flambeau_capture.interpreter.exit.suspended_frame import Original, stack_recipes
from flambeau_capture.reasons import GraphBreak
from flambeau_capture.record import CallRecipe, Const

if TYPE_CHECKING:
    from flambeau_capture.interpreter.generator import InterpretedGenerator
    from flambeau_capture.interpreter.protocols import RecipeMaker
    from flambeau_capture.record import Recipe


def generator_recipe(rebuild: RecipeMaker, generator: InterpretedGenerator) -> Recipe:
    """The generator as it is suspended; a break where it is running, or delegates to another."""
    frame = generator.frame
    if generator.finished:
        return CallRecipe(_finished)
    original = Original(frame)
    at = frame.ip
    if not generator.started:
        at += 1  # past the POP_TOP of what the first send gives
    elif original.decoded.names_at[at - 1] != "YIELD_VALUE" or _delegates(original, at):
        raise GraphBreak(
            "generator-escapes", "a generator that runs, or delegates, is returned or stored"
        )
    if sees_locals(original.frame_code.code):
        raise GraphBreak(
            "generator-escapes", "a generator that looks at its locals is returned or stored"
        )
    kinds, values, _ = stack_recipes(frame, original, rebuild, generator.handling)
    live = live_slots(original.decoded, at)
    handler = original.decoded.unwinds[at - 1]
    if handler is not None and generator.started:
        live |= live_slots(original.decoded, handler.target)
    layout = Layout(tuple(sorted(live & original.bound.keys())), kinds)
    try:
        function = generator_function(original.frame_code, at, layout, suspended=generator.started)
    except NotResumable as error:
        raise GraphBreak("generator-escapes", str(error)) from error
    arguments = original.arguments(layout, values, rebuild)
    return CallRecipe(_suspended, (Const(function), Const(generator.started), *arguments))


def _delegates(original: Original, at: int) -> bool:
    """Whether the yield before instruction `at` is that of a `yield from`."""
    name, (_, argument) = original.decoded.names_at[at], original.decoded.instructions[at]
    return name == "RESUME" and argument & 3 >= 2


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
