# ruff: noqa: UP031, UP032 (old ways of formatting are among what is tested)
"""What was read is guarded: a change recompiles, anything else does not. What cannot be captured is
left to eager, with a reason.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from capture_harness import breaks, check, compiled, same

import flambeau_capture
import flambeau_prims
from flambeau_capture.interpreter.torch_calls import tape
from flambeau_capture.reasons import REASONS

X = torch.arange(12.0).reshape(3, 4)
SCALE = 2.0
CONFIG = {"k": 3, "other": 1}


class Settings:
    width = 4

    def __init__(self):
        self.depth = 2
        self.unused = 1

    def step(self, x):
        return x + self.depth * self.width


def reads(x, settings, items, n):
    y = settings.step(x) * SCALE + CONFIG["k"]
    for item in items:
        y = y + item
    return y + n if n > 2 else y


def count(fn):
    return len(
        [e for e in flambeau_capture.state_of(fn).events if e.kind in ("capture", "recompile")]
    )


def test_what_recompiles(monkeypatch):
    fn = compiled(reads)
    settings, items = Settings(), [1, 2]

    def call(expected, *, n=1, x=X):
        same(fn(x, settings, items, n), reads(x, settings, items, n))
        assert count(fn) == expected, flambeau_capture.state_of(fn).events[-1].text

    call(1)
    call(1, x=X + 1)
    settings.unused = 7
    settings.fresh = 1
    call(1)
    settings.depth = 3
    call(2)
    items.append(5)
    call(3)
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    call(4)
    monkeypatch.setitem(CONFIG, "k", 4)
    call(5)
    call(6, n=5)
    call(7, x=X.double())
    monkeypatch.setattr(Settings, "step", lambda self, x: x - 1)
    call(8)


def test_instance_attribute_that_hides_a_method():
    def run(x, settings):
        return settings.step(x)

    fn = compiled(run)
    settings = Settings()
    same(fn(X, settings), settings.step(X))
    settings.step = lambda x: x * 100
    same(fn(X, settings), X * 100)
    assert count(fn) == 2


def test_modules_train_and_eval():
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5)).eval()
    fn = compiled(module)
    same(fn(X), module(X))
    module.train()
    torch.manual_seed(0)
    want = module(X)
    torch.manual_seed(0)
    same(fn(X), want)
    assert count(fn) == 2
    module[0].weight.data.mul_(2)
    module.eval()
    same(fn(X), module(X))
    assert count(fn) == 2
    module[0] = torch.nn.Linear(4, 4)
    same(fn(X), module(X))


def test_aliased_arguments():
    def fn(a, b, items):
        a.add_(1)
        return a + b + items[0]

    c = compiled(fn)
    for make in (
        lambda: (X.clone(), X.clone(), [X.clone()]),
        lambda: (lambda t: (t, t, [t]))(X.clone()),
    ):
        one, two = make(), make()
        same(c(*one), fn(*two))
        same(one, two)


def item_of_tensor(x):
    return x * x.sum().item()


def branch_on_tensor(x):
    if x.sum() > 0:
        return x + 1
    return x - 1


def clock(x):
    return x * (time.time() > 0)


def raised(x):
    if x.shape[0] == 3:
        raise ValueError("shape 3")
    return x


def generator(x):
    yield x


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2


def custom_autograd(x):
    return Doubled.apply(x)


@torch.compiler.disable
def not_compiled(x):
    return x + 1


def calls_disabled(x):
    return not_compiled(x) * 2


def memory_of_tensor(x):
    return x + (x.data_ptr() > 0)


def listed(x):
    return x + len(x.sum(0).tolist())


def mapped(x):
    return torch.vmap(torch.sin)(x)


def differentiated(x):
    x.sum().backward()
    return x


@pytest.mark.parametrize(
    ("fn", "reason"),
    [
        (item_of_tensor, "data-dependent"),
        (branch_on_tensor, "data-dependent"),
        (clock, "unknown-c-function"),
        (memory_of_tensor, "tensor-attribute"),
        (listed, "data-dependent"),
        (calls_disabled, "compiler-disable"),
    ],
)
def test_breaks_run_eagerly(fn, reason):
    found = breaks(fn, X)
    assert found.id == reason and found.id in REASONS
    assert "test_guards_and_breaks.py:" in found.where or reason == "compiler-disable"
    if fn in (item_of_tensor, listed):  # captured where the frame must be whole
        torch.testing.assert_close(compiled(fn)(X), fn(X))
        return
    with pytest.raises(flambeau_capture.CaptureError, match=reason):
        compiled(fn, speculate=False)(X)


def test_backward_breaks():
    found = breaks(lambda x: differentiated(x * 2).detach(), torch.ones(3, requires_grad=True))
    assert found.id == "backward"


def test_escaping_exceptions_are_eagers():
    fn = compiled(raised, fullgraph=False)
    for _ in range(2):
        with pytest.raises(ValueError, match="shape 3"):
            fn(X)
    same(fn(X[:2]), X[:2])
    assert count(fn) == 2, "the one that raises goes on, too"
    with pytest.raises(ValueError, match="shape 3"):
        compiled(raised)(X)


def test_own_defects_are_no_exceptions_of_the_program(monkeypatch):
    def fn(x):
        try:
            return x.cos()
        except (NameError, AttributeError):
            return x

    monkeypatch.delattr(tape.Tape, "value_of")
    found = breaks(fn, X)
    assert found.id == "internal-error" and "value_of" in found.cause


def test_every_reason_is_whole():
    package = Path(flambeau_capture.__file__).parent
    sources = "".join(
        file.read_text() for file in package.rglob("*.py") if file.name != "reasons.py"
    )
    unsupported = (Path(flambeau_prims.__file__).parent / "unsupported.py").read_text()
    for id in REASONS:
        assert f'"{id}"' in sources + unsupported, f"nothing gives the reason {id}"
    for reason in REASONS.values():
        assert reason.context and reason.explanation and reason.hint and " " not in reason.id


def compiling_flags(x):
    return (
        x
        + (1 if torch.compiler.is_compiling() else 0)
        + (1 if torch.compiler.is_dynamo_compiling() else 0)
    )


@pytest.mark.parametrize(("fn", "asked"), [(compiling_flags, True), (lambda x: x.sin(), False)])
def test_the_graph_says_whether_the_program_asked(fn, asked):
    seen = []
    flambeau_capture.compile(fn, backend=lambda gm, _: seen.append(gm) or gm.forward)(X)
    assert [gm.meta["observed_is_compiling"] for gm in seen] == [asked]


def test_is_compiling():
    same(compiled(compiling_flags)(X), X + 2)
    assert not torch.compiler.is_compiling()


def fails_when_compiling(x):
    """As libraries do that meant to spare the compiler something."""
    mask = None if torch.compiler.is_compiling() else torch.ones(3, 1)
    try:
        return x * mask[:, :1]
    finally:
        if mask is None:
            sys.getrefcount(x)  # which would break here


def test_a_program_that_fails_when_it_is_told_that_it_is_compiled():
    run = compiled(fails_when_compiling)
    same(run(X), fails_when_compiling(X))
    same(run(X * 2), fails_when_compiling(X * 2))


def grad_modes(x, w):
    with torch.no_grad():
        a = x * w
        inside = torch.is_grad_enabled()
        with torch.enable_grad():
            b = x * w
    with torch.set_grad_enabled(False):
        c = b + w
    return a, b, c, inside, torch.is_grad_enabled()


@torch.no_grad()
def decorated(x, w):
    return x * w


def autocast(x, w):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        a = x @ w
        with torch.autocast("cpu", enabled=False):
            b = x @ w
    return a, b, x @ w


def test_torch_state():
    w = torch.ones(3, 4, requires_grad=True)
    fn = compiled(grad_modes)
    for _ in range(2):
        same(fn(X, w), grad_modes(X, w))
    with torch.no_grad():
        same(fn(X, w), grad_modes(X, w))
    assert torch.is_grad_enabled()
    same(compiled(decorated)(X, w), decorated(X, w))
    square = torch.randn(4, 4)
    fn = compiled(autocast)
    for _ in range(2):
        same(fn(square, square), autocast(square, square))
    assert not torch.is_autocast_enabled("cpu")


def dynamic_program(x, n):
    b, s = x.shape
    y = x.view(b * s) if s > 1 else x
    pieces = [y[:n], y.reshape(s, b).sum(0)]
    return pieces, b * s, y.new_zeros(b, n), math.ceil(b / 2), torch.arange(s)


def test_dynamic_sizes():
    fn = compiled(dynamic_program, dynamic=True)
    for shape, n in (((3, 4), 2), ((5, 7), 3), ((9, 2), 4)):
        x = torch.randn(*shape)
        same(fn(x, n), dynamic_program(x, n))
    assert count(fn) == 1, [e.text for e in flambeau_capture.state_of(fn).events]


def symbolic_numbers_in_python(x, n):
    table = {x.shape[0]: "rows", (n, "k"): n}
    table[n] = 1
    texts = [
        str(n),
        f"{n:>3} {x.shape}",
        "%s %d" % (n, n),
        "{} {}".format(n, x.shape[1]),
        repr([n]),
    ]
    kept = [
        n in table,
        n in (1, 4),
        {n} | {3},
        [0] * n,
        n * 1.5,
        n / 2,
        n // 3,
        -n % 8,
        divmod(n, 3),
        hash(n),
    ]
    return (
        x * n,
        table,
        texts,
        kept,
        min(n, 10),
        max(n, x.shape[0]),
        int(n),
        float(n),
        isinstance(n, int),
        type(n) is int,
    )


def test_symbolic_numbers_in_python():
    fn = compiled(symbolic_numbers_in_python, dynamic=True)
    for shape, n in (((3, 4), 4), ((5, 7), 6), ((5, 7), 6)):
        x = torch.randn(*shape)
        same(fn(x, n), symbolic_numbers_in_python(x, n))


def test_dynamic_sizes_are_learnt():
    def softmax(x):
        e = torch.exp(x - x.amax(-1, keepdim=True))
        return e / e.sum(-1, keepdim=True)

    fn = compiled(softmax, dynamic=None)
    for size in (4, 5, 6, 7):
        x = torch.randn(3, size)
        same(fn(x), softmax(x))
    assert count(fn) == 2


def test_export():
    module = torch.nn.Linear(4, 2)
    exported = flambeau_capture.export(module, (X,))
    same(exported(X), module(X))
    assert [item.name for item in exported.inputs] == ["input", "weight", "bias"]
    assert any("L['self'].weight is Parameter f32[2, 4]" in text for text in exported.guards)
    assert "linear" in str(exported)
    with pytest.raises(flambeau_capture.CaptureError, match="data-dependent"):
        flambeau_capture.export(branch_on_tensor, (X,))


def test_kept_checks():
    check(lambda x: x.relu() if torch.is_tensor(x) else x, X)


LOCAL = threading.local()


def reads_of_this_thread(x):
    return x + getattr(LOCAL, "value", 0) + hasattr(LOCAL, "value")


def writes_of_this_thread(x):
    LOCAL.value = 5.0
    del LOCAL.value
    LOCAL.value = x.sum() * 2
    return LOCAL.value + 1


@pytest.mark.parametrize("fn", [reads_of_this_thread, writes_of_this_thread])
def test_what_each_thread_has_for_itself(fn):
    callable_ = compiled(fn, fullgraph=False)
    results = []

    def call(value):
        LOCAL.value = value
        found = callable_(X)
        LOCAL.value = value
        results.append((found, fn(X)))

    call(2.0)
    thread = threading.Thread(target=call, args=(3.0,))
    thread.start()
    thread.join()
    call(4.0)
    assert len(results) == 3
    for found, expected in results:
        same(found, expected)
