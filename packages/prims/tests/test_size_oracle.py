"""Questions about unbacked numbers: the oracle's answers, what is assumed of them, and calls that
take concrete sizes only.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flambeau_prims import Spec, Tracer
from flambeau_prims.concrete_sizes import with_concrete_sizes
from flambeau_prims.error_texts import SYMBOLIC_SIZES_REFUSED
from flambeau_prims.size_floats import (
    Condition,
    as_float,
    decide,
    float_of,
    float_symbol,
    unbacked_float,
)
from flambeau_prims.size_oracle import Oracle
from flambeau_prims.sizes import SizeEnv, as_int, eq, ge
from flambeau_prims.sizes_node import to_symbolic
from flambeau_prims.unsupported import DataDependentSize


def asked(values: dict[str, Any] | None) -> tuple[SizeEnv, list[set[str]]]:
    """An env whose oracle tells these values, and what it was asked for."""
    env, log = SizeEnv(), []

    def tell(names: set[str]) -> dict[str, Any] | None:
        log.append(names)
        return None if values is None else {name: values[name] for name in names}

    env.oracle = Oracle(env, tell)
    return env, log


def test_relations_are_answered_and_assumed() -> None:
    env, log = asked({"u0": 5})
    u = env.unbacked()
    assert decide(Condition(">", u, 3))
    assert not decide(Condition("==", u, 9))
    assert [str(guard) for guard in env.assumed] == ["u0 >= 4", "u0 != 9"]
    assert env.oracle is not None and env.oracle.answered == env.assumed
    before = len(log)
    assert decide(Condition(">", u, 2)) and not decide(Condition("<", u, 4))
    assert len(log) == before, "what was assumed answers further questions"


def test_values_are_assumed() -> None:
    env, _ = asked({"u0": 5})
    u = env.unbacked()
    assert as_int(u + 1) == 6
    assert [str(guard) for guard in env.assumed] == ["u0 == 5"]
    assert as_int(u * 2) == 10 and len(env.assumed) == 1


def test_sizes_of_the_call_take_part() -> None:
    env, _ = asked({"u1": 7})
    s = env.symbol(4, "x.shape[0]")
    u = env.unbacked()
    assert ge(u - s, 2)
    (guard,) = env.assumed
    assert (
        guard.op == ">="
        and {"s0", "u1"} == guard.lhs.symbols() | getattr(guard.rhs, "symbols", set)()
    )
    assert not env.ranges.guards() or all("u1" not in str(item) for item in env.ranges.guards())


def test_equalities_that_must_hold_are_asked_first() -> None:
    env, _ = asked({"u0": 3, "u1": 4})
    u, v = env.unbacked(), env.unbacked()
    assert not eq(u, v)
    assert eq(u + 1, v)
    without = SizeEnv()
    assert eq(without.unbacked(), without.unbacked()), "nobody tells: assumed"


def test_logic_stops_where_it_is_decided() -> None:
    env, _ = asked({"u0": 5, "u1": 0})
    u, v = env.unbacked(), env.unbacked()
    assert decide(Condition("or", Condition(">", u, 3), Condition(">", v, 3)))
    assert not decide(Condition("and", Condition(">", v, 3), Condition("<", u, 3)))
    assert decide(Condition("not", Condition("<", u, 2)))
    assert "u0 < 3" not in map(str, env.assumed)


@pytest.mark.parametrize("value", [0.25, -2.5, float("inf")])
def test_floats(value: float) -> None:
    env, log = asked({"f0": value})
    f = unbacked_float(env)
    doubled = float_of("*", f, 2.0)
    for op, truth in ((">", value * 2 > 1.0), ("<=", value * 2 <= 1.0), ("==", value * 2 == 1.0)):
        assert decide(Condition(op, doubled, 1.0)) is truth
    assert [guard.holds for guard in env.assumed] == [value > 0.5, value <= 0.5, value == 0.5]
    before = len(log)
    assert decide(Condition(">", doubled, 1.0)) is (value > 0.5) and len(log) == before
    assert as_float(doubled) == value * 2
    assert str(env.assumed[-1]).startswith("(f0 * 2.0) == ")


def test_no_number_has_no_value() -> None:
    env, _ = asked({"f0": float("nan")})
    f = unbacked_float(env)
    assert not decide(Condition(">", f, 0.0)) and not decide(Condition("<=", f, 0.0))
    with pytest.raises(DataDependentSize, match="not a number"):
        as_float(f)


def test_floats_of_the_program_take_part() -> None:
    env, _ = asked({"f1": 0.5})
    given = float_symbol(env, 0.75, "lr")
    assert decide(Condition("<", unbacked_float(env), given))


@pytest.mark.parametrize("oracle", [False, True])
def test_nobody_tells(oracle: bool) -> None:
    env, _ = asked(None)
    if not oracle:
        env.oracle = None
    u, f = env.unbacked(), unbacked_float(env)
    for question in (
        lambda: decide(Condition(">", u, 3)),
        lambda: as_int(u),
        lambda: decide(Condition(">", f, 0.5)),
        lambda: as_float(f),
    ):
        with pytest.raises(DataDependentSize, match=r"depends on the contents|is in a tensor"):
            question()
    assert not env.assumed


def test_calls_that_take_concrete_sizes() -> None:
    env, _ = asked({"u1": 6})
    s = env.symbol(5, "x.shape[1]")
    u = env.unbacked(lower=0)
    with Tracer(env=env, record=False) as tracer:
        x = tracer.fake(Spec.of((1, 1, 4, s)))
        args = (x, (3, to_symbolic(u)), None, "bilinear", False)
        with pytest.raises(RuntimeError) as caught:
            torch.nn.functional.interpolate(*args, antialias=True)
        assert SYMBOLIC_SIZES_REFUSED.matches(caught.value)
        given, named = with_concrete_sizes(args, {"antialias": True})
        y = torch.nn.functional.interpolate(*given, **named)
    assert tuple(y.shape) == (1, 1, 3, 6) and tuple(x.shape) == (1, 1, 4, 5)
    assert [str(guard) for guard in env.assumed] == ["u1 == 6"]
    assert "s0 == 5" in map(str, env.ranges.guards())
    assert not SYMBOLIC_SIZES_REFUSED.matches(RuntimeError("another"))
    assert not SYMBOLIC_SIZES_REFUSED.matches(TypeError("with symbolic sizes"))
