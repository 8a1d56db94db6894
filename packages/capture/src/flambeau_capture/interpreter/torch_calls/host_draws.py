"""Draws from generators of the host, as a frame makes them: recorded as calls of the graph, or,
where the frame knows the state, known.

    p = random.random()                     an unbacked float in [0, 1): draw(_inst, "random")
    random.seed(3); p = random.random()     0.2379...; the graph gives _inst its last state

While a frame is interpreted nothing is drawn from the program's generators. What a draw would give,
its type, and the errors that it raises are found with a generator of our own of the same kind
(`scratch`).
"""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.graphs.host_random import KnownState, draw, give_state
from flambeau_capture.reasons import GraphBreak
from flambeau_capture.sources import Global
from flambeau_prims.float_ranges import BELOW_ONE
from flambeau_prims.size_floats import is_unbacked, number_hint, unbacked_float
from flambeau_prims.sizes import Expr
from flambeau_prims.sizes_node import from_symbolic, to_symbolic

if TYPE_CHECKING:
    from flambeau_capture.interpreter.protocols import Args, Kwargs
    from flambeau_capture.interpreter.torch_calls.tape import TapeRecorder

_PYTHONS_OWN: Any = random._inst  # type: ignore[attr-defined]
_PLAIN = (int, float)
MOST_DRAWN = 256
"""Numbers that one frame draws: each is a symbol, and each question about it is a check."""

SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def check_generator(machine: TapeRecorder, generator: Any, what: str) -> None:
    """GraphBreak if the graph cannot be given a generator, and its state is not known."""
    if id(generator) in machine.tape.seeded:
        return
    if generator is _PYTHONS_OWN:  # behind the functions of the module
        machine.objects.register(generator, Global(vars(random), "_inst"))
    if machine.objects.source_of(generator) is None:
        raise GraphBreak("host-random", f"{what} of a generator that the frame has made")
    if machine.objects.pending_writes_of(generator):
        raise GraphBreak("host-random", f"{what} after attributes of the generator were set")


def is_known(value: Any) -> bool:
    """Whether an argument of a draw is the same in every call that the entry serves."""
    if type(value) in (tuple, list, torch.Size):
        return all(map(is_known, value))
    return type(value) not in SYMBOLIC


def guess(value: Any) -> Any:
    """An argument of a draw for the scratch generator: symbolic numbers by their hints."""
    if type(value) in (tuple, list, torch.Size):
        return [guess(item) for item in value] if type(value) is list else tuple(map(guess, value))
    return _likely(from_symbolic(value)) if type(value) in SYMBOLIC else value


def _likely(number: Any) -> Any:
    """A value that a symbolic number may well have; of one that only the graph knows, the least."""
    if isinstance(number, Expr) and is_unbacked(number):
        lower, upper = number.env.ranges.bounds(number)
        return lower if lower is not None else number.hint if upper is None else upper
    return number_hint(number)


def draw_number(
    machine: TapeRecorder,
    generator: Any,
    method: str,
    args: Args,
    kwargs: Kwargs,
    example: Any,
    *,
    lower: Any = None,
    upper: Any = None,
    closed: bool = False,
    can_raise: bool,
) -> Any:
    """A number of the type of `example`, between these bounds where they are known.

    A float is `lower + (upper - lower) * [0, 1)`; closed: it is one of several numbers, of which
    `upper` is the greatest.
    """
    made = _new_number(machine, example, lower, upper, closed=closed)
    if made is None:
        raise GraphBreak("host-random", f"{method} gives a {type(example).__name__}")
    _record(machine, draw, (generator, method, *args), kwargs, made, can_raise=can_raise)
    return to_symbolic(made)


def draw_numbers(
    machine: TapeRecorder,
    target: Any,
    args: Args,
    kwargs: Kwargs,
    examples: list[Any],
    lower: Any,
    upper: Any,
) -> list[Any]:  # fmt: skip
    """The numbers in the list that a draw gives, each between these bounds."""
    made = [_new_number(machine, example, lower, upper, closed=True) for example in examples]
    _record(machine, target, args, kwargs, made, can_raise=False)
    return [to_symbolic(number) for number in made]


def _new_number(
    machine: TapeRecorder, example: Any, lower: Any, upper: Any, *, closed: bool
) -> Any:
    env = machine.tape.size_env()
    if type(example) is float:
        known = type(lower) in _PLAIN and type(upper) in _PLAIN
        return unbacked_float(env, _within(lower, upper, closed=closed) if known else None)
    if type(example) is int:
        most = from_symbolic(upper) if type(upper) is torch.SymInt else upper
        return env.unbacked(lower=lower if type(lower) is int else None, upper=most)
    return None


def _record(
    machine: TapeRecorder,
    target: Any,
    args: Args,
    kwargs: Kwargs,
    made: Any,
    *,
    can_raise: bool,
) -> None:  # fmt: skip
    """Record the call that defines unbacked numbers."""
    tape = machine.tape
    tape.drawn += len(made) if isinstance(made, list) else 1
    if tape.drawn > MOST_DRAWN:
        raise GraphBreak(
            "call-limit",
            f"more than {MOST_DRAWN} numbers are drawn one by one",
            hint="draw them at once, as an array or a tensor, or outside the compiled function",
        )
    names = tape.unbacked.fresh()
    define = tape.unbacked.result
    result = [*map(define, made)] if isinstance(made, list) else define(made)
    tape.call_untraced(target, args, kwargs, result=result, can_raise=can_raise)
    tape.unbacked.bind_unbacked(names, [])


def _within(lower: float, upper: float, *, closed: bool) -> tuple[float, float] | None:
    """The least and greatest float of a draw between these; None if they are not finite."""
    ends = (lower + 0.0, upper + 0.0 if closed else lower + (upper - lower) * BELOW_ONE)
    return (min(ends), max(ends)) if all(map(math.isfinite, ends)) else None


# ---------------------------------------------------------------- states that the frame knows


def seed(machine: TapeRecorder, generator: Any, scratch: Any) -> None:
    """Give the program's generator the state of `scratch`, which draws during capture."""
    state = machine.tape.seeded[id(generator)] = KnownState(scratch)
    machine.tape.call_untraced(give_state, (generator, state))


def seed_anew(machine: TapeRecorder, generator: Any, *args: Any) -> None:
    """A seed that only the graph knows."""
    machine.tape.seeded.pop(id(generator), None)
    machine.tape.call_untraced(draw, (generator, "seed", *args), can_raise=True)


def make_generator(machine: TapeRecorder, made: Any) -> Any:
    """A generator that the frame makes of a known seed: it draws during capture."""
    machine.tape.seeded[id(made)] = KnownState(made)
    return made


def known_state(machine: TapeRecorder, generator: Any, *, known: bool) -> KnownState | None:
    """The state of a generator that the frame has seeded; draws that are not `known` forget it."""
    seeded = machine.tape.seeded
    if known:
        return seeded.get(id(generator))
    if id(generator) in seeded and machine.objects.source_of(generator) is None:
        raise GraphBreak("host-random", "a draw in data of a generator that the frame has made")
    seeded.pop(id(generator), None)
    return None
