"""Python's `random`: what its generators draw, as calls of the graph (`host_draws`).

    if random.random() < 0.5: ...; i = random.randint(0, 9)

A method of `random.Random` is one draw, whatever it does inside; so are choices among numbers.  Choices among other objects break the graph.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from flambeau_capture.host_random import draw, is_host_generator_type, shuffled
from flambeau_capture.interpreter.host_draws import (
    check_generator,
    draw_number,
    draw_numbers,
    guess,
    is_known,
    known_state,
    make_generator,
    seed,
    seed_anew,
)
from flambeau_capture.interpreter.substitutes.registry import substitute_for
from flambeau_capture.reasons import GraphBreak

if TYPE_CHECKING:
    from collections.abc import Callable

    from flambeau_capture.interpreter.machine import Machine
    from flambeau_capture.interpreter.substitutes.registry import Substitute

_RANDOM = random.Random
_NUMBERS = (
    "random", "uniform", "triangular", "betavariate", "expovariate", "gammavariate", "gauss", "lognormvariate", "normalvariate",
    "vonmisesvariate", "paretovariate", "weibullvariate", "getrandbits", "randrange", "randint", "binomialvariate",
    "_randbelow_with_getrandbits",
)  # fmt: skip
_CHOOSING = ("choice", "choices", "shuffle", "sample")
_BREAKING = ("randbytes", "getstate", "setstate")
_MOST_CHOSEN = 64


def _below(start: Any, stop: Any = None, step: Any = 1) -> tuple[Any, Any]:
    if type(step) is not int or step < 1:
        return None, None
    return (0, start - 1) if stop is None else (start, stop - 1)


_BOUNDS: dict[str, Callable[..., tuple[Any, Any]]] = {
    "random": lambda: (0.0, 1.0),
    "uniform": lambda a, b: (a, b),
    "getrandbits": lambda k: (0, 2**k - 1 if type(k) is int and k < 63 else None),
    "randrange": _below,
    "randint": lambda a, b: (a, b),
    "_randbelow_with_getrandbits": lambda n: (0, n - 1),
    "binomialvariate": lambda n=1, p=0.5: (0, n),
}
"""Between what the draw lies."""


def _is_plain(machine: Machine, generator: Any) -> bool:
    """Whether a generator's methods are all Python's own."""
    return type(generator) is _RANDOM and vars(generator).keys() <= {"gauss_next"}


_METHODS = dict(vars(_RANDOM))
"""Python's own methods, which a program may replace (`unittest.mock.patch("random.Random.random")`)."""


def _check_methods(machine: Machine) -> None:
    """GraphBreak where a method of `random.Random` has been replaced, which the draws of its other methods call."""
    replaced = [name for name, found in vars(_RANDOM).items() if _METHODS.get(name) is not found]
    replaced += [name for cls, name in machine.objects.classes_written if cls is _RANDOM]
    if replaced:
        raise GraphBreak("host-random", f"random.Random.{replaced[0]} has been replaced")


