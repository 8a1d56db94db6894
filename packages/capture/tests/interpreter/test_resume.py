"""Graph breaks: how many graphs they cost, and that frames go on as they were: loops, blocks,
handlers, generators, other frames.
"""

from __future__ import annotations

import traceback
from contextlib import contextmanager

import pytest
import torch
from capture_harness import clone, run_graph, same

import flambeau_capture
from flambeau_capture import CaptureOptions
from flambeau_capture.frame_hook import call_with_handler, hook_works


def in_pieces(fn, *args, calls=2, dynamic=None):
    """Run compiled and eagerly, `calls` times; returns (graphs with anything in them, reasons of
    the breaks).
    """
    graphs = []

    def backend(module, example_inputs):
        graphs.append(module)
        return run_graph(module, example_inputs)

    compiled = flambeau_capture.compile(
        fn, backend=backend, options=CaptureOptions(dynamic=dynamic, speculate=False)
    )
    for _ in range(calls):
        want_args, own = clone(args), clone(args)
        same(compiled(*own), fn(*want_args))
        same(own, want_args, "arguments")
    events = flambeau_capture.state_of(compiled).events
    return len(graphs), [event.reason.id for event in events if event.kind == "break"]


def observe(x):
    return x.sum().item()


def branch(x, n):
    y = x + 1
    y = y * 2 if y.sum() > 0 else y - 2
    return y.sin() + n


def test_both_branches_are_compiled():
    graphs, reasons = in_pieces(branch, torch.ones(3), 3)
    assert (graphs, reasons) == (2, ["data-dependent"])
    compiled = flambeau_capture.compile(branch, backend=run_graph)
    for x in (torch.ones(3), -5 * torch.ones(3), torch.ones(3)):
        same(compiled(x, 2), branch(x, 2))


def depth_ten(x, depth=10):
    if depth == 0:
        observe(x)
        return x.cos()
    y = x * depth
    return depth_ten(y, depth - 1) + y


def test_a_break_ten_calls_deep_is_one_break():
    graphs, reasons = in_pieces(depth_ten, torch.randn(4))
    assert reasons == ["data-dependent"]
    assert graphs <= 12, "one graph before the break, one for the rest of each frame"


def looped(x, n):
    total = 0
    for i in range(n):
        x = x.sin() + i
        total = total + x
        observe(total)
    return total * 2


@pytest.mark.parametrize("n", [0, 1, 2, 30])
def test_loops_compile_their_body_once(n):
    graphs, _ = in_pieces(looped, torch.randn(4), n)
    assert graphs <= 6


def zipped(xs, table):
    log = []
    for at, (x, (name, scale)) in enumerate(zip(xs, table.items(), strict=False)):
        y = x * scale
        log.append((at, name, observe(y)))
    return log, [x + 1 for x in xs]


def whiled(x, n):
    steps = 0
    while x.abs().sum() > n:
        x = x / 2
        steps += 1
        if steps > 20:
            break
    else:
        steps = -steps
    return x, steps


def nested_loops(x):
    seen = []
    for row in range(3):
        for column in [1, 2]:
            x = x + row * column
            if observe(x) > 1e9:
                break
            seen.append((row, column))
        else:
            x = x * 2
    return x, seen


def handled(x, bad):
    try:
        y = x * 2
        observe(y)
        if bad:
            raise ValueError("bad")
        y = y + 1
    except ValueError as error:
        observe(y)
        y = y - 100
        message = str(error)
    else:
        message = "fine"
    finally:
        y = y * 3
        observe(y)
    return y, message


def raises_below(x):
    def inner(y):
        observe(y)
        raise KeyError("below")

    try:
        inner(x * 2)
    except KeyError as error:
        return x + 1, error.args
    return x


def with_blocks(x):
    with torch.no_grad():
        y = x * 2
        observe(y)
        z = y + x
    return z, x * 2, torch.is_grad_enabled()


@contextmanager
def logged(log, name):
    log.append(f"enter {name}")
    try:
        yield name.upper()
    except ValueError:
        log.append("suppressed")
    finally:
        log.append(f"exit {name}")


def generator_contexts(x, bad):
    log = []
    with logged(log, "a") as name:
        y = x + 1
        observe(y)
        log.append(name)
        if bad:
            raise ValueError("inside")
        y = y * 2
    observe(y)
    return y, log


def generators(x):
    def squares(n):
        for i in range(n):
            received = yield i * x
            if received:
                yield received

    made = squares(4)
    first = next(made)
    observe(first)
    rest = [item + 1 for item in made]
    fresh = squares(2)
    observe(x)
    return first, rest, list(fresh)


def comprehended(xs):
    return [observe(x) for x in xs], {at: x * 2 for at, x in enumerate(xs) if observe(x) < 1e9}


