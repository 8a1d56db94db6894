"""Branches on an accelerator's data: the check is the host's, behind a copy that waits; a call that finds other data is served anew."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import flambeau
from flambeau_capture import state_of
from tests.cpu.test_speculation import TWO_WAYS, Normed, gated, kinds, same

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
BACKENDS = ("eager", "aot_eager", "inductor")


def run_both(compiled: Any, program: Any, x: torch.Tensor, seed: int) -> None:
    results = []
    for function in (compiled, program):
        own, log = x.clone(), []
        torch.manual_seed(seed)
        out = function(own, log)
        results.append([out, own, log, torch.cuda.get_rng_state().tolist()])
    same(*results)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("program", TWO_WAYS)
def test_both_ways(program: Any, fullgraph: bool, backend: str) -> None:
    compiled = flambeau.compile(program, backend=backend, fullgraph=fullgraph, dynamic=False)
    for seed, sign in enumerate((1, 1, -1, 1, -1, -1)):
        run_both(compiled, program, sign * (torch.rand(5, device="cuda") + 0.1), seed)
        if seed == 1:
            assert kinds(compiled) == ["capture"]
            assert state_of(compiled).entries[0].info.assumptions
    assert "refuted" in kinds(compiled)
    assert ("break" in kinds(compiled)) is not fullgraph


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients(backend: str) -> None:
    compiled = flambeau.compile(gated, backend=backend, dynamic=False)
    for seed, scale in enumerate((1.0, 1.0, 1e7, 1.0, float("inf"), 1.0)):
        x, w = torch.randn(4, 3, device="cuda") * scale, torch.randn(3, 2, device="cuda")
        results = []
        for function in (compiled, gated):
            torch.manual_seed(seed)
            mine = [x.clone().requires_grad_(), w.clone().requires_grad_()]
            loss = function(*mine)
            loss.backward()
            results.append([loss.detach(), *(t.grad for t in mine)])
        same(*results)
    assert kinds(compiled).count("refuted") == 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_buffers_are_written_once(backend: str) -> None:
    torch.manual_seed(0)
    mine, yours = Normed().cuda(), Normed().cuda()
    yours.load_state_dict(mine.state_dict())
    compiled = flambeau.compile(mine, backend=backend, dynamic=False)
    for sign in (1, 1, -1, 1, -1):
        x = sign * (torch.rand(6, 3, device="cuda") + 0.1)
        same(compiled(x), yours(x))
        for name, buffer in yours.state_dict().items():
            same(mine.state_dict()[name], buffer)


def test_under_cuda_graphs() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x.sin() * 2
        return y + 1 if y.sum() > 0 else y.cos()

    compiled = flambeau.compile(program, mode="reduce-overhead", dynamic=False)
    for sign in (1, 1, 1, -1, 1, -1):
        x = sign * (torch.rand(9, device="cuda") + 0.1)
        same(compiled(x).clone(), program(x))
