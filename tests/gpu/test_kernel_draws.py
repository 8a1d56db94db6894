"""Random numbers drawn inside kernels are eager's, bit for bit, and leave the generator where eager
does.
"""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import flambeau
from tests.launches import ALWAYS, assert_launched

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

MODES = ("default", "reduce-overhead")
SIZES = (1, 7, 255, 1000, 132 * 2048 * 4 + 3, 10_000_000)
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


DRAW = re.compile(r"aten\.(rand|uniform|bernoulli|normal|exponential|native_dropout)")


def beside(function: Callable[..., Any], *args: Any, mode: str = "default", calls: int = 4) -> None:
    """The function draws in kernels, and its results and the generator are as in eager."""
    compiled = flambeau.compile(function, mode=mode, fullgraph=True)
    seen = []
    for run in (function, compiled):
        torch.manual_seed(11)
        torch.rand(3, device="cuda")
        results = [run(*args) for _ in range(calls)]
        seen.append([*results, torch.cuda.get_rng_state(), torch.rand(5, device="cuda")])
    for want, got in zip(*seen, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


def in_kernels(function: Callable[..., Any], *args: Any) -> bool:
    """Whether no draw is a call of ATen."""
    return DRAW.search(str(flambeau.explain(function)(*args))) is None


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("size", SIZES)
def test_uniform_numbers_and_coins(size: int, dtype: torch.dtype) -> None:
    def program() -> tuple[torch.Tensor, ...]:
        x = torch.rand(size, dtype=dtype, device="cuda")
        return x, torch.empty_like(x).bernoulli_(0.3), torch.rand_like(x)

    assert in_kernels(program)
    beside(program)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("size", [*SIZES, 8, 12, 14, 1 << 20])
def test_dropout(size: int, dtype: torch.dtype) -> None:
    x = torch.randn(size, dtype=dtype, device="cuda")
    assert in_kernels(lambda x: F.dropout(x, 0.3), x)
    for mode in MODES:
        beside(lambda x: F.dropout(x, 0.3), x, mode=mode)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("size", SIZES)
def test_normal_and_exponential_numbers(size: int, dtype: torch.dtype) -> None:
    def program() -> tuple[torch.Tensor, ...]:
        x = torch.randn(size, dtype=dtype, device="cuda")
        return x, torch.empty_like(x).normal_(1.5, 0.3), torch.empty_like(x).exponential_(1.7)

    # Of float64 they stay calls of ATen.
    assert in_kernels(program) == (dtype is not torch.float64)
    beside(program)


@pytest.mark.parametrize("dtype", FLOATS)
def test_numbers_between_bounds(dtype: torch.dtype) -> None:
    x = torch.empty(3_000_001, dtype=dtype, device="cuda")
    for low, high in ((-2.3, 5.1), (0.0, 1000.0), (-1.0, -0.99), (2.0, 2.0)):
        beside(lambda x, low=low, high=high: x.clone().uniform_(low, high), x, calls=2)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_integers(dtype: torch.dtype) -> None:
    for size in SIZES:
        beside(lambda n=size: torch.randint(-5, 1 << 27, (n,), dtype=dtype, device="cuda"))
    beside(lambda: torch.randint(1 << 40, (1000,), device="cuda"))


LAYOUTS: dict[str, Callable[[], torch.Tensor]] = {
    "transposed": lambda: torch.randn(33, 8, device="cuda").t(),
    "transposed, odd": lambda: torch.randn(33, 7, device="cuda").t(),
    "channels last": lambda: torch.randn(2, 8, 5, 6, device="cuda").contiguous(
        memory_format=torch.channels_last
    ),
    "gaps": lambda: torch.randn(16, 24, device="cuda")[:, ::2],
    "expanded": lambda: torch.randn(1, 24, device="cuda").expand(16, 24),
    "offset by 4 bytes": lambda: torch.randn(4097, device="cuda")[1:],
    "offset by 8 bytes": lambda: torch.randn(4098, device="cuda")[2:],
    "empty": lambda: torch.randn(0, 5, device="cuda"),
    "a number": lambda: torch.randn((), device="cuda"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout: str) -> None:
    x = LAYOUTS[layout]()
    beside(lambda x: F.dropout(x, 0.4), x)
    beside(lambda x: F.dropout(x * 2, 0.4), x)
    beside(lambda x: torch.rand_like(x), x)
    if layout != "expanded":
        beside(lambda x: x.clone().bernoulli_(0.5), x)


def test_offsets_of_later_arguments() -> None:
    function = flambeau.compile(lambda x: F.dropout(x, 0.4))
    memory = torch.randn(4100, device="cuda")
    for offset in (1, 0, 2, 4, 1, 0):
        x = memory[offset : offset + 4096]
        torch.manual_seed(offset)
        got = function(x)
        torch.manual_seed(offset)
        assert torch.equal(got, F.dropout(x, 0.4)), f"offset {offset}"


@pytest.mark.parametrize("mode", MODES)
def test_probabilities_at_the_ends(mode: str) -> None:
    x = torch.randn(100, device="cuda")
    for p in (0.0, 1.0):
        beside(lambda x, p=p: F.dropout(x, p), x, mode=mode)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 128), nn.Linear(128, 64)
        self.drop = nn.Dropout(0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(self.last(self.drop(self.first(x).relu())))


@pytest.mark.parametrize("mode", MODES)
def test_training_keeps_states_instead_of_masks(mode: str) -> None:
    model = Model().cuda()
    x = torch.randn(32, 64, device="cuda")
    assert in_kernels(model, x)
    seen = []
    for run in (model, flambeau.compile(model, mode=mode)):
        torch.manual_seed(5)
        kept = []
        for _ in range(6):
            # Two forwards before their backwards: each has numbers of its own.
            outputs = [run(x), run(x + 1)]
            model.zero_grad()
            sum(out.sum() for out in outputs).backward()
            kept += [*outputs, *(p.grad.clone() for p in model.parameters())]
        seen.append((kept, torch.cuda.get_rng_state()))
    (eager, eager_state), (ours, our_state) = seen
    assert torch.equal(eager_state, our_state)
    for want, got in zip(eager, ours, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
        assert torch.equal(got == 0, want == 0)


def test_states_of_the_generator_between_calls() -> None:
    x = torch.randn(1000, device="cuda")
    for mode in MODES:
        compiled = flambeau.compile(lambda x: F.dropout(x, 0.5), mode=mode)
        for _ in range(4):
            compiled(x)
        state = torch.cuda.get_rng_state()
        first = compiled(x)
        torch.cuda.set_rng_state(state)
        assert torch.equal(compiled(x), first)
        torch.cuda.set_rng_state(state)
        assert torch.equal(F.dropout(x, 0.5), first)
        with torch.random.fork_rng():
            torch.manual_seed(2**63 + 5)
            inside = compiled(x)
            torch.manual_seed(2**63 + 5)
            assert torch.equal(F.dropout(x, 0.5), inside)
        torch.cuda.set_rng_state(state)
        assert torch.equal(compiled(x), first)


def test_recorded_while_another_thread_draws() -> None:
    stop = threading.Event()

    def draw() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            while not stop.is_set():
                torch.rand(10, device="cuda")

    other = threading.Thread(target=draw)
    other.start()
    try:
        x = torch.ones(1000, device="cuda")
        compiled = flambeau.compile(lambda x: F.dropout(x, 0.5), mode="reduce-overhead")
        results = {tuple(compiled(x).tolist()) for _ in range(10)}
        assert len(results) == 10
        assert_launched(compiled, ALWAYS)
    finally:
        stop.set()
        other.join()


def test_captured_by_the_caller() -> None:
    x = torch.randn(1000, device="cuda")
    compiled = flambeau.compile(lambda x: F.dropout(x, 0.5) * 2)
    compiled(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = compiled(x)
    torch.manual_seed(3)
    seen = []
    for _ in range(3):
        graph.replay()
        seen.append(out.clone())
    torch.manual_seed(3)
    for got in seen:
        assert torch.equal(got, F.dropout(x, 0.5) * 2)


def test_attention_that_drops_and_dropout() -> None:
    """Library calls and kernels draw in turn."""

    def program(q: torch.Tensor) -> torch.Tensor:
        first = F.dropout(q, 0.2)
        attended = F.scaled_dot_product_attention(first, q, q, dropout_p=0.3)
        return F.dropout(attended, 0.1)

    q = torch.randn(2, 4, 32, 64, device="cuda", dtype=torch.float16)
    for mode in MODES:
        beside(program, q, mode=mode)
