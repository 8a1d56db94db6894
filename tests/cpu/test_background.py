"""`options={"background": True}`: a worker process fills the cache, calls run eagerly meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import flambeau
from flambeau import graph_keys, graph_messages, stored_graphs, worker_process
from flambeau.compile_context import Context
from flambeau.environment import Environment
from flambeau.options import resolve
from flambeau.report import Report, report_of
from flambeau_capture import background, state_of

SECONDS = 300
"""The worker process has a low priority, and other tests run beside these."""
OPTIONS = {"background": True}


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A separate cache."""
    monkeypatch.setenv("FLAMBEAU_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("FLAMBEAU_CHECK", "0")  # which compiles every graph in this process
    yield
    flambeau.compiler.cancel_compiles()
    assert flambeau.compiler.wait_for_compiles(timeout=SECONDS)


def switched(compiled: Any, *args: Any) -> str:
    """Call until an entry serves the call; where its last graph was compiled."""
    compiled(*args)
    assert flambeau.compiler.wait_for_compiles(compiled, SECONDS)
    graph = report_of(compiled).graphs[-1]
    assert graph.fallback is None
    return graph.background


def test_what_the_program_imports_of_torch_is_no_other_state() -> None:
    """torch's own compiler registers operators where it is imported."""
    code = (
        "import sys, torch, torch._inductor.inductor_prims, flambeau\n"
        "f = flambeau.compile(torch.sin, options={'background': True})\n"
        "f(torch.ones(3)); assert flambeau.compiler.wait_for_compiles(f, 200); f(torch.ones(3))\n"
        "sys.stdout.write(str(flambeau.explain(f).graphs[-1].background))\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "in a worker process"


def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x @ y, -1).sin() + 1


def test_a_worker_process_compiles_and_is_used_again() -> None:
    processes = []
    for function in (program, lambda x, y: (x + y.t()).cos()):
        compiled = flambeau.compile(function, options=OPTIONS)
        x, y = torch.randn(4, 6), torch.randn(6, 4)
        assert torch.equal(compiled(x, y), function(x, y))
        assert switched(compiled, x, y) == "in a worker process"
        torch.testing.assert_close(compiled(x, y), function(x, y))
        (graph,) = report_of(compiled).graphs
        assert graph.stored == "read"
        assert graph.cache.misses == 0
        processes.append(worker_process._WORKER._process)
        assert "in the background, in a worker process" in str(flambeau.explain(compiled))
    assert processes[0] is processes[1]
    assert processes[0].poll() is None
    worker_process._WORKER.end()
    assert processes[0].returncode == -signal.SIGKILL


def test_training_beside_eager() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3))
    compiled = flambeau.compile(model, options=OPTIONS)
    x = torch.randn(5, 6, requires_grad=True)
    for step in range(3):
        gradients = []
        for call in (compiled, model):
            loss = call(x).square().sum()
            gradients.append(torch.autograd.grad(loss, [x, *model.parameters()]))
        torch.testing.assert_close(*gradients)
        if step == 0:
            assert switched(compiled, x) == "in a worker process"
    (graph,) = report_of(compiled).graphs
    assert graph.cache.misses == 0  # of kernels: its Programs were read
    assert len(graph.programs) == 2


def test_sizes_that_change_are_compiled_in_a_thread() -> None:
    compiled = flambeau.compile(program, options=OPTIONS)
    for size in (3, 4, 5):
        x, y = torch.randn(size, 6), torch.randn(6, size)
        torch.testing.assert_close(compiled(x, y), program(x, y))
    where = switched(compiled, x, y)
    assert where.startswith("in a thread: ")
    assert "[symbolic]" in where
    assert len(state_of(compiled).entries) == 2
    torch.testing.assert_close(compiled(x, y), program(x, y))


def test_without_the_graph_cache_a_thread_compiles() -> None:
    compiled = flambeau.compile(program, options=OPTIONS | {"graph_cache": False})
    assert "[not-asked]" in switched(compiled, torch.randn(4, 6), torch.randn(6, 4))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_other_backends_compile_in_a_thread(backend: str) -> None:
    compiled = flambeau.compile(program, backend=backend, options=OPTIONS)
    x, y = torch.randn(4, 6), torch.randn(6, 4)
    assert switched(compiled, x, y) == "in a thread"
    assert torch.equal(compiled(x, y), program(x, y))


def long_program(x: torch.Tensor) -> torch.Tensor:
    for step in range(120):
        x = torch.sin(x) + x.mean(-1, keepdim=True) / (step + 2)
    return x


def waiting_process() -> subprocess.Popen[bytes]:
    """The worker process, once it has a graph."""
    until = time.monotonic() + SECONDS
    while worker_process._WORKER._process is None or background.current_job() is not None:
        assert time.monotonic() < until
        time.sleep(0.01)
    time.sleep(0.5)
    return worker_process._WORKER._process


