"""`numpy.random`: what NumPy's generators draw, as calls of the graph (`host_draws`).

    i = np.random.choice(np.arange(9), 2, replace=False)   ->   draw_array(_rand, "choice", ...)

The same function of a scratch generator, called with the same arguments, tells what a draw returns:
a number, a scalar, or an array of some dtype and shape. Arrays of unknown contents are ones there.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from flambeau_capture.graphs.host_random import (
    UNIT_DRAWS,
    change_array,
    draw_array,
    is_host_generator_type,
)
from flambeau_capture.interpreter.torch_calls.host_draws import (
    SYMBOLIC,
    check_generator,
    draw_number,
    guess,
    is_known,
    known_state,
    make_generator,
    seed,
    seed_anew,
)
from flambeau_capture.numpy import layout
from flambeau_capture.numpy.arrays import arrays_of, constant, is_array
from flambeau_capture.numpy.layout import TO_TORCH
from flambeau_capture.reasons import GraphBreak
from flambeau_capture.sources import Global
from flambeau_prims.fake import make_fake
from flambeau_prims.sizes_node import from_symbolic
from flambeau_prims.spec import Spec

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Machine

_GLOBAL: Any = np.random.mtrand._rand  # type: ignore[attr-defined]
_OF_THE_GLOBAL: dict[Any, str] = {
    np.random.seed: "seed",
    np.random.ranf: "random_sample",
    np.random.sample: "random_sample",
}
"""Functions of the module that are no methods of its generator, and the methods that they call."""
_BREAKS = frozenset({"get_state", "set_state", "bytes", "spawn", "random_integers"})


def _break(detail: str) -> GraphBreak:
    return GraphBreak("host-random", detail)


def is_random(function: Any, receiver: Any) -> bool:
    """Whether a callable is one of `numpy.random`'s."""
    module = getattr(function, "__module__", None) or ""
    return module.startswith("numpy.random") or type(receiver).__module__.startswith("numpy.random")


