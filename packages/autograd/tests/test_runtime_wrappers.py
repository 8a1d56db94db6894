"""The callable around compiled graphs: what autograd and its users may ask of it."""

from __future__ import annotations

import gc
import random
import sys
import threading

import pytest
import torch
from recording import GraphLog, compile_program, record_calls

from flambeau_autograd import AutogradOptions, aot
from flambeau_autograd.backwards import Backward, BackwardTable
from flambeau_autograd.graph_call import getter
from flambeau_autograd.reasons import REASONS, AliasedMutation, BackwardFailed, LeafInside
from flambeau_prims.collector import collector_paused
from flambeau_prims.evaluate import run_graph
from flambeau_prims.unsupported import Unsupported


def tanh_product(x, w):
    return (torch.tanh(x @ w) * 2,)


def leaves(*shapes):
    return [torch.randn(shape, requires_grad=True) for shape in shapes]


def reference_grads(program, inputs, *, times=1):
    twins = [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs]
    for _ in range(times):
        sum(out.sum() for out in program(*twins)).backward()
    return [x.grad for x in twins]


def test_inference_is_the_compilers_own_callable():
    made = []

    def compiler(graph, kind):
        made.append(lambda *args: run_graph(graph, args))
        return made[-1]

    x = torch.randn(3)
    gm = record_calls(lambda x: (x.sin() + x.cos(),), [x])
    assert aot(gm, [x], compiler) is made[0]


def test_inference_under_grad_mode_does_not_record():
    x, w = leaves((3, 4), (4, 5))

    def program(x, w):
        with torch.no_grad():
            return (x @ w, x.detach().mul_(2))

    compiled = compile_program(program, [x, w])
    out, _ = compiled(x, w)
    assert not out.requires_grad


def test_second_backward_needs_retain_graph():
    x, w = leaves((3, 4), (4, 5))
    compiled = compile_program(tanh_product, [x, w])
    (out,) = compiled(x, w)
    out.sum().backward(retain_graph=True)
    out.sum().backward()
    expected = reference_grads(tanh_product, [x, w], times=2)
    torch.testing.assert_close([x.grad, w.grad], expected)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        out.sum().backward()


def test_intermediates_are_freed_by_the_backward():
    x, w = leaves((3, 4), (4, 5))
    compiled = compile_program(lambda x, w: ((x @ w).sin().sum(),), [x, w], partition="save_all")
    (out,) = compiled(x, w)
    context = out.grad_fn
    assert len(context.rest) > 0
    out.backward()
    assert context.rest is None


def test_second_derivatives():
    x, w = leaves((3, 4), (4, 5))
    found = []
    for function in (compile_program(tanh_product, [x, w]), tanh_product):
        (grad,) = torch.autograd.grad(function(x, w)[0].sum(), x, create_graph=True)
        found.append((grad.detach(), *torch.autograd.grad(grad.sum(), (x, w))))
    torch.testing.assert_close(*found)


def test_autograd_grad_and_hooks():
    x, w = leaves((3, 4), (4, 5))
    compiled = compile_program(tanh_product, [x, w])
    seen = []
    w.register_hook(lambda grad: seen.append(grad.shape))
    (grad,) = torch.autograd.grad(compiled(x, w)[0].sum(), [w])
    torch.testing.assert_close(grad, reference_grads(tanh_product, [x, w])[1])
    assert seen == [(4, 5)] and w.grad is None


def test_inputs_that_need_no_grad_get_none():
    x, w = leaves((3, 4), (4, 5))
    w.requires_grad_(False)
    log = GraphLog()
    compiled = compile_program(tanh_product, [x, w], log)
    compiled(x, w)[0].sum().backward()
    assert w.grad is None and x.grad is not None
    assert len(log.graphs["backward"].outputs) == 1, "no gradient is computed for a frozen weight"


