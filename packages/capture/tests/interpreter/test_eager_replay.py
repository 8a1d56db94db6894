"""Graphs that raise: the call runs again in the interpreter; entries that ask what to do about an
error, in C and in Python.
"""

from __future__ import annotations

import gc
import sys
import traceback
import weakref

import pytest
import torch

import flambeau_capture
from flambeau_capture import CaptureOptions, state_of
from flambeau_capture.core import core
from flambeau_capture.entries.new_entry import new_entry
from flambeau_capture.frame_hook import call_with_handler, hook_works
from flambeau_capture.guards.program import PythonProgram, guard_program
from flambeau_capture.python_core import PythonCompiled, PythonEntry
from flambeau_capture.sources import Argument

COMPILED = [pytest.param(PythonCompiled, id="python")]
if core is not None:
    COMPILED.append(pytest.param(core.Compiled, id="c"))
BAD, GOOD = torch.tensor([5]), torch.tensor([1])


def backend(gm, example_inputs):
    return gm.forward


def compiled(function, **options):
    return flambeau_capture.compile(function, backend=backend, options=CaptureOptions(**options))


def eager_replays(function):
    return [event.text for event in state_of(function).events if event.kind == "eager_replay"]


# ---------------------------------------------------------------- entries


def serving(cls, function, target, on_error):
    """`function`, compiled: calls go to `target`, whose errors `on_error` is asked about."""
    sources = [Argument("x", 0)]
    if cls is PythonCompiled:
        entry = PythonEntry(PythonProgram((), sources), target, on_error=on_error)
    else:
        entry = new_entry(guard_program((), sources, 1), target, on_error=on_error)
    return cls(function, lambda arguments: entry)


@pytest.mark.parametrize("cls", COMPILED)
@pytest.mark.parametrize("error", [ValueError("v"), KeyboardInterrupt(), SystemExit(2)], ids=repr)
def test_the_function_runs_where_the_answer_is_none(cls, error):
    asked = []

    def target(x):
        raise error

    def on_error(raised):
        asked.append(raised)

    served = serving(cls, lambda x: x + 1, target, on_error)
    for x in (1, 2):
        assert served(x) == x + 1
        assert served(x=x) == x + 1
    assert asked == [error] * 4


@pytest.mark.parametrize("cls", COMPILED)
def test_the_answer_is_raised(cls):
    def target(x):
        raise ValueError(x)

    def on_error(raised):
        return KeyError(*raised.args)

    with pytest.raises(KeyError, match="7"):
        serving(cls, lambda x: x, target, on_error)(7)
    with pytest.raises(ValueError, match="7") as caught:
        serving(cls, lambda x: x, target, lambda raised: raised)(7)
    assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "target"
    with pytest.raises(ValueError, match="7"):
        serving(cls, lambda x: x, target, None)(7)


@pytest.mark.parametrize("cls", COMPILED)
def test_what_is_asked_may_raise_itself(cls):
    def target(x):
        raise ValueError(x)

    def on_error(raised):
        raise LookupError("of its own")

    with pytest.raises(LookupError, match="of its own"):
        serving(cls, lambda x: x, target, on_error)(7)


@pytest.mark.parametrize("cls", COMPILED)
def test_what_the_function_raises_has_the_context_that_it_has_eagerly(cls):
    def target(x):
        raise ValueError(x)

    def function(x):
        raise TypeError(x)

    served = serving(cls, function, target, lambda raised: None)
    with pytest.raises(TypeError) as caught:
        served(1)
    assert caught.value.__context__ is None
    try:
        raise KeyError("outside")
    except KeyError as outside:
        with pytest.raises(TypeError) as caught:
            served(1)
        assert caught.value.__context__ is outside


@pytest.mark.parametrize("cls", COMPILED)
def test_errors_are_not_kept(cls):
    class Error(Exception):
        pass

    seen = []

    def target(x):
        error = Error(x)
        seen.append(weakref.ref(error))
        raise error

    served = serving(cls, lambda x: x, target, lambda raised: None)
    before = sys.getrefcount(served)
    for _ in range(5):
        assert served(3) == 3
    gc.collect()
    assert [ref() for ref in seen] == [None] * 5
    assert sys.getrefcount(served) == before


# ---------------------------------------------------------------- programs


@pytest.mark.skipif(not hook_works(), reason="the frame hook is not built, or not for this Python")
def test_in_a_frame_that_is_reached_below_a_break():
    log = []

    def below(x, i):
        log.append("before")
        try:
            y = x[i] * 2 + torch.cos(x[0])
            log.append("after")
        except IndexError:
            log.append("handled")
            y = x
        return y

    function = compiled(below)
    handler = state_of(function)._hooked_frames().handler
    x = torch.randn(3)
    for i in (GOOD, BAD, GOOD, BAD):
        log.clear()
        want = list(map(below, [x, x + 1], [i, GOOD])), list(log)
        log.clear()
        got = (
            call_with_handler(handler, lambda i=i: list(map(below, [x, x + 1], [i, GOOD]))),
            list(log),
        )
        torch.testing.assert_close(got[0], want[0])
        assert got[1] == want[1]
    assert len(eager_replays(function)) == 1


