"""Seeds and states of random generators, and `torch.Generator` objects: recorded in order with the operators that draw from them.

    torch.manual_seed(3); x = torch.rand(2); g = torch.Generator(); y = torch.rand(2, generator=g)
    ->  manual_seed(3); x = torch.rand(2); g = torch.Generator(); y = torch.rand(2, generator=g)

Each such call runs by itself (`untraced`), on the real generators, so that all of them are left as eager leaves them.  While a frame is
interpreted nothing is drawn: a generator of the program is used as a name only, and one that the frame makes stands for the one that
the graph will make.  A seed that the frame has set is known; any other is a number that only the graph knows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.interpreter.enclosed import stand_in
from flambeau_capture.interpreter.substitutes.registry import substitute_for
from flambeau_capture.origins import Global
from flambeau_capture.reasons import GraphBreak
from flambeau_capture.record import GraphValue, Opaque
from flambeau_prims.sizes_node import from_symbolic, to_symbolic
from flambeau_prims.spec import Spec
from flambeau_prims.unbacked import new_number

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Machine
    from flambeau_capture.interpreter.substitutes.registry import Substitute

_DEFAULT = torch.default_generator
_GENERATOR = torch.Generator
_STATE_BYTES = {"cpu": _DEFAULT.get_state().numel(), "cuda": 16}


def _default_generator(machine: Machine) -> torch.Generator:
    machine.objects.register(_DEFAULT, Global(vars(torch), "default_generator"))
    return _DEFAULT


# ---------------------------------------------------------------- what the calls give


def _state(machine: Machine, target: Any, args: tuple[Any, ...], device: torch.device) -> Any:
    """Record a call that gives the state of a generator."""
    size = _STATE_BYTES.get(device.type)
    if size is None:
        raise GraphBreak("torch-state", f"the state of a generator on {device} is read")
    state = stand_in(Spec.of((size,), dtype=torch.uint8, device=torch.device("cpu")))
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
    tape.unbacked.settle(names, [])
    return seed


def _checked_seed(machine: Machine, seed: Any) -> Any:
    """A seed as an int, refused as torch refuses it."""
    if isinstance(seed, torch.Tensor):
        seed = machine.call(int, (seed,), {})
    if type(seed) is not torch.SymInt:
        torch.Generator().manual_seed(seed)
    return seed


# ---------------------------------------------------------------- functions


@substitute_for(*dict.fromkeys((torch.manual_seed, torch.random.manual_seed)))
def _manual_seed(
    machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> torch.Generator:
    (seed,) = (*args, *kwargs.values())
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


@substitute_for(_GENERATOR.manual_seed)
def _reseed(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Generator:
    generator, seed = (*args, *kwargs.values())
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


@substitute_for(_GENERATOR.set_state)
def _restate(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Generator:
    generator, state = (*args, *kwargs.values())
    machine.tape.call_untraced("set_state", (generator, state))
    machine.tape.seeds.pop(id(generator), None)
    return generator  # type: ignore[no-any-return]


@substitute_for(_GENERATOR.clone_state)
def _clone(machine: Machine, args: Any, kwargs: Any) -> torch.Generator:
    (generator,) = args
    stand_in_generator = _GENERATOR(generator.device)
    return _made(
        machine, stand_in_generator, "clone_state", args, machine.tape.seeds.get(id(generator))
    )
