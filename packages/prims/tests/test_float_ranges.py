"""Ranges of symbolic floats hold every value, and decide what they decide alone."""

from __future__ import annotations

import operator
import random
from typing import Any

from flambeau_prims.float_ranges import BELOW_ONE, known_relation, range_of
from flambeau_prims.size_floats import Condition, FloatExpr, decide, float_of, unbacked_float
from flambeau_prims.sizes import SizeEnv

RELATIONS = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}


def values(env: SizeEnv) -> dict[str, float]:
    """A value for each float, the ends of its range among them."""
    ends = env.float_ranges.items()
    return {
        name: random.choice([low, high, random.uniform(low, high)]) for name, (low, high) in ends
    }


def computed(env: SizeEnv, leaves: list[Any]) -> Any:
    """A number computed from the leaves."""
    found = random.choice(leaves)
    for _ in range(random.randint(0, 3)):
        op, other = random.choice("+-*/"), random.choice([*leaves, 0.5, -3, 2.25, 7])
        left, right = random.choice([(found, other), (other, found)])
        if op == "/" and not (isinstance(right, float) and right):
            continue
        found = float_of(op, left, right)
    return found


def test_every_value_lies_in_the_range_and_relations_are_true_of_all() -> None:
    random.seed(0)
    decided = 0
    for _ in range(300):
        env = SizeEnv()
        leaves = [unbacked_float(env, (0.0, BELOW_ONE)), unbacked_float(env, (-2.0, 3.5))]
        number, other = computed(env, leaves), random.choice([*leaves, 0.0, 1, 4.0, -7.5])
        found = range_of(number)
        answers = {op: known_relation(op, number, other) for op in RELATIONS}
        for _ in range(20):
            given = values(env)
            value = number.evaluate(given) if isinstance(number, FloatExpr) else number
            against = other.evaluate(given) if isinstance(other, FloatExpr) else other
            assert found is None or found[0] <= value <= found[1]
            for op, relation in RELATIONS.items():
                assert answers[op] in (None, relation(value, against)), (number, op, other)
        decided += sum(answer is not None for answer in answers.values())
    assert decided > 300


def test_a_draw_from_the_unit_interval_is_never_negative_nor_one() -> None:
    env = SizeEnv()
    drawn = unbacked_float(env, (0.0, BELOW_ONE))
    assert decide(Condition(">=", drawn, 0.0)) and not decide(Condition("<", drawn, 0))
    assert decide(Condition("<", drawn, 1)) and not decide(Condition(">", drawn, 1.0))
    assert range_of(unbacked_float(env)) is None
