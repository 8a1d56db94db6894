"""States of torch inside a compiled function on the GPU: generators, inference mode, default
device, hooks on gradients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

import flambeau

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

BACKENDS = ("eager", "aot_eager", "inductor")


def seeds(x: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(7)
    first = torch.rand_like(x)
    state = torch.cuda.get_rng_state()
    second = torch.randn_like(x)
    torch.cuda.set_rng_state(state)
    return x + first + second + torch.randn_like(x)


def forks(x: torch.Tensor) -> torch.Tensor:
    with torch.random.fork_rng(devices=[0]):
        torch.manual_seed(3)
        inside = torch.rand_like(x)
    return inside + torch.rand_like(x)


def infers(x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return x * 2


def makes_by_default(x: torch.Tensor) -> torch.Tensor:
    with torch.device("cuda"):
        ones = torch.ones(3)
    return x.sum() + ones


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [seeds, forks, infers, makes_by_default])
def test_as_eager_in_one_graph(program: Callable[..., torch.Tensor], backend: str) -> None:
    x = torch.randn(4, 5, device="cuda")
    compiled = flambeau.compile(program, backend=backend, fullgraph=True)
    seen = []
    for function in (program, compiled):
        torch.manual_seed(0)
        outputs = [function(x) for _ in range(3)]
        seen.append((outputs, torch.cuda.get_rng_state(), torch.get_rng_state()))
    (eager, *eager_states), (ours, *our_states) = seen
    for got, want in zip(ours, eager, strict=True):
        torch.testing.assert_close(got, want)
        assert got.is_inference() == want.is_inference() and got.device == want.device
    assert all(map(torch.equal, our_states, eager_states))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_generator_of_the_device(backend: str) -> None:
    def program(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return x + torch.rand(x.shape, device=x.device, generator=generator)

    x = torch.randn(3, 7, device="cuda")
    mine, yours = (torch.Generator("cuda").manual_seed(4) for _ in range(2))
    compiled = flambeau.compile(program, backend=backend, fullgraph=True)
    for _ in range(3):
        torch.testing.assert_close(compiled(x, mine), program(x, yours))
    assert torch.equal(mine.get_state(), yours.get_state())


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_hook_on_a_gradient(backend: str) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y.register_hook(lambda grad: grad * 3)
        return y.square().sum()

    x = torch.randn(3, device="cuda", requires_grad=True)
    flambeau.compile(program, backend=backend, fullgraph=True)(x).backward()
    got, x.grad = x.grad, None
    program(x).backward()
    torch.testing.assert_close(got, x.grad)
