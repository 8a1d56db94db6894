"""Unbacked symbols: what is known of them, what is assumed, what is refused; and the Specs of
results whose sizes are in the data.
"""

from __future__ import annotations

import math

import pytest
import torch

from flambeau_prims import sizes
from flambeau_prims.size_floats import (
    Condition,
    FloatExpr,
    as_float,
    bits_of,
    float_of,
    float_symbol,
    is_unbacked,
    unbacked_float,
)
from flambeau_prims.sizes import SizeEnv
from flambeau_prims.spec import Spec
from flambeau_prims.tracer import Tracer
from flambeau_prims.unsupported import DataDependent, DataDependentSize

X = Spec.of((4, 5))


def trace(function):
    """(result of the function on a fake X, the relations assumed on the way)."""
    env = SizeEnv()
    tracer = Tracer(env, record=False, unbacked=True)
    x = tracer.fake(X)
    with tracer:
        result = function(x)
    return result, [str(guard) for guard in env.assumed], env


def test_the_range_decides_what_it_can():
    env = SizeEnv()
    u = env.unbacked(lower=0, upper=20)
    assert sizes.ge(u, 0) and sizes.le(u, 20) and not sizes.lt(u, 0) and sizes.ne(u + 1, 0)
    assert not env.assumed and not env.guards


def test_the_general_case_is_taken_without_a_word():
    env = SizeEnv()
    u = env.unbacked(lower=0)
    assert not sizes.eq(u, 0) and not sizes.eq(u, 1) and not sizes.eq(u * 4, 0)
    assert not env.assumed and not env.guards


def test_what_must_hold_is_assumed_once_and_noted():
    env = SizeEnv()
    u, s = env.unbacked(), env.symbol(8, "s")
    assert sizes.ge(u, 0) and sizes.ge(u, 0) and not sizes.lt(u, 0)
    assert sizes.eq(u, s) and sizes.known_eq(u, s)
    assert [str(guard) for guard in env.assumed] == ["u0 >= 0", "s1 == u0"] or [
        str(guard) for guard in env.assumed
    ] == ["u0 >= 0", "u0 == s1"]
    assert [str(guard) for guard in env.guards] == ["s1 >= 2"]


@pytest.mark.parametrize("op", ["==", "!=", "<", "<=", ">", ">="])
def test_expectations_decide_later_questions(op):
    env = SizeEnv()
    u = env.unbacked()
    assert sizes.expect(op, u, 7)
    assert len(env.assumed) == 1 and not env.guards
    assert sizes.expect(op, u, 7) and len(env.assumed) == 1
    if op in ("<", "<="):
        assert sizes.known_lt(u, 8) and not sizes.expect(">", u, 9)


def test_other_questions_are_refused():
    env = SizeEnv()
    u = env.unbacked(lower=0)
    for ask in (
        lambda: sizes.gt(u, 3),
        lambda: sizes.as_int(u),
        lambda: as_float(unbacked_float(env)),
    ):
        with pytest.raises(DataDependentSize) as error:
            ask()
        assert "torch._check" in error.value.hint


