"""Symbolic sizes against plain ints: arithmetic, relations, guards, substitution, text."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flambeau_prims import sizes
from flambeau_prims.size_floats import FloatExpr, as_float, ask, float_of, floor_of, named_symbol
from flambeau_prims.size_text import read_condition
from flambeau_prims.sizes import Expr, SizeEnv
from flambeau_prims.spec import Spec

NAMES = ("s0", "s1", "s2")

trees = st.recursive(
    st.one_of(st.sampled_from(NAMES), st.integers(-4, 9)),
    lambda inner: st.tuples(
        st.sampled_from(["+", "-", "*", "//", "%", "min", "max", "neg"]), inner, inner
    ),
    max_leaves=8,
)
values = st.fixed_dictionaries({name: st.integers(2, 40) for name in NAMES})


def build(tree, leaves):
    """A tree over sizes or ints, by the same operators."""
    if isinstance(tree, int):
        return tree
    if isinstance(tree, str):
        return leaves[tree]
    op, left, right = tree
    left, right = build(left, leaves), build(right, leaves)
    if op == "+":
        return left + right
    if op == "-":
        return left - right
    if op == "*":
        return left * right
    if op == "neg":
        return -left
    if op == "//":
        return left // right
    if op == "%":
        return left % right
    return (sizes.size_min if op == "min" else sizes.size_max)(left, right)


def symbols(env, hints):
    return {name: env.symbol(hints[name], name) for name in NAMES}


@settings(max_examples=400, deadline=None)
@given(trees, values, values)
def test_arithmetic_is_that_of_ints(tree, hints, others):
    env = SizeEnv()
    try:
        expected = build(tree, hints)
    except ZeroDivisionError:
        with pytest.raises(ZeroDivisionError):
            build(tree, symbols(env, hints))
        return
    got = build(tree, symbols(env, hints))
    assert sizes.hint_of(got) == expected
    try:
        expected = build(tree, others)
    except ZeroDivisionError:
        return
    assert env.evaluate(got, others) == expected
    assert eval(str(got), {"min": min, "max": max}, dict(others)) == expected
    renamed = sizes.format_size(got, {"s0": "a", "s1": "b", "s2": "c"})
    letters = {"a": others["s0"], "b": others["s1"], "c": others["s2"]}
    assert eval(renamed, {"min": min, "max": max}, letters) == expected


@settings(max_examples=400, deadline=None)
@given(
    st.lists(
        st.tuples(trees, st.sampled_from(["eq", "ne", "lt", "le", "gt", "ge"]), trees), max_size=4
    ),
    values,
    values,
)
def test_relations_follow_the_hint_and_guards_imply_them(questions, hints, others):
    env = SizeEnv()
    leaves = symbols(env, hints)
    asked = []
    for left, relation, right in questions:
        try:
            a, b = build(left, leaves), build(right, leaves)
        except ZeroDivisionError:
            continue
        answer = getattr(sizes, relation)(a, b)
        assert answer == PLAIN[relation](sizes.hint_of(a), sizes.hint_of(b))
        asked.append((left, relation, right, answer))
        # Asked again it is known, and its known_ form agrees.
        before = [str(guard) for guard in env.guards]
        assert getattr(sizes, relation)(a, b) == answer
        assert [str(guard) for guard in env.guards] == before
    assert all(holds(guard, env, hints) for guard in env.guards)
    try:
        admitted = all(holds(guard, env, others) for guard in env.guards)
        if admitted:
            for left, relation, right, answer in asked:
                assert PLAIN[relation](build(left, others), build(right, others)) == answer
    except ZeroDivisionError:
        return


@settings(max_examples=400, deadline=None)
@given(trees, trees, values, values)
def test_what_is_known_is_true(left, right, hints, others):
    env = SizeEnv()
    leaves = symbols(env, hints)
    try:
        a, b = build(left, leaves), build(right, leaves)
        x, y = build(left, others), build(right, others)
    except ZeroDivisionError:
        return
    for name, plain in PLAIN.items():
        if getattr(sizes, f"known_{name}")(a, b):
            assert plain(x, y)
    assert [str(guard) for guard in env.guards] == ["s0 >= 2", "s1 >= 2", "s2 >= 2"]


PLAIN = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}


def holds(guard, env, values):
    names = dict(values)
    return eval(str(guard), {"min": min, "max": max, "math": math, "float": float}, names)


def test_interning_and_canonical_form():
    env = SizeEnv()
    b, s = env.symbol(8, "b"), env.symbol(128, "s")
    assert b * s + b is b * (s + 1)
    assert (b * s) // s is b
    assert b - b == 0 and type(b - b) is int
    assert (b * 6 + 4) // 2 is b * 3 + 2
    assert (b // 2) // 2 is b // 4
    assert (b * 4) % 2 == 0
    assert (2 * b) // (2 * s) is b // s
    assert (b * s + s) // (b + 1) is s
    assert Spec.of((b, s * 2)) is Spec.of((b, s + s))


def test_bounds_decide_without_guards():
    env = SizeEnv()
    b, s = env.symbol(8, "b"), env.symbol(128, "s")
    assert sizes.ne(b * s, s) and sizes.gt(b * s, s) and sizes.ne(b, 1) and sizes.ne(b, 0)
    assert sizes.ge((b + 1) // 2, 1) and sizes.lt(b % 4, 4)
    assert sizes.ne(2 * b, 2 * s + 1)
    assert len(env.guards) == 2


def test_guards_read_as_inequalities_in_the_users_names():
    env = SizeEnv()
    s = env.symbol(128, "tokens.shape[1]")
    assert sizes.le(s, 512)
    assert not sizes.gt(s * 2, 600)
    assert [guard.format({"s0": "tokens.shape[1]"}) for guard in env.guards] == [
        "tokens.shape[1] >= 2",
        "tokens.shape[1] <= 300",
    ]


def test_equality_substitutes():
    env = SizeEnv()
    b, s = env.symbol(8, "b"), env.symbol(8, "s")
    assert sizes.eq(b, s)
    assert s + 1 is b + 1
    assert (s // 3) * 1 is b // 3
    assert sizes.as_int(b) == 8
    assert s * 2 == 16 and (b // 3) + 0 == 2
    assert [str(guard) for guard in env.guards if guard.op == "=="] == ["s0 == s1", "s0 == 8"]


@pytest.mark.parametrize("by_remainder", [False, True])
@pytest.mark.parametrize("made_before", [False, True])
@pytest.mark.parametrize("step", [1, 2, 3])
@pytest.mark.parametrize("shift", [0, 1, 5])
def test_quotients_of_a_known_multiple(step, shift, made_before, by_remainder):
    """Half of an even size is also half of the size plus one; `step`: of a quotient of a size."""
    env = SizeEnv()
    symbol = env.symbol(4 * step * 7 - shift * step, "b")
    size, divisor = symbol // step + shift, 4
    older = [(size + c) // divisor for c in range(-4, 9)] if made_before else []
    if by_remainder:
        assert sizes.eq(size % divisor, 0)
    else:
        assert sizes.eq(size, size // divisor * divisor)
    for c in range(-4, 9):
        assert (size + c) // divisor is size // divisor + c // divisor
    for c, quotient in zip(range(-4, 9), older, strict=False):
        assert sizes.known_eq(quotient, size // divisor + c // divisor)


def test_the_value_of_a_quotient_is_that_of_its_multiple():
    env = SizeEnv()
    size = env.symbol(16, "b")
    assert sizes.eq((size + 2) // 4, 4)
    assert sizes.eq(size // 2 % 2, 0)
    assert sizes.known_eq(size // 4, 4)


multiples = st.tuples(
    st.integers(1, 3), st.integers(2, 5), st.integers(-6, 6), st.integers(0, 60), st.booleans()
)


@settings(max_examples=300, deadline=None)
@given(multiples, st.integers(1, 12), st.integers(2, 60))
def test_quotients_after_a_multiple_are_those_of_ints(multiple, other, hint):
    """Whatever is equal by a known multiple is equal for each size that the guards admit."""
    step, divisor, shift, value, early = multiple
    env = SizeEnv()
    symbol = env.symbol(hint, "b")
    pairs = [(c, n) for c in range(-8, 9) for n in (other, step * divisor)]
    older = [(symbol + c) // n for c, n in pairs] if early else []
    sizes.eq((symbol // step + shift) % divisor, 0)
    quotients = older + [(symbol + c) // n for c, n in pairs]
    for size in {hint, value + 2}:
        if (size // step + shift) % divisor == 0 and (hint // step + shift) % divisor == 0:
            for quotient, (c, n) in zip(quotients, itertools.cycle(pairs), strict=False):
                now = sizes.current(quotient)
                got = env.evaluate(now, {"s0": size}) if isinstance(now, Expr) else now
                assert got == (size + c) // n


def test_sizes_made_before_an_equality_divide_by_it():
    """Operands that are older than an equality do not bring the replaced symbol into new atoms."""
    env = SizeEnv()
    b, s, r = env.symbol(4, "b"), env.symbol(9, "s"), env.symbol(5, "r")
    square = b * b
    assert sizes.as_int(b) == 4
    assert square // b == 4 and 18 // b == 4 and 18 % b == 2
    assert sizes.size_max(b, 3) == 4 and sizes.size_min(b, 7) == 4
    assert sizes.eq(s, r + 4)  # r is s - 4 from here on
    for size in (100 // r, 100 % r, sizes.size_max(r, 7), r // s, sizes.size_min(r, r * r)):
        assert sizes.hint_of(size) in (20, 0, 7, 0, 5)
        assert isinstance(size, int) or size.symbols() == {"s1"}


def test_order_and_truth_are_refused():
    size = SizeEnv().symbol(3, "x")
    for question in (
        lambda: size < 4,
        lambda: bool(size),
        lambda: int(size),
        lambda: range(size),
        lambda: max(size, 4),
    ):
        with pytest.raises(TypeError, match=r"flambeau_prims\.sizes"):
            question()
    assert (size == 3) is False


def test_max_min_ceil_div():
    env = SizeEnv()
    b = env.symbol(8, "b")
    assert sizes.size_max(b, 1) is b and sizes.size_min(b, 2) == 2
    assert isinstance(sizes.size_max(b, 5), Expr)
    assert sizes.ceil_div(b, 3).hint == 3 and sizes.ceil_div(7, 2) == 4
    assert len(env.guards) == 1


def test_floats():
    env = SizeEnv()
    b = env.symbol(16, "b")
    scale = float_of("**", float_of("float", b), -0.5)
    assert isinstance(scale, FloatExpr) and scale.hint == 0.25
    assert scale.evaluate({"s0": 4}) == 0.5
    assert floor_of(float_of("/", b, 3)) is b // 3
    assert len(env.guards) == 1
    assert as_float(scale) == 0.25
    assert [str(guard) for guard in env.guards if guard.op == "=="] == ["s0 == 16"]


def test_guards_that_are_read_in_their_order_are_the_same():
    env = SizeEnv()
    rows, columns = env.symbol(6, "rows"), env.symbol(4, "columns")
    assert sizes.ge(columns, 2)
    assert sizes.ge(rows * columns, 9)
    assert sizes.ge(columns, 4) and sizes.ge(rows, 3)  # which imply the one before
    again = SizeEnv()
    symbols = {name: named_symbol(again, name, atom.hint) for name, atom in env.symbols.items()}
    for guard in env.guards:
        assert ask(read_condition(str(guard), symbols))
    assert list(map(str, again.guards)) == list(map(str, env.guards))
