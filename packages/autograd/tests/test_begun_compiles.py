"""Compilers that begin: all graphs before the first is ended, and the backward that is expected."""

from __future__ import annotations

import os

import pytest
import torch
from recording import compile_program

from flambeau_prims.evaluate import run_graph


class Beginning:
    """Notes what is begun and ended; `broken` kinds of graphs cannot be ended, or begun."""

    def __init__(self, broken=()):
        self.events = []
        self.broken = broken

    def __call__(self, graph, kind):
        self.events.append(f"compile {graph.name or kind}")
        return lambda *inputs: run_graph(graph, inputs)

    def begin(self, graph, kind):
        name = graph.name or kind
        self.events.append(f"begin {name}")
        if "begin" in self.broken and kind == "backward":
            raise RuntimeError("begin")

        def end():
            self.events.append(f"end {name}")
            if "end" in self.broken and kind == "backward":
                self.broken = ()
                raise RuntimeError("end")
            return lambda *inputs: run_graph(graph, inputs)

        return end


def leaves():
    return [torch.randn(3, 4, requires_grad=True), torch.randn(3, 4, requires_grad=True)]


def loss_and_scores(x, w):
    scores = (x * w).sin()
    return scores.sum(), scores


def gradients(function, inputs, chosen):
    results = function(*inputs)
    picked = [results[at].sum() for at in chosen]
    return torch.autograd.grad(sum(picked), inputs)


def assert_gradients(compiled, program, inputs, chosen):
    mine, theirs = (gradients(each, inputs, chosen) for each in (compiled, program))
    torch.testing.assert_close(mine, theirs)


def test_both_graphs_are_begun_before_the_first_is_ended():
    program, inputs, log = (lambda x, w: ((x * w).sin(),)), leaves(), Beginning()
    compiled = compile_program(program, inputs, log)
    assert log.events == ["begin forward", "begin backward", "end forward", "end backward"]
    assert_gradients(compiled, program, inputs, [0])
    assert len(log.events) == 4


def test_the_backward_of_a_loss_is_begun_and_ended_in_its_first_call():
    inputs, log = leaves(), Beginning()
    compiled = compile_program(loss_and_scores, inputs, log)
    begun = ["begin forward", "begin backward_without_1", "end forward"]
    assert log.events == begun
    for _ in range(2):
        assert_gradients(compiled, loss_and_scores, inputs, [0])
    assert log.events == [*begun, "end backward_without_1"]


def test_another_backward_than_the_expected_one():
    inputs, log = leaves(), Beginning()
    compiled = compile_program(loss_and_scores, inputs, log)
    assert_gradients(compiled, loss_and_scores, inputs, [1])
    assert_gradients(compiled, loss_and_scores, inputs, [0, 1])
    assert "end backward_without_1" not in log.events
    assert_gradients(compiled, loss_and_scores, inputs, [0])
    assert log.events.count("begin backward_without_1") == 1
    assert log.events[-1] == "end backward_without_1"


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (lambda x, w: (x * w, (x + w).sin()), []),
        (lambda x, w: ((x * w).sum(), (x + w).sin().sum()), ["begin backward_of_all"]),
    ],
    ids=["no loss", "two losses"],
)
def test_what_is_expected(program, expected):
    inputs, log = leaves(), Beginning()
    compiled = compile_program(program, inputs, log)
    assert log.events == ["begin forward", *expected, "end forward"]
    for chosen in ([0], [1], [0, 1]):
        assert_gradients(compiled, program, inputs, chosen)


@pytest.mark.parametrize("broken", ["begin", "end"])
def test_what_was_expected_and_cannot_be_compiled_is_compiled_for_its_call(broken):
    inputs, log = leaves(), Beginning([broken])
    compiled = compile_program(loss_and_scores, inputs, log)
    log.broken = [broken] if broken == "end" else ()
    assert_gradients(compiled, loss_and_scores, inputs, [0])
    assert log.events.count("begin backward_without_1") == 2


@pytest.mark.parametrize("broken", ["begin", "end"])
def test_a_backward_that_is_needed_raises_with_the_forward(broken):
    with pytest.raises(RuntimeError, match=broken):
        compile_program(lambda x, w: ((x * w).sin(),), leaves(), Beginning([broken]))


def test_deterministic_algorithms_asked_for_later():
    inputs, log = leaves(), Beginning()
    compiled = compile_program(loss_and_scores, inputs, log)
    torch.use_deterministic_algorithms(True)
    try:
        assert_gradients(compiled, loss_and_scores, inputs, [0])
    finally:
        torch.use_deterministic_algorithms(False)
    assert log.events.count("begin backward_without_1") == 2  # one of each kind


def test_a_forked_child_begins_again():
    inputs, log = leaves(), Beginning()
    compiled = compile_program(loss_and_scores, inputs, log)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            assert_gradients(compiled, loss_and_scores, inputs, [0])
            code = log.events.count("begin backward_without_1") != 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_nothing_is_begun_of_a_backward_that_is_wanted_lazily():
    inputs, log = leaves(), Beginning()
    compiled = compile_program(loss_and_scores, inputs, log, compile_backward_lazily=True)
    assert log.events == ["begin forward", "end forward"]
    assert_gradients(compiled, loss_and_scores, inputs, [0])
