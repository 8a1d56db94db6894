"""Operators that raise where the data is wrong raise compiled, too, though nothing reads their
results.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
import torch

import flambeau
from flambeau_capture import state_of
from tests.programs.checks_of_data import Refused
from tests.same import same

if TYPE_CHECKING:
    from collections.abc import Callable

BACKENDS = ("eager", "aot_eager", "cudagraphs", "inductor")


def asserted(x: torch.Tensor) -> torch.Tensor:
    torch._assert_async(x.sum() > 0, "a sum that is positive")
    return x + 1


def inverted(x: torch.Tensor) -> torch.Tensor:
    return torch.linalg.inv(x) @ x


def factored(x: torch.Tensor) -> torch.Tensor:
    torch.linalg.cholesky(x)
    return x * 2


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [asserted, inverted, factored])
@pytest.mark.parametrize("gradients", [False, True])
def test_wrong_data_raises(
    program: Callable[[torch.Tensor], torch.Tensor], backend: str, gradients: bool
) -> None:
    compiled = flambeau.compile(program, backend=backend, fullgraph=True)
    good = (torch.eye(3) * 2).requires_grad_(gradients)
    torch.testing.assert_close(compiled(good), program(good))
    bad = torch.zeros(3, 3).requires_grad_(gradients)
    with pytest.raises(RuntimeError) as eager:
        program(bad)
    with pytest.raises(type(eager.value), match=re.escape(str(eager.value).splitlines()[0])):
        compiled(bad)


def in_order(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    """What reads by the indices would share a kernel with what comes first."""
    doubled = i * 2
    torch._assert_async((i < 4).all(), "an index in range")
    return x[i] + doubled


def sized(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    """Sizes in the data that must agree with others."""
    return (x[i > 0] + torch.arange(3)) * 2


def told(function: Callable[..., object]) -> list[str]:
    return [event.text for event in state_of(function).events if event.kind == "eager_replay"]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("gradients", [False, True])
def test_the_check_fails_before_what_relies_on_it(backend: str, gradients: bool) -> None:
    run = flambeau.compile(in_order, backend=backend, fullgraph=True)
    x = torch.randn(4, requires_grad=gradients)
    good, bad = torch.tensor([0, 3, 1]), torch.tensor([0, 9, 1])
    torch.testing.assert_close(run(x, good), in_order(x, good))
    with pytest.raises(RuntimeError, match="an index in range"):
        run(x, bad)
    (text,) = told(run)
    assert "RuntimeError: an index in range" in text


@pytest.mark.parametrize("backend", BACKENDS)
def test_checks_of_sizes_carry_their_text(backend: str) -> None:
    run = flambeau.compile(sized, backend=backend, fullgraph=True)
    x, good = torch.randn(4), torch.tensor([1, 2, 0, 1])
    for i in (good, torch.tensor([0, 5, 1, 1])):
        torch.testing.assert_close(run(x, i), sized(x, i))
    for i in (torch.tensor([1, 1, 1, 1]), torch.tensor([0, 0, 1, 1])):
        with pytest.raises(RuntimeError, match="must match the size"):
            run(x, i)
    assert told(run)
    for text in told(run):
        assert "== 3 (" in text and "was assumed when the function was compiled" in text


def divided(x: torch.Tensor) -> torch.Tensor:
    """A number in the data that divides: it is checked by what is in a tensor."""
    most = x.max().item()
    y = x * 2
    torch._assert_async((y > 0).all(), "only positive numbers")
    return y + 12 // most + 12 % most


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_check_comes_before_a_division_of_numbers(backend: str) -> None:
    run = flambeau.compile(divided, backend=backend, fullgraph=True)
    for x in (torch.tensor([3, 5]), torch.tensor([1, 2, 7])):
        torch.testing.assert_close(run(x), divided(x))
    with pytest.raises(RuntimeError, match="only positive numbers"):
        run(torch.tensor([0, 0]))
    (text,) = told(run)
    assert "RuntimeError: only positive numbers" in text


@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_of_the_program_happens_behind_a_failing_check(backend: str) -> None:
    """In the graph: a call of the program's own operator, a write to an input, a random draw."""
    called = []

    @torch.library.custom_op(f"flambeau_tests::trusting_{backend}", mutates_args=())
    def trusting(x: torch.Tensor) -> torch.Tensor:
        called.append(float(x.min()))
        return x * 2

    @trusting.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    def program(x: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
        torch._assert_async((x > 0).all(), "only positive numbers")
        steps.add_(1)
        return trusting(x) + torch.rand(3)

    run = flambeau.compile(program, backend=backend, fullgraph=True)
    steps = torch.zeros(3)
    run(torch.ones(3), steps)
    assert called == [1.0]
    state = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="only positive numbers"):
        run(-torch.ones(3), steps)
    assert called == [1.0]
    assert torch.equal(steps, torch.ones(3))
    assert torch.equal(torch.get_rng_state(), state)