def closures(x):
    count = 0

    def add(y):
        nonlocal count
        count += 1
        observe(y)
        return y + count

    y = add(x)
    y = add(y * 2)
    return y, count, add.__closure__ is not None


class Module(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        y = self.linear(x)
        observe(y)
        return torch.relu(super().forward(y) if False else y)


def modules(model, x):
    y = model(x) + 1
    return model(y), model.calls


def call_forms(x, *args, scale=2, **rest):
    y = max(torch.tensor(observe(x)), torch.tensor(1.0), key=lambda t: t.item())
    return x * scale + y + sum(args), sorted(rest)


@pytest.mark.parametrize(
    ("fn", "args"),
    [
        (zipped, ([torch.randn(3), torch.randn(3)], {"a": 2, "b": 3})),
        (whiled, (torch.ones(3) * 9, 2.0)),
        (whiled, (torch.ones(3), 9.0)),
        (nested_loops, (torch.randn(3),)),
        (handled, (torch.randn(3), False)),
        (handled, (torch.randn(3), True)),
        (raises_below, (torch.randn(3),)),
        (with_blocks, (torch.randn(3, requires_grad=True),)),
        (generator_contexts, (torch.randn(3), False)),
        (generator_contexts, (torch.randn(3), True)),
        (generators, (torch.randn(3),)),
        (comprehended, ([torch.randn(3), torch.randn(2)],)),
        (closures, (torch.randn(3),)),
        (call_forms, (torch.randn(3), 1, 2)),
    ],
)
def test_same_as_eager(fn, args):
    _, reasons = in_pieces(fn, *args, calls=3)
    assert reasons


def test_modules_between_breaks():
    model = Module()
    x = torch.randn(2, 4)
    want, _ = modules(model, x)
    compiled = flambeau_capture.compile(modules, backend=run_graph)
    for calls in (4, 6):
        got, count = compiled(model, x)
        same(got, want)
        assert count == calls == model.calls


def test_gradients_cross_breaks():
    x = torch.randn(4, requires_grad=True)
    (want,) = torch.autograd.grad(depth_ten(x).sum(), x)
    compiled = flambeau_capture.compile(depth_ten, backend=run_graph)
    (got,) = torch.autograd.grad(compiled(x).sum(), x)
    same(got, want)


def deep_error(x):
    y = x + 1
    observe(y)
    return wrong_shape(y)


def wrong_shape(y):
    return y.view(7, 7)


def test_tracebacks_name_the_programs_lines():
    compiled = flambeau_capture.compile(deep_error, backend=run_graph)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="shape") as caught:
            compiled(torch.randn(3))
        frames = traceback.extract_tb(caught.value.__traceback__)
        own = [(frame.name, frame.line) for frame in frames if frame.filename == __file__]
        assert own[-2:] == [
            ("deep_error", "return wrong_shape(y)"),
            ("wrong_shape", "return y.view(7, 7)"),
        ]


def test_an_exception_under_fullgraph_is_the_programs_own():
    def fn(x):
        raise LookupError("mine")

    compiled = flambeau_capture.compile(
        fn, backend=run_graph, options=CaptureOptions(fullgraph=True)
    )
    with pytest.raises(LookupError, match="mine"):
        compiled(torch.ones(1))


@pytest.mark.skipif(not hook_works(), reason="the frame hook is not built, or not for this Python")
def test_frames_below_a_break_are_captured():
    seen = []

    def below(x):
        return torch.sin(x) * 2 + torch.cos(x)

    def backend(module, example_inputs):
        seen.append(module)
        return run_graph(module, example_inputs)

    x = torch.randn(3)
    compiled = flambeau_capture.compile(below, backend=backend)
    state = flambeau_capture.state_of(compiled)
    for _ in range(2):
        got = call_with_handler(
            state._hooked_frames().handler, lambda: list(map(below, [x, x + 1]))
        )
        same(got, [below(x), below(x + 1)])
    assert len(seen) == 1


def test_locals_by_name_keep_their_names():
    def fn(x):
        y = x + 1
        observe(y)
        return sorted(locals()), y * 2

    in_pieces(fn, torch.randn(2))


def test_a_list_built_over_a_break():
    def fn(x):
        made = [x]
        made.append(made)
        observe(x)
        made.append(x * 2)
        return made[1] is made, made[2]

    in_pieces(fn, torch.randn(2))


def test_objects_with_a_destructor_are_really_made():
    died = []

    class Dying:
        def __init__(self, x):
            self.x = x

        def __del__(self):
            died.append(float(self.x.sum()))

    def fn(x):
        made = Dying(x * 2)
        return made.x + 1

    compiled = flambeau_capture.compile(fn, backend=run_graph)
    for calls in range(1, 4):
        same(compiled(torch.ones(2)), torch.full((2,), 3.0))
        assert died == [4.0] * calls
