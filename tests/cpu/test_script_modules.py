"""Modules that torch.jit has scripted, traced or loaded, called in compiled functions, beside
eager.
"""

from __future__ import annotations

import io
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import flambeau
from flambeau.report import report_of
from tests.same import same

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    """Batch norm of few rows magnifies rounding."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3))
        self.register_buffer("shift", torch.ones(3))
        self.count = 3
        self.factor = 0.5

    def forward(self, x: torch.Tensor):  # type: ignore[no-untyped-def]
        return x * self.weight + self.shift * self.count * self.factor


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.scales = nn.ModuleList([Scale(), Scale()])
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: torch.Tensor, power: float = 2.0):  # type: ignore[no-untyped-def]
        y = self.first(x)
        for scale in self.scales:
            y = scale(y)
        if self.training:
            y = y * power
        return self.norm(y).relu(), {"y": y}

    @torch.jit.export
    def encode(self, x: torch.Tensor):  # type: ignore[no-untyped-def]
        return self.first(x).sin() if x.size(0) > 2 else self.first(x).cos()


class Bare(nn.Module):
    """With no bias, and one that is shared."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(3, 3, bias=False)
        self.two = nn.Linear(3, 3)
        self.two.weight = self.one.weight

    def forward(self, x: torch.Tensor):  # type: ignore[no-untyped-def]
        return self.two(self.one(x))


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor):  # type: ignore[no-untyped-def]
        self.calls += 1
        return x * self.calls


class Branches(nn.Module):
    def forward(self, x: torch.Tensor):  # type: ignore[no-untyped-def]
        if bool(x.sum() > 0):
            x = x + 1
        return x * 2


def loaded(module: Any) -> Any:
    file = io.BytesIO()
    torch.jit.save(module, file)
    file.seek(0)
    return torch.jit.load(file)


def traced() -> Any:
    module = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), Scale())
    return torch.jit.trace(module, torch.randn(2, 3))


MAKERS: dict[str, Callable[[], Any]] = {
    "scripted": lambda: torch.jit.script(Tower()),
    "traced": traced,
    "traced and normed": lambda: torch.jit.trace(
        nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), torch.randn(2, 3)
    ),
    "loaded": lambda: loaded(torch.jit.script(Tower())),
    "loaded trace": lambda: loaded(traced()),
    "frozen": lambda: torch.jit.freeze(torch.jit.script(Tower().eval())),
    "shared": lambda: torch.jit.script(Bare()),
    "bare": lambda: torch.jit.script(nn.Linear(3, 2, bias=False)),
}