CASES = {
    "item": (lambda x: (x > 0).sum().item() + 1, "u0 + 1", []),
    "float item": (lambda x: x.sum().item() * 2, "(f0 * 2.0)", []),
    "zeros": (lambda x: torch.zeros((x > 0).sum().item()), "f32[u0]", ["u0 >= 0"]),
    "nonzero": (lambda x: (x > 0).nonzero(), "i64[u0, 2] stride [1, u0]", []),
    "masked_select": (lambda x: x.masked_select(x > 0), "f32[u0]", []),
    "mask": (lambda x: x[x > 0] * 2, "f32[u0]", []),
    "rows": (lambda x: x[x[:, 0] > 0].t(), "f32[5, u0] stride [1, 5]", []),
    "rows, columns": (lambda x: x[x[:, 0] > 0][:, 1:3].contiguous(), "f32[u0, 2]", []),
    "unique": (lambda x: torch.unique(x), "f32[u0]", []),
    "bincount": (lambda x: torch.bincount(x.long().flatten()), "i64[u0]", []),
    "two masks": (lambda x: x[x > 0] * x[x > 0], "f32[u0]", ["u0 == u1"]),
    "broadcast": (lambda x: x[x > 0] * torch.ones(3, 1), "f32[3, u0]", []),
    "cat": (lambda x: torch.cat([x[x > 0], x[x < 0]]), "f32[u0 + u1]", []),
    "view": (lambda x: x[x > 0].view(-1, 1), "f32[u0, 1]", []),
    "reshape": (lambda x: x[x > 0].reshape(2, -1), "f32[2, (u0//2)]", ["(u0%2) == 0"]),
    "squeeze": (lambda x: x[x > 0].squeeze(), "f32[u0]", ["u0 != 1"]),
    "slice": (lambda x: x.flatten()[: (x > 0).sum().item()], "f32[min(20, u0)]", ["u0 >= 0"]),
    "matmul": (lambda x: x[x[:, 0] > 0] @ torch.ones(5, 7), "f32[u0, 7]", []),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_results(name):
    function, expected, assumed = CASES[name]
    result, found, _ = trace(function)
    text = repr(result.spec) if isinstance(result, torch.Tensor) else repr(result)
    assert text == expected and found == assumed


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x > 0).nonzero(),
        lambda x: x[x > 0],
        lambda x: x[:, x[0] > 0],
        lambda x: torch.unique((x * 2).long(), dim=1),
        lambda x: torch.unique(x, return_inverse=True, return_counts=True),
        lambda x: torch.unique_consecutive(x, return_counts=True),
        lambda x: torch.repeat_interleave(torch.arange(4)),
        lambda x: torch.bincount(torch.arange(4), torch.ones(4, dtype=torch.float64)),
    ],
)
def test_specs_are_those_of_eager_results(function):
    torch.manual_seed(0)
    real = function(torch.randn(4, 5))
    fake, _, env = trace(function)
    results = zip(real, fake, strict=True) if isinstance(real, tuple) else [(real, fake)]
    for want, got in results:
        values = {}
        for size, actual in zip(got.spec.shape, want.shape, strict=True):
            if isinstance(size, sizes.Expr):
                values[str(size)] = actual
        shape = tuple(env.evaluate(size, values) for size in got.spec.shape)
        stride = tuple(env.evaluate(size, values) for size in got.spec.stride)
        assert shape == tuple(want.shape) and got.spec.dtype == want.dtype
        assert all(n == 1 or a == b for n, a, b in zip(shape, stride, want.stride(), strict=True))


def test_without_being_told_a_tracer_refuses():
    tracer = Tracer(SizeEnv(), record=False)
    x = tracer.fake(X)
    with tracer:
        for function in (lambda: x.sum().item(), lambda: x.nonzero(), lambda: x[x > 0]):
            with pytest.raises(DataDependent):
                function()


def test_given_floats_are_interned_and_fixed_by_their_bits():
    env = SizeEnv()
    f = float_symbol(env, -0.0, "k")
    assert float_of("+", f, 1) is float_of("+", f, 1)
    assert float_of("+", f, 1) is not float_of("+", f, 1.0)
    assert not is_unbacked(f) and f.symbols() == {"f0"} and f.symbol == "f0"
    assert math.copysign(1, as_float(f)) == -1 and env.fixed_floats == {"f0": -0.0}
    assert bits_of(1.0) == 0x3FF0000000000000


def test_relations_of_nan_are_guarded_as_they_came_out():
    env = SizeEnv()
    f = float_symbol(env, math.nan, "k")
    for op in ("<", ">=", "==", ">"):
        condition = Condition(op, f, 2.0)
        assert not condition.ask()
    assert [str(guard) for guard in env.guards] == [
        f"not (f0 {op} 2.0)" for op in ("<", ">=", "==", ">")
    ]
    assert all(eval(str(guard), {"f0": math.nan}) for guard in env.guards)


def test_floats_that_python_would_refuse_are_guarded_against():
    env = SizeEnv()
    f = float_symbol(env, 2.0, "k")
    float_of("/", 1, f)
    float_of("math.log", f)
    assert {str(guard) for guard in env.guards} == {"f0 != 0", "f0 > 0"}
    zero = float_symbol(env, 0.0, "z")
    with pytest.raises(ZeroDivisionError):
        float_of("/", 1, zero)
    assert isinstance(float_of("**", zero, 2), FloatExpr)
