"""Backends that hand graphs to another compiler: eager beside each engine that is installed."""

from __future__ import annotations

import copy
import importlib.util
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import flambeau
from flambeau.engines.names import ENGINES, RETIRED
from flambeau.report import report_of
from tests.same import same

if TYPE_CHECKING:
    from collections.abc import Callable

    from flambeau.report import Fallback


def installed(engine: str) -> bool:
    return all(importlib.util.find_spec(module) for module in ENGINES[engine].modules)


def needs(engine: str) -> Any:
    missing = not installed(engine)
    return pytest.param(engine, marks=pytest.mark.skipif(missing, reason=f"no {engine} here"))


ON_CPU = [needs(engine) for engine in ("onnxrt", "openvino", "tvm")]
each_engine = pytest.mark.parametrize("engine", ON_CPU)


@pytest.fixture(autouse=True)
def _as_users_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLAMBEAU_CHECK", raising=False)


def fallbacks(compiled: Any) -> list[Fallback]:
    return [graph.fallback for graph in report_of(compiled).graphs if graph.fallback is not None]


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A line for each program that an engine builds."""
    from flambeau.engines import engine_graph

    built: list[str] = []
    build = engine_graph.EngineGraph._build

    def counting(self: Any, exported: Any) -> Any:
        program = build(self, exported)
        if program is not None:
            built.append("for all sizes" if exported.ranges else "by sizes")
        return program

    monkeypatch.setattr(engine_graph.EngineGraph, "_build", counting)
    return built


def chain(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(torch.cos(x))


def writes(x: torch.Tensor, y: torch.Tensor) -> tuple[Any, ...]:
    x.add_(1)
    x[0] = y
    return x * 2, x.t(), y.expand(4, 3), x.sum(), x.shape[0], y[None] > 0, x


def mixed(x: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x * n, torch.where(x > 0, x, n.to(x.dtype)), x.to(torch.int32), x.half(), ~(x > 0)


def numbers(x: torch.Tensor, n: int, factor: float) -> torch.Tensor:
    return x[:n] * factor


def sizes(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.relu(x @ w) / x.shape[0]


@each_engine
@pytest.mark.parametrize(
    ("fn", "args"),
    [
        (chain, lambda: (torch.randn(1000),)),
        (chain, lambda: (torch.randn(6, 4).t()[::2],)),
        (chain, lambda: (torch.tensor(0.5),)),
        (writes, lambda: (torch.randn(4, 3), torch.randn(3))),
        (mixed, lambda: (torch.randn(5), torch.arange(5, dtype=torch.int32))),
    ],
)
def test_functions(
    engine: str, fn: Callable[..., Any], args: Callable[[], tuple[Any, ...]], builds: list[str]
) -> None:
    given = args()
    ours, theirs = copy.deepcopy(given), copy.deepcopy(given)
    compiled = flambeau.compile(fn, backend=engine, fullgraph=True)
    for _ in range(2):
        same((compiled(*ours), ours), (fn(*theirs), theirs), tolerance=1e-5)
    assert [x._version for x in ours] == [x._version for x in theirs]
    assert not fallbacks(compiled)
    assert builds == ["by sizes"]


@each_engine
def test_a_convolutional_network(engine: str) -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(72, 5),
    ).eval()  # fmt: skip
    compiled = flambeau.compile(model, backend=engine, fullgraph=True)
    x = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
        model[5].bias.add_(1)  # a parameter is an input, not a constant
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    assert not fallbacks(compiled)


@each_engine
def test_training(engine: str) -> None:
    """Forward and backward are graphs of the engine's; where one is refused, both run eagerly, with
    the reason.
    """
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    twin, x = copy.deepcopy(model), torch.randn(3, 4)
    compiled = flambeau.compile(twin, backend=engine)
    for _ in range(2):
        for net, run in ((model, model), (twin, compiled)):
            net.zero_grad()
            run(x).square().sum().backward()
        for ours, theirs in zip(twin.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)
    assert not fallbacks(compiled)


@each_engine
def test_training_that_is_refused_says_why(engine: str) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5))
    twin, x = copy.deepcopy(model), torch.randn(2, 3, 6, 6)
    compiled = flambeau.compile(twin, backend=engine)
    for net, run in ((model, model), (twin, compiled)):
        torch.manual_seed(0)
        run(x).square().sum().backward()
        assert net[0].weight.grad is not None
    torch.testing.assert_close(twin[0].weight.grad, model[0].weight.grad)
    torch.testing.assert_close(dict(twin.state_dict()), dict(model.state_dict()))
    (fallback,) = fallbacks(compiled)
    assert fallback.reason == "engine-random"
    assert "runs eagerly" in str(flambeau.explain(compiled))


@each_engine
def test_sizes_that_change(engine: str, builds: list[str]) -> None:
    compiled = flambeau.compile(sizes, backend=engine, dynamic=True)
    w = torch.randn(3, 6)
    for n in (4, 5, 9, 33):
        x = torch.randn(n, 3)
        torch.testing.assert_close(compiled(x, w), sizes(x, w), rtol=1e-4, atol=1e-5)
    assert builds == (["by sizes"] * 4 if engine == "tvm" else ["for all sizes"])
    assert not fallbacks(compiled)
    empty = torch.randn(0, 3)
    torch.testing.assert_close(compiled(empty, w), sizes(empty, w))


@each_engine
def test_numbers_that_change(engine: str, builds: list[str]) -> None:
    compiled = flambeau.compile(numbers, backend=engine, dynamic=True)
    x = torch.randn(9)
    for n, factor in ((3, 0.5), (4, 0.5), (9, -2.0), (3, 0.5)):
        torch.testing.assert_close(compiled(x, n, factor), numbers(x, n, factor))
    assert set(builds) == {"by sizes"} and len(builds) <= 4
    assert not fallbacks(compiled)


@each_engine
def test_more_sizes_than_programs(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from flambeau.engines import engine_graph

    monkeypatch.setattr(engine_graph, "_LIMIT", 2)
    compiled = flambeau.compile(numbers, backend=engine, dynamic=True)
    x = torch.randn(9)
    for n in (3, 4, 5, 3):
        torch.testing.assert_close(compiled(x, n, 0.5), numbers(x, n, 0.5))
    (fallback,) = fallbacks(compiled)
    assert fallback.reason == "engine-refuses" and "2 sizes" in fallback.text


@each_engine
@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16,
     torch.int8, torch.uint8, torch.complex64],
)  # fmt: skip
def test_dtypes_are_computed_or_refused(engine: str, dtype: torch.dtype) -> None:
    """Each dtype's own arithmetic: integers wrap, int64 has 64 bits, float64 has 53."""
    x = torch.randn(5, 7, dtype=torch.float64).mul(100).to(dtype)
    if dtype is torch.int64:
        x = x + 2**40
    compiled = flambeau.compile(lambda x: (x + x, x * x), backend=engine)
    tolerance = {torch.float16: 2e-3, torch.bfloat16: 2e-2}.get(dtype)
    same(compiled(x), (x + x, x * x), tolerance=tolerance)
    assert all(fallback.reason == "engine-refuses" for fallback in fallbacks(compiled))