def made(name: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return MAKERS[name]()


def pair(name: str) -> tuple[Any, Any]:
    """Two equal modules. A deep copy of one has parameters that are no leaves."""
    seed = torch.seed() % 2**31
    torch.manual_seed(seed)
    module = made(name)
    torch.manual_seed(seed)
    return module, made(name)


def outcome(program: Callable[..., Any], module: Any, x: torch.Tensor, *rest: Any) -> Any:
    """Results, gradients, and what the module holds then."""
    x = x.detach().clone().requires_grad_()
    module.zero_grad()
    results = program(module, x, *rest)
    leaves = torch.utils._pytree.tree_leaves(results)
    sum(leaf.square().sum() for leaf in leaves).backward()
    gradients = {name: each.grad for name, each in module.named_parameters()}
    return [results, x.grad, gradients, dict(module.named_buffers())]


def calls(module: Any, x: torch.Tensor) -> Any:
    return module(x.sin())


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", MAKERS)
def test_in_one_graph(name: str, dynamic: bool | None) -> None:
    mine, its = pair(name)
    compiled = flambeau.compile(calls, fullgraph=True, dynamic=dynamic)
    for size in (4, 5, 7, 4):
        x = torch.randn(3, size).t()
        same(outcome(compiled, mine, x), outcome(calls, its, x), tolerance=1e-9)
    assert [graph.fallback for graph in report_of(compiled).graphs if graph.fallback] == []


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_each_backend_reads_the_parameters_of_the_call(backend: str) -> None:
    mine, its = pair("scripted")
    compiled = flambeau.compile(calls, fullgraph=True, backend=backend)
    x = torch.randn(4, 3)
    for step in range(3):
        same(outcome(compiled, mine, x), outcome(calls, its, x), tolerance=1e-9)
        for module in (mine, its):
            with torch.no_grad():
                for parameter in module.parameters():
                    parameter -= 0.1 * (step + 1)
    assert len(report_of(compiled).graphs) == 1


def test_modes_attributes_and_parameters_are_guarded() -> None:
    mine, its = pair("scripted")
    compiled = flambeau.compile(calls, fullgraph=True)
    x = torch.randn(4, 3)

    def replace(module: Any) -> None:
        torch.manual_seed(3)
        module.scales[0].weight = nn.Parameter(torch.randn(3))

    def recount(module: Any) -> None:
        module.scales[1].count = 7

    def refactor(module: Any) -> None:
        module.scales[0].factor = -0.0

    changes: list[Callable[[Any], Any]] = [
        lambda module: module.eval(), replace, recount, refactor, lambda module: module.train(),
    ]  # fmt: skip
    same(outcome(compiled, mine, x), outcome(calls, its, x), tolerance=1e-9)
    for change in changes:
        change(mine)
        change(its)
        same(outcome(compiled, mine, x), outcome(calls, its, x), tolerance=1e-9)


def test_another_module_has_its_own_entry() -> None:
    compiled = flambeau.compile(calls, fullgraph=True)
    x = torch.randn(4, 3)
    for name in ("scripted", "shared", "scripted", "bare"):
        mine, its = pair(name)
        same(outcome(compiled, mine, x), outcome(calls, its, x), tolerance=1e-9)


def test_methods_and_arguments() -> None:
    mine, its = pair("scripted")

    def program(module: Any, x: torch.Tensor, power: float) -> Any:
        return module(x, power=power), module.forward(x + 1), module.encode(x)

    for module in (mine, its):
        module.encode(torch.ones(2, 3))  # torch makes the method at its first use
    compiled = flambeau.compile(program, fullgraph=True)
    for size, power in ((2, 0.5), (3, 0.5), (5, 2.5)):
        x = torch.randn(size, 3)
        same(outcome(compiled, mine, x, power), outcome(program, its, x, power), tolerance=1e-9)


def test_below_a_module_in_python() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = made("scripted")
            self.last = nn.Linear(3, 2)

        def forward(self, x: torch.Tensor) -> Any:
            return self.last(self.inner(x)[0])

    torch.manual_seed(5)
    mine = Outer()
    torch.manual_seed(5)
    its = Outer()
    compiled = flambeau.compile(mine, fullgraph=True)
    x = torch.randn(5, 3)
    got = outcome(lambda module, x: compiled(x), mine, x)
    same(got, outcome(lambda module, x: module(x), its, x), tolerance=1e-9)


def test_wrong_arguments_raise_as_eager_does() -> None:
    module = made("scripted")
    for arguments in ((torch.ones(2, 4),), (torch.ones(2, 3), "two"), ()):
        with pytest.raises(Exception) as eager:
            module(*arguments)
        with pytest.raises(type(eager.value)):
            flambeau.compile(lambda *given: module(*given))(*arguments)


@pytest.mark.parametrize("maker", [Counts, Branches])
def test_what_a_graph_cannot_hold_breaks_it(maker: type[nn.Module]) -> None:
    mine, its = torch.jit.script(maker()), torch.jit.script(maker())
    compiled = flambeau.compile(lambda x: mine(x.sin()) + 1)
    for sign in (1, -1, 1):
        x = sign * torch.rand(3)
        same(compiled(x), its(x.sin()) + 1, tolerance=1e-9)
    breaks = flambeau.explain(compiled).breaks
    assert {found.id for found in breaks} == {"unknown-c-function"}
    text = "sets an attribute" if maker is Counts else "fails on tensors without contents"
    assert text in str(breaks[0])


def test_random_numbers_are_eagers() -> None:
    module = torch.jit.script(nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)))
    compiled = flambeau.compile(lambda x: module(x) * 2, fullgraph=True)
    x = torch.randn(4, 3)
    for seed in (1, 2):
        torch.manual_seed(seed)
        want = module(x) * 2
        torch.manual_seed(seed)
        same(compiled(x), want, tolerance=1e-9)


def test_other_threads_may_run_the_module_meanwhile() -> None:
    module = made("scripted").eval()
    x = torch.randn(4, 3)
    want = calls(module, x)[0]

    def run(number: int) -> torch.Tensor:
        if number % 4:
            return calls(module, x)[0]  # type: ignore[no-any-return]
        return flambeau.compile(calls, fullgraph=True)(module, x)[0]  # type: ignore[no-any-return]

    with ThreadPoolExecutor(4) as pool:
        for got in pool.map(run, range(32)):
            torch.testing.assert_close(got, want)
