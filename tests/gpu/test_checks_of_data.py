"""Checks of data on the GPU: in the graph, made by the host before what follows is launched, and
the program's own exception where one fails.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import flambeau
from flambeau_capture import state_of
from tests.same import same
from tests.worlds import kinds

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

BACKENDS = ("eager", "aot_eager", "inductor")


class Refused(Exception):
    pass


def raises(x: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
    if x.sum() > 1000:
        raise Refused(x.shape)
    return x * 2


def is_finite(x: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
    y = x.log()
    if not torch.isfinite(y).all():
        raise Refused("not finite")
    return y + y.sum()


def a_number(x: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
    if x.max():
        return x + 1
    raise Refused("zero")


def writes_and_draws(x: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
    """Both are as they were where the check fails, and done once in the call that runs again."""
    steps.add_(1)
    noise = torch.rand_like(x)
    if (x > 100).any():
        steps.add_(10)
        raise Refused(float(noise.sum()))
    steps.mul_(2)
    return x + noise + torch.randn(3, device="cuda") + torch.rand(3).cuda()


def indexes(x: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
    """A kernel that reads out of bounds would end the use of the device: it must not run before the
    check.
    """
    at = (x * 0.1).long()
    doubled = at * 2
    if (at < 0).any() or (at >= 3).any():
        raise Refused("out of bounds")
    return steps[at] + doubled


def checkpointed(x: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
    def inside(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        if (x > 100).any():
            raise Refused("too large")
        return y.exp() * x

    return checkpoint(inside, x, use_reentrant=False) * 2


PROGRAMS = [raises, is_finite, a_number, writes_and_draws, indexes, checkpointed]


def inputs() -> list[torch.Tensor]:
    fine = torch.rand(3) + 0.5
    return [fine, fine + 1, fine * 1000, fine * 0, fine - 40, fine + 2]


def outcome(call: Callable[..., Any], x: torch.Tensor, *, gradients: bool) -> Any:
    """All that can be seen of a call."""
    torch.manual_seed(3)
    leaf = x.cuda().requires_grad_(gradients)
    steps = torch.arange(3.0, device="cuda")
    try:
        result = call(leaf, steps)
        if result.requires_grad:
            result.sum().backward()
    except Refused as error:
        result = type(error), error.args
    states = torch.cuda.get_rng_state(), torch.get_rng_state()
    return result, leaf.grad, steps, states, torch.rand(2, device="cuda")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("program", PROGRAMS)
def test_as_eager_in_one_graph(program: Callable[..., Any], gradients: bool, backend: str) -> None:
    run = flambeau.compile(program, backend=backend, fullgraph=True, dynamic=False)
    refused = 0
    for x in inputs():
        want = outcome(program, x, gradients=gradients)
        same(outcome(run, x, gradients=gradients), want, f"{program.__name__} of {x.tolist()}")
        refused += isinstance(want[0], tuple)
    assert 0 < refused < len(inputs())
    assert "break" not in kinds(run) and "eager_replay" in kinds(run)


def test_what_the_program_asserts_on_the_device_stays_there() -> None:
    """No copy to the host is added to the program's own asynchronous assertion."""

    def program(x: torch.Tensor) -> torch.Tensor:
        torch._assert_async((x > 0).all(), "positive")
        return x * 2

    for backend in BACKENDS:
        run = flambeau.compile(program, backend=backend, fullgraph=True)
        x = torch.rand(3, device="cuda") + 1
        torch.testing.assert_close(run(x), program(x))
        (entry,) = state_of(run).entries
        targets = [str(node.target) for node in entry.info.graph_module.graph.nodes]
        assert "to" not in targets and any("_assert_async" in target for target in targets)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_loss_of_the_phases_of_eigenvectors_raises(backend: str) -> None:
    """And leaves the GPU usable: no assertion of the device fails."""

    def vectors(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.eigh(x + x.mH)[1]

    compiled = flambeau.compile(vectors, backend=backend, fullgraph=True)
    x = torch.randn(5, 5, dtype=torch.complex64, device="cuda", requires_grad=True)
    for call in (vectors, compiled):
        with pytest.raises(RuntimeError, match=r"linalg_eigh_backward: .* up to multiplication by"):
            call(x).square().real.sum().backward()
    (expected,) = torch.autograd.grad(vectors(x).abs()[0].sum(), x)
    (gradient,) = torch.autograd.grad(compiled(x).abs()[0].sum(), x)
    torch.testing.assert_close(gradient, expected)
