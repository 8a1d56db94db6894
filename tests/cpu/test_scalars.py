"""Numbers of the program that change — a learning rate, a scale, a step count — cost no compilation
each.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import torch

import flambeau
from flambeau_capture.compiled import state_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, -2.75, 1e30, 1e-40, math.inf, -math.inf, math.nan)
INTS = (*range(12), -1, -7, 1000, 2**31 - 1, -(2**31), 2**40)


def check(function: Callable[..., Any], calls: Iterable[tuple[Any, ...]], captures: int) -> None:
    """Compiled equals eager on every call, in at most `captures` captures."""
    compiled = flambeau.compile(function, fullgraph=True)
    for args in calls:
        got, want = compiled(*args), function(*args)
        torch.testing.assert_close(got, want, equal_nan=True, rtol=1e-6, atol=1e-6)
    assert len(state_of(compiled).entries) <= captures


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool]
)
@pytest.mark.parametrize("shape", [(5, 7), (), (0, 3)])
def test_a_float_argument(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape).to(dtype)
    check(lambda x, k: (x * k, k + x, x > k), [(x, k) for k in SPECIAL], 2)


def test_a_float_argument_with_other_layouts() -> None:
    x = torch.randn(6, 9).t()[::2]
    check(lambda x, k: torch.add(x, x, alpha=k).clamp(max=k), [(x, k) for k in SPECIAL], 2)


def test_an_int_argument() -> None:
    x = torch.randn(5)
    check(lambda x, n: x * n + n % 7 - n // 3, [(x, n) for n in INTS], 3)


def test_floats_computed_from_floats_are_pythons() -> None:
    def program(x: torch.Tensor, k: float, n: int) -> tuple[torch.Tensor, float]:
        scale = math.exp(-abs(k)) / (1 + k * k) + 0.1 * n // 0.3 - math.sin(k) % 0.7
        return x.double() * scale, scale

    compiled = flambeau.compile(program, fullgraph=True)
    x = torch.ones(3)
    for step in range(40):
        k, n = 0.37 * step - 4, 2 + step
        got, want = compiled(x, k, n), program(x, k, n)
        assert torch.equal(got[0], want[0]) and got[1] == want[1] and type(got[1]) is float
    assert len(state_of(compiled).entries) <= 2


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.scale = 0.5
        self.step = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.step += 1
        return self.linear(x) * self.scale / self.step


def test_attributes_of_a_module_and_gradients() -> None:
    module = Scaled()
    compiled = flambeau.compile(module, fullgraph=True)
    x = torch.randn(3, 4)
    for count in range(100):
        module.scale, module.step = 0.1 * count - 2, count
        module.zero_grad()
        module(x).sum().backward()
        assert module.linear.weight.grad is not None
        want, module.step = module.linear.weight.grad.clone(), count
        module.zero_grad()
        compiled(x).sum().backward()
        torch.testing.assert_close(module.linear.weight.grad, want)
        assert module.step == count + 1 and type(module.step) is int
    assert len(state_of(compiled._compiled).entries) <= 3


def test_a_learning_rate_in_a_dict_and_betas_in_a_tuple() -> None:
    groups = [{"lr": 0.1, "betas": (0.9, 0.999)}]
    weight, grad, mean = torch.randn(7), torch.randn(7), torch.zeros(7)

    def step(weight: torch.Tensor, grad: torch.Tensor, mean: torch.Tensor) -> None:
        for group in groups:
            beta = group["betas"][0]
            mean.mul_(beta).add_(grad, alpha=1 - beta)
            weight.sub_(mean, alpha=group["lr"])

    compiled = flambeau.compile(step, fullgraph=True)
    for count in range(100):
        groups[0].update(lr=1 / (count + 1), betas=(0.9 - count / 1000, 0.999))
        ours = [tensor.clone() for tensor in (weight, grad, mean)]
        theirs = [tensor.clone() for tensor in (weight, grad, mean)]
        compiled(*ours)
        step(*theirs)
        for got, want in zip(ours, theirs, strict=True):
            torch.testing.assert_close(got, want)
    assert len(state_of(compiled).entries) <= 3


def test_a_gradient_through_a_changing_float() -> None:
    def program(x: torch.Tensor, k: float) -> torch.Tensor:
        return (torch.sin(x * k) / (k + 3)).sum()

    compiled = flambeau.compile(program, fullgraph=True)
    for count in range(30):
        ours = torch.randn(6, requires_grad=True)
        theirs = ours.detach().clone().requires_grad_()
        k = count * 0.3 - 1.05
        compiled(ours, k).backward()
        program(theirs, k).backward()
        torch.testing.assert_close(ours.grad, theirs.grad)
    assert len(state_of(compiled).entries) <= 3


def test_a_branch_on_a_float_is_a_guard() -> None:
    def program(x: torch.Tensor, k: float) -> torch.Tensor:
        return x * k if k > 0.5 else x - k

    check(program, [(torch.randn(4), k) for k in (*SPECIAL, 0.6, 0.7, 0.2)], 4)


def test_a_use_of_the_value_itself_is_a_guard_on_it() -> None:
    compiled = flambeau.compile(lambda x, k: (x + 1, f"{k:.3f}", int(k), {k: 1}), fullgraph=True)
    x = torch.randn(3)
    for k in (0.25, 1.5, 1.5, -3.75):
        got = compiled(x, k)
        assert torch.equal(got[0], x + 1) and got[1:] == (f"{k:.3f}", int(k), {k: 1})
    assert len(state_of(compiled).entries) == 3


def test_python_errors_come_as_in_eager() -> None:
    compiled = flambeau.compile(lambda x, k: x * (1 / k))
    x = torch.randn(3)
    for k in (2.0, 4.0, 5.0):
        torch.testing.assert_close(compiled(x, k), x * (1 / k))
    with pytest.raises(ZeroDivisionError):
        compiled(x, 0.0)
    torch.testing.assert_close(compiled(x, 8.0), x / 8)


def test_dynamic_false_specialises() -> None:
    compiled = flambeau.compile(lambda x, k: x * k, fullgraph=True, dynamic=False)
    x = torch.randn(3)
    for k in (2.0, 4.0, 5.0):
        torch.testing.assert_close(compiled(x, k), x * k)
    assert len(state_of(compiled).entries) == 3


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize(
    "use",
    [
        lambda n: 2 // n,
        lambda n: 2 % n,
        lambda n: 2 / n,
        lambda n: divmod(7, n),
        lambda n: 0 // n,
        lambda n: n % n,
        lambda n: n**-1,
        lambda n: 2**n,
        lambda n: 1 << n,
        lambda n: 8 >> n,
    ],
)
def test_a_number_that_becomes_one_that_the_operation_refuses(
    use: Any, dynamic: bool | None
) -> None:
    x = torch.ones(3)
    run = flambeau.compile(lambda n: (x + 1, use(n)), backend="eager", dynamic=dynamic)
    for n in (2, 5, 0, 3, -1, 7, 0, -2):
        outcomes = []
        for function in (lambda n: run(n)[1], use):
            try:
                outcomes.append(function(n))
            except (ZeroDivisionError, ValueError) as error:
                outcomes.append((type(error), str(error)))
        assert outcomes[0] == outcomes[1] and type(outcomes[0]) is type(outcomes[1]), n


METHODS: dict[str, Callable[..., Any]] = {
    "bit_length": lambda x: x * int.bit_length(x.shape[0]),
    "add": lambda x: x * int.__add__(x.shape[0], 1) + int.__radd__(2, x.shape[0]),
    "of another type": lambda x: x if int.__add__(x.shape[0], 1.5) is NotImplemented else x * 2,
    "compared": lambda x: x + int.__neg__(x.shape[1]) if int.__lt__(x.shape[0], 3) else x,
}


@pytest.mark.parametrize("name", METHODS)
def test_methods_of_int_on_symbolic_sizes(name: str) -> None:
    """`int.bit_length(n)` takes a symbolic size as its receiver."""
    program = METHODS[name]
    compiled = flambeau.compile(program, dynamic=True, fullgraph=True)
    for rows in (10, 3, 2):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(compiled(x), program(x))


def test_operators_that_take_ints_only() -> None:
    """C++ that takes no symbolic ints gets their values, which are guarded."""

    def program(x: torch.Tensor, g: torch.Tensor, at: torch.Tensor, window: int) -> torch.Tensor:
        sizes = (window, window)
        backward = torch.ops.aten.max_pool2d_with_indices_backward
        return backward(g, x, sizes, sizes, (0, 0), (1, 1), False, at)

    compiled = flambeau.compile(program, dynamic=True, fullgraph=True)
    for window in (2, 3):
        x = torch.randn(1, 2, 6, 6)
        pooled, at = torch.nn.functional.max_pool2d(x, window, return_indices=True)
        torch.testing.assert_close(compiled(x, pooled, at, window), program(x, pooled, at, window))