@pytest.mark.parametrize("flags", [(0, 1, 0, 1, 0), (1, 0, 0, 1, 1), (0, 0, 1, 0, 0)])
def test_gradients_go_to_the_arguments_that_require_grad(flags):
    def program(*inputs):
        result = inputs[0]
        for x in inputs[1:]:
            result = torch.tanh(result * x)
        return (result,)

    inputs = [torch.rand(3, requires_grad=bool(flag)) for flag in flags]
    compiled = compile_program(program, inputs)
    wanted = [x for x in inputs if x.requires_grad]
    found = torch.autograd.grad(compiled(*inputs)[0].sum(), wanted, create_graph=True)
    expected = torch.autograd.grad(program(*inputs)[0].sum(), wanted, create_graph=True)
    torch.testing.assert_close(found, expected)
    found = torch.autograd.grad(sum(g.sum() for g in found), wanted)
    expected = torch.autograd.grad(sum(g.sum() for g in expected), wanted)
    torch.testing.assert_close(found, expected)
    compiled(*inputs)[0].sum().backward()
    assert [x.grad is not None for x in inputs] == [x.requires_grad for x in inputs]


def test_entries_are_picked_in_order():
    generator = random.Random(0)
    for length in range(60):
        entries = tuple(range(100, 100 + length))
        assert getter(list(range(length)))(entries) == entries
        for step in (1, 2, 3):
            positions = list(range(min(2, length), length, step))
            positions += generator.choices(range(length), k=generator.randrange(4) if length else 0)
            expected = tuple(entries[position] for position in positions)
            assert getter(positions)(entries) == getter(positions)(list(entries)) == expected


def test_unused_input_keeps_no_gradient():
    x, w = leaves((3, 4), (4, 5))
    compiled = compile_program(lambda x, w: (x * 2,), [x, w])
    compiled(x, w)[0].sum().backward()
    assert w.grad is None


def test_missing_tangents_count_as_zeros():
    x, w = leaves((3, 4), (4, 5))
    compiled = compile_program(lambda x, w: (x * 2, x @ w), [x, w])
    compiled(x, w)[0].sum().backward()
    torch.testing.assert_close(x.grad, torch.full((3, 4), 2.0))


def test_a_gradient_that_is_zero_is_defined_only_where_eager_defines_it():
    """The derivative of `ceil` is zero, and computed from no tangent."""
    program = lambda x, v: (x * 2, torch.ceil(v * 3), torch.detach(v).sum())  # noqa: E731
    for used in ((0,), (1,), (0, 1)):
        grads = []
        for make in (lambda x, v: compile_program(program, [x, v]), lambda x, v: program):
            x, v = leaves((3,), (3,))
            outputs = make(x, v)(x, v)
            sum(outputs[at].sum() for at in used).backward()
            grads.append([None if leaf.grad is None else leaf.grad.tolist() for leaf in (x, v)])
        assert grads[0] == grads[1]


@pytest.mark.parametrize(
    "tangent", [torch.randn(5, 3).t(), torch.ones(()).expand(3, 5), torch.randn(3, 10)[:, ::2]]
)
def test_tangents_of_any_layout(tangent):
    x, w = leaves((3, 4), (4, 5))
    compiled = compile_program(tanh_product, [x, w], decompose=True)
    compiled(x, w)[0].backward(tangent)
    mine = [x.grad, w.grad]
    x.grad = w.grad = None
    tanh_product(x, w)[0].backward(tangent)
    torch.testing.assert_close(mine, [x.grad, w.grad])


def test_changed_saved_input_is_noticed():
    x, w = leaves((3, 4), (4, 5))
    compiled = compile_program(tanh_product, [x, w])
    (out,) = compiled(x, w)
    with torch.no_grad():
        w.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_saved_tensor_hooks_see_all_that_is_saved():
    x, w = leaves((3, 4), (4, 5))
    program = lambda x, w: ((x @ w).sin().cos().sum(),)  # noqa: E731
    compiled = compile_program(program, [x, w], partition="save_all")
    packed = []

    def pack(tensor):
        packed.append(tensor.shape)
        return tensor.clone()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        (out,) = compiled(x, w)
    out.backward()
    assert (3, 5) in packed and (3, 4) in packed
    torch.testing.assert_close([x.grad, w.grad], reference_grads(program, [x, w]))


def test_inplace_on_a_leaf_is_eagers_error():
    (x,) = leaves((3,))
    gm = torch.fx.symbolic_trace(lambda x: (x.mul_(2),))
    with pytest.raises(
        RuntimeError,
        match="a leaf Variable that requires grad is being used in an in-place operation",
    ):
        aot(gm, [x], GraphLog())