class Careful(torch.autograd.Function):
    """Looks at its gradient, and raises an exception of its own."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        if (grad > 10).any():
            raise Refused("a gradient that is too large")
        return grad * 2


class Asserting(torch.autograd.Function):
    """Checks what it has kept, and draws, in its backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        torch._assert_async((x < 10).all(), "what was kept")
        return grad * 2 + torch.rand(3)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("function", [Careful, Asserting])
def test_what_a_backward_raises_and_draws(function: Any, backend: str) -> None:
    """It is raised in the backward, and is the program's own; the draw is the backward's, not the
    forward's.
    """

    def program(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return function.apply(x) * scale

    run = flambeau.compile(program, backend=backend)
    for value, scale in ((1.0, 1.0), (1.0, 20.0), (20.0, 1.0), (2.0, 2.0)):
        seen = []
        for call in (run, program):
            torch.manual_seed(5)
            x = torch.full((3,), value, requires_grad=True)
            y = call(x, torch.full((3,), scale))
            between = torch.rand(2)
            try:
                y.sum().backward()
            except (Refused, RuntimeError) as error:
                seen.append((between, type(error), error.args))
            else:
                seen.append((between, x.grad, torch.rand(1)))
        same(*seen, "call")


def phases(vectors: torch.Tensor) -> torch.Tensor:
    """A number that multiplying the vectors by `e^{i phi}` changes."""
    return vectors.sum(-2).square().real.sum()


def lengths(vectors: torch.Tensor) -> torch.Tensor:
    """One that this does not change."""
    weight = torch.arange(vectors.shape[-2], dtype=vectors.real.dtype, device=vectors.device)
    return (vectors.abs().square() * weight[:, None]).sum()


def eig(x: torch.Tensor, loss: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    values, vectors = torch.linalg.eig(x)
    return loss(vectors) + values.abs().sum()


def eigh(x: torch.Tensor, loss: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    values, vectors = torch.linalg.eigh(x + x.mH)
    return loss(vectors) + values.square().sum()


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("shape", [(5, 5), (2, 3, 3), (1, 1), (0, 4, 4), (3, 0, 0)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("program", [eig, eigh])
def test_a_loss_may_not_depend_on_the_phases_of_eigenvectors(
    program: Callable[..., torch.Tensor], dtype: torch.dtype, shape: tuple[int, ...], dynamic: bool
) -> None:
    compiled = flambeau.compile(program, fullgraph=True, dynamic=dynamic)
    for loss in (lengths, phases, lengths):
        first = torch.randn(shape, dtype=dtype).transpose(-1, -2).requires_grad_()
        second = first.detach().clone().requires_grad_()
        expected, out = program(first, loss), compiled(second, loss)
        torch.testing.assert_close(out, expected)
        try:
            expected.backward()
        except RuntimeError as error:
            with pytest.raises(RuntimeError, match=re.escape(str(error))):
                out.backward()
            assert second.grad is None
            continue
        out.backward()
        torch.testing.assert_close(second.grad, first.grad)


def test_the_phases_of_eigenvectors_matter_to_one_loss() -> None:
    """Else the test above would check nothing."""
    x = torch.randn(5, 5, dtype=torch.complex128, requires_grad=True)
    with pytest.raises(RuntimeError, match="up to multiplication by"):
        eig(x, phases).backward()
    eig(x, lengths).backward()
