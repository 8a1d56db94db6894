"""Programs with Triton kernels of their own on a GPU: equal to eager, launched from C, replayed."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

import triton
import triton.language as tl
from torch.library import triton_op, wrap_triton

import flambeau
from flambeau.report import report_of
from flambeau_runtime.program import Extern, Launch
from tests.launches import ALWAYS, NEVER, WARM, Beside, randn
from tests.programs import triton_kernels as programs
from tests.same import same

if TYPE_CHECKING:
    from pathlib import Path

LAUNCHED_BY_TRITON = {
    "tuned", "tuned_with_restored_values", "tuned_with_values_reset_to_zero",
    "heuristics_of_tuned_values", "reads_an_input_with_gaps_that_changed",
}  # fmt: skip
"""Programs whose kernels are tuned, or read tensors that this compiler laid out otherwise."""


def operators_called(compiled) -> int:
    """How many launches are calls of operators, of all programs of a compiled function."""
    return sum(
        isinstance(step, Extern) and step.op.startswith("flambeau_kernel.")
        for graph in report_of(compiled).graphs
        for program in graph.programs
        for step in program.steps
    )


def check(case, compiled, n: int) -> None:
    torch.manual_seed(n)
    inputs = case.inputs(n, "cuda")
    ours = copy.deepcopy(inputs)
    expected, actual = case.function(*inputs), compiled(*ours)
    same(actual, expected)
    same(ours, inputs)
    if any(x.requires_grad for x in inputs):
        expected.sum().backward()
        actual.sum().backward()
        same([x.grad for x in ours], [x.grad for x in inputs])


@pytest.mark.parametrize("cuda_graphs", [NEVER, ALWAYS])
@pytest.mark.parametrize("name", programs.PROGRAMS)
def test_equals_eager(name: str, cuda_graphs: str) -> None:
    case = programs.PROGRAMS[name]
    compiled = flambeau.compile(case.function, fullgraph=True, options={"cuda_graphs": cuda_graphs})
    for n in (7, 7, 7, 7, 33, 33, 64, 1000, 5):
        check(case, compiled, n)
    assert bool(operators_called(compiled)) == (name in LAUNCHED_BY_TRITON)


@triton.jit
def axpy(x, y, out, factor, negate, n, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n)
    if negate:
        value = -value
    tl.store(out + at, value * factor + tl.load(y + at, mask=at < n), mask=at < n)


@triton.jit
def choose(flags, x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    flag = tl.load(flags + at, mask=at < n, other=0)
    tl.store(out + at, tl.where(flag, tl.load(x + at, mask=at < n), -1.0), mask=at < n)


def run_axpy(x, y, factor, negate):
    out = torch.empty_like(x)
    grid = lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)  # noqa: E731
    axpy[grid](x, y, out, factor, negate, x.numel(), BLOCK=64, num_warps=2)
    return out + 1


@pytest.mark.parametrize("cuda_graphs", [NEVER, ALWAYS])
def test_numbers_that_vary(cuda_graphs: str) -> None:
    beside = Beside(run_axpy, cuda_graphs)
    for factor, negate in ((0.5, False), (0.5, True), (0.25, True), (1.0, True), (3.0, False)):
        for n in (1000, 1000, 77):
            beside(randn(n), randn(n), factor, negate)
    assert operators_called(beside.compiled) == 0


def test_pointers_of_any_alignment() -> None:
    beside = Beside(run_axpy, NEVER)
    for start in (0, 1, 3, 4):
        x, y = randn(1000)[start:], randn(1000)[start:]
        beside(x, y, 2.0, False)
    assert operators_called(beside.compiled) == 0


def test_masks() -> None:
    def function(x):
        out = torch.empty_like(x)
        choose[(triton.cdiv(x.numel(), 64),)](x > 0, x, out, x.numel(), BLOCK=64)
        return out

    beside = Beside(function, NEVER)
    beside(randn(1000))
    assert operators_called(beside.compiled) == 0


def test_memory_is_updated_in_place() -> None:
    def function(x):
        programs.increment[(1,)](x, x.numel(), BLOCK=16)

    compiled = flambeau.compile(function, fullgraph=True)
    x = torch.zeros(10, device="cuda")
    compiled(x)
    assert torch.equal(x, torch.ones_like(x))
    (program,) = report_of(compiled).graphs[0].programs
    assert [type(step) for step in program.steps] == [Launch]


def test_a_replay_launches_kernels_of_the_program() -> None:
    beside = Beside(programs.several_in_a_row)
    for _ in range(WARM):
        beside(randn(100))
    beside.assert_replayed()


@triton_op("flambeau_test_kernels::sine", mutates_args={})
def sine(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    wrap_triton(programs.sine)[(triton.cdiv(x.numel(), 16),)](x, out, x.numel(), BLOCK=16)
    return out


def _setup(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _backward(ctx, gradient):
    (x,) = ctx.saved_tensors
    return gradient * x.cos()


sine.register_autograd(_backward, setup_context=_setup)


def test_an_operator_made_of_kernels() -> None:
    compiled = flambeau.compile(lambda x: sine(x * 2) + 1, fullgraph=True)
    x, y = (randn(100).requires_grad_() for _ in range(2))
    with torch.no_grad():
        y.copy_(x)
    expected, actual = sine(x * 2) + 1, compiled(y)
    same(actual, expected)
    expected.sum().backward()
    actual.sum().backward()
    torch.testing.assert_close(y.grad, x.grad)
    assert operators_called(compiled) == 0


def test_kernels_are_cached_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLAMBEAU_CACHE_DIR", str(tmp_path))
    hits = []
    for _ in range(2):
        compiled = flambeau.compile(programs.grid_of_meta, fullgraph=True)
        compiled(randn(100), randn(100))
        hits.append(report_of(compiled).graphs[0].cache.hits)
    assert hits == [0, 1]
