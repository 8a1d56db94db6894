"""Seeds and states of random generators, `torch.Generator` objects, and Python's `random`.

Calls are recorded in order with the operators that draw:

    torch.manual_seed(3); x = torch.rand(2); g = torch.Generator(); y = torch.rand(2, generator=g)
    ->  manual_seed(3); x = torch.rand(2); g = torch.Generator(); y = torch.rand(2, generator=g)

Each such call runs by itself (`untraced`), on the real generators, so that they end up as in eager.
Nothing is drawn during capture: a generator of the program is only a name, and one that the frame
makes stands for the one that the graph will make. A seed that the frame has set is known; any other
is a number that only the graph knows.

What the generators of `random` draw are calls of the graph (`host_draws`):

    if random.random() < 0.5: ...; i = random.randint(0, 9)

A method of `random.Random` is one draw, whatever it does inside; so are choices among numbers.
Choices among other objects break the graph.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.graphs.host_random import draw, is_host_generator_type, shuffled
from flambeau_capture.interpreter.substitute_registry import substitute_for
from flambeau_capture.interpreter.torch_calls.host_draws import (
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
from flambeau_capture.reasons import GraphBreak
from flambeau_capture.record import GraphValue, Opaque
from flambeau_capture.sources import Global
from flambeau_prims.fake import make_fake
from flambeau_prims.sizes_node import from_symbolic, to_symbolic
from flambeau_prims.spec import Spec
from flambeau_prims.unbacked import new_number

if TYPE_CHECKING:
    from collections.abc import Callable

    from flambeau_capture.interpreter.machine import Machine
    from flambeau_capture.interpreter.substitute_registry import Substitute

_DEFAULT = torch.default_generator
_GENERATOR = torch.Generator
_STATE_BYTES = {"cpu": _DEFAULT.get_state().numel(), "cuda": 16}


def _break(detail: str) -> GraphBreak:
    return GraphBreak("host-random", detail)


def _default_generator(machine: Machine) -> torch.Generator:
    machine.objects.register(_DEFAULT, Global(vars(torch), "default_generator"))
    return _DEFAULT


# ---------------------------------------------------------------- what the calls give


def _state(machine: Machine, target: Any, args: tuple[Any, ...], device: torch.device) -> Any:
    """Record a call that gives the state of a generator."""
    size = _STATE_BYTES.get(device.type)
    if size is None:
        raise GraphBreak("torch-state", f"the state of a generator on {device} is read")
    state = make_fake(Spec.of((size,), dtype=torch.uint8, device=torch.device("cpu")))
    machine.tape.call_untraced(target, args, result=machine.tape.declare(state, "rng_state"))
    return state


def _number(machine: Machine, target: Any, args: tuple[Any, ...]) -> Any:
    """Record a call that gives a seed that is not known while capturing."""
    tape = machine.tape
    if not tape.tracer.unbacked or tape.env is None:
        raise GraphBreak(
            "data-dependent", "the seed of a generator is read that the frame did not set"
        )
    seed = to_symbolic(new_number(tape.env, torch.int64))
    names = tape.unbacked.fresh()
    tape.call_untraced(target, args, result=tape.unbacked.result(from_symbolic(seed)))
    tape.unbacked.bind_unbacked(names, [])
    return seed


def _checked_seed(machine: Machine, seed: Any) -> Any:
    """A seed as an int, refused as torch refuses it."""
    if isinstance(seed, torch.Tensor):
        seed = machine.call(int, (seed,), {})
    if type(seed) is not torch.SymInt:
        torch.Generator().manual_seed(seed)
    return seed


# ---------------------------------------------------------------- functions


@substitute_for(*dict.fromkeys((torch.manual_seed, torch.random.manual_seed)), unpacked=True)
def _manual_seed(machine: Machine, seed: Any) -> torch.Generator:
    if type(seed) is not torch.SymInt:
        seed = machine.call(int, (seed,), {})
    seed = _checked_seed(machine, seed)
    machine.tape.call_untraced(torch.random.manual_seed, (seed,))
    generator = _default_generator(machine)
    machine.tape.seeds[id(generator)] = seed
    return generator


@substitute_for(*dict.fromkeys((torch.seed, torch.random.seed)))
def _seed(machine: Machine, args: Any, kwargs: Any) -> Any:
    machine.tape.seeds.pop(id(_DEFAULT), None)
    return _number(machine, torch.random.seed, ())


@substitute_for(*dict.fromkeys((torch.initial_seed, torch.random.initial_seed)))
def _initial_seed(machine: Machine, args: Any, kwargs: Any) -> Any:
    known = machine.tape.seeds.get(id(_DEFAULT))
    return _number(machine, torch.random.initial_seed, ()) if known is None else known


@substitute_for(*dict.fromkeys((torch.get_rng_state, torch.random.get_rng_state)))
def _get_rng_state(machine: Machine, args: Any, kwargs: Any) -> Any:
    return _state(machine, torch.random.get_rng_state, (), _DEFAULT.device)


@substitute_for(*dict.fromkeys((torch.set_rng_state, torch.random.set_rng_state)))
def _set_rng_state(machine: Machine, args: Any, kwargs: Any) -> None:
    machine.tape.call_untraced(torch.random.set_rng_state, args, kwargs)
    machine.tape.seeds.pop(id(_DEFAULT), None)


def _recorded(function: Any) -> Substitute:
    def record(machine: Machine, args: Any, kwargs: Any) -> None:
        machine.tape.call_untraced(function, args, kwargs)

    return record


for _function in (
    torch.cuda.manual_seed,
    torch.cuda.manual_seed_all,
    torch.cuda.seed,
    torch.cuda.seed_all,
    torch.cuda.set_rng_state,
):
    substitute_for(_function)(_recorded(_function))


@substitute_for(torch.cuda.get_rng_state)
def _cuda_state(machine: Machine, args: Any, kwargs: Any) -> Any:
    if not torch.cuda.is_available():
        raise GraphBreak("torch-state", "the state of a CUDA generator is read, and there is none")
    (device,) = (*args, *kwargs.values()) or ("cuda",)
    return _state(machine, torch.cuda.get_rng_state, (device,), torch.device("cuda"))


# ---------------------------------------------------------------- torch.Generator


@substitute_for(_GENERATOR)
def _make_generator(machine: Machine, args: Any, kwargs: Any) -> torch.Generator:
    made = _GENERATOR(*args, **kwargs)
    return _made(machine, made, _GENERATOR, (made.device,), made.initial_seed())


def _made(
    machine: Machine, made: torch.Generator, target: Any, args: tuple[Any, ...], seed: Any
) -> torch.Generator:
    """Record the call that makes what `made` stands for."""
    value = GraphValue(Opaque(_GENERATOR), "generator")
    machine.tape.call_untraced(target, args, result=value)
    machine.tape.declare_opaque(made, value)
    if seed is not None:
        machine.tape.seeds[id(made)] = seed
    return made


@substitute_for(_GENERATOR.manual_seed, unpacked=True)
def _reseed(machine: Machine, generator: Any, seed: Any) -> torch.Generator:
    seed = _checked_seed(machine, seed)
    machine.tape.call_untraced("manual_seed", (generator, seed))
    machine.tape.seeds[id(generator)] = seed
    return generator  # type: ignore[no-any-return]


@substitute_for(_GENERATOR.seed)
def _seed_anew(machine: Machine, args: Any, kwargs: Any) -> Any:
    machine.tape.seeds.pop(id(args[0]), None)
    return _number(machine, "seed", args)


@substitute_for(_GENERATOR.initial_seed)
def _seed_of(machine: Machine, args: Any, kwargs: Any) -> Any:
    known = machine.tape.seeds.get(id(args[0]))
    return _number(machine, "initial_seed", args) if known is None else known


@substitute_for(_GENERATOR.get_state)
def _state_of(machine: Machine, args: Any, kwargs: Any) -> Any:
    return _state(machine, "get_state", args, machine.load(args[0], "device"))


@substitute_for(_GENERATOR.set_state, unpacked=True)
def _restate(machine: Machine, generator: Any, new_state: Any) -> torch.Generator:
    machine.tape.call_untraced("set_state", (generator, new_state))
    machine.tape.seeds.pop(id(generator), None)
    return generator  # type: ignore[no-any-return]


@substitute_for(_GENERATOR.clone_state)
def _clone(machine: Machine, args: Any, kwargs: Any) -> torch.Generator:
    (generator,) = args
    stand_in_generator = _GENERATOR(generator.device)
    return _made(
        machine, stand_in_generator, "clone_state", args, machine.tape.seeds.get(id(generator))
    )


# ---------------------------------------------------------------- host random

_RANDOM = random.Random
_NUMBERS = (
    "random", "uniform", "triangular", "betavariate", "expovariate", "gammavariate", "gauss",
    "lognormvariate", "normalvariate", "vonmisesvariate", "paretovariate", "weibullvariate",
    "getrandbits", "randrange", "randint", "binomialvariate", "_randbelow_with_getrandbits",
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
"""Python's own methods; a program may replace them (`unittest.mock.patch`)."""


