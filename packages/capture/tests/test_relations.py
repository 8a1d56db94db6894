"""RELATION guards on random conditions: C, the reference and the condition's text agree."""

from __future__ import annotations

import random

from flambeau_capture.guards import constants, kinds, program
from flambeau_capture.record import Guard
from flambeau_capture.sources import Argument
from flambeau_prims.size_text import holds, read_condition
from flambeau_prims.sizes import SizeEnv

SOURCES = {name: Argument(name, index) for index, name in enumerate("abc")}


def function(a, b, c):
    return a


def random_size(rng, depth):
    if depth == 0:
        return rng.choice(["a", "b", "c", str(rng.randint(-5, 9))])
    left, right = random_size(rng, depth - 1), random_size(rng, depth - 1)
    op = rng.choice(["+", "-", "*", "//", "%", "min", "max", "neg"])
    if op in ("min", "max"):
        return f"{op}({left}, {right})"
    return f"(-{left})" if op == "neg" else f"({left} {op} {right})"


def random_condition(rng):
    relation = rng.choice(["==", "!=", "<", "<=", ">", ">="])
    text = f"{random_size(rng, 3)} {relation} {random_size(rng, 2)}"
    return f"not ({text}) or a < b and c != 2" if rng.random() < 0.3 else text


def test_relations_agree_on_random_arithmetic():
    rng = random.Random(3)
    env = SizeEnv()
    symbols = {name: env.symbol(rng.randint(3, 9), name, lower=None, name=name) for name in "abc"}
    outcomes = []
    while len(outcomes) < 300:
        try:
            condition = read_condition(random_condition(rng), symbols)
        except ZeroDivisionError:
            continue
        relation = constants.Relation(condition, SOURCES)
        guard = kinds.prepared(Guard("RELATION", SOURCES["a"], relation))
        values = {name: rng.randint(-20, 20) for name in "abc"}
        failed = program.guard_program([guard], (), 3).failed(function, tuple(values.values()))
        assert (failed is None) is relation.holds_for(values) is holds(str(condition), values)
        outcomes.append(failed)
    assert outcomes.count(None) > 50 and outcomes.count(0) > 50
