"""Entries: sizes, misses, threads and lifetimes; how a callable's entries come and go."""

from __future__ import annotations

import functools
import gc
import threading
import warnings
import weakref

import pytest
import torch
from written_captures import X, backend, tape

from flambeau_capture.compiled import compile_callable, state_of
from flambeau_capture.core import core
from flambeau_capture.entries.entry import graph_of
from flambeau_capture.options import CaptureOptions
from flambeau_capture.record import (
    Break,
    Call,
    Capture,
    CaptureError,
    FromGraph,
    FromSource,
    GraphValue,
    Guard,
    Input,
    MakeTuple,
    SizeValue,
)
from flambeau_capture.sources import (
    Argument,
    CellContents,
    Closure,
    Item,
    Scope,
    TensorSize,
    module_table_entry,
)
from flambeau_prims.sizes import SizeEnv
from flambeau_prims.spec import Spec, spec_of

# ---------------------------------------------------------------- sizes


def dynamic_capture(scope):
    x, n = scope.arguments
    env = SizeEnv()
    rows, columns, count = (
        env.symbol(size, source=name)
        for size, name in ((x.shape[0], "rows"), (x.shape[1], "columns"), (n, "n"))
    )
    env.ranges.is_non_negative(rows * 3 - columns)
    spec = Spec.of((rows, columns), dtype=x.dtype)
    v0, vn, v1 = (
        GraphValue(spec, "x"),
        GraphValue(count, "n"),
        GraphValue(Spec.of((columns * rows + count * 0,), dtype=x.dtype), "flat"),
    )
    v2 = GraphValue(spec, "scaled")
    calls = [
        Call("method", "reshape", (v0, (rows * columns,)), {}, v1),
        Call("function", torch.mul, (v1, count + 1), {}, v2),
    ]
    inputs = [Input(X, x, spec, v0), Input(Argument("n", 1), n, count, vn)]
    result = MakeTuple(
        (
            FromGraph(v2),
            SizeValue(rows * columns + 1),
            SizeValue(columns // 2, float),
            SizeValue(count),
        )
    )
    return Capture(scope, calls, inputs, result=result, size_env=env)


def test_symbolic_sizes_become_nodes_guards_and_results():
    compiled = compile_callable(
        lambda x, n: None,
        lambda scope, *_: dynamic_capture(scope),
        backend,
        CaptureOptions(dynamic=True),
    )
    for shape, n in (((4, 6), 3), ((5, 7), 11), ((9, 2), 2)):
        x = torch.randn(shape)
        flat, product, half, count = compiled(x, n)
        assert torch.allclose(flat, x.reshape(-1) * (n + 1))
        assert (product, half, count) == (
            shape[0] * shape[1] + 1,
            float(shape[1] // 2),
            n,
        ) and type(half) is float
    (entry,) = compiled.entries
    targets = [
        node.target for node in entry.info.graph_module.graph.nodes if node.op == "call_function"
    ]
    assert targets.count(torch.ops.aten.sym_size.int) == 2
    texts = entry.info.guard_texts()
    assert "L['n'] is an int" in texts and any(
        "L['x'].size(0)" in text and ">=" in text for text in texts
    )
    compiled(torch.randn(2, 7), 3)  # 3 * rows >= columns fails
    assert len(compiled.entries) == 2
    assert "does not hold" in state_of(compiled).events[-1].text


# ---------------------------------------------------------------- misses


def scaling(scope, options, dynamic):
    """`x * n`, n a guarded int."""
    x, n = scope.arguments
    spec = spec_of(x)
    v0, v1 = GraphValue(spec, "x"), GraphValue(spec, "y")
    calls = [Call("function", torch.mul, (v0, n), {}, v1)]
    return Capture(
        scope,
        calls,
        [Input(X, x, spec, v0)],
        [Guard("EQUALS", Argument("n", 1), n, "user.py:4")],
        result=FromGraph(v1),
    )


def scale(x, n):
    return x * n


def test_recompilations_have_reasons_and_a_limit():
    compiled = compile_callable(
        scale, scaling, backend, CaptureOptions(recompile_limit=3, dynamic=False)
    )
    x = torch.randn(3)
    for n in (1, 2, 3, 1, 2, 3):
        assert torch.equal(compiled(x, n), x * n)
    assert [event.kind for event in state_of(compiled).events] == [
        "capture",
        "recompile",
        "recompile",
    ]
    assert "L['n'] is 2, was 1" in state_of(compiled).events[1].text
    with pytest.warns(RuntimeWarning, match=r"compiled 3 times.*L\['n'\] is 4"):
        assert torch.equal(compiled(x, 4), x * 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in (5, 6, 2, 4):
            assert torch.equal(compiled(x, n), x * n)
    assert len(compiled.entries) == 4 and compiled.entries[-1].info.skipped.id == "recompile-limit"
    state_of(compiled).reset()
    compiled(x, 9)
    assert len(compiled.entries) == 1
    strict = compile_callable(
        scale, scaling, backend, CaptureOptions(recompile_limit=1, fullgraph=True, dynamic=False)
    )
    strict(x, 1)
    with pytest.raises(CaptureError, match="recompile-limit"):
        strict(x, 2)


def test_a_frame_that_breaks_runs_eagerly_with_the_reason_kept():
    reason = Break("some-cause", "cannot do that", "user.py:7", "do this")
    calls = []

    def capture_frame(scope, options, dynamic):
        calls.append(1)
        return reason

    def function(x):
        return x + 1

    compiled = compile_callable(function, capture_frame, backend)
    for _ in range(3):
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
    assert len(calls) == 1
    assert [(event.kind, event.text) for event in state_of(compiled).events] == [
        ("break", str(reason))
    ]
    assert "user.py:7: cannot do that [some-cause]" in str(reason)
    strict = compile_callable(function, capture_frame, backend, CaptureOptions(fullgraph=True))
    with pytest.raises(CaptureError, match=r"user\.py:7: cannot do that"):
        strict(torch.ones(2))


def test_sizes_that_change_become_dynamic():
    asked = []

    def capture_frame(scope, options, dynamic):
        asked.append(
            (
                dynamic.is_dynamic(X, 0),
                dynamic.is_dynamic(X, 1),
                dynamic.is_dynamic(Argument("n", 1)),
            )
        )
        return scaling(scope, options, dynamic)

    compiled = compile_callable(scale, capture_frame, backend)
    compiled(torch.randn(3, 4), 2)
    compiled(torch.randn(5, 4), 2)
    compiled(torch.randn(5, 4), 7)
    assert asked == [(False, False, False), (True, False, False), (True, False, True)]


def test_a_guess_that_breaks_is_taken_back():
    def capture_frame(scope, options, dynamic):
        if dynamic.is_dynamic(X, 0):
            return Break("dynamic-trouble", "no dynamic sizes here")
        return scaling(scope, options, dynamic)

    compiled = compile_callable(scale, capture_frame, backend)
    for size in (3, 4, 5):
        x = torch.randn(size)
        assert torch.equal(compiled(x, 2), x * 2)
    assert len(compiled.entries) == 3


def test_errors_of_the_backend_reach_the_caller_and_nothing_is_kept():
    def failing(gm, inputs):
        raise RuntimeError("backend is unhappy")

    compiled = compile_callable(scale, scaling, failing)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="unhappy"):
            compiled(torch.ones(2), 1)
    assert compiled.entries == ()


def test_a_guard_that_never_holds_is_reported():
    def capture_frame(scope, options, dynamic):
        capture = scaling(scope, options, dynamic)
        capture.guards.append(Guard("EQUALS", Argument("n", 1), 999))
        return capture

    compiled = compile_callable(scale, capture_frame, backend)
    assert torch.equal(compiled(torch.ones(2), 2), torch.full((2,), 2.0))
    assert "guard-unstable" in state_of(compiled).events[0].text


def test_modes_the_capture_does_not_know_run_eagerly():
    compiled = compile_callable(scale, scaling, backend)
    seen = torch.vmap(lambda x: compiled(x, 2))(torch.ones(3, 2))
    assert torch.equal(seen, torch.full((3, 2), 2.0))
    with torch.utils._python_dispatch.BaseTorchDispatchMode():
        compiled(torch.ones(2), 2)
    assert compiled.entries == ()


def test_calls_made_while_capturing_are_not_captured():
    inner = compile_callable(scale, scaling, backend)

    def capture_frame(scope, options, dynamic):
        inner(*scope.arguments)
        return scaling(scope, options, dynamic)

    outer = compile_callable(scale, capture_frame, backend)
    outer(torch.ones(2), 2)
    assert len(outer.entries) == 1 and inner.entries == ()


def test_callables_of_every_kind():
    class Callable:
        def __call__(self, x, n):
            return x * n

        def method(self, x, n):
            return x * n

    def capture_frame(scope, options, dynamic):
        return Break("test", "run it")

    x = torch.ones(2)
    for fn in (scale, Callable(), Callable().method, functools.partial(scale, n=2), torch.mul):
        compiled = compile_callable(fn, capture_frame, backend)
        assert torch.equal(
            compiled(x, 2) if not isinstance(fn, functools.partial) else compiled(x), x * 2
        )
        assert state_of(compiled).events
    again = compile_callable(compile_callable(scale, scaling, backend), scaling, backend)
    assert again.__wrapped__ is scale

    def generator(x, *, n=1):
        yield x * n

    assert torch.equal(next(compile_callable(generator, capture_frame, backend)(x, n=3)), x * 3)
    with pytest.raises(TypeError):
        state_of(scale)


# ---------------------------------------------------------------- threads and leaks


def test_threads_share_entries():
    captures = []

    def capture_frame(scope, options, dynamic):
        captures.append(scope.arguments[1])
        return scaling(scope, options, dynamic)

    compiled = compile_callable(scale, capture_frame, backend, CaptureOptions(dynamic=False))
    wrong, start = [], threading.Barrier(8)

    def work(seed):
        start.wait()
        x = torch.full((4,), float(seed))
        for at in range(300):
            n = (at + seed) % 4
            if not torch.equal(compiled(x, n), x * n):
                wrong.append((seed, n))

    import sys

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not wrong and sorted(captures) == [0, 1, 2, 3]


def test_nothing_keeps_a_dead_model_alive():
    model = torch.nn.Linear(3, 2)

    def forward(module, x):
        return module(x)

    def capture_frame(scope, options, dynamic):
        module, x = scope.arguments
        M = Argument("module", 0)
        values, inputs = [], []
        for source, tensor in (
            (Argument("x", 1), x),
            (module_table_entry(M, "_parameters", "weight"), module.weight),
        ):
            values.append(GraphValue(spec_of(tensor), "v"))
            inputs.append(Input(source, tensor, spec_of(tensor), values[-1]))
        out = GraphValue(spec_of(x), "out")
        calls = [Call("function", torch.nn.functional.linear, tuple(values), {}, out)]
        guards = [Guard("TYPE", M, type(module)), Guard("IS", M, module)]
        return Capture(scope, calls, inputs, guards, result=FromGraph(out))

    compiled = compile_callable(forward, capture_frame, backend)
    x = torch.randn(4, 3)
    assert torch.equal(compiled(model, x), torch.nn.functional.linear(x, model.weight))
    alive, tensors = weakref.ref(model), weakref.ref(model.weight)
    del model
    assert alive() is None and tensors() is None, "an entry holds the user's model"
    assert compiled.entries[0].info.is_dead()
    compiled(torch.nn.Linear(3, 2), x)
    assert len(compiled.entries) == 1, "the dead entry stays"


def test_a_dropped_callable_is_freed_at_once():
    compiled = compile_callable(scale, scaling, backend)
    compiled(torch.ones(2), 1)
    gone = weakref.ref(compiled)
    del compiled
    assert gone() is None, "a callable and its state hold one another"


@pytest.mark.skipif(core is None, reason="counts references of the C core")
def test_reference_counts_are_balanced():
    import sys

    def many(*args, flag=None, **kwargs):
        return args

    def capture_frame(scope, options, dynamic):
        x = scope.arguments[1][0]
        value, out = GraphValue(spec_of(x), "x"), GraphValue(spec_of(x), "out")
        item = Item(Argument("args", 1), 0)
        result = MakeTuple(
            (
                FromGraph(out),
                FromSource(item),
                FromSource(Argument("flag", 0)),
                FromSource(Argument("kwargs", 2)),
            )
        )
        guards = [Guard("EQUALS", TensorSize(item, 0), 2)]
        return Capture(
            scope,
            [Call("function", torch.neg, (value,), {}, out)],
            [Input(item, x, spec_of(x), value)],
            guards,
            result=result,
        )

    compiled = compile_callable(many, capture_frame, backend)
    x, flag, extra = torch.ones(2), object(), object()

    def drift():
        """How far the counts of the arguments and of None are from where they were, after 1000
        calls of either kind.
        """
        gc.collect()
        before = [sys.getrefcount(item) for item in (x, flag, extra, None)]
        for _ in range(1000):
            compiled(x, flag=flag, extra=extra)
            with pytest.raises(ZeroDivisionError):
                compile_callable(lambda x: 1 // 0, lambda *_: Break("b", "c"), backend)(x)
        gc.collect()
        after = [sys.getrefcount(item) for item in (x, flag, extra, None)]
        return [abs(now - then) for now, then in zip(after, before, strict=True)]

    compiled(x, flag=flag, extra=extra)
    rounds = [drift() for _ in range(4)]
    assert [counts[:3] for counts in rounds] == [[0, 0, 0]] * 4
    # None is everybody's: what earlier tests left may go meanwhile. A leak of ours shows in every
    # round.
    assert min(counts[3] for counts in rounds) < 500


def test_closures_of_the_captured_function_are_read_through_it():
    def make(n):
        def inner(x):
            return x * n

        return inner

    def capture_frame(scope, options, dynamic):
        x = scope.arguments[0]
        n = CellContents(Closure("n", 0))
        v0, v1 = GraphValue(spec_of(x), "x"), GraphValue(spec_of(x), "y")
        calls = [Call("function", torch.mul, (v0, n.load(scope)), {}, v1)]
        return Capture(
            scope,
            calls,
            [Input(X, x, spec_of(x), v0)],
            [Guard("EQUALS", n, n.load(scope))],
            result=FromGraph(v1),
        )

    inner = make(3)
    compiled = compile_callable(inner, capture_frame, backend)
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 3.0))
    inner.__closure__[0].cell_contents = 5
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 5.0))
    assert len(compiled.entries) == 2 and "n is 5, was 3" in state_of(compiled).events[-1].text


def test_graph_modules_generate_their_code_when_asked():
    import copy

    seen = []

    def keeping(gm, inputs):
        seen.append(gm)
        return gm.forward

    compiled = compile_callable(lambda x: None, lambda scope, *_: tape(scope), keeping)
    x = torch.randn(3)
    assert torch.equal(compiled(x), x.cos().sin())
    (gm,) = seen
    assert torch.equal(gm(x)[0], x.cos().sin())
    for make in (lambda gm: gm, copy.deepcopy):
        _, fresh = build_graph()
        made = make(fresh)
        assert (
            "torch.cos" in made.code
            and "cos" in str(made)
            and torch.equal(made(x)[0], x.cos().sin())
        )
    _, fresh = build_graph()
    for node in fresh.graph.nodes:
        if node.target is torch.cos:
            node.target = torch.exp
    fresh.recompile()
    assert torch.equal(fresh(x)[0], x.exp().sin())


def build_graph():
    capture = tape(Scope(scale, (torch.randn(3),)))
    return capture, graph_of(capture).graph_module
