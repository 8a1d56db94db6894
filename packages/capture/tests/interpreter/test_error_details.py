"""What the exceptions of Python itself say and hold: captured, it is what they do eagerly."""

from __future__ import annotations

import math

import pytest
from capture_harness import check_in_steps, outcome


class Slots:
    __slots__ = ("empty",)

    def above(self):
        return super().absent


class Fallback:
    def __getattr__(self, name):
        raise AttributeError("not here")


def names_in_attribute_errors(x):
    slots, fallback = Slots(), Fallback()
    reads = [
        lambda: slots.empty, lambda: slots.absent, slots.above, lambda: fallback.absent,
        lambda: getattr(slots, "empty"),  # noqa: B009
        lambda: object.__getattribute__(slots, "empty"), lambda: math.absent,
    ]  # fmt: skip
    return x, [outcome(read) for read in reads]


def names_that_modules_lack(x):
    def of_file():
        from random import absent

        return absent

    def of_extension():
        from math import absent

        return absent

    def of_builtin():
        from sys import absent

        return absent

    return x, outcome(of_file), outcome(of_extension), outcome(of_builtin)


def names_of_arguments(x):
    def function(maxsplit=0, **others):
        return others

    def strict(maxsplit, *, last=1):
        return last

    return (
        x, outcome(lambda: function(**{1: 2})), outcome(strict, 1, max_split=2),
        outcome(strict, 1, lats=2), outcome(strict, 1, other=2), outcome(sorted, [1], revers=True),
        outcome(lambda: sorted([1], len)), outcome(lambda: dict(**{1: 2})),
    )  # fmt: skip


def parts_of_groups(x):
    try:
        raise ValueError(1)
    except* ValueError as group:
        shown = repr(group)
    return x, shown


@pytest.mark.parametrize("steps", [None, 4, 9, 15])
@pytest.mark.parametrize(
    "fn",
    [
        names_in_attribute_errors, names_that_modules_lack, names_of_arguments, parts_of_groups,
    ],
    ids=lambda fn: fn.__name__,
)  # fmt: skip
def test_same_as_eager(fn, steps, monkeypatch):
    check_in_steps(fn, steps, monkeypatch)