def _check_methods(machine: Machine) -> None:
    """GraphBreak if a method of `random.Random` is replaced: its other methods call it."""
    replaced = [name for name, found in vars(_RANDOM).items() if _METHODS.get(name) is not found]
    replaced += [name for cls, name in machine.objects.classes_written if cls is _RANDOM]
    if replaced:
        raise _break(f"random.Random.{replaced[0]} has been replaced")


def _drawing(method: str, function: Any) -> Substitute:
    def substitute(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        generator, *rest = args
        _check_methods(machine)
        if not _is_plain(machine, generator):
            if hasattr(function, "__code__"):
                return machine.interpret(function, args, kwargs)
            if not is_host_generator_type(type(generator)):
                raise _break(f"a draw from a {type(generator).__name__}")
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
        raise _break(f"random.{method} of arguments in data: {error}") from None


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
            raise _break(f"random.{method} among other things than a list's")
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
        raise _break(f"random.{method} among objects")
    if any(item != item for item in population):
        raise _break(f"random.{method} among numbers that are none")
    least, most = min(population), max(population)
    given = (population, *args[1:])
    if method == "shuffle":
        examples: Any = population
    else:
        examples = getattr(_RANDOM(0), method)(*given, **kwargs)  # raises as the program does
    chosen = examples if isinstance(examples, list) else [examples]
    if len(chosen) > _MOST_CHOSEN:
        raise _break(f"random.{method} of {len(chosen)} numbers")
    known_state(machine, generator, known=False)
    if method == "shuffle":
        args[0][:] = draw_numbers(
            machine, shuffled, (generator, population), {}, chosen, least, most
        )
        return None
    if method == "choice":
        return draw_number(
            machine,
            generator,
            method,
            given,
            kwargs,
            examples,
            lower=least,
            upper=most,
            closed=True,
            can_raise=False,
        )
    return draw_numbers(machine, draw, (generator, method, *given), kwargs, chosen, least, most)


for _name in _CHOOSING:
    _method = getattr(_RANDOM, _name)
    substitute_for(_method)(_choosing(_name, _method))


# ---------------------------------------------------------------- states and seeds


def _breaking(method: str, function: Any) -> Substitute:
    def substitute(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not _is_plain(machine, args[0]):
            return machine.interpret(function, args, kwargs)
        raise _break(f"call of random.{method}")

    return substitute


for _name in _BREAKING:
    _method = getattr(_RANDOM, _name)
    substitute_for(_method)(_breaking(_name, _method))


@substitute_for(_RANDOM)
def _make(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> random.Random:
    given = (*args, *kwargs.values())
    if not given or given[0] is None or not is_known(given):
        raise _break("a generator is made of a seed that is not known")
    return make_generator(machine, _RANDOM(*args, **kwargs))  # type: ignore[no-any-return]


@substitute_for(_RANDOM.seed)
def _host_seed(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    generator, *rest = args
    if not _is_plain(machine, generator):
        machine.interpret(_RANDOM.seed, args, kwargs)
        return
    check_generator(machine, generator, "seed")
    given = (*rest, *kwargs.values())
    if not given or given[0] is None or not is_known(given):
        if kwargs:
            raise _break("random.seed with arguments by name")
        seed_anew(machine, generator, *rest)
        return
    scratch = _RANDOM(0)
    scratch.seed(*rest, **kwargs)
    seed(machine, generator, scratch)
