"""Hooks behind inputs that not all results are connected to run where eager's run, and never
without a gradient.
"""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
import torch
from recording import compile_program
from torch import nn

ROWS = 5


def heads(x, trunk, policy, value, unused):
    """Results that share `trunk`; nothing comes from `unused` that has a gradient."""
    h = torch.tanh(x @ trunk)
    mask = nn.functional.one_hot((x @ unused).argmax(-1), 3).to(x.dtype)
    return torch.sigmoid(h @ policy) * (mask + 1), (h @ value) ** 2, trunk.sin().sum()


def drawn():
    shapes = [(ROWS, 8), (8, 8), (8, 3), (8, 1), (8, 3)]
    return [torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


class Call:
    """A call with hooks on all leaves; with `interior`, arguments are computed from these."""

    def __init__(self, call, inputs, *, interior=False):
        self.log = []
        self.leaves = [x.detach().clone().requires_grad_() for x in inputs]
        for at, x in enumerate(self.leaves):
            x.register_hook(lambda grad, at=at: self.log.append((at, grad.detach().clone())))
            x.register_hook(lambda grad: grad * 0.5)
        self.results = call(*[x * 1 if interior else x for x in self.leaves])

    def loss(self, used):
        return sum((self.results[at] * (at + 1.5)).sum() for at in used)

    def found(self, *more):
        log = sorted(self.log, key=lambda entry: (entry[0], float(entry[1].sum())))
        return [log, [x.grad for x in self.leaves], *more]


def backward(call, used):
    call.loss(used).backward()
    return call.found()


def twice(call, used):
    loss = call.loss(used)
    loss.backward(retain_graph=True)
    loss.backward()
    return call.found()


def one_by_one(call, used):
    for at in used:
        call.loss([at]).backward(retain_graph=True)
    return call.found()


def to_some(call, used):
    """The compiled backward is not behind what is asked for, or not all of it."""
    loss, (x, _, policy, value, _) = call.loss(used), call.leaves
    return call.found(
        torch.autograd.grad(loss, [value], allow_unused=True, retain_graph=True),
        torch.autograd.grad(loss, [value, policy], allow_unused=True, retain_graph=True),
        torch.autograd.grad(loss, [x, policy], allow_unused=True),
    )


def differentiated_twice(call, used):
    loss = sum((call.results[at] ** 2).sum() for at in used)
    grads = torch.autograd.grad(loss, call.leaves, allow_unused=True, create_graph=True)
    sum((grad**2).sum() for grad in grads if grad is not None).backward()
    return call.found([None if grad is None else grad.detach() for grad in grads])


def with_hooks_on_results(call, used):
    for at in used:
        call.results[at].register_hook(lambda grad, at=at: grad * (at + 2))
    return backward(call, used)


USES = [[0], [1], [2], [0, 1], [1, 2], [2, 0, 1]]
WAYS = [
    backward,
    twice,
    one_by_one,
    to_some,
    differentiated_twice,
    with_hooks_on_results,
]


@pytest.mark.parametrize("interior", [False, True])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("used", USES, ids=str)
def test_hooks_run_where_eagers_run(used, way, interior):
    inputs = drawn()
    compiled = compile_program(heads, [x * 1 if interior else x for x in inputs])
    mine, eager = (way(Call(call, inputs, interior=interior), used) for call in (compiled, heads))
    torch.testing.assert_close(mine, eager)
    assert eager[1][4] is None


@pytest.mark.parametrize("used", [0, 1])
def test_tangents_in_batches(used):
    inputs = drawn()
    compiled = compile_program(heads, inputs)
    batch = torch.randn(4, ROWS, 3 if used == 0 else 1, dtype=torch.float64)
    found = []
    for call in (compiled, heads):
        leaves = [x.detach().clone().requires_grad_() for x in inputs]
        for x in leaves:
            x.register_hook(lambda grad: grad * 0.5)
        grads = torch.autograd.grad(
            call(*leaves)[used], leaves[:4], batch, allow_unused=True, is_grads_batched=True
        )
        assert grads[3 - used] is None
        found.append(grads)
    torch.testing.assert_close(*found)


def test_saved_tensors_that_hooks_pack():
    inputs = drawn()
    compiled = compile_program(heads, inputs)
    found = []
    for call in (compiled, heads):
        with torch.autograd.graph.saved_tensors_hooks(
            lambda x: x.detach().numpy().copy(), torch.from_numpy
        ):
            made = Call(call, inputs)
        found.append(backward(made, [1]))
    torch.testing.assert_close(*found)


def test_results_can_be_written_to():
    inputs = drawn()
    program = lambda x, w: ((x * 2).sin(), (w * x).sum(0))  # noqa: E731
    compiled = compile_program(program, [inputs[1], inputs[1].detach().clone().requires_grad_()])
    found = []
    for call in (compiled, program):
        made = Call(call, [inputs[1], inputs[1] + 1])
        y, z = made.results
        z.mul_(y.sum())
        z[1:].add_(1)
        found.append(made.found(z.sum().backward(), y.detach(), z.detach()))
    torch.testing.assert_close(*found)


def test_a_result_that_is_written_to_is_noticed():
    program = lambda x, w: (torch.sigmoid(x * 2), w * x)  # noqa: E731
    inputs = [torch.randn(3, requires_grad=True) for _ in range(2)]
    made = Call(compile_program(program, inputs), inputs)
    made.results[0].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        made.loss([0]).backward()


def test_nothing_is_kept_when_results_are_gone():
    inputs = drawn()
    made = Call(compile_program(heads, inputs), inputs, interior=True)
    made.loss([0]).backward(retain_graph=True)
    torch.autograd.grad(made.loss([1]), made.leaves[3:4], retain_graph=True)
    gc.collect()
    gc.disable()
    try:
        node = weakref.ref(made.results[0].grad_fn.next_functions[0][0])
        tasks = node().tasks
        assert not tasks, "tangents of a backward that has ended"
        del made.results
        assert node() is None
    finally:
        gc.enable()


def test_threads_go_back_through_one_call():
    inputs = drawn()
    compiled = compile_program(heads, inputs)
    made, expected = Call(compiled, inputs), Call(heads, inputs)
    (wanted,) = torch.autograd.grad(expected.loss([1]), expected.leaves[3:4])
    failures = []

    def go_back():
        for _ in range(20):
            for given in (made.leaves[3:4], made.leaves[2:4]):
                loss = made.loss([1])
                *others, last = torch.autograd.grad(
                    loss, given, retain_graph=True, allow_unused=True
                )
                if not torch.allclose(last, wanted) or others not in ([], [None]):
                    failures.append(last)

    threads = [threading.Thread(target=go_back) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_hooks_that_follow_the_accumulation():
    inputs = drawn()
    compiled = compile_program(heads, inputs)
    found = []
    for call in (compiled, heads):
        leaves = [x.detach().clone().requires_grad_() for x in inputs]
        log = []
        for at, x in enumerate(leaves):
            x.register_post_accumulate_grad_hook(
                lambda x, at=at, log=log: log.append((at, x.grad.clone()))
            )
        results = call(*leaves)
        results[1].sum().backward()
        found.append([sorted(log, key=lambda entry: entry[0]), [x.grad for x in leaves]])
    torch.testing.assert_close(*found)


def apart(x, w):
    """Results that keep nothing in common."""
    return x.sin() * 2, (w.exp() * 3).sin(), x.cos() * w


@pytest.mark.parametrize("again", [0, 1, 2])
@pytest.mark.parametrize("first", [0, 1, 2])
def test_what_a_gate_has_computed_is_spent(first, again):
    inputs = [torch.randn(3, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    compiled = compile_program(apart, inputs)
    found = []
    for call in (compiled, apart):
        made = Call(call, inputs)
        for at in (first, again):
            leaf = made.leaves[0 if at == 0 else 1]
            try:
                found.append(torch.autograd.grad(made.results[at].sum(), leaf)[0])
            except RuntimeError as error:
                found.append(str(error))
    for mine, eager in zip(found[:2], found[2:], strict=True):
        if isinstance(eager, str):
            assert mine == eager
        else:
            torch.testing.assert_close(mine, eager)


@pytest.mark.parametrize("anomaly", [False, True])
def test_the_error_of_a_changed_input_is_eagers(anomaly):
    program = lambda x, w: ((x * w).sin(), (w * 2).sum())  # noqa: E731
    inputs = [torch.randn(3, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    compiled, texts = compile_program(program, inputs), []
    for call in (compiled, program):
        x, w = (each.detach().clone().requires_grad_() for each in inputs)
        results = call(x, w)
        with torch.no_grad():
            w.mul_(2)
        with torch.autograd.set_detect_anomaly(anomaly), pytest.raises(RuntimeError) as raised:
            results[0].sum().backward()
        texts.append(str(raised.value))
    assert texts[0] == texts[1]