def test_a_resumed_frame_runs_again_from_where_it_was_resumed():
    printed = []

    def program(x, i, n):
        printed.append("first")
        total = x.sum().item() if n else 0
        printed.append(total)
        y = x[i]
        printed.append("last")
        return y + total

    function = compiled(program)
    for i in (GOOD, BAD, GOOD):
        outcomes = []
        for call in (program, function):
            printed.clear()
            try:
                result = call(torch.arange(3.0), i, 1).tolist()
            except IndexError as error:
                result = str(error)
            outcomes.append((result, list(printed)))
        assert outcomes[0] == outcomes[1]


def test_nested_calls_and_the_line_that_raised():
    log = []

    def inner(x, i):
        log.append("inner")
        return x[i]  # here

    def program(x, i):
        log.append("outer")
        try:
            return inner(x, i)
        finally:
            log.append("left")

    function = compiled(program)
    function(torch.ones(3), GOOD)
    log.clear()
    with pytest.raises(IndexError) as caught:
        function(torch.ones(3), BAD)
    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (last.name, last.line) == ("inner", "return x[i]  # here")
    assert log == ["outer", "inner", "left"]


def test_fullgraph_and_dynamic_sizes():
    def program(x, i, log):
        log.append(x.shape[0])
        try:
            return x[i] + x.shape[0]
        except IndexError:
            log.append("handled")
            return x

    function = compiled(program, fullgraph=True, dynamic=True)
    for size in (3, 4, 7, 5):
        x = torch.arange(float(size))
        got, want = [], []
        torch.testing.assert_close(function(x, BAD, got), program(x, BAD, want))
        assert got == want
    assert len(function.entries) == 1


def test_reads_that_nobody_uses_stay():
    def program(x, i):
        x[i]
        return x * 2

    function = compiled(program)
    function(torch.ones(3), GOOD)
    assert len(list(function.entries[0].info.graph_module.graph.nodes)) == 5
    with pytest.raises(IndexError):
        function(torch.ones(3), BAD)


@pytest.mark.parametrize("gradients", [False, True])
def test_inputs_are_put_back_whatever_they_are(gradients):
    """A plain tensor, one with a history, one that gets a history from the write, a view, one that
    shares its elements' memory.
    """

    def program(x, y, z, i):
        x.mul_(2)
        y.add_(x[0])
        z[:1].add_(1)
        out = x[i] + y.sum()
        x.mul_(3)
        return out

    def tensors():
        leaf = torch.arange(3.0, requires_grad=gradients)
        return leaf, leaf * 1, torch.ones(3), torch.zeros(4)[1:]

    function = compiled(program)
    for i in (GOOD, BAD, GOOD, BAD):
        outcomes = []
        for call in (program, function):
            leaf, *given = tensors()
            try:
                call(*given, i).sum().backward(retain_graph=True) if gradients else call(*given, i)
                result = "fine"
            except IndexError as error:
                result = str(error)
            if gradients:
                (given[0].sum() + given[1].sum()).backward()
            outcomes.append(
                (result, [t.tolist() for t in given], [t.requires_grad for t in given], leaf.grad)
            )
        assert str(outcomes[0]) == str(outcomes[1])


def test_a_view_that_autograd_has_recorded_a_write_to_cannot_be_put_back():
    """The graph's own error is raised, the writes before it are eager's, and the effects are lost:
    the limit that architecture.md names.
    """

    def program(x, i, log):
        log.append("lost")
        x.mul_(2)
        return x[i]

    function = compiled(program)
    base = torch.arange(4.0, requires_grad=True) * 1
    log = []
    with pytest.raises(IndexError):
        function(base[1:], torch.tensor([7]), log)
    assert log == []
    assert base.tolist() == [0.0, 2.0, 4.0, 6.0]
    assert eager_replays(function) == []


def test_attention_without_dropout_draws_nothing():
    def attends(x, i, p):
        return torch.nn.functional.scaled_dot_product_attention(x, x, x[i], dropout_p=p)

    x, i = torch.randn(2, 3, 4), torch.tensor([1, 0])
    for p, saves in ((0.0, False), (0.5, True)):
        run = compiled(attends)
        run(x, i, p)
        (entry,) = flambeau_capture.state_of(run).entries
        assert ("save" in entry.info.text) is saves
