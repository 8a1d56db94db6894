"""Checks of data that the program writes itself (`assert`, `if ...: raise`) stay in the graph, and
raise what they raise eagerly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

import flambeau
import flambeau_capture
from flambeau_autograd import aot
from flambeau_inductor import InductorOptions, compile_graph
from flambeau_runtime.program import Extern, Launch
from tests.programs.checks_of_data import CHECKED, Refused, ambiguous, data_sizes, handles, raises
from tests.same import same
from tests.worlds import kinds

if TYPE_CHECKING:
    from collections.abc import Callable

BACKENDS = ("eager", "aot_eager", "inductor")


def inputs() -> list[torch.Tensor]:
    """Some that pass and some that do not; strided, and one whose first element is zero."""
    fine, zero = torch.rand(3, 4) + 0.1, torch.rand(3, 4)
    zero[0, 0] = 0
    infinite = torch.rand(3, 4)
    infinite[1, 2] = float("inf")
    return [
        fine, torch.rand(4, 3).T + 0.1, fine - 20, fine * 20, torch.rand(3, 4) - 7, zero, infinite,
        torch.full((3, 4), 2.9), torch.full((3, 8), float("nan"))[:, ::2], torch.rand(3, 4) + 0.1,
    ]  # fmt: skip


def outcome(function: Callable[..., Any], x: torch.Tensor, log: list[Any]) -> Any:
    try:
        return function(x, log)
    except (AssertionError, Refused) as error:
        return type(error), error.args, error.__suppress_context__


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", CHECKED)
def test_in_one_graph(program: Any, backend: str) -> None:
    run = flambeau.compile(program, backend=backend, fullgraph=True, dynamic=False)
    outcomes = set()
    for x in inputs():
        mine, yours = x.clone(), x.clone()
        my_log: list[Any] = []
        your_log: list[Any] = []
        want = outcome(program, yours, your_log)
        same(outcome(run, mine, my_log), want)
        same(my_log, your_log)
        same(mine, yours)
        outcomes.add(type(want))
    assert outcomes == {torch.Tensor, tuple}, "some raise, and some do not"
    assert "break" not in kinds(run) and "eager_replay" in kinds(run)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients(backend: str) -> None:
    run = flambeau.compile(raises, backend=backend, fullgraph=True)
    x = torch.rand(3, 4, requires_grad=True)
    run(x, []).square().sum().backward()
    got, x.grad = x.grad, None
    raises(x, []).square().sum().backward()
    torch.testing.assert_close(got, x.grad)
    with pytest.raises(Refused):
        run(x * 100, [])


def test_a_handled_exception_is_an_ordinary_way() -> None:
    """It would run again, call after call: it is a graph break."""
    run = flambeau.compile(handles, backend="eager")
    for x in (torch.ones(2), -torch.ones(2), torch.ones(2)):
        same(run(x), handles(x))
    assert "break" in kinds(run) and "eager_replay" not in kinds(run)


@pytest.mark.parametrize("backend", BACKENDS)
def test_numbers_in_the_data(backend: str) -> None:
    run = flambeau.compile(data_sizes, backend=backend, fullgraph=True)
    for x in (
        torch.tensor([3, 0, 1]),
        torch.tensor([2, 11]),
        torch.zeros(4, dtype=torch.int64),
        torch.tensor([-12]),
    ):
        results = []
        for function in (run, data_sizes):
            try:
                results.append(function(x))
            except (AssertionError, Refused) as error:
                results.append((type(error), error.args))
        same(*results)


def test_a_condition_that_has_no_truth() -> None:
    run = flambeau.compile(ambiguous, backend="eager")
    for x in (torch.ones(2), torch.ones(0)):
        with pytest.raises(RuntimeError) as mine:
            run(x)
        with pytest.raises(RuntimeError) as yours:
            ambiguous(x)
        assert str(mine.value) == str(yours.value)
    same(run(torch.ones(1)), torch.ones(1))


def to_device(x: torch.Tensor) -> torch.Tensor:
    """A copy on an accelerator, also where torch has none."""
    return torch.ops.aten._to_copy.default(x, device=torch.device("cuda:0"))


def on_an_accelerator(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    y, at = to_device(x) * 2, to_device(i)
    doubled = at * 2
    assert at.max() < 3
    if not torch.isfinite(y).all():
        raise Refused
    return y[at] + doubled[:, None]


def test_the_check_of_an_accelerators_data_is_the_hosts() -> None:
    """It waits for a copy of the condition, and what may rely on it is launched when it has passed.
    (Compiled only: there need be no device.)
    """
    arguments = torch.rand(3, 4), torch.tensor([0, 2])
    exported = flambeau_capture.export(on_an_accelerator, arguments)
    programs = []

    def compiler(graph: Any, kind: str) -> Callable[..., tuple[Any, ...]]:
        programs.append(compile_graph(graph, InductorOptions()))
        return lambda *tensors: ()

    aot(exported.graph_module, exported.flat_inputs(*arguments), compiler)
    (program,) = programs
    devices = {tensor.name: tensor.device for tensor in program.tensors}
    steps = [
        f"{step.op} on {devices[step.args[0].name]}" if isinstance(step, Extern) else step.kernel
        for step in program.steps
        if isinstance(step, (Extern, Launch))
    ]
    copies = ["aten._to_copy.default on cuda:0", "aten._assert_async.msg on cpu"]
    checks = [at for at, step in enumerate(steps) if "_assert_async" in step]
    assert len(checks) == 2
    for at in checks:
        assert steps[at - 1 : at + 1] == copies
    reading = [at for at, step in enumerate(steps) if "index" in step]
    assert reading and min(reading) > max(checks)


STATED: dict[str, Callable[[torch.Tensor], Any]] = {
    "of a tensor": lambda x: torch._check(x.sum() > 0),
    "of a number": lambda x: torch._check(1),
    "of a size": lambda x: torch._check(x.shape[0] == 4),
    "of a size, with a message": lambda x: torch._check_index(x.shape[0] < 3, lambda: x.shape),
    "with a tensor in the message": lambda x: torch._check_value(False, lambda: f"bad {x}"),
    "with no function": lambda x: torch._check_with(ValueError, False, "text"),
    "with a warning": lambda x: torch._check_with(UserWarning, False, lambda: "text"),
    "that holds": lambda x: torch._check_tensor_all_with(KeyError, x > -100, lambda: f"bad {x}"),
    "all, that does not": lambda x: torch._check_tensor_all(x > 100, lambda: f"bad {x}"),
    "all, without a message": lambda x: torch._check_tensor_all(cond=x > 100),
    "all, of numbers": lambda x: torch._check_tensor_all(x),
    "all, of no tensor": lambda x: torch._check_tensor_all(True),
    "all, of nothing": lambda x: torch._check_tensor_all(x[:0] > 0),
}


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("name", STATED)
def test_torchs_own_checks(name: str, fullgraph: bool) -> None:
    program = STATED[name]
    run = flambeau.compile(program, backend="eager", fullgraph=fullgraph)
    for _ in range(2):
        x = torch.randn(3)
        outcomes = []
        for function in (run, program):
            try:
                outcomes.append(function(x))
            except Exception as error:
                outcomes.append((type(error), str(error)))
        same(*outcomes)


def caught(x: torch.Tensor) -> Any:
    try:
        torch._check_tensor_all_with(KeyError, x > 0, lambda: f"bad {x}")
    except KeyError as error:
        return str(error), repr(error), x + 1
    return x - 1


def test_a_check_that_a_handler_awaits() -> None:
    run = flambeau.compile(caught, backend="eager")
    for x in (torch.ones(2), -torch.ones(2), torch.ones(2), -torch.ones(2)):
        same(run(x), caught(x))
    assert "eager_replay" not in kinds(run)
