"""Changes of what existed before the call are replayed; objects of the program's classes behave as
in eager.
"""

from __future__ import annotations

import collections
import functools

import pytest
import side_effect_programs as programs
import torch
from capture_harness import check, clone, compiled, same

X = torch.arange(12.0).reshape(3, 4)


def test_argument_containers():
    check(
        programs.argument_lists,
        X,
        ["a", 2, X],
        {"old": 1, "count": 2, "inner": {"deep": [1]}},
        {1, 2},
    )


def test_attributes():
    check(programs.attribute_writes, X, programs.Plain(1), programs.Plain(2))


@pytest.mark.parametrize("fn", [programs.classes_made, programs.objects_returned])
def test_classes(fn):
    check(fn, X)


def test_identities():
    fn = compiled(programs.identities)
    items = [1, 2]
    for _ in range(2):
        a, b, table, made, pair, returned = fn(X, items)
        assert a and b and table["k"] is items and returned is items
        assert pair[0] is pair[1] is made and made[0] is X


def test_tensors_in_place():
    check(programs.mutated_tensors, X.clone(), X.clone() + 5, [])


def test_globals():
    results = []
    for fn in (programs.global_writes, compiled(programs.global_writes, fullgraph=True)):
        programs.COUNTER, programs.LOG[:] = 0, []
        programs.REGISTRY.clear()
        results.append(
            (
                [fn(X) for _ in range(3)],
                programs.COUNTER,
                list(programs.LOG),
                dict(programs.REGISTRY),
            )
        )
    same(results[1], results[0])


def test_functions_returned():
    for fn in (compiled(programs.functions_returned),):
        for _ in range(2):
            scaled, partial, table = fn(X)
            want, want_partial, _ = programs.functions_returned(X)
            same(scaled(X, k=3), want(X, k=3))
            same(partial(X), want_partial(X))
            same(table["m"](X), X + 2)


def test_print_and_warnings(capsys):
    fn = compiled(programs.printed)
    for _ in range(2):
        fn(X, 3)
    want = "n is 3 torch.Size([3, 4])\ntwice 6!\n"
    assert capsys.readouterr().out == want * 2
    warned = compiled(programs.warned)
    for _ in range(2):
        with pytest.warns(UserWarning, match="careful"):
            same(warned(X), X + 1)


def test_module_state():
    eager = programs.Stateful()
    own = clone(eager)
    fn = compiled(own)
    for _ in range(3):
        want = eager(X)
        got = fn(X)
        same(got.detach(), want.detach())
        assert got.requires_grad and own.calls == eager.calls and own.cache == eager.cache
        same(own.seen, eager.seen)
        same(own.norm.running_mean, eager.norm.running_mean)
        same(own.norm.num_batches_tracked, eager.norm.num_batches_tracked)
        same(own.last.detach(), eager.last.detach())
        assert own.scratch == eager.scratch


def test_forward_hooks():
    results = []
    for make in (lambda f: f, functools.partial(compiled)):
        torch.manual_seed(0)
        module, seen = torch.nn.Linear(4, 4), []
        module.register_forward_pre_hook(lambda m, args: (args[0] * 2,))
        module.register_forward_hook(
            lambda m, args, out, seen=seen: seen.append(out.shape[0]) or out + 1
        )
        fn = make(programs.hooked_call)
        results.append(([fn(X, module).detach() for _ in range(2)], list(seen)))
    same(results[1], results[0])


def test_container_subclasses():
    check(
        programs.subclasses,
        X,
        collections.OrderedDict(a=1, b=2),
        collections.defaultdict(list, k=[1]),
        programs.ListSubclass([1, 2]),
    )


def test_class_and_function_attributes():
    fn = compiled(programs.class_attributes)
    programs.Counted.made, programs.Counted.names = 0, []
    assert fn(X)[:2] == (2, 2) and fn(X)[:2] == (4, 4)
    assert programs.Counted.made == 4 and programs.Counted.names == [1, 2, 3, 4]
    fn = compiled(programs.function_attributes)
    for calls in (1, 2, 3):
        same(fn(X), X * calls)
    del programs.function_attributes.calls


def test_closure_cells():
    own, own_state = programs.make_accumulator()
    eager, eager_state = programs.make_accumulator()
    fn = compiled(own)
    for _ in range(3):
        same(fn(X), eager(X))
        assert own_state() == eager_state()


def test_containers_that_become_one():
    fn = compiled(programs.two_lists)
    same(fn(X, [], [5]), X)
    one = []
    same(fn(X, one, one), X)
    assert one == [1]


def test_compiled_callables_inside():
    inner = compiled(programs.global_writes)

    def outer(x, f):
        return f(x) + inner(x)

    programs.COUNTER = 0
    fn = compiled(outer)
    same(fn(X, compiled(lambda x: x * 2)), X * 2 + X)
    assert programs.COUNTER == 1


def test_flags_that_are_set_back():
    fn = check(programs.flagged, X, programs.Flag())
    assert "set_attribute" not in fn.entries[0].info.text
    flag = programs.Flag()
    flag.active = True
    same(fn(X, flag), X + 1)
    assert flag.active is False and flag.depth is None