def test_a_killed_worker_process_is_replaced_by_a_thread() -> None:
    worker_process._WORKER.end()
    compiled = flambeau.compile(long_program, options=OPTIONS)
    x = torch.randn(3, 4)
    compiled(x)
    os.kill(waiting_process().pid, signal.SIGKILL)
    where = switched(compiled, x)
    assert where == "in a thread: the worker process ended while it compiled the graph"
    torch.testing.assert_close(compiled(x), long_program(x))
    # The next graph has another process.
    compiled = flambeau.compile(program, options=OPTIONS)
    assert switched(compiled, torch.randn(4, 6), torch.randn(6, 4)) == "in a worker process"


def test_cancelling_ends_the_process_at_once() -> None:
    worker_process._WORKER.end()
    compiled = flambeau.compile(long_program, options=OPTIONS)
    x = torch.randn(3, 4)
    compiled(x)
    process = waiting_process()
    deaths = worker_process._WORKER._deaths
    assert flambeau.compiler.cancel_compiles(compiled) == 1
    assert flambeau.compiler.wait_for_compiles(timeout=10)
    assert process.returncode == -signal.SIGKILL
    assert worker_process._WORKER._deaths == deaths
    assert not state_of(compiled).entries
    torch.testing.assert_close(compiled(x), long_program(x))


def test_reset_cancels() -> None:
    compiled = flambeau.compile(long_program, options=OPTIONS)
    x = torch.randn(3, 4)
    compiled(x)
    flambeau.reset()
    assert flambeau.compiler.wait_for_compiles(timeout=SECONDS)
    assert not state_of(compiled).entries


EXITING = """
import torch, flambeau, time
from flambeau import worker_process

def f(x):
    for step in range(120):
        x = torch.sin(x) + x.mean(-1, keepdim=True) / (step + 2)
    return x

if __name__ == "__main__":
    compiled = flambeau.compile(f, options={"background": True})
    compiled(torch.randn(3, 4))
    while worker_process._WORKER._process is None:
        time.sleep(0.01)
    time.sleep(0.5)
    print(worker_process._WORKER._process.pid, flush=True)
    {end}
"""


@pytest.mark.parametrize("end", ["pass", "import os; os.kill(os.getpid(), 9)"])
def test_the_process_ends_with_its_parent(end: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", EXITING.replace("{end}", end)],
        timeout=SECONDS, capture_output=True, text=True,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    pid = int(done.stdout)
    until = time.monotonic() + 20
    while _runs(pid):
        assert time.monotonic() < until
        time.sleep(0.05)


def _runs(pid: int) -> bool:
    """Whether a process is there, and more than a remainder that nobody has waited for."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return text.rpartition(")")[2].split()[0] != "Z"


# ---------------------------------------------------------------- messages


def captured(function: Any, *args: Any) -> tuple[Any, list[Any]]:
    """The graph that a backend gets, and its inputs."""
    seen: list[Any] = []

    def backend(gm: Any, examples: list[Any]) -> Any:
        seen.append((gm, examples))
        return gm.forward

    flambeau.compile(function, backend=backend)(*args)
    return seen[0]


def context() -> Context:
    options = resolve(
        fullgraph=False, dynamic=None, mode=None, options=OPTIONS, environment=Environment()
    )
    return Context(options, Report("program"))


def leaf_and_view() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(4, 6, requires_grad=True)
    return (x * 2)[1:3], x.t()


MESSAGES = [
    (program, lambda: (torch.randn(4, 6), torch.randn(6, 4))),
    (program, lambda: (torch.randn(6, 4).t(), torch.randn(6, 4).requires_grad_())),
    (lambda x, y: x.sum() * y, leaf_and_view),
    (lambda x: torch.nn.functional.dropout(x, 0.5), lambda: (torch.randn(8),)),
    (lambda x: (x.to(torch.bfloat16), x[1:, ::2], x.split(2)), lambda: (torch.randn(4, 6),)),
    (lambda x: x.add_(float("inf")).clamp(min=-1), lambda: (torch.randn(3),)),
    (lambda x, y: x + y, lambda: (lambda t: (t[:2], t[2:]))(torch.randn(4, 3))),
    (nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), lambda: (torch.randn(2, 3, 5, 5),)),
]


@pytest.mark.parametrize(("function", "inputs"), MESSAGES)
def test_a_message_says_all_that_the_key_does(function: Any, inputs: Any) -> None:
    gm, examples = captured(function, *inputs())
    key = graph_keys.key_of_graph(gm, examples, context())
    message = graph_messages.encode_message(gm, examples, context(), key)
    with graph_messages.state_of_message(message):
        again, like, its_context = graph_messages.decode_message(message)
        assert graph_keys.key_of_graph(again, like, its_context) == key


def test_a_message_that_lost_something_is_not_compiled() -> None:
    from flambeau.worker_compile import compile_message

    gm, examples = captured(program, torch.randn(4, 6), torch.randn(6, 4))
    key = graph_keys.key_of_graph(gm, examples, context())
    message = graph_messages.encode_message(gm, examples, context(), key)
    message["graph"]["graph"][0][-1]["args"][1] = 2  # x + 2
    assert "differs" in compile_message(message)["stored"]
    assert not stored_graphs.is_stored(key, context())