def call_random(
    machine: Machine, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """A call for which `is_random` holds."""
    source = machine.objects.source_of(function)
    if source is not None:
        machine.guard("IS", source, function)
    name = getattr(function, "__name__", "")
    receiver = getattr(function, "__self__", None)
    if function is np.random.default_rng:
        return make(machine, function, args, kwargs)
    if function in _OF_THE_GLOBAL:
        machine.objects.register(_GLOBAL, Global(vars(np.random.mtrand), "_rand"))
        receiver, name = _GLOBAL, _OF_THE_GLOBAL[function]
    elif not is_host_generator_type(type(receiver)) and args:
        receiver, args = args[0], args[1:]
    if not is_host_generator_type(type(receiver)) or name in _BREAKS:
        raise _break(f"call of numpy.random.{name}")
    check_generator(machine, receiver, f"numpy.random.{name}")
    if name == "seed":
        return _seed(machine, receiver, *args, **kwargs)
    return _Draw(machine, receiver, name, args, kwargs).result()


def make(machine: Machine, maker: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`default_rng(seed)` and `RandomState(seed)` in the frame."""
    (seed_given,) = (*args, *kwargs.values()) or (None,)
    kinds = (int, list, tuple) if maker is np.random.default_rng else (int,)
    if type(seed_given) not in kinds or not is_known(seed_given):
        raise _break("a generator is made of a seed that is not known")
    return make_generator(machine, maker(*args, **kwargs))


def _seed(machine: Machine, generator: Any, seed_given: Any = None) -> None:
    if type(generator) is not np.random.RandomState or not _is_default(generator):
        raise _break("a generator is seeded that is no Mersenne Twister")
    if seed_given is None or not _is_known(machine, seed_given):
        seed_anew(machine, generator, _recorded(seed_given))
    else:
        seed(machine, generator, np.random.RandomState(_value(machine, seed_given)))


def _is_default(generator: Any) -> bool:
    return type(generator._bit_generator) is np.random.MT19937


def _scratch(generator: Any) -> Any:
    """A generator of our own that draws as the program's does."""
    kind, bits = type(generator), type(generator._bit_generator)
    if kind not in (np.random.RandomState, np.random.Generator) or not bits.__module__.startswith(
        "numpy.random"
    ):
        raise _break(f"a draw from a {kind.__name__} of the program's own")
    return kind(bits(0))


# ---------------------------------------------------------------- arguments


def _is_known(machine: Machine, value: Any) -> bool:
    if is_array(value):
        return arrays_of(machine).contents(value) is not None
    if type(value) in (list, tuple):
        return all(_is_known(machine, item) for item in value)
    return is_known(value)


def _value(machine: Machine, value: Any, *, probabilities: bool = False) -> Any:
    """An argument as a generator of our own is given it."""
    if is_array(value):
        contents = arrays_of(machine).contents(value)
        if contents is not None:
            return contents.copy()
        shape = tuple(guess(size) for size in value.shape)
        made = np.ones(shape, value.dtype)
        return made / made.shape[-1] if probabilities and made.ndim else made
    if type(value) in (list, tuple):
        return type(value)(_value(machine, item) for item in value)
    return guess(value)


def _recorded(value: Any) -> Any:
    """An argument as the graph has it."""
    if is_array(value):
        if value.flips or not layout.is_in_order(value.base, layout.c_order(value.ndim)):
            raise _break("a draw from an array that is not contiguous")
        return value.base
    if type(value) in (list, tuple):
        return type(value)(_recorded(item) for item in value)
    if isinstance(value, torch.Tensor):
        raise _break("a tensor is given to numpy.random")
    if isinstance(value, (np.dtype, type)):
        return np.dtype(value).name  # as text, for the code of the graph
    return value


def _shares_no_list(value: Any) -> bool:
    return not (type(value) in (list, tuple) and any(is_array(v) for v in value))


class _Draw:
    """One call of a generator's method."""

    def __init__(
        self,
        machine: Machine,
        generator: Any,
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self.machine, self.generator, self.name = machine, generator, name
        self.args, self.kwargs = args, kwargs
        given = (*self.args, *kwargs.values())
        if not all(map(_shares_no_list, given)) or kwargs.get("out") is not None:
            raise _break(f"numpy.random.{name} of a list of arrays, or with out=")
        self.known = all(_is_known(machine, arg) for arg in given)

    def result(self) -> Any:
        """What the call gives."""
        if self.name == "shuffle":
            return self._shuffle()
        example = self._example()
        state = known_state(self.machine, self.generator, known=self.known)
        if state is not None:
            return self._constant(state.draw(self.name, *self._values()))
        if isinstance(example, np.generic) and not isinstance(example, np.str_ | np.bytes_):
            return self._array(example, scalar=True)
        if isinstance(example, np.ndarray):
            return self._array(example, scalar=False)
        if any(arg is int or arg is bool for arg in (*self.args, *self.kwargs.values())):
            raise _break(f"numpy.random.{self.name} of dtype int or bool")
        lower, upper = self._bounds()
        args, kwargs = self._given()
        return draw_number(
            self.machine,
            self.generator,
            self.name,
            args,
            kwargs,
            example,
            lower=lower,
            upper=upper,
            can_raise=not self.known,
        )

    def _values(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        machine = self.machine
        named = {
            name: _value(machine, arg, probabilities=name in ("p", "pvals"))
            for name, arg in self.kwargs.items()
        }
        return tuple(_value(machine, arg) for arg in self.args), named

    def _given(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        named = {name: _recorded(arg) for name, arg in self.kwargs.items()}
        return tuple(map(_recorded, self.args)), named

    def _example(self) -> Any:
        """What a scratch generator draws; if arguments are known, its error is the program's."""
        args, kwargs = self._values()
        scratch = _scratch(self.generator)
        try:
            return getattr(scratch, self.name)(*args, **kwargs)
        except Exception as error:
            if self.known:
                raise
            text = f"numpy.random.{self.name} of arguments in data: {error}"
            raise _break(text) from None

    def _constant(self, found: Any) -> Any:
        return constant(arrays_of(self.machine), found) if isinstance(found, np.ndarray) else found

    def _bounds(self) -> tuple[Any, Any]:
        """Between what a number lies."""
        if self.name in UNIT_DRAWS:
            return 0.0, 1.0
        bound = self._bound()
        if self.name == "uniform":
            return bound.get("low", 0.0), bound.get("high", 1.0)
        if self.name == "randint":
            low, high = bound["low"], bound.get("high")
            return (0, low - 1) if high is None else (low, high - 1)
        return None, None

    def _bound(self) -> dict[str, Any]:
        method = getattr(type(self.generator), self.name)
        return inspect.signature(method).bind(None, *self.args, **self.kwargs).arguments

    def _shape(self, example: Any) -> tuple[Any, ...]:
        """The shape of the result, symbolic where the sizes asked for are."""
        shape: tuple[Any, ...] = example.shape
        given = (*self.args, *self.kwargs.values())
        if all(map(_has_plain_sizes, given)):
            return shape
        if self.name in ("rand", "randn"):
            sizes: Any = self.args
        elif self.name in ("permutation", "permuted"):
            sizes = given[0].shape if is_array(given[0]) else given[:1]
        else:
            bound = self._bound()
            sizes = bound.pop("size", None)
            if sizes is None:
                if any(map(_has_symbolic_shape, given)):
                    raise _break("a draw for each element of an array of symbolic size")
                return shape
            sizes = sizes if type(sizes) in (tuple, list) else (sizes,)
        sizes = tuple(from_symbolic(size) if type(size) in SYMBOLIC else size for size in sizes)
        return (*sizes, *shape[len(sizes) :])

    def _array(self, example: Any, *, scalar: bool) -> Any:
        machine, tape = self.machine, self.machine.tape
        if example.dtype not in TO_TORCH:
            raise GraphBreak("numpy-dtype", f"numpy.random.{self.name} gives {example.dtype}")
        args, kwargs = self._given()
        spec = Spec.of(
            self._shape(example), dtype=TO_TORCH[example.dtype], device=torch.device("cpu")
        )
        made: Any = make_fake(spec)
        value = tape.declare(made, self.name)
        tape.call_untraced(
            draw_array,
            (self.generator, self.name, *args),
            kwargs,
            result=value,
            can_raise=not self.known,
        )
        if arrays_of(machine).device.type != "cpu":
            made = tape.call_method("to", (made, arrays_of(machine).device))
        return arrays_of(machine).new(made, scalar=scalar)

    def _shuffle(self) -> None:
        array, *rest = (*self.args, *self.kwargs.values())
        if not is_array(array) or arrays_of(self.machine).device.type != "cpu":
            raise _break(f"shuffle of a {type(array).__name__}")
        if not array.writeable or not array.ndim:
            raise _break("shuffle of an array that cannot be written to")
        base = _recorded(array)
        known_state(self.machine, self.generator, known=False)
        arrays_of(self.machine).forget(array)
        self.machine.tape.call_untraced(
            change_array,
            (self.generator, "shuffle", base, *rest),
            mutates=(self.machine.tape.value_of(base),),
        )


def _has_plain_sizes(value: Any) -> bool:
    return is_known(value) and not _has_symbolic_shape(value)


def _has_symbolic_shape(value: Any) -> bool:
    return is_array(value) and any(type(size) in SYMBOLIC for size in value.shape)
