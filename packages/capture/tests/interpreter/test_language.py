"""Statements and expressions of Python functions, captured whole and compared with eager."""

from __future__ import annotations

import pytest
import torch
from capture_harness import check
from programs import (
    Color,
    Pair,
    Point,
    branches,
    builtin_functions,
    closures,
    collection_types,
    comprehensions,
    dataclass_values,
    dict_methods,
    enums,
    exceptions,
    generator_cleanup,
    generator_functions,
    iterators_of_classes,
    library_functions,
    list_methods,
    loops,
    matching,
    named_tuples,
    reraised,
    return_in_finally,
    slices,
    star_arguments,
    strings,
    tutorial,
    unpacking,
    walrus_and_chained,
    with_blocks,
)

X = torch.arange(12.0).reshape(3, 4)


@pytest.mark.parametrize(
    ("fn", "args"),
    [
        (tutorial, ()),
        (branches, (5,)),
        (branches, (3,)),
        (branches, (0, False)),
        (loops, (3,)),
        (comprehensions, ()),
        (unpacking, ()),
        (slices, ()),
        (strings, ()),
        (walrus_and_chained, ()),
        (closures, ()),
        (star_arguments, (4,)),
        (dataclass_values, ()),
        (named_tuples, (Pair(torch.ones(4)),)),
        (enums, (Color.RED,)),
        (enums, (Color.BLUE,)),
        (builtin_functions, ()),
        (library_functions, ()),
        (collection_types, ()),
        (dict_methods, ()),
        (list_methods, ()),
        (with_blocks, ()),
        (matching, ({"op": "add", "n": 2, "z": 1},)),
        (matching, ([1, 2, 3],)),
        (matching, (Point(2),)),
        (matching, (Color.BLUE,)),
        (matching, ("s",)),
        (matching, ((1, 2),)),
        (matching, (None,)),
        (matching, (5,)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_same_as_eager(fn, args):
    check(fn, X.clone(), *args)


def test_star_arguments_of_the_frame():
    check(star_arguments, X, 1, 2, 3, key=torch.ones(1), g=7)


@pytest.mark.parametrize("fn", [generator_functions, generator_cleanup, iterators_of_classes])
def test_generators_and_iterators(fn):
    check(fn, X)


@pytest.mark.parametrize("n", range(4))
def test_exceptions(n):
    check(exceptions, X, n)


@pytest.mark.parametrize("fn", [return_in_finally, reraised])
def test_exceptions_through_frames(fn):
    check(fn, X)
