"""Operators that the C executor calls through torch's dispatcher on a GPU, beside eager."""

from __future__ import annotations

import warnings

import pytest
import torch

from flambeau_runtime import RuntimeOptions, c_executor, load, native
from flambeau_runtime.externs import operator_of
from flambeau_runtime.program import Dtype, Extern, Program, Ref, Tensor

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

X, Y, INDEX, IMAGE, WEIGHT = Ref("x"), Ref("y"), Ref("i"), Ref("image"), Ref("weight")
SHAPES = {"x": (8, 8), "y": (8, 8), "i": (3,), "image": (1, 2, 5, 5), "weight": (4, 2, 3, 3)}


def program(op, args, kwargs=None, results=("r",)):
    names = tuple(name for name in results if name is not None)
    tensors = [
        Tensor(name, shape, (1,) * len(shape), "float32", "cuda:0")
        for name, shape in (*SHAPES.items(), *((name, (1,)) for name in names))
    ]
    return Program(
        inputs=tuple(SHAPES),
        tensors=tuple(tensors),
        symbols=(),
        sources=(),
        kernels=(),
        steps=(Extern(op, args, kwargs or {}, results),),
        outputs=names,
    )


def inputs():
    made = {name: torch.randn(shape, device="cuda") for name, shape in SHAPES.items()}
    made["i"] = torch.tensor([2, 0, 7], device="cuda")
    return list(made.values())


@pytest.fixture
def python_calls(monkeypatch):
    """The operators that were called through Python."""
    core = native.core()
    if core is None or not core.dispatcher()[0]:
        pytest.skip(f"operators cannot be called without Python: {native.unavailable()}")
    called = []

    def find(step):
        operator = operator_of(step)

        def call(*args, **kwargs):
            called.append(step.op)
            return operator(*args, **kwargs)

        return call

    monkeypatch.setattr(c_executor, "operator_of", find)
    return called


LAYER_NORM = "aten.native_layer_norm.default"

CALLS = {
    "mm": (program("aten.mm.default", (X, Y)), lambda x, y, *_: x.mm(y)),
    "index": (program("aten.index.Tensor", (X, [None, INDEX])), lambda x, y, i, *_: x[:, i]),
    "cat": (program("aten.cat.default", ([X, Y], 1)), lambda x, y, *_: torch.cat([x, y], 1)),
    "sum": (
        program("aten.sum.dim_IntList", (X, [0]), {"dtype": Dtype("float64")}),
        lambda x, *_: x.sum(0, dtype=torch.float64),
    ),
    "convolution": (
        program(
            "aten.convolution.default",
            (IMAGE, WEIGHT, None, [1, 1], [1, 0], [1, 1], False, [0, 0], 1),
        ),
        lambda x, y, i, image, weight: torch.conv2d(image, weight, padding=(1, 0)),
    ),
    "layer norm": (
        program(LAYER_NORM, (X, [8], None, None, 1e-5), None, ("r", None, None)),
        lambda x, *_: torch.layer_norm(x, [8]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_calls(python_calls, cache_dir, name):
    call, eager = CALLS[name]
    run = load(call, RuntimeOptions(cache_dir=cache_dir, cuda_graphs="never"))
    for _ in range(3):
        given = inputs()
        (got,), want = run(*given), eager(*given)
        torch.testing.assert_close(got, want)
        assert got.stride() == want.stride()
    assert python_calls == []


@pytest.mark.parametrize("name", CALLS)
def test_calls_in_a_graph_of_the_caller(python_calls, cache_dir, name):
    call, eager = CALLS[name]
    run = load(call, RuntimeOptions(cache_dir=cache_dir, cuda_graphs="never"))
    given = inputs()
    run(*given)
    eager(*given)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        (got,) = run(*given)
    for _ in range(2):
        for tensor, fresh in zip(given, inputs(), strict=True):
            tensor.copy_(fresh)
        graph.replay()
        torch.testing.assert_close(got, eager(*given))
    assert python_calls == []


def test_an_error_is_that_of_eager(python_calls, cache_dir):
    run = load(
        program("aten.mm.default", (X, IMAGE)),
        RuntimeOptions(cache_dir=cache_dir, cuda_graphs="never"),
    )
    given = inputs()
    with pytest.raises(RuntimeError) as want:
        torch.mm(given[0], given[3])
    with pytest.raises(RuntimeError) as got:
        run(*given)
    assert str(got.value) == str(want.value) and got.type is want.type
    assert python_calls == ["aten.mm.default"]


def test_exhausted_memory(python_calls, cache_dir):
    run = load(
        program("aten.repeat.default", (X, [1 << 20, 1 << 12])),
        RuntimeOptions(cache_dir=cache_dir, cuda_graphs="never"),
    )
    with pytest.raises(torch.OutOfMemoryError):
        run(*inputs())


def test_warnings_of_operators_that_are_not_deterministic(python_calls, cache_dir):
    run = load(
        program("aten.cumsum.default", (X, 0)),
        RuntimeOptions(cache_dir=cache_dir, cuda_graphs="never"),
    )
    before = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        given = inputs()
        with warnings.catch_warnings(record=True) as eager:
            warnings.simplefilter("always")
            torch.cumsum(given[0], 0)
        with warnings.catch_warnings(record=True) as ours:
            warnings.simplefilter("always")
            run(*given)
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warn_only)
    if not eager:
        pytest.skip("this version of torch sums in a fixed order")
    assert [str(each.message) for each in ours] == [str(each.message) for each in eager]
    assert python_calls == []
