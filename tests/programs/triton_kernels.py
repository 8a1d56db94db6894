"""Programs with Triton kernels of their own, and their inputs.

Each is a function of tensors on one device; `PROGRAMS` has them by name with what makes their
inputs. The kernels run in Triton's interpreter if that is asked for before Triton is imported.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable

SCALE = tl.constexpr(1.5)


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr = 16):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out + at, tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside), mask=inside)


@triton.jit
def scaled(x, ACTIVATION: tl.constexpr):
    if ACTIVATION == "relu":
        x = tl.maximum(x, 0.0)
    return x * SCALE


@triton.jit
def activate(
    x, bias, out, n, factor, negate: tl.constexpr, BLOCK: tl.constexpr, ACTIVATION: tl.constexpr
):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n).to(tl.float32)
    if bias is not None:
        value += tl.load(bias + at, mask=at < n)
    value = scaled(value, ACTIVATION) * factor
    if negate:
        value = -value
    tl.store(out + at, value, mask=at < n)


@triton.jit
def copy_strided(x, out, rows, columns, xs0, xs1, os0, os1, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = (at < columns) & (row < rows)
    value = tl.load(x + row * xs0 + at * xs1, mask=inside)
    tl.store(out + row * os0 + at * os1, value + 1, mask=inside)


@triton.jit
def increment(x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)


@triton.jit
def total(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out, tl.sum(tl.load(x + at, mask=at < n, other=0.0), 0))


@triton.jit
def swap(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    first, second = tl.load(x + at, mask=at < n), tl.load(y + at, mask=at < n)
    tl.store(x + at, second, mask=at < n)
    tl.store(y + at, first, mask=at < n)


@triton.jit
def sine(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.sin(tl.load(x + at, mask=at < n)), mask=at < n)


@triton.jit
def multiply_cosine(gradient, x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(gradient + at, mask=at < n) * tl.cos(tl.load(x + at, mask=at < n))
    tl.store(out + at, value, mask=at < n)


_CONFIGS = [
    triton.Config({"BLOCK": 16}, num_warps=2),
    triton.Config({"BLOCK": 32}, num_warps=4, num_stages=2),
    triton.Config({"BLOCK": 32}, num_warps=8),
]


def _run_once(launch: Callable[[], Any], quantiles: Any) -> list[float]:
    launch()
    return [1.0, 1.0, 1.0]


tuned_over = functools.partial(
    triton.autotune, do_bench=None if torch.cuda.is_available() else _run_once
)
"""The tuner; there are no times in the interpreter."""


def _grid(n: Any) -> Callable[[Any], Any]:
    return lambda meta: (triton.cdiv(n, meta["BLOCK"]),)


@tuned_over(_CONFIGS, key=["n"])
@triton.jit
def tuned_add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out + at, tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside), mask=inside)


@tuned_over(_CONFIGS, key=["n"], restore_value=["x"])
@triton.jit
def tuned_increment(x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)


@tuned_over(_CONFIGS, key=["n"], reset_to_zero=["out"])
@triton.jit
def tuned_total(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out, tl.sum(tl.load(x + at, mask=at < n, other=0.0), 0))


@tuned_over([triton.Config({"BLOCK": 32}, num_warps=4)], key=["n"])
@triton.jit
def tuned_once(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out + at, tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside), mask=inside)


@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def heuristic_add(x, y, out, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:
        tl.store(out + at, tl.load(x + at) + tl.load(y + at))
    else:
        inside = at < n
        tl.store(out + at, tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside), mask=inside)


@tuned_over(_CONFIGS, key=["n"])
@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def tuned_heuristic_add(x, y, out, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:
        tl.store(out + at, tl.load(x + at) + tl.load(y + at))
    else:
        inside = at < n
        tl.store(out + at, tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside), mask=inside)


# Programs


@dataclass(frozen=True)
class Case:
    """A program and what makes its inputs for a size and a device."""

    function: Callable[..., Any]
    inputs: Callable[[int, str], tuple[Any, ...]]
    launches: int = 1
    """How many launches its graph has."""


PROGRAMS: dict[str, Case] = {}


def vectors(count: int, dtype: torch.dtype = torch.float32) -> Callable[[int, str], Any]:
    """Vectors of one size, which is odd."""

    def make(n: int, device: str) -> tuple[torch.Tensor, ...]:
        if dtype.is_floating_point:
            return tuple(torch.randn(n).to(device, dtype) for _ in range(count))
        return tuple(torch.randint(0, 9, (n,)).to(device, dtype) for _ in range(count))

    return make


def matrices(count: int) -> Callable[[int, str], Any]:
    """Matrices of n rows."""
    return lambda n, device: tuple(torch.randn(n, 6).to(device) for _ in range(count))


def program(inputs: Any, launches: int = 1) -> Any:
    """Decorator: the function is a program."""

    def declare(function: Any) -> Any:
        PROGRAMS[function.__name__] = Case(function, inputs, launches)
        return function

    return declare


def run_add(x: torch.Tensor, y: torch.Tensor, kernel: Any = add) -> torch.Tensor:
    out = torch.empty_like(x)
    kernel[_grid(x.numel())](x, y, out, x.numel(), BLOCK=16)
    return out


@program(vectors(2))
def grid_of_meta(x, y):
    return run_add(x, y)


@program(vectors(2))
def grid_as_tuple(x, y):
    out = torch.zeros_like(x)
    add[(triton.cdiv(x.shape[0], 32), 1)](x, y, out, x.shape[0], 32)
    return out


@program(vectors(2))
def default_of_a_constexpr(x, y):
    out = torch.zeros_like(x)
    add[_grid(x.numel())](x, y, out, x.numel())
    return out


@program(vectors(2))
def keywords_in_any_order(x, y):
    out = torch.zeros_like(x)
    add[_grid(x.numel())](n=x.numel(), out=out, y=y, BLOCK=16, x=x, num_warps=2, num_stages=2)
    return out


@program(vectors(2))
def neighbours(x, y):
    return torch.cos(run_add(x.sin() * 2, y + 1) - 3)


@program(vectors(2, torch.float16))
def halves(x, y):
    return run_add(x, y) + 1


@program(vectors(2, torch.bfloat16))
def bfloats(x, y):
    return run_add(x, y) + 1


@program(vectors(2, torch.int32))
def integers(x, y):
    return run_add(x, y) + 1


@program(vectors(2))
def in_place_on_an_input(x, y):
    z = x * 2
    add[_grid(x.numel())](z, y, x, x.numel(), BLOCK=16)
    return x + 1


@program(vectors(1))
def read_before_and_after(x):
    before = x.exp()
    increment[_grid(x.numel())](x, x.numel(), BLOCK=16)
    return before, x.exp()


@program(vectors(1), launches=3)
def several_in_a_row(x):
    y = x.clone()
    for _ in range(3):
        increment[_grid(y.numel())](y, y.numel(), BLOCK=16)
    return y


@program(vectors(2))
def one_tensor_twice(x, y):
    add[_grid(x.numel())](x, x, x, x.numel(), BLOCK=16)
    return x + y


@program(vectors(1))
def without_a_bias(x):
    out = torch.empty_like(x)
    activate[_grid(x.numel())](x, None, out, x.numel(), 0.5, False, BLOCK=16, ACTIVATION="relu")
    return out


@program(vectors(2))
def with_a_bias(x, bias):
    out = torch.empty_like(x)
    activate[_grid(x.numel())](x, bias, out, x.numel(), 0.3, True, BLOCK=16, ACTIVATION="")
    return out


def run_copy(x: torch.Tensor, out: torch.Tensor) -> None:
    rows, columns = x.shape
    grid = lambda meta: (rows, triton.cdiv(columns, meta["BLOCK"]))  # noqa: E731
    copy_strided[grid](x, out, rows, columns, *x.stride(), *out.stride(), BLOCK=16)


@program(matrices(1))
def transposed_operand(x):
    out = torch.empty(x.shape[1], x.shape[0], device=x.device)
    run_copy(x.t(), out)
    return out


@program(matrices(1))
def transposed_result(x):
    out = torch.zeros(x.shape[1], x.shape[0], device=x.device).t()
    run_copy(x, out)
    return out * 2


@program(matrices(1))
def sliced_operand(x):
    out = torch.empty(x.shape[0] - 1, 3, device=x.device)
    run_copy(x[1:, ::2], out)
    return out


@program(matrices(1))
def computed_and_transposed_operand(x):
    out = torch.empty(x.shape[1], x.shape[0], device=x.device)
    run_copy((x * 2).t(), out)
    return out


@program(matrices(1))
def expanded_operand(x):
    out = torch.empty_like(x)
    run_copy(x[0].sin().expand(x.shape[0], 6), out)
    return out


@program(matrices(2))
def writes_to_columns_of_an_input(x, y):
    run_copy(y[:, :3], x[:, ::2])
    return x.sum(0), y


@program(matrices(2))
def writes_to_columns_of_a_result(x, y):
    z = x + 1
    run_copy(y[:, :3], z[:, 1::2])
    return z * 2


@program(matrices(1))
def writes_to_a_row(x):
    increment[(1,)](x[1], 6, BLOCK=8)
    return x * 2


@program(matrices(1))
def writes_to_a_view_and_reads_the_base(x):
    flat = x.view(-1)
    increment[_grid(flat.numel())](flat, flat.numel(), BLOCK=16)
    return x.sum(1), flat


@program(matrices(1))
def swaps_rows_of_one_tensor(x):
    z = x.clone()
    swap[(1,)](z[0], z[1], 6, BLOCK=8)
    return z


@program(matrices(1))
def swaps_rows_of_an_input(x):
    swap[(1,)](x[0], x[1], 6, BLOCK=8)
    return x + 1


@program(vectors(1))
def shifts_along_itself(x):
    z = x.clone()
    add[(1,)](z[:2], z, z[2:], 2, BLOCK=16)
    return z


@program(vectors(1))
def atomics(x):
    out = torch.zeros(1, device=x.device)
    total[_grid(x.numel())](x.round(), out, x.numel(), BLOCK=16)
    return out + 1


@program(vectors(2))
def under_no_grad(x, y):
    with torch.no_grad():
        z = run_add(x, y)
    return z * 2


@program(vectors(2))
def tuned(x, y):
    out = torch.empty_like(x)
    tuned_add[_grid(x.numel())](x, y, out, x.numel())
    return out + 1


@program(vectors(1))
def tuned_with_restored_values(x):
    y = x * 2
    tuned_increment[_grid(y.numel())](y, y.numel())
    return y


@program(vectors(1))
def tuned_with_values_reset_to_zero(x):
    out = torch.zeros(1, device=x.device)
    tuned_total[_grid(x.numel())](x.round(), out, x.numel())
    return out


@program(vectors(2))
def tuned_without_a_choice(x, y):
    out = torch.empty_like(x)
    tuned_once[_grid(x.numel())](x, y, out, x.numel())
    return out + 1


@program(vectors(2))
def heuristics(x, y):
    out = torch.empty_like(x)
    heuristic_add[_grid(x.numel())](x, y, out, x.numel(), BLOCK=16)
    return out + 1


@program(vectors(2))
def heuristics_of_tuned_values(x, y):
    out = torch.empty_like(x)
    tuned_heuristic_add[_grid(x.numel())](x, y, out, x.numel())
    return out + 1


@program(vectors(2))
def kernel_from_a_dict(x, y):
    return run_add(x, y, KERNELS["add"])


KERNELS = {"add": add}


class Sine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        out = torch.empty_like(x)
        sine[_grid(x.numel())](x, out, x.numel(), BLOCK=16)
        return out

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        out = torch.empty_like(gradient)
        multiply_cosine[_grid(x.numel())](gradient.contiguous(), x, out, x.numel(), BLOCK=16)
        return out


@program(lambda n, device: (torch.randn(n, device=device, requires_grad=True),))
def with_gradients(x):
    return Sine.apply(x * 2).square()


@program(lambda n, device: (torch.randn(n, device=device, requires_grad=True),))
def writes_to_a_parameter(x):
    increment[_grid(x.numel())](x, x.numel(), BLOCK=16)
    return x * 2


@program(lambda n, device: (torch.randn(n, device=device, requires_grad=True),))
def writes_to_what_has_a_history(x):
    y = x * 2
    increment[_grid(y.numel())](y, y.numel(), BLOCK=16)
    return y


@program(lambda n, device: (torch.randn(n, 12, device=device)[:, ::2],))
def writes_to_an_input_with_gaps(x):
    run_copy(x, x)
    return x * 2


@program(lambda n, device: (torch.randn(n, 12, device=device)[:, ::2],))
def reads_an_input_with_gaps_that_changed(x):
    x.add_(1)
    out = torch.empty(x.shape, device=x.device)
    run_copy(x, out)
    return out


@program(vectors(1))
def branches_on_what_a_kernel_wrote(x):
    out = run_add(x * x, x * x)
    return out.sin() if out.sum() > 0 else out.cos()


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.kernel = add

    def forward(self, x):
        return run_add(Sine.apply(self.linear(x)).relu(), x, self.kernel)


@torch.library.custom_op("flambeau_test_kernels::opaque_add", mutates_args=())
def opaque_add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return run_add(x, y)


@opaque_add.register_fake
def _(x, y):
    return torch.empty_like(x)


@program(vectors(2), launches=0)
def inside_a_custom_operator(x, y):
    return opaque_add(x.sin(), y).cos()
