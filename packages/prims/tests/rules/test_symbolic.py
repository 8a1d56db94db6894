"""Rules on symbolic sizes: the result, evaluated at the hints, is the rule's on the hints."""

from __future__ import annotations

import random
import warnings
from typing import TYPE_CHECKING, Any

import pytest
import rules.calls_model
import rules.calls_nn
import rules.calls_rare
import rules.calls_view  # noqa: F401
import torch
from rules.at_sizes import OPERATORS, at_sizes
from rules.calls import CALLS

from flambeau_prims.rules.registry import infer_uncached
from flambeau_prims.sizes import Expr, SizeEnv, hint_of
from flambeau_prims.spec import Spec, spec_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_ERRORS = (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError)


class Symbols:
    """One symbol for each size of 2 and more, equal sizes sharing one, as capture makes them."""

    def __init__(self, env: SizeEnv) -> None:
        self.env = env
        self.of_size: dict[int, Expr] = {}

    def size(self, size: int) -> Any:
        """The symbol with this hint; 0 and 1 stay ints."""
        if size < 2:
            return size
        if size not in self.of_size:
            self.of_size[size] = self.env.symbol(size, f"size {size}")
        return self.of_size[size]

    def spec(self, spec: Spec) -> Spec:
        """The Spec with symbolic sizes, and with strides rebuilt over them in the same order if it
        is dense.
        """
        shape = [self.size(size) for size in spec.shape]
        order = sorted(
            range(spec.ndim), key=lambda dim: (spec.stride[dim], spec.shape[dim] != 1, -dim)
        )
        stride: list[Any] = [0] * spec.ndim
        running: Any = 1
        for dim in order:
            if spec.stride[dim] != hint_of(running) and spec.shape[dim] != 1:
                return spec  # not dense, or empty: stays static
            stride[dim] = spec.stride[dim] if spec.shape[dim] == 1 else running
            running = shape[dim] * running
        return Spec.of(
            shape, stride=stride, dtype=spec.dtype, device=spec.device, offset=spec.offset
        )


def symbolic(arg: Any, symbols: Symbols) -> Any:
    """An argument with its tensors' sizes made symbolic."""
    if isinstance(arg, torch.Tensor):
        return symbols.spec(spec_of(arg))
    if isinstance(arg, (list, tuple)):
        return tuple(symbolic(item, symbols) for item in arg)
    return arg


def at_hints(result: Any) -> Any:
    """Specs with every Expr replaced by its hint; strides of size 1 mean nothing."""
    if isinstance(result, Spec):
        shape = [hint_of(size) for size in result.shape]
        pairs = zip(shape, result.stride, strict=True)
        stride = [hint_of(step) for size, step in pairs if size != 1 and 0 not in shape]
        return shape, stride, hint_of(result.offset), result.dtype
    if isinstance(result, (list, tuple)):
        return [at_hints(item) for item in result]
    return result


def outcome(op: Any, args: Any, kwargs: Any) -> Any:
    """What the rule gives, or the kind of error it raises."""
    try:
        return at_hints(infer_uncached(op, args, kwargs))
    except _ERRORS:
        return "error"


@pytest.mark.parametrize("name", CALLS)
def test_symbolic_agrees_with_static(name: str) -> None:
    """The same random calls as for eager, with sizes made symbols."""
    rng = random.Random(name)
    for _ in range(6):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            op, args, kwargs = CALLS[name](rng)
        symbols = Symbols(SizeEnv())
        symbolic_args = symbolic(args, symbols)
        symbolic_kwargs = {key: symbolic(value, symbols) for key, value in kwargs.items()}
        static_args = [_hints(arg) for arg in symbolic_args]
        static_kwargs = {key: _hints(value) for key, value in symbolic_kwargs.items()}
        expected = outcome(op, tuple(static_args), static_kwargs)
        assert outcome(op, symbolic_args, symbolic_kwargs) == expected, (
            symbolic_args,
            symbolic_kwargs,
        )


@pytest.mark.parametrize("name", CALLS)
def test_symbolic_result_holds_at_other_sizes(name: str) -> None:
    """At every size that the guards admit, the symbolic result is the rule's on that size."""
    rng = random.Random(name)
    for _ in range(4):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            op, args, kwargs = CALLS[name](rng)
        env = SizeEnv()
        symbols = Symbols(env)
        symbolic_args = symbolic(args, symbols)
        symbolic_kwargs = {key: symbolic(value, symbols) for key, value in kwargs.items()}
        try:
            result = infer_uncached(op, symbolic_args, symbolic_kwargs)
        except _ERRORS:
            continue
        for values in _admitted(env, rng):
            static_args = at_sizes(symbolic_args, env, values)
            static_kwargs = {
                key: at_sizes(value, env, values) for key, value in symbolic_kwargs.items()
            }
            expected = outcome(op, static_args, static_kwargs)
            assert at_hints(at_sizes(result, env, values)) == expected, (
                symbolic_args,
                symbolic_kwargs,
                values,
                [str(guard) for guard in env.guards],
            )


def _admitted(env: SizeEnv, rng: random.Random) -> Iterator[dict[str, int]]:
    """Some values of the symbols under which all guards hold: small, odd and even."""
    names = list(env.symbols)
    for _ in range(12 if names else 0):
        values = {name: rng.randint(2, 9) for name in names}
        if all(
            OPERATORS[guard.op](env.evaluate(guard.lhs, values), env.evaluate(guard.rhs, values))
            is guard.holds
            for guard in env.guards
        ):
            yield values


def _hints(arg: Any) -> Any:
    if isinstance(arg, Spec):
        return Spec.of(
            [hint_of(size) for size in arg.shape],
            stride=[hint_of(step) for step in arg.stride],
            dtype=arg.dtype,
            device=arg.device,
            offset=hint_of(arg.offset),
        )
    if isinstance(arg, tuple):
        return tuple(_hints(item) for item in arg)
    return arg