def _drawing(method: str, function: Any) -> Substitute:
    def substitute(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        generator, *rest = args
        _check_methods(machine)
        if not _is_plain(machine, generator):
            if hasattr(function, "__code__"):
                return machine.interpret(function, args, kwargs)
            if not is_host_generator_type(type(generator)):
                raise GraphBreak("host-random", f"a draw from a {type(generator).__name__}")
        return _draw(machine, generator, method, tuple(rest), kwargs)

    return substitute


def _draw(
    machine: Machine, generator: Any, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    check_generator(machine, generator, method)
    known = is_known(args) and is_known(tuple(kwargs.values()))
    example = _example(method, args, kwargs, known=known)
    state = known_state(machine, generator, known=known)
    if state is not None:
        return state.draw(method, args, kwargs)
    bounds = _BOUNDS.get(method)
    lower, upper = (None, None) if bounds is None else bounds(*args, **kwargs)
    return draw_number(
        machine,
        generator,
        method,
        args,
        kwargs,
        example,
        lower=lower,
        upper=upper,
        can_raise=not known,
    )


def _example(method: str, args: tuple[Any, ...], kwargs: dict[str, Any], *, known: bool) -> Any:
    """What the draw gives another generator; of known arguments, its error is the program's."""
    named = {name: guess(arg) for name, arg in kwargs.items()}
    try:
        return getattr(_RANDOM(0), method)(*guess(args), **named)
    except Exception as error:
        if known:
            raise
        raise GraphBreak("host-random", f"random.{method} of arguments in data: {error}") from None


for _name in _NUMBERS:
    _method = getattr(_RANDOM, _name, None)
    if _method is not None:
        substitute_for(_method)(_drawing(_name, _method))


# ---------------------------------------------------------------- choices


def _choosing(method: str, function: Any) -> Substitute:
    def substitute(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        generator, *rest = args
        if not _is_plain(machine, generator):
            return machine.interpret(function, args, kwargs)
        check_generator(machine, generator, method)
        kinds = (list,) if method == "shuffle" else (list, tuple, range, str)
        if not rest or type(rest[0]) not in kinds:
            raise GraphBreak("host-random", f"random.{method} among other things than a list's")
        state = machine.tape.seeded.get(id(generator))
        if state is not None and is_known(tuple(rest[1:])) and is_known(tuple(kwargs.values())):
            return state.draw(method, tuple(rest), kwargs)
        return _choose(machine, generator, method, tuple(rest), kwargs)

    return substitute


def _choose(
    machine: Machine, generator: Any, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """A choice among numbers: a draw as others are."""
    population = list(args[0]) if len(args[0]) <= _MOST_CHOSEN**2 else []
    kinds = {type(item) for item in population}
    rest = (*args[1:], *kwargs.values())
    if len(kinds) != 1 or not kinds <= {int, float} or not is_known(rest):
        raise GraphBreak("host-random", f"random.{method} among objects")
    if any(item != item for item in population):
        raise GraphBreak("host-random", f"random.{method} among numbers that are none")
    least, most = min(population), max(population)
    given = (population, *args[1:])
    if method == "shuffle":
        examples: Any = population
    else:
        examples = getattr(_RANDOM(0), method)(*given, **kwargs)  # raises as the program does
    chosen = examples if isinstance(examples, list) else [examples]
    if len(chosen) > _MOST_CHOSEN:
        raise GraphBreak("host-random", f"random.{method} of {len(chosen)} numbers")
    known_state(machine, generator, known=False)
    if method == "shuffle":
        args[0][:] = draw_numbers(
            machine, shuffled, (generator, population), {}, chosen, least, most
        )
        return None
    if method == "choice":
        return draw_number(
            machine, generator, method, given, kwargs, examples, lower=least, upper=most, closed=True, can_raise=False
        )  # fmt: skip
    return draw_numbers(machine, draw, (generator, method, *given), kwargs, chosen, least, most)


for _name in _CHOOSING:
    _method = getattr(_RANDOM, _name)
    substitute_for(_method)(_choosing(_name, _method))


# ---------------------------------------------------------------- states and seeds


def _breaking(method: str, function: Any) -> Substitute:
    def substitute(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not _is_plain(machine, args[0]):
            return machine.interpret(function, args, kwargs)
        raise GraphBreak("host-random", f"call of random.{method}")

    return substitute


for _name in _BREAKING:
    _method = getattr(_RANDOM, _name)
    substitute_for(_method)(_breaking(_name, _method))


@substitute_for(_RANDOM)
def _make(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> random.Random:
    given = (*args, *kwargs.values())
    if not given or given[0] is None or not is_known(given):
        raise GraphBreak("host-random", "a generator is made of a seed that is not known")
    return make_generator(machine, _RANDOM(*args, **kwargs))  # type: ignore[no-any-return]


@substitute_for(_RANDOM.seed)
def _seed(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    generator, *rest = args
    if not _is_plain(machine, generator):
        machine.interpret(_RANDOM.seed, args, kwargs)
        return
    check_generator(machine, generator, "seed")
    given = (*rest, *kwargs.values())
    if not given or given[0] is None or not is_known(given):
        if kwargs:
            raise GraphBreak("host-random", "random.seed with arguments by name")
        seed_anew(machine, generator, *rest)
        return
    scratch = _RANDOM(0)
    scratch.seed(*rest, **kwargs)
    seed(machine, generator, scratch)
