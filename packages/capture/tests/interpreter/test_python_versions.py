"""Programs whose results differ between the versions of Python that are supported: captured, they
do what the running version does.
"""

from __future__ import annotations

import enum
import math
import sys
import types
import warnings

import pytest
import torch
from capture_harness import check_in_steps, compiled, outcome, same

import flambeau_capture


class Level(enum.IntEnum):
    LOW = 1


class Added(int):
    def __radd__(self, other):
        return 100.0 + other


# ---------------------------------------------------------------- sums: compensated from 3.12 on


def sums_of_constants(x, a, b, c):
    tenths = [0.1] * 10
    return sum(tenths), sum(tenths, 0.5), sum([1e16, 1.0, -1e16]), sum([1, 0.1, 0.2, True, 0.7])


def sums_of_numbers(x, a, b, c):
    forms = sum([a, b, c]), sum((a, b, c), start=1), sum([a, b, c, -a, -b, -c]), sum([], a)
    return x * sum([a, b, c]), forms, sum([a * 1e16, b, -a * 1e16, c]), sum([x.shape[0], a, b, 0.1])


def sums_that_turn_to_tensors(x, a, b, c):
    return sum([a, b, 0.2, x[0], 0.1, c]), sum(v * a for v in (b, c, 0.1, 0.7))


def sums_that_overflow(x, a, b, c):
    large = a * 1e200
    return (
        sum([large, large, -large]), sum([large * 1e200, b, c]), sum([b, -large * 1e200, c]),
        sum([b, large * 1e200, -large * 1e200]),
    )  # fmt: skip


def sums_of_zeros(x, a, b, c):
    return sum([-0.0, -0.0], -0.0), sum([-(a - a), -0.0], -0.0), sum([-0.0, a - a]), sum([-0.0])


def sums_of_other_ints(x, a, b, c):
    return (
        sum([a, Level.LOW, b, c]), sum([Level.LOW, a, b, c]), sum([a, Added(3), b]),
        sum([Added(3), a, b]), sum([10**30, a, b, c]), sum([a, 10**30, b, c]),
        sum([a, b, c], True), sum([x.shape[0] > 2, a, b, c]),
    )  # fmt: skip


NUMBERS = [
    (0.1, 0.2, 0.30000001), (0.5, 0.25, 1.75), (-0.7, 3.14e8, 1.1e-9), (-2.5, -0.3, 1e16),
    (1e300, 1e-300, 7.1), (math.inf, 1.0, 2.0), (math.nan, 0.1, 0.2), (1e308, 1e308, -1e308),
]  # fmt: skip


def _flat(value):
    if isinstance(value, (tuple, list)):
        return [leaf for item in value for leaf in _flat(item)]
    return [repr(value.tolist() if isinstance(value, torch.Tensor) else value)]


@pytest.mark.parametrize("dynamic", [False, None])
@pytest.mark.parametrize(
    "fn",
    [
        sums_of_constants, sums_of_numbers, sums_that_turn_to_tensors, sums_that_overflow,
        sums_of_zeros, sums_of_other_ints,
    ],
    ids=lambda fn: fn.__name__,
)  # fmt: skip
def test_sums_round_as_python_rounds_them(fn, dynamic):
    x = torch.arange(3.0, dtype=torch.float64) + 1
    captured = compiled(fn, dynamic=dynamic)
    for numbers in NUMBERS:
        assert _flat(captured(x, *numbers)) == _flat(fn(x, *numbers)), numbers
    if dynamic is None:
        events = flambeau_capture.state_of(captured).events
        assert len(events) <= 2, [event.text for event in events]  # one entry for all floats


def test_sums_of_numbers_in_tensors_round_as_python_rounds_them():
    def program(x):
        numbers = [x[0].item(), x[1].item(), x[2].item(), 0.1, 0.2]
        return x + 1, sum(numbers), sum([*numbers, *[-number for number in numbers]])

    captured = compiled(program, fullgraph=False)
    for numbers in NUMBERS:
        x = torch.tensor(numbers, dtype=torch.float64)
        assert _flat(captured(x)) == _flat(program(x)), numbers


# ---------------------------------------------------------------- generators


def values_of_closed_generators(x):
    def generator(end):
        try:
            yield 1
        except GeneratorExit:
            return end

    def delegating():
        yield from generator(5)

    started, fresh, outer = generator(x + 5), generator(4), delegating()
    next(started)
    next(outer)
    return started.close(), started.close(), fresh.close(), outer.close()


# ---------------------------------------------------------------- variables of frames


def f_locals_sets_variables(x):
    k = 2
    sys._getframe().f_locals["k"] = 5
    return x * k


def f_locals_sets_cells(x):
    k = 2

    def inner():
        return k

    sys._getframe().f_locals["k"] = 5
    return x * inner()


def f_locals_shows_later_values(x):
    k = 2
    seen = sys._getframe().f_locals
    k = 3
    copied = seen.copy()
    copied.pop("seen", None)
    return x, seen["k"], k, copied, sorted(seen), len(seen), "k" in seen, "z" in seen, seen.get("z")


def f_locals_is_of_its_type(x):
    k = 2
    seen = sys._getframe().f_locals
    kinds = type(seen).__name__, isinstance(seen, dict), type(seen.keys()).__name__
    return x * k, kinds, outcome(lambda: seen["absent"]), list(seen)[:2]


def f_locals_of_the_caller(x):
    k = 1

    def set_variable(value):
        sys._getframe(1).f_locals["k"] = value

    set_variable(7)
    return x + k


def f_locals_takes_new_names(x):
    seen = sys._getframe().f_locals
    seen["absent"] = 3
    return x, sorted(sys._getframe().f_locals), "absent" in locals()


# ---------------------------------------------------------------- warnings: since 3.12


def inverts_a_bool(x):
    few = x.shape[0] == 3
    return x + ~few, ~few


def throws_parts(x):
    def generator():
        try:
            yield x
        except ValueError as error:
            yield x + 1, str(error)

    started = generator()
    next(started)
    return started.throw(ValueError, "text")


def _warned(fn, *args):
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        result = fn(*args)
    return result, [(str(item.message), item.filename, item.lineno) for item in record]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("fn", [inverts_a_bool, throws_parts], ids=lambda fn: fn.__name__)
def test_deprecated_operations_warn_at_their_line_in_each_call(fn, dynamic):
    captured = compiled(fn, dynamic=dynamic)
    for _ in range(3):
        same(_warned(captured, torch.arange(3.0)), _warned(fn, torch.arange(3.0)))


@pytest.mark.parametrize("steps", [None, 4, 9, 15])
@pytest.mark.parametrize(
    "fn",
    [
        values_of_closed_generators, f_locals_sets_variables, f_locals_sets_cells,
        f_locals_shows_later_values, f_locals_is_of_its_type, f_locals_of_the_caller,
        f_locals_takes_new_names,
    ],
    ids=lambda fn: fn.__name__,
)  # fmt: skip
def test_same_as_eager(fn: types.FunctionType, steps, monkeypatch):
    check_in_steps(fn, steps, monkeypatch)
