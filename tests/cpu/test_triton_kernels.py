"""Programs with Triton kernels of their own, in Triton's interpreter, beside eager."""

from __future__ import annotations

import copy
import os
import sys

import pytest

if "triton" in sys.modules and not os.environ.get("TRITON_INTERPRET"):
    pytest.skip("Triton was imported without its interpreter", allow_module_level=True)
os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton")

import torch
import triton
from torch.library import triton_op, wrap_triton

import flambeau
from flambeau.report import report_of
from flambeau_runtime.program import Extern, Launch
from tests.programs import triton_kernels as programs
from tests.same import same

BACKENDS = ("eager", "aot_eager", "inductor")


def check(case, compiled, n, device="cpu"):
    torch.manual_seed(n)
    inputs = case.inputs(n, device)
    ours = copy.deepcopy(inputs)
    expected, actual = case.function(*inputs), compiled(*ours)
    same(actual, expected)
    same(ours, inputs)
    if any(x.requires_grad for x in inputs):
        expected.sum().backward()
        actual.sum().backward()
        same([x.grad for x in ours], [x.grad for x in inputs])


@pytest.mark.parametrize("case", programs.PROGRAMS.values(), ids=programs.PROGRAMS.keys())
def test_equals_eager(case) -> None:
    compiled = flambeau.compile(case.function, fullgraph=True)
    for n in (7, 7, 33, 64):
        check(case, compiled, n)
    assert all(graph.fallback is None for graph in report_of(compiled).graphs)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("case", programs.PROGRAMS.values(), ids=programs.PROGRAMS.keys())
def test_other_backends(case, backend) -> None:
    compiled = flambeau.compile(case.function, backend=backend, fullgraph=True)
    for n in (5, 33):
        check(case, compiled, n)


@pytest.mark.parametrize("case", programs.PROGRAMS.values(), ids=programs.PROGRAMS.keys())
def test_symbolic_sizes(case) -> None:
    compiled = flambeau.compile(case.function, dynamic=True, fullgraph=True)
    for n in (7, 48):
        check(case, compiled, n)


def steps_of(compiled) -> list[str]:
    """The kernels and operators of a compiled function, in order."""
    (graph,) = report_of(compiled).graphs
    (program,) = graph.programs
    return [
        step.kernel if isinstance(step, Launch) else step.op
        for step in program.steps
        if isinstance(step, (Launch, Extern))
    ]


def test_memory_is_copied_only_where_need_be() -> None:
    def compiled(name):
        case = programs.PROGRAMS[name]
        result = flambeau.compile(case.function, fullgraph=True)
        check(case, result, 9)
        return [step.partition(".")[0] for step in steps_of(result)]

    assert compiled("grid_of_meta") == ["flambeau_kernel"]
    assert compiled("swaps_rows_of_an_input") == ["flambeau_kernel", "cpu_add_0"]
    assert compiled("in_place_on_an_input") == ["cpu_mul_0", "flambeau_kernel", "cpu_add_1"]
    assert compiled("read_before_and_after") == ["cpu_exp_0", "flambeau_kernel", "cpu_exp_0"]


def test_empty_tensors() -> None:
    def function(x, y):
        out = torch.zeros_like(x)
        programs.add[(0,)](x, y, out, x.numel(), BLOCK=16)
        return out + 1

    compiled = flambeau.compile(function, fullgraph=True)
    for n in (0, 3, 0):
        x, y = torch.randn(n), torch.randn(n)
        same(compiled(x, y), function(x, y))


def test_floats_that_vary_are_no_constants() -> None:
    def function(x, factor):
        out = torch.empty_like(x)
        programs.activate[(1,)](x, None, out, x.numel(), factor, False, BLOCK=16, ACTIVATION="")
        return out

    compiled = flambeau.compile(function, fullgraph=True)
    for factor in (0.5, 0.25, 0.75, 2.0, 3.5):
        x = torch.randn(9)
        same(compiled(x, factor), function(x, factor))
    assert len(report_of(compiled).graphs) == 2


def test_a_module() -> None:
    ours, theirs = (programs.Block() for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    compiled = flambeau.compile(ours, fullgraph=True)
    for n in (3, 4):
        x = torch.randn(n, 6)
        actual, expected = compiled(x), theirs(x)
        same(actual, expected)
        (actual * ours.linear(x)).sum().backward()
        (expected * theirs.linear(x)).sum().backward()
    same([p.grad for p in ours.parameters()], [p.grad for p in theirs.parameters()])


def test_layouts_that_a_compiler_changes_are_restored() -> None:
    def function(x, w):
        y = torch.conv2d(torch.conv2d(torch.conv2d(x, w, padding=1), w, padding=1), w, padding=1)
        out = torch.empty_like(y)
        programs.add[(y.numel() // 64 + 1,)](y, y, out, y.numel(), BLOCK=64)
        return out

    x, w = torch.randn(2, 8, 5, 7), torch.randn(8, 8, 3, 3)
    torch.testing.assert_close(flambeau.compile(function, fullgraph=True)(x, w), function(x, w))


# Operators made of kernels


@triton_op("flambeau_test_kernels::interpreted_sine", mutates_args={})
def sine(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    wrap_triton(programs.sine)[(triton.cdiv(x.numel(), 16),)](x, out, x.numel(), BLOCK=16)
    return out


@triton_op("flambeau_test_kernels::interpreted_sine_into", mutates_args={"out"})
def sine_into(x: torch.Tensor, out: torch.Tensor, block: int = 16) -> None:
    wrap_triton(programs.sine)[(triton.cdiv(x.numel(), block),)](x, out, x.numel(), block)


@triton_op("flambeau_test_kernels::differentiable_sine", mutates_args={})
def differentiable_sine(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    wrap_triton(programs.sine)[(triton.cdiv(x.numel(), 16),)](x, out, x.numel(), BLOCK=16)
    return out


def _setup(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _backward(ctx, gradient):
    (x,) = ctx.saved_tensors
    return gradient * x.cos()


differentiable_sine.register_autograd(_backward, setup_context=_setup)


@triton_op("flambeau_test_kernels::doubled_elsewhere", mutates_args={})
def doubled(x: torch.Tensor) -> torch.Tensor:
    raise AssertionError("the kernel for the CPU is called instead")


@doubled.register_kernel("cpu")
def _(x):
    return x * 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_operators_made_of_kernels(backend) -> None:
    def function(x):
        out = torch.zeros_like(x)
        sine_into(x, out)
        return sine(x + 1) + torch.ops.flambeau_test_kernels.interpreted_sine(x), out, doubled(x)

    compiled = flambeau.compile(function, backend=backend, fullgraph=True)
    for n in (7, 40):
        x = torch.randn(n)
        expected = torch.sin(x + 1) + torch.sin(x), torch.sin(x), x * 2
        torch.testing.assert_close(compiled(x), expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_operator_with_a_formula_for_gradients(backend) -> None:
    def function(x):
        return differentiable_sine(x * 2) + 1

    compiled = flambeau.compile(function, backend=backend, fullgraph=True)
    for n in (7, 40):
        x = torch.randn(n, requires_grad=True)
        actual = compiled(x)
        torch.testing.assert_close(actual, torch.sin(x * 2) + 1)
        (gradient,) = torch.autograd.grad(actual.sum(), x)
        torch.testing.assert_close(gradient, 2 * torch.cos(x * 2))
