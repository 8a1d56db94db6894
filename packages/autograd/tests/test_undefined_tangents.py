"""Backwards from some of the results: what comes from the others is absent, as in eager."""

from __future__ import annotations

import operator
import threading

import pytest
import torch
from recording import GraphLog, compile_program
from torch import fx

from flambeau_autograd import AutogradOptions, aot
from flambeau_autograd.backwards import LIMIT
from flambeau_prims.evaluate import run_graph


class Counting(GraphLog):
    """Keeps every graph of a kind, in the order of compilation."""

    def __init__(self):
        super().__init__()
        self.backwards = []

    def __call__(self, graph, kind):
        if kind == "backward":
            self.backwards.append(graph)
        return super().__call__(graph, kind)


class TwoHalves(torch.autograd.Function):
    """Runs as a whole, with zeros for the undefined gradient; is not linear in it."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(w)
        return x * 2, w * 3

    @staticmethod
    def backward(ctx, by_x, by_w):
        (w,) = ctx.saved_tensors
        return by_x * 2 + 1, by_w * (w * 1000).exp() + by_x.sum()


def subset_grads(call, inputs, used, *, retain=False):
    """Gradients by a weighted sum of the results at `used`, taken one set after the other."""
    twins = [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs]
    outputs = call(*twins)
    for number, positions in enumerate(used):
        loss = sum((outputs[at] * (at + 1.5)).sum() for at in positions)
        loss.backward(retain_graph=retain or number + 1 < len(used))
    return [x.grad for x in twins]


PROGRAMS = {
    "overflow": lambda x, w: ((w * 2).sum(), (w * 1000).exp(), x * w),
    "shared": lambda x, w: (lambda h: (h.tanh(), (h * 1000).exp(), h / 0))(x * w),
    "split": lambda x, w: tuple((x * w).split(2, 0)) + ((w * 1000).exp(),),
    "cat": lambda x, w: (torch.cat([x, w]), (torch.cat([w, x]) * 1000).exp(), w.log()),
    "views": lambda x, w: (x.t() * 2, (w.t() * 1000).exp(), (x @ w.t()) * 2),
    "half": lambda x, w: (
        (x.half() * 2).float(),
        (w.half() * 100).exp() + x.half(),
        (x.half() * w.half()).float(),
    ),
    "reduced": lambda x, w: (
        x.softmax(-1) * w,
        (x * 1000).exp().var(-1),
        torch.nn.functional.layer_norm(w, (3,)) * x,
    ),
    "complex": lambda x, w: (
        torch.view_as_real(torch.complex(x, w) * 2),
        (w * 1000).exp(),
        torch.complex(x, w).abs(),
    ),
    "unbind": lambda x, w: ((x * w).unbind(0)[0], (x * w).unbind(0)[1], (x * 1000).exp()),
}
SUBSETS = [
    [(0,)],
    [(1,)],
    [(2,)],
    [(0, 2)],
    [(0, 1, 2)],
    [(0,), (1,)],
    [(1,), (0,)],
    [(2,), (0, 1)],
]


def assert_same(mine, expected):
    for ours, theirs in zip(mine, expected, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4, equal_nan=True)
            assert ours.stride() == theirs.stride()


def drawn():
    return [(torch.rand(4, 3) + 0.5).requires_grad_() for _ in range(2)]


@pytest.mark.parametrize("decompose", [True, False])
@pytest.mark.parametrize("partition", ["min_cut", "save_all"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_backward_of_some_results_is_eagers(name, partition, decompose):
    program = PROGRAMS[name]
    inputs = drawn()
    compiled = compile_program(program, inputs, partition=partition, decompose=decompose)
    for used in SUBSETS:
        inputs = drawn()
        expected = subset_grads(program, inputs, used)
        assert_same(subset_grads(compiled, inputs, used), expected)
        assert_same(subset_grads(compiled, inputs, used, retain=True), expected)


@pytest.mark.parametrize("decompose", [True, False])
def test_a_custom_function_runs_as_a_whole(decompose):
    """With zeros for its undefined gradients, unless all are undefined."""

    def program(x, w):
        doubled, tripled = TwoHalves.apply(x.sin(), w.cos())
        return doubled, tripled, (w * 2000).exp() * x

    graph = fx.Graph()
    results = graph.call_function(program, (graph.placeholder("x"), graph.placeholder("w")))
    graph.output([graph.call_function(operator.getitem, (results, at)) for at in range(3)])
    options = AutogradOptions(decompose=decompose, check=True)
    compiled = aot(fx.GraphModule({}, graph), drawn(), GraphLog(), options=options)
    for used in SUBSETS:
        inputs = drawn()
        expected = subset_grads(program, inputs, used)
        assert_same(subset_grads(compiled, inputs, used), expected)
        if used == [(1,)]:
            assert expected[0].ne(0).all(), "zeros for the other gradient do not give zeros"


def test_inputs_below_undefined_tangents_get_none():
    program = lambda x, w: (x * 2, (w * 1000).exp())  # noqa: E731
    inputs = drawn()
    compiled = compile_program(program, inputs)
    for used in ([(0,)], [(1,)]):
        assert_same(subset_grads(compiled, inputs, used), subset_grads(program, inputs, used))
    x_grad, w_grad = subset_grads(compiled, inputs, [(0,)])
    assert w_grad is None and x_grad is not None


def test_work_is_saved_and_backwards_are_compiled_once():
    def program(x, w):
        deep = w
        for _ in range(10):
            deep = (deep @ w.t() @ w).tanh()
        return (x * w, deep)

    inputs, log = drawn(), Counting()
    compiled = compile_program(program, inputs, log, compile_backward_lazily=True)
    assert not log.backwards
    for _ in range(3):
        assert_same(subset_grads(compiled, inputs, [(0,)]), subset_grads(program, inputs, [(0,)]))
    (without_deep,) = log.backwards
    subset_grads(compiled, inputs, [(0, 1)])
    special, general = log.backwards
    assert special is without_deep
    assert len(special.nodes) <= 4 < 20 < len(general.nodes)
    names = [value.name for value in special.inputs]
    assert "tangent_0" in names and "tangent_1" not in names


def test_backward_of_one_result_is_compiled_with_the_forward():
    inputs = drawn()
    for results, early in ((1, 1), (2, 0)):
        program = lambda x, w, results=results: (x * w, (x + w).sin())[:results]  # noqa: E731
        log = Counting()
        compiled = compile_program(program, inputs, log)
        assert len(log.backwards) == early
        assert_same(subset_grads(compiled, inputs, [(0,)]), subset_grads(program, inputs, [(0,)]))
        assert len(log.backwards) == 1


def test_late_backwards_are_deterministic_when_their_calls_are():
    program = lambda x, w: (x * w, (x + w).sin())  # noqa: E731
    inputs, log = drawn(), Counting()
    compiled = compile_program(program, inputs, log)
    for count, deterministic in ((1, False), (2, True), (2, False), (2, True)):
        expected = subset_grads(program, inputs, [(0,)])
        torch.use_deterministic_algorithms(deterministic)
        try:
            assert_same(subset_grads(compiled, inputs, [(0,)]), expected)
        finally:
            torch.use_deterministic_algorithms(False)
        assert len(log.backwards) == count


def test_number_of_backwards_is_bounded():
    program = lambda x, w: tuple((x * w * (at + 1)).sin() for at in range(5))  # noqa: E731
    inputs, log = drawn(), Counting()
    compiled = compile_program(program, inputs, log)
    for mask in range(1, 31):
        used = [tuple(at for at in range(5) if mask >> at & 1)]
        assert_same(subset_grads(compiled, inputs, used), subset_grads(program, inputs, used))
    assert len(log.backwards) == 1 + LIMIT


def test_first_backwards_in_several_threads_compile_once():
    program = PROGRAMS["overflow"]
    inputs, log = drawn(), Counting()
    compiled = compile_program(program, inputs, log)
    barrier, results = threading.Barrier(4), []

    def work():
        barrier.wait()
        results.append(subset_grads(compiled, inputs, [(0,)]))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(log.backwards) == 1
    for mine in results:
        assert_same(mine, subset_grads(program, inputs, [(0,)]))


def test_hooks_and_autograd_grad_see_eagers_gradients():
    program = PROGRAMS["shared"]
    compiled = compile_program(program, drawn())
    inputs = drawn()

    def observed(call):
        seen = []
        twins = [x.detach().clone().requires_grad_() for x in inputs]
        for twin in twins:
            twin.register_hook(lambda grad: seen.append(grad.detach().clone()))
        outputs = call(*twins)
        outputs[0].register_hook(lambda grad: grad * 3)
        found = torch.autograd.grad(outputs[0].sum(), twins, create_graph=True)
        return [*seen, *(grad.detach() for grad in found)]

    mine, expected = observed(compiled), observed(program)
    assert len(mine) == 4
    torch.testing.assert_close(mine, expected)


def test_gradients_of_one_memory_stay_apart():
    """The sum that is dropped gives both inputs the same tangent, which the engine must copy."""
    program = lambda x, w: ((x + w) * 1, (x * w * 1000).exp())  # noqa: E731
    inputs = drawn()
    compiled = compile_program(program, inputs)
    for call in (compiled, program):
        twins = [x.detach().clone().requires_grad_() for x in inputs]
        outputs = call(*twins)
        outputs[0].backward(torch.ones(4, 3), retain_graph=True)
        twins[0].grad.mul_(5)
        assert twins[1].grad.eq(1).all()
        outputs[0].backward(torch.ones(4, 3))
        assert twins[0].grad.eq(6).all() and twins[1].grad.eq(2).all()


def test_a_compiler_may_rewrite_its_graph():
    def compiler(graph, kind):
        nodes, outputs = list(graph.nodes), list(graph.outputs)

        def run(*args):
            graph.nodes, graph.outputs = nodes, outputs
            result = run_graph(graph, args)
            graph.nodes, graph.outputs = [], []
            return result

        return run

    program = PROGRAMS["shared"]
    inputs = drawn()
    compiled = compile_program(program, inputs, compiler)
    for used in ([(0, 1, 2)], [(0,)]):
        assert_same(subset_grads(compiled, inputs, used), subset_grads(program, inputs, used))


class GivesNone(torch.autograd.Function):
    """A step after the compiled graph that leaves its gradient undefined."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return None


@pytest.mark.parametrize("results", [1, 2])
def test_no_tangent_at_all(results):
    program = lambda x, w: (x * w, (w * 1000).exp())[:results]  # noqa: E731
    inputs = drawn()
    compiled = compile_program(program, inputs)
    for call in (compiled, program):
        twins = [x.detach().clone().requires_grad_() for x in inputs]
        sum(GivesNone.apply(out).sum() for out in call(*twins)).backward()
        assert [twin.grad for twin in twins] == [None, None]