def test_an_output_may_be_changed_in_place():
    x, w = leaves((3, 4), (4, 5))
    program = lambda x, w: ((x @ w).view(15), x * 1)  # noqa: E731
    compiled = compile_program(program, [x, w])
    out, other = compiled(x, w)
    (out.mul_(3).sum() + other.add_(1).sum()).backward()
    mine = [x.grad, w.grad]
    x.grad = w.grad = None
    out, other = program(x, w)
    (out.mul_(3).sum() + other.add_(1).sum()).backward()
    torch.testing.assert_close(mine, [x.grad, w.grad])


def test_writes_to_overlapping_inputs_are_refused():
    memory = torch.zeros(8)
    a, b = memory[:5], memory[3:]
    gm = torch.fx.symbolic_trace(lambda a, b: (a.add_(1), b * 2))
    with pytest.raises(AliasedMutation) as caught:
        aot(gm, [a, b], GraphLog())
    assert caught.value.reason == "aliased-input-mutation"
    aot(torch.fx.symbolic_trace(lambda a, b: (a + 1, b * 2)), [a, b], GraphLog())


def test_an_error_of_the_backward_is_left_to_eager():
    (x,) = leaves((3,))

    def program(x):
        y = x.exp()
        y.detach().mul_(2)
        return (y,)

    with pytest.raises(BackwardFailed, match="modified by an inplace operation"):
        compile_program(program, [x])


def test_a_leaf_made_inside_is_refused():
    with pytest.raises(LeafInside):
        compile_program(lambda x: (torch.zeros(3, requires_grad=True),), [torch.randn(3)])


def test_grad_mode_left_behind():
    x = torch.randn(3)
    graph = torch.fx.Graph()
    given = graph.placeholder("x")
    graph.call_function(torch._C._set_grad_enabled, (False,))
    graph.output((graph.call_function(torch.sin, (given,)),))
    compiled = aot(torch.fx.GraphModule({}, graph), [x], GraphLog())
    assert torch.is_grad_enabled(), "compiling leaves the mode alone"
    try:
        compiled(x)
        assert not torch.is_grad_enabled()
    finally:
        torch.set_grad_enabled(True)


def test_autocast_is_in_the_graph_and_not_around_it():
    """The caller's autocast and the program's own are traced into casts; at run time neither acts
    on the compiled graphs.
    """

    def program(x, w):
        y = x @ w
        with torch.autocast("cpu", enabled=False):
            return y, x @ w

    graph = torch.fx.Graph()
    x, w = graph.placeholder("x"), graph.placeholder("w")
    y = graph.call_function(torch.matmul, (x, w))
    inner = graph.call_function(torch.amp.autocast_mode._enter_autocast, ("cpu", None, False, None))
    z = graph.call_function(torch.matmul, (x, w))
    graph.call_function(torch.amp.autocast_mode._exit_autocast, (inner,))
    graph.output((y, z))
    x, w = leaves((3, 4), (4, 5))
    with torch.autocast("cpu", torch.bfloat16):
        compiled = aot(
            torch.fx.GraphModule({}, graph), [x, w], GraphLog(), options=AutogradOptions(check=True)
        )
        mine, theirs = compiled(x, w), program(x, w)
    assert [out.dtype for out in mine] == [torch.bfloat16, torch.float32]
    for a, b in zip(mine, theirs, strict=True):
        assert torch.equal(a, b)
    sum(out.float().sum() for out in mine).backward()
    grads = [x.grad, w.grad]
    x.grad = w.grad = None
    sum(out.float().sum() for out in theirs).backward()
    torch.testing.assert_close(grads, [x.grad, w.grad])


def test_backward_is_compiled_at_the_first_backward_if_lazy():
    x, w = leaves((3, 4), (4, 5))
    log = GraphLog()
    compiled = compile_program(tanh_product, [x, w], log, compile_backward_lazily=True)
    (out,) = compiled(x, w)
    assert set(log.graphs) == {"forward"}
    out.sum().backward()
    assert set(log.graphs) == {"forward", "backward"}
    torch.testing.assert_close([x.grad, w.grad], reference_grads(tanh_product, [x, w]))


