"""Tracebacks of exceptions that compiled frames raise and handle: in `__exit__`, behind graph
breaks and in what is returned.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import traceback
import unittest

import pytest
import torch
from capture_harness import run_graph

import flambeau_capture

CASE = unittest.TestCase()


class Noting:
    """A context manager that keeps what `describe` says of the traceback it is given."""

    def __init__(self, describe):
        self.describe = describe
        self.seen = []

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self.seen.append(self.describe(trace))
        return True


def places(trace):
    return [(frame.name, frame.lineno, frame.colno) for frame in traceback.extract_tb(trace)]


def fails():
    return [].index(3)


def given_to_exit(x):
    with Noting(lambda trace: trace is not None) as manager:
        fails()
    return x + 1, manager.seen


def given_to_exit_behind_a_break(x):
    with Noting(lambda trace: trace is not None) as manager:
        torch._dynamo.graph_break()
        fails()
    return x + 1, manager.seen


def read_in_exit(x):
    with Noting(places) as manager:
        fails()
    return x + 1, manager.seen


def given_to_a_callback(x):
    seen = []
    with contextlib.ExitStack() as stack:
        stack.push(lambda kind, error, trace: seen.append((kind, trace is None)) or True)
        fails()
    return x + 1, seen


def read_behind_a_break(x):
    try:
        fails()
    except ValueError as error:
        torch._dynamo.graph_break()
        return x + 1, places(error.__traceback__)


def formatted_behind_a_break(x):
    try:
        try:
            fails()
        except ValueError as error:
            raise KeyError("k") from error
    except KeyError:
        torch._dynamo.graph_break()
        return x + 1, traceback.format_exc()


def kept_over_a_break(x):
    try:
        fails()
    except ValueError as error:
        kept = error
    torch._dynamo.graph_break()
    return x + 1, places(kept.__traceback__)


def stored(x):
    with Noting(lambda trace: trace) as manager:
        fails()
    return x + 1, [places(trace) for trace in manager.seen]


def in_assert_raises(x):
    with CASE.assertRaises(ValueError) as manager:
        fails()
    return x + 1, str(manager.exception), manager.exception.__traceback__


def lines_of(trace):
    found = []
    while trace is not None:
        found.append(trace.tb_lineno)
        trace = trace.tb_next
    return found


def lines_of_the_handled(x):
    try:
        fails()
    except ValueError as error:
        own = error.__traceback__ is sys.exc_info()[2]
        return x + 1, own, lines_of(error.__traceback__), lines_of(sys.exc_info()[2])


def lines_of_a_raised_again(x):
    try:
        try:
            fails()
        except ValueError as error:
            trace = error.__traceback__
            raise KeyError("k").with_traceback(trace) from error
    except KeyError as error:
        cause = error.__cause__
        return x + 1, lines_of(error.__traceback__), lines_of(cause.__traceback__)


def keeps_an_error():
    try:
        fails()
    except ValueError as error:
        yield error
    yield "left"


def generator_cleared(x):
    generator = keeps_an_error()
    error = next(generator)
    traceback.clear_frames(error.__traceback__)
    return x + 1, list(generator)


def generator_that_raised(x):
    def failing():
        yield 1
        fails()

    generator = failing()
    with CASE.assertRaises(ValueError):
        list(generator)
    return x + 1, list(generator)


def generator_handles_what_its_caller_does(x):
    def handling():
        try:
            yield None
        except ValueError:
            yield sys.exc_info()[0]
            yield sys.exc_info()[0]
        yield sys.exc_info()[0]

    generator = handling()
    seen = [next(generator)]
    try:
        fails()
    except ValueError as error:
        seen.append(generator.throw(error))
    seen.append(next(generator))
    try:
        {}["k"]
    except KeyError:
        seen.append(next(generator))
    return x + 1, seen


PROGRAMS = [
    given_to_exit,
    given_to_exit_behind_a_break,
    read_in_exit,
    given_to_a_callback,
    read_behind_a_break,
    formatted_behind_a_break,
    kept_over_a_break,
    stored,
    in_assert_raises,
    lines_of_the_handled,
    lines_of_a_raised_again,
    generator_cleared,
    generator_that_raised,
    generator_handles_what_its_caller_does,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=[program.__name__ for program in PROGRAMS])
def test_same_as_eager(program):
    x = torch.ones(3)
    compiled = flambeau_capture.compile(program, backend=run_graph)
    wanted = repr(program(x))
    for _ in range(2):
        assert repr(compiled(x)) == wanted


@pytest.mark.parametrize(
    "program",
    [
        given_to_exit,
        given_to_a_callback,
        in_assert_raises,
        lines_of_the_handled,
        lines_of_a_raised_again,
        generator_that_raised,
        generator_handles_what_its_caller_does,
    ],
)
def test_exit_is_given_one_in_the_graph(program):
    options = flambeau_capture.CaptureOptions(fullgraph=True)
    compiled = flambeau_capture.compile(program, backend=run_graph, options=options)
    x = torch.ones(3)
    assert repr(compiled(x)) == repr(program(x))


def test_a_returned_exception_names_where_it_was_raised():
    def returned(x):
        try:
            fails()
        except ValueError as error:
            return error

    compiled = flambeau_capture.compile(returned, backend=run_graph)
    wanted = places(returned(torch.ones(3)).__traceback__)
    first, second = compiled(torch.ones(3)), compiled(torch.ones(3))
    assert places(first.__traceback__) == places(second.__traceback__) == wanted
    assert first.__traceback__ is not second.__traceback__


def _raises(scale, x):
    label = "made here"
    y = x * scale
    raise ValueError(label, y.shape)


def _caught(x, note):
    try:
        _raises(3, x)
    except ValueError as error:
        gc.collect()
        return error


def _cleared(x, note):
    try:
        _raises(3, x)
    except ValueError as error:
        traceback.clear_frames(error.__traceback__.tb_next)
        gc.collect()
        return error


@pytest.mark.parametrize("program", [_caught, _cleared])
def test_variables_of_frames_that_raised(program):
    """Constants and what existed before the call are shown; computed values (`y`) are not."""
    fn = flambeau_capture.compile(program, backend=run_graph)
    for _ in range(2):
        x = torch.ones(2)
        seen = []
        for run in (program, fn):
            link, found = run(x, "note").__traceback__, []
            while link is not None:
                variables = dict(link.tb_frame.f_locals)
                variables.pop("y", None)
                found.append((link.tb_frame.f_code.co_name, link.tb_lineno, variables))
                link = link.tb_next
            seen.append(found)
        assert [names[:2] for names in seen[0]] == [names[:2] for names in seen[1]]
        for (*_, expected), (*_, shown) in zip(*seen, strict=True):
            assert expected.keys() == shown.keys()
            assert shown.pop("x", None) is expected.pop("x", None)
            assert shown == expected