@each_engine
def test_errors_are_eagers(engine: str) -> None:
    table = torch.randn(4, 3)
    compiled = flambeau.compile(lambda t, i: nn.functional.embedding(i, t) * 2, backend=engine)
    good = torch.tensor([1, 3])
    torch.testing.assert_close(compiled(table, good), table[good] * 2)
    with pytest.raises(IndexError):
        compiled(table, torch.tensor([1, 7]))


@each_engine
def test_two_graphs_around_a_break(engine: str) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        flambeau.compiler.graph_break()
        return y.cos()

    compiled, x = flambeau.compile(fn, backend=engine), torch.randn(7)
    torch.testing.assert_close(compiled(x), fn(x))
    assert len(report_of(compiled).graphs) == 2


@pytest.mark.skipif(not installed("onnxrt"), reason="no onnxrt here")
def test_a_wrong_translation_is_refused() -> None:
    from flambeau.engines import onnxrt

    def wrong(program: Any, examples: Any) -> Any:
        def run(inputs: Any, results: Any) -> None:
            results[0].fill_(1.0)

        return run

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onnxrt, "build", wrong)
        compiled = flambeau.compile(chain, backend="onnxrt")
        x = torch.randn(5)
        torch.testing.assert_close(compiled(x), chain(x))
    (fallback,) = fallbacks(compiled)
    assert "trial" in fallback.text


@pytest.mark.parametrize("engine", [engine for engine in ENGINES if not installed(engine)])
def test_a_missing_package_is_named(engine: str) -> None:
    with pytest.raises(ImportError, match=rf"pip install .*flambeau\[{engine}\]"):
        flambeau.compile(torch.sin, backend=engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_extras_install_what_an_engine_needs(engine: str) -> None:
    import tomllib
    from pathlib import Path

    root = Path(__file__).parents[2]
    project = tomllib.loads((root / "packages" / "flambeau" / "pyproject.toml").read_text())
    extra = project["project"]["optional-dependencies"][ENGINES[engine].extra]
    assert [word.partition(">")[0] for word in extra] == ENGINES[engine].packages.split()


@pytest.mark.parametrize("name", RETIRED)
def test_retired_backends_say_what_replaces_them(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}.* is retired: .+"):
        flambeau.compile(torch.sin, backend=name)


def test_the_names_are_listed() -> None:
    """With torch's own, and with those that its documents show."""
    listed = set(flambeau.list_backends())
    assert listed >= {*ENGINES, "inductor", "eager", "aot_eager", "cudagraphs"}
    assert listed >= set(torch._dynamo.list_backends()) - {"flambeau"}
    assert not listed & set(RETIRED)


def test_engines_cannot_be_replaced() -> None:
    with pytest.raises(ValueError, match="registered already"):
        flambeau.register_backend(lambda gm, inputs: gm.forward, "onnxrt")


@pytest.mark.parametrize(
    ("shape", "stride"),
    [((2, 3), (1, 2)), ((2, 3), (3, 1)), ((1, 3), (7, 1)), ((2, 3), (0, 1)), ((4, 2), (1, 1)),
     ((0, 3), (1, 5)), ((), ()), ((2, 3), (8, 2))],
)  # fmt: skip
def test_layouts(shape: tuple[int, ...], stride: tuple[int, ...]) -> None:
    from flambeau_prims.layouts import laid_out

    want = torch.arange(40.0).as_strided(shape, stride)
    got = laid_out(want.contiguous(), stride)
    assert got.stride() == stride
    torch.testing.assert_close(got, want, rtol=0, atol=0)