def test_tensors_on_the_graph_module():
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    weight, bias = graph.get_attr("0.weight"), graph.get_attr("0.bias")
    y = graph.call_function(torch.nn.functional.linear, (x, weight, bias))
    mean, var = graph.get_attr("1.running_mean"), graph.get_attr("1.running_var")
    graph.output(
        (graph.call_function(torch.nn.functional.batch_norm, (y, mean, var), {"training": True}),)
    )
    gm = torch.fx.GraphModule(model, graph)
    data = torch.randn(6, 4)
    compiled = aot(gm, [data], GraphLog(), options=AutogradOptions(check=True))
    (out,) = compiled(data)
    (out * out * out).sum().backward()
    mine, stats = model[0].weight.grad.clone(), model[1].running_mean.clone()
    model.zero_grad()
    model[1].running_mean.zero_()
    out = torch.nn.functional.batch_norm(
        model[0](data), model[1].running_mean, torch.ones(3), training=True
    )
    (out * out * out).sum().backward()
    torch.testing.assert_close(
        [mine, stats], [model[0].weight.grad, model[1].running_mean], rtol=1e-4, atol=1e-5
    )


def test_two_threads_share_one_callable():
    x, w = leaves((30, 40), (40, 50))
    compiled = compile_program(tanh_product, [x, w], compile_backward_lazily=True)
    expected = reference_grads(tanh_product, [x, w])
    failures = []

    def work():
        for _ in range(20):
            a, b = x.detach().clone().requires_grad_(), w.detach().clone().requires_grad_()
            compiled(a, b)[0].sum().backward()
            for mine, theirs in zip((a.grad, b.grad), expected, strict=True):
                if not torch.allclose(mine, theirs, rtol=1e-4, atol=1e-4):
                    failures.append((mine - theirs).abs().max())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_two_threads_compile_at_once():
    errors = []

    def work(seed):
        try:
            x, w = leaves((3, 4 + seed), (4 + seed, 5))
            compiled = compile_program(tanh_product, [x, w])
            expected = reference_grads(tanh_product, [x, w])
            compiled(x, w)[0].sum().backward()
            torch.testing.assert_close([x.grad, w.grad], expected)
        except BaseException as error:
            errors.append(error)

    old = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(old)
    assert not errors


def test_the_collector_pauses_and_resumes():
    assert gc.isenabled()
    with collector_paused():
        assert not gc.isenabled()
        with collector_paused():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_the_collector_pauses_while_a_backward_is_compiled():
    class Table(BackwardTable):
        def _make(self, missing):
            assert not gc.isenabled()
            return Backward(tuple, (), self._tangents - missing)

    assert Table(frozenset({0, 1})).without(frozenset({1})).tangents == {0}
    assert gc.isenabled()


def test_reasons_have_ids_texts_and_hints():
    for reason, kind in REASONS.items():
        assert issubclass(kind, Unsupported) and kind.reason == reason
        assert kind.__doc__ and kind.hint


def test_the_backward_hands_over_what_it_saved():
    """What only the backward needs is held by nobody but the list that it is spent with."""
    spent, read_again = [], []

    class Backward:
        def __init__(self, graph):
            self.graph = graph

        def __call__(self, *args):
            read_again.append(len(args))
            return run_graph(self.graph, args)

        def spend(self, args):
            spent.append([sys.getrefcount(args[index]) for index in range(len(args) - 1)])
            given = tuple(args)
            args.clear()
            return run_graph(self.graph, given)

    def compiler(graph, kind):
        return Backward(graph) if kind == "backward" else lambda *args: run_graph(graph, args)

    def program(x):
        return (torch.tanh(torch.tanh(x @ x) @ x.detach()).relu().sum(),)

    x = torch.randn(4, 4, requires_grad=True)
    compiled = aot(record_calls(program, [x]), [x], compiler)
    compiled(x)[0].backward()
    (counts,) = spent
    alone = [object()]
    own, saved_input = sys.getrefcount(alone[0]), 1
    assert [count for count in counts[saved_input:] if count > own] == []
    assert not read_again
    compiled(x)[0].backward(retain_graph=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        (y,) = compiled(x)
    y.backward()
    assert len(read_again) == 2, "another backward, or a hook, may read what was saved"
    assert len(spent) == 1
    twin = x.detach().clone().requires_grad_()
    program(twin)[0].backward()
    torch.testing.assert_close(x.grad, 3 * twin.grad)
