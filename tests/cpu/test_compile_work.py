"""Compile time grows in proportion to the program: the work is counted in Python calls, not timed;
large programs compile, or say why not.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
import torch

import flambeau
from flambeau import program_compiler
from flambeau.report import report_of
from flambeau_runtime.program import Launch

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.stages

SIZE = 80
MOST = 2.3
"""Twice the program may take this many times the work."""


class NotRun(Exception):
    """Nothing is built: compiling ends here."""


def not_run(*arguments: Any) -> Any:
    raise NotRun


def work_of(function: Callable[[], Any]) -> int:
    """The calls of Python and C functions that a call makes on this thread."""
    count = 0

    def profile(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(before)
    return count


PROGRAMS: dict[str, Callable[[int, bool], tuple[Callable[..., Any], tuple[Any, ...]]]] = {}


def program(function: Callable[[int, bool], Any]) -> Callable[[int, bool], Any]:
    """Declare a family of programs: (size, requires_grad) -> (function, arguments)."""
    PROGRAMS[function.__name__] = function
    return function


@program
def chain(n: int, grad: bool) -> Any:
    def run(x: torch.Tensor) -> torch.Tensor:
        for i in range(n):
            x = x.sin() + i if i % 2 else x * 1.01
        return x

    return run, (torch.randn(8, requires_grad=grad),)


@program
def sums(n: int, grad: bool) -> Any:
    def run(x: torch.Tensor) -> torch.Tensor:
        for _ in range(n):
            x = x + 1
        return x

    return run, (torch.randn(8, requires_grad=grad),)


@program
def parameters(n: int, grad: bool) -> Any:
    weights = [torch.randn(8, requires_grad=grad) for _ in range(n)]

    def run(x: torch.Tensor) -> torch.Tensor:
        for weight in weights:
            x = x * weight
        return x

    return run, (torch.randn(8),)


@program
def layers(n: int, grad: bool) -> Any:
    weights = [torch.randn(8, 8, requires_grad=grad) for _ in range(n // 2)]

    def run(x: torch.Tensor) -> torch.Tensor:
        for weight in weights:
            x = torch.relu(x @ weight)
        return x

    return run, (torch.randn(8, 8),)


@program
def outputs(n: int, grad: bool) -> Any:
    def run(x: torch.Tensor) -> list[torch.Tensor]:
        return [x * i for i in range(n)]

    return run, (torch.randn(8, requires_grad=grad),)


@program
def inputs_to_outputs(n: int, grad: bool) -> Any:
    def run(xs: list[torch.Tensor]) -> list[torch.Tensor]:
        return [x.exp() for x in xs]

    return run, ([torch.randn(8, requires_grad=grad) for _ in range(n)],)


@program
def windows(n: int, grad: bool) -> Any:
    def run(x: torch.Tensor) -> torch.Tensor:
        total = x[0]
        for i in range(n):
            total = total + x[i % 8]
        return total

    return run, (torch.randn(8, 8, requires_grad=grad),)


@program
def reductions(n: int, grad: bool) -> Any:
    def run(x: torch.Tensor) -> torch.Tensor:
        for _ in range(n // 2):
            x = x - x.sum(-1, keepdim=True)
        return x

    return run, (torch.randn(8, 8, requires_grad=grad),)


@program
def writes(n: int, grad: bool) -> Any:
    def run(xs: list[torch.Tensor]) -> None:
        torch._foreach_add_(xs, 1.0)
        torch._foreach_mul_(xs, 0.5)

    return run, ([torch.randn(8) for _ in range(n)],)


def work(family: str, n: int, grad: bool) -> int:
    """The work of one compile, which is not built."""
    function, arguments = PROGRAMS[family](n, grad)
    compiled = flambeau.compile(function, fullgraph=True)

    def call() -> None:
        with pytest.raises(NotRun):
            compiled(*arguments)

    return work_of(call)


@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("family", PROGRAMS)
def test_work_is_proportional(family: str, grad: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLAMBEAU_CHECK", "0")  # the checkers are work, too, and no user's
    monkeypatch.setenv("FLAMBEAU_GRAPH_CACHE", "0")
    monkeypatch.setattr(program_compiler, "begin_load", lambda *arguments: lambda: not_run)
    work(family, 4, grad)  # what is made once in a process
    least, once, twice = (work(family, n, grad) for n in (4, SIZE, 2 * SIZE))
    assert twice - least < MOST * (once - least), (least, once, twice)


@pytest.mark.parametrize("family", ["sums", "parameters", "windows"])
def test_a_long_chain_is_compiled_in_kernels_of_bounded_size(family: str) -> None:
    """One expression of a thousand operators, and a kernel that would take a thousand tensors."""
    function, arguments = PROGRAMS[family](1000, False)
    compiled = flambeau.compile(function, fullgraph=True)
    torch.testing.assert_close(compiled(*arguments), function(*arguments))
    (graph,) = report_of(compiled).graphs
    assert graph.fallback is None
    (made,) = graph.programs
    launches = [step for step in made.steps if isinstance(step, Launch)]
    assert max(len(launch.buffers) for launch in launches) <= 256
    assert len(launches) < 12


@pytest.mark.parametrize("writes", [False, True])
def test_long_chains_of_views_take_time_in_proportion(writes: bool) -> None:
    """The quadratic work was torch's, in C++: only a clock sees it."""

    def seconds(n: int) -> float:
        def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            y = x
            for i in range(n):
                y = y.t() if i % 2 else y.transpose(0, 1)
            return (y.add_(1) if writes else y + 1), x

        x = torch.randn(4, 5)
        compiled, wanted = flambeau.compile(function, fullgraph=True), function(x.clone())
        before = time.process_time()
        torch.testing.assert_close(compiled(x), wanted)
        assert report_of(compiled).graphs[0].fallback is None
        return time.process_time() - before

    seconds(10)
    once, twice = seconds(1500), seconds(4500)
    assert twice < 6 * once, (once, twice)


def test_deep_expressions_leave_the_users_stack_alone() -> None:
    """Lowering recurses into expressions, on top of whatever the program has called."""
    function, arguments = PROGRAMS["chain"](300, False)
    compiled = flambeau.compile(function, fullgraph=True)

    def deeper(levels: int) -> Any:
        return deeper(levels - 1) if levels else compiled(*arguments)

    depth = 0
    frame = sys._getframe()
    while frame.f_back is not None:
        frame, depth = frame.f_back, depth + 1
    torch.testing.assert_close(deeper(sys.getrecursionlimit() - depth - 450), function(*arguments))
    assert report_of(compiled).graphs[0].fallback is None


def test_what_is_too_long_runs_eagerly_with_the_reason() -> None:
    """In one go: no graph is made of the beginning. A shorter call of the same function is
    compiled.
    """

    def function(x: torch.Tensor, n: int) -> torch.Tensor:
        for _ in range(n):
            x = x + 1
        return x

    x = torch.randn(8)
    compiled = flambeau.compile(function, options={"call_limit": 50})
    for _ in range(2):
        assert torch.equal(compiled(x, 200), function(x, 200))
    explanation = flambeau.explain(compiled)
    assert [reason.id for reason in explanation.breaks] == ["call-limit"]
    assert not explanation.graphs
    torch.testing.assert_close(compiled(x, 20), function(x, 20))
    assert len(flambeau.explain(compiled).graphs) == 1
    with pytest.raises(flambeau.CaptureError, match="call-limit"):
        flambeau.compile(function, options={"call_limit": 50}, fullgraph=True)(x, 200)
