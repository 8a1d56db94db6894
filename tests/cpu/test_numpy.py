"""Functions of NumPy arrays, compiled: equal to NumPy's to 1e-12 in float64, arrays changed in
place, one graph for the tutorial's function.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import flambeau

np = pytest.importorskip("numpy", reason="functions of arrays need NumPy")


def _programs() -> Any:
    """The programs that capture is tested with."""
    path = Path(__file__).parents[2] / "packages/capture/tests/numpy/numpy_programs.py"
    spec = importlib.util.spec_from_file_location("numpy_programs", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PROGRAMS = _programs()


@pytest.fixture
def generator() -> Any:
    return np.random.default_rng()


def arrays(generator: Any, shape: tuple[int, ...] = (4, 6)) -> tuple[Any, Any]:
    """An array and a copy of it, in one of the memory orders."""
    order = generator.choice(list(PROGRAMS.LAYOUTS))
    x = PROGRAMS.draw(generator, shape, np.float64)
    return tuple(PROGRAMS.LAYOUTS[order](x.copy()) for _ in range(2))


@pytest.mark.parametrize("name", PROGRAMS.WHOLE)
def test_programs(name: str, generator: Any) -> None:
    function = PROGRAMS.WHOLE[name]
    run = flambeau.compile(function, fullgraph=True)
    for _ in range(2):
        own, eager = arrays(generator)
        with np.errstate(all="ignore"):
            assert not PROGRAMS.differs(run(own), function(eager))


@pytest.mark.parametrize("name", PROGRAMS.IN_PLACE)
def test_arguments_are_changed_in_place(name: str, generator: Any) -> None:
    function = PROGRAMS.IN_PLACE[name]
    run = flambeau.compile(function, fullgraph=True)
    for _ in range(2):
        own, eager = arrays(generator)
        run(own)
        function(eager)
        assert not PROGRAMS.differs(own, eager, "argument")


def test_the_function_of_the_tutorial_is_one_graph_of_any_sizes(generator: Any) -> None:
    run = flambeau.compile(PROGRAMS.normalise, fullgraph=True)
    for rows, columns, length in (
        (7, 5, 9),
        (8, 5, 11),
        (33, 3, 2),
        (16, 4, 64),
        (1, 4, 1),
        (3, 1, 5),
    ):
        x = PROGRAMS.draw(generator, (rows, columns), np.float64)
        y = PROGRAMS.draw(generator, (length,), np.float64)
        assert not PROGRAMS.differs(run(x, y), PROGRAMS.normalise(x.copy(), y))


@pytest.mark.parametrize("dtype", ["f4", "f8", "i4", "i8", "u1", "?", "c16"])
def test_dtypes(dtype: str, generator: Any) -> None:
    def function(x: Any, y: Any) -> Any:
        z = x * y + 1
        return z, np.where(x == y, z, -z), z.sum(0), abs(z), z / 3, x.mean()

    run = flambeau.compile(function)
    for shape in ((3, 5), (1, 7), (0, 4), (17, 33)):
        x, y = (PROGRAMS.draw(generator, shape, dtype) for _ in range(2))
        with np.errstate(all="ignore"):
            assert not PROGRAMS.differs(run(x, y), function(x, y))


def test_a_break_in_the_middle(generator: Any) -> None:
    def function(x: Any, table: dict[str, Any]) -> Any:
        y = np.exp(-(x**2))
        y[0] = x[1]
        table["seen"] = str(y.shape) + np.array2string(y[:1, :1])
        y += 1
        return y.T @ x, y.mean

    table: dict[str, Any] = {}
    other: dict[str, Any] = {}
    x = PROGRAMS.draw(generator, (4, 6), np.float64)
    got, mean = flambeau.compile(function)(x, table)
    want, expected = function(x.copy(), other)
    assert not PROGRAMS.differs(got, want)
    assert not PROGRAMS.differs(mean(), expected())
    assert table == other


def test_random_numbers_of_numpy_follow_its_state(generator: Any) -> None:
    def function(x: Any) -> Any:
        return np.sin(x) + np.random.rand(6) * x

    x = PROGRAMS.draw(generator, (4, 6), np.float64)
    run = flambeau.compile(function)
    for seed in (3, 4):
        np.random.seed(seed)
        want = function(x)
        np.random.seed(seed)
        assert not PROGRAMS.differs(run(x), want)


def test_tensors_and_arrays_in_one_function(generator: Any) -> None:
    def function(x: Any, weight: torch.Tensor) -> Any:
        hidden = torch.from_numpy(x) @ weight
        scale = np.linalg.norm(x, axis=1)
        return hidden / torch.from_numpy(scale)[:, None], hidden.detach().numpy().sum(0)

    weight = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    x = PROGRAMS.draw(generator, (4, 6), np.float64)
    got, want = flambeau.compile(function, fullgraph=True)(x, weight), function(x, weight)
    assert not PROGRAMS.differs(got, want)
    assert torch.autograd.grad(got[0].sum(), weight)[0].allclose(
        torch.autograd.grad(want[0].sum(), weight)[0]
    )


def test_nothing_banned_is_imported() -> None:
    program = """
import sys, torch, numpy as np, numpy.linalg, numpy.fft
before = set(sys.modules)
import flambeau
def function(x):
    x[x < 0] = 0
    return np.linalg.norm(x, axis=0) + np.fft.fft(x).real.sum() + np.median(x)
flambeau.compile(function)(np.ones((3, 4)))
banned = ("torch._dynamo", "torch._inductor", "torch._functorch", "torch._decomp", "torch._refs",
          "torch._prims", "torch._subclasses", "torch._export", "torch._numpy",
          "torch.fx.experimental.symbolic_shapes", "torch.fx.experimental.proxy_tensor")
new = set(sys.modules) - before
print([name for name in new if any(name == b or name.startswith(b + ".") for b in banned)])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().splitlines()[-1] == "[]"
