"""Entries that are compiled in the background: calls run eagerly until the entry is there, and
nothing is lost or done twice.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import fx, nn

import flambeau_capture
from flambeau_capture import CaptureError, background
from flambeau_capture.options import CaptureOptions
from flambeau_capture.stance import set_stance

SECONDS = 60


class GatedBackend:
    """Runs graphs as they are; compiles while `gate` is open, and keeps what it saw."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.entered = threading.Event()
        self.seen: list[Any] = []
        self.calls = 0
        self.error: Exception | None = None
        self.look: Callable[[list[Any]], Any] = lambda examples: None

    def __call__(self, gm: fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        self.entered.set()
        assert self.gate.wait(SECONDS)
        self.calls += 1
        self.seen.append(self.look(examples))
        if self.error is not None:
            raise self.error
        return gm.forward


@pytest.fixture
def backend() -> Iterator[GatedBackend]:
    gated = GatedBackend()
    yield gated
    gated.gate.set()
    background.cancel()
    assert background.wait(SECONDS)


def compiled(function: Any, backend: Any, **options: Any) -> Any:
    chosen = CaptureOptions(background=True, **options)
    return flambeau_capture.compile(function, backend=backend, options=chosen)


def entries_of(function: Any) -> int:
    return len(flambeau_capture.state_of(function).entries)


def finish(backend: GatedBackend) -> None:
    backend.gate.set()
    assert background.wait(SECONDS)


def kinds(function: Any) -> list[str]:
    return [event.kind for event in flambeau_capture.state_of(function).events]


def double(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * 2


def test_calls_run_eagerly_until_the_entry_is_there(backend: GatedBackend) -> None:
    fn = compiled(double, backend)
    x = torch.randn(3)
    for _ in range(5):
        assert torch.equal(fn(x), double(x))
    assert entries_of(fn) == 0
    finish(backend)
    assert entries_of(fn) == 1
    assert backend.calls == 1
    for _ in range(3):
        assert torch.equal(fn(x), double(x))
    assert backend.calls == 1
    assert kinds(fn) == ["capture"]


def test_another_size_is_compiled_beside_and_symbolically(backend: GatedBackend) -> None:
    fn = compiled(double, backend)
    for size in (3, 4, 5, 6):
        x = torch.randn(size)
        assert torch.equal(fn(x), double(x))
    finish(backend)
    assert backend.calls == 2  # for 3, and for all sizes
    assert kinds(fn) == ["capture", "recompile"]


def test_threads_submit_one_compile(backend: GatedBackend) -> None:
    fn = compiled(double, backend)
    x = torch.randn(3)
    barrier = threading.Barrier(6)

    def work(_: int) -> None:
        barrier.wait(SECONDS)
        for _ in range(20):
            assert torch.equal(fn(x), double(x))

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    finish(backend)
    assert backend.calls == 1


def test_side_effects_random_numbers_and_writes_happen_once_a_call(backend: GatedBackend) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0
            self.norm = nn.BatchNorm1d(4)

        def forward(self, x: torch.Tensor, seen: list[int]) -> torch.Tensor:
            self.calls += 1
            seen.append(x.shape[0])
            x.add_(1)
            return torch.nn.functional.dropout(self.norm(x), 0.5)

    torch.manual_seed(0)
    ours, theirs = Model(), Model()
    fn = compiled(ours.forward, backend)
    for step in range(8):
        if step == 4:
            finish(backend)
        x = torch.randn(6, 4)
        results = []
        for call in (fn, theirs.forward):
            torch.manual_seed(step)
            given, seen = x.clone(), []
            results.append((call(given, seen), given, seen, torch.rand(2)))
        for mine, eager in zip(*results, strict=True):
            assert torch.equal(mine, eager) if isinstance(mine, torch.Tensor) else mine == eager
    assert ours.calls == theirs.calls == 8
    assert torch.equal(ours.norm.running_mean, theirs.norm.running_mean)
    assert ours.norm.num_batches_tracked == 8


def test_training_steps(backend: GatedBackend) -> None:
    torch.manual_seed(0)
    ours, theirs = nn.Linear(4, 4), nn.Linear(4, 4)
    theirs.load_state_dict(ours.state_dict())
    fn = compiled(lambda x: torch.tanh(ours(x)).sum(), backend)
    for step in range(6):
        if step == 3:
            finish(backend)
        x = torch.randn(2, 4)
        for model, call in ((ours, fn), (theirs, lambda x: torch.tanh(theirs(x)).sum())):
            model.zero_grad()
            call(x).backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.1 * parameter.grad
    assert torch.equal(ours.weight, theirs.weight)


def test_graph_breaks_and_frames_below_them(backend: GatedBackend) -> None:
    def inner(x: torch.Tensor) -> torch.Tensor:
        return x.cos() + 1

    def program(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        rows = sorted([y, -y], key=lambda row: float(inner(row).sum()))
        return inner(rows[0]) * 3

    fn = compiled(program, backend)
    backend.gate.set()
    x = torch.randn(3)
    for _ in range(5):
        assert torch.equal(fn(x), program(x))
        assert background.wait(SECONDS)
    calls = backend.calls
    assert calls >= 2
    assert torch.equal(fn(x), program(x))
    assert backend.calls == calls


def test_an_error_of_the_backend_is_raised_by_the_next_call(backend: GatedBackend) -> None:
    fn = compiled(double, backend)
    backend.error = RuntimeError("no such kernel")
    x = torch.randn(3)
    assert torch.equal(fn(x), double(x))
    finish(backend)
    with pytest.raises(RuntimeError, match="no such kernel"):
        fn(x)
    assert kinds(fn) == ["failed"]
    backend.error = None
    assert torch.equal(fn(x), double(x))  # captured again
    assert background.wait(SECONDS)
    assert entries_of(fn) == 1


def test_what_cannot_be_one_graph_is_an_error_at_once(backend: GatedBackend) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        print("break")
        return x + len(sys.argv)

    fn = compiled(lambda x: torch.compiler.disable(program)(x), backend, fullgraph=True)
    with pytest.raises(CaptureError):
        fn(torch.randn(3))


def test_beyond_the_limit_calls_run_eagerly_and_are_not_captured(backend: GatedBackend) -> None:
    first = compiled(double, backend, background_limit=1)
    second = compiled(lambda x: x + 1, backend, background_limit=1)
    x = torch.randn(3)
    first(x)
    for _ in range(3):
        assert torch.equal(second(x), x + 1)
    finish(backend)
    assert entries_of(first) == 1
    assert entries_of(second) == 0
    assert kinds(second) == []
    second(x)
    assert background.wait(SECONDS)
    assert entries_of(second) == 1


@pytest.mark.parametrize("cancel", ["cancel", "reset"])
def test_what_is_cancelled_is_not_installed(backend: GatedBackend, cancel: str) -> None:
    fn = compiled(double, backend)
    waiting = compiled(lambda x: x + 1, backend)
    x = torch.randn(3)
    fn(x)
    waiting(x)
    assert backend.entered.wait(SECONDS)
    if cancel == "cancel":
        assert background.cancel() == 2
    else:
        flambeau_capture.state_of(fn).reset()
        flambeau_capture.state_of(waiting).reset()
    finish(backend)
    assert entries_of(fn) == entries_of(waiting) == 0
    assert backend.calls == 1
    assert torch.equal(fn(x), double(x))  # submitted again
    assert background.wait(SECONDS)
    assert entries_of(fn) == 1


def test_the_backend_sees_the_tensors_as_they_were(backend: GatedBackend) -> None:
    weight = nn.Parameter(torch.randn(3))
    fn = compiled(lambda x: x * weight, backend)
    backend.look = lambda examples: [
        (type(x), x.requires_grad, tuple(x.shape)) for x in examples if x.numel() == 3
    ]
    fn(torch.randn(3))
    assert backend.entered.wait(SECONDS)
    weight.requires_grad_(False)
    weight.data = torch.randn(5)
    finish(backend)
    (seen,) = backend.seen
    assert (nn.Parameter, True, (3,)) in seen
    assert len(seen) == 2
    weight.data = torch.randn(3)
    x = torch.randn(3)
    assert torch.equal(fn(x), x * weight)
    assert not fn(x).requires_grad


def test_an_attribute_that_changes_meanwhile_gets_another_entry(backend: GatedBackend) -> None:
    class Scale:
        by = 2

        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.by

    scale = Scale()
    fn = compiled(Scale.__call__, backend)
    x = torch.randn(3)
    assert torch.equal(fn(scale, x), x * 2)
    scale.by = 3
    assert torch.equal(fn(scale, x), x * 3)
    finish(backend)
    assert torch.equal(fn(scale, x), x * 3)
    scale.by = 2
    assert torch.equal(fn(scale, x), x * 2)


def state(examples: list[Any]) -> tuple[Any, ...]:
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        torch.empty(0).device.type,
    )


@pytest.mark.parametrize("context", [
    torch.no_grad, torch.enable_grad, torch.inference_mode,
    lambda: torch.autocast("cpu", torch.float16), lambda: torch.device("meta"),
])  # fmt: skip
def test_the_backend_runs_in_the_state_of_the_call(
    backend: GatedBackend, context: Callable[[], Any]
) -> None:
    fn = compiled(double, backend)
    backend.look = state
    x = torch.randn(3)
    with context():
        expected = state([])
        fn(x)
        finish(backend)
        assert backend.seen == [expected]
        assert torch.equal(fn(x), double(x))
        assert entries_of(fn) == 1
    # The thread's own state is as before.
    other = compiled(lambda x: x + 1, backend)
    other(x)
    assert background.wait(SECONDS)
    assert backend.seen[1] == state([])


def test_a_changed_state_of_torch_drops_the_compile(backend: GatedBackend) -> None:
    fn = compiled(double, backend)
    x = torch.randn(3)
    for times in range(3):
        backend.entered.clear()
        backend.gate.clear()
        fn(x)
        assert backend.entered.wait(SECONDS)
        torch.set_default_dtype(torch.float64)
        try:
            finish(backend)
        finally:
            torch.set_default_dtype(torch.float32)
        assert entries_of(fn) == 0
        assert kinds(fn) == ["dropped"] * (times + 1)
    assert torch.equal(fn(x), double(x))  # waits for its compile
    assert entries_of(fn) == 1
    assert kinds(fn)[3:] == ["foreground", "capture"]


def test_hooks_on_saved_tensors_compile_in_the_foreground(backend: GatedBackend) -> None:
    backend.gate.set()
    fn = compiled(double, backend)
    x = torch.randn(3, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
        assert torch.equal(fn(x), double(x))
    assert "foreground" in kinds(fn)


def test_a_stance_that_forbids_compiling(backend: GatedBackend) -> None:
    fn = compiled(double, backend)
    x = torch.randn(3)
    with set_stance("force_eager"):
        assert torch.equal(fn(x), double(x))
    assert background.wait(0)
    with set_stance("fail_on_recompile"), pytest.raises(RuntimeError, match="fail_on_recompile"):
        fn(x)


def test_the_recompile_limit_counts_what_is_being_compiled(backend: GatedBackend) -> None:
    fn = compiled(lambda x, by: x * by, backend, recompile_limit=2, dynamic=False)
    x = torch.randn(3)
    with pytest.warns(RuntimeWarning, match="recompile_limit"):
        for by in (2.0, 3.0, 4.0, 5.0):
            assert torch.equal(fn(x, by), x * by)
    finish(backend)
    assert backend.calls == 2


def test_a_dead_object_is_not_waited_for(backend: GatedBackend) -> None:
    def program(x: torch.Tensor, model: Any) -> torch.Tensor:
        return model(x)

    fn = compiled(program, backend)
    x = torch.randn(2, 4)
    for _ in range(3):
        model = nn.Linear(4, 4)
        assert torch.equal(fn(x, model), model(x))
    finish(backend)
    assert torch.equal(fn(x, model), model(x))


def test_the_switch_interval_is_restored(backend: GatedBackend) -> None:
    before = sys.getswitchinterval()
    fn = compiled(double, backend)
    fn(torch.randn(3))
    assert backend.entered.wait(SECONDS)
    assert sys.getswitchinterval() <= background.SWITCH_INTERVAL * 1.01
    finish(backend)
    assert sys.getswitchinterval() == before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_compiles_for_itself(backend: GatedBackend) -> None:
    fn = compiled(double, backend)
    x = torch.randn(3)
    fn(x)
    assert backend.entered.wait(SECONDS)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            backend.gate.set()
            right = torch.equal(fn(x), double(x)) and background.wait(SECONDS)
            status = 0 if right and entries_of(fn) == 1 else 2
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    finish(backend)
    assert entries_of(fn) == 1


EXITING = """
import time, torch, flambeau_capture
from flambeau_capture.options import CaptureOptions

def backend(gm, examples):
    print("compiling", flush=True)
    {compiling}
    return gm.forward

fn = flambeau_capture.compile(
    lambda x: x.sin(), backend=backend, options=CaptureOptions(background=True)
)
fn(torch.randn(3))
time.sleep({wait})
{end}
"""


@pytest.mark.parametrize(("compiling", "wait", "end"), [
    ("while True: time.sleep(0.01)", 1, ""),
    ("while True: pass", 1, ""),
    ("while True: pass", 1, "raise SystemExit(0)"),
    ("pass", 1, ""),
    ("pass", 0, ""),
])  # fmt: skip
def test_exit_waits_for_no_compile(compiling: str, wait: int, end: str) -> None:
    program = EXITING.format(compiling=compiling, wait=wait, end=end)
    done = subprocess.run(
        [sys.executable, "-c", program], timeout=SECONDS, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
