"""Branches on an accelerator's data: the check is the host's, behind a copy that waits; a call that
finds other data is recompiled or served by another entry.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import flambeau
from flambeau_capture import state_of
from tests.cpu import test_speculation
from tests.cpu.test_speculation import BACKENDS, TWO_WAYS, kinds
from tests.same import same

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


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
    assert "violated" in kinds(compiled)
    assert ("break" in kinds(compiled)) is not fullgraph


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients(backend: str) -> None:
    test_speculation.test_gradients(backend, "cuda")


@pytest.mark.parametrize("backend", BACKENDS)
def test_buffers_are_written_once(backend: str) -> None:
    test_speculation.test_buffers_are_written_once(backend, "cuda")


def test_under_cuda_graphs() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x.sin() * 2
        return y + 1 if y.sum() > 0 else y.cos()

    compiled = flambeau.compile(program, mode="reduce-overhead", dynamic=False)
    for sign in (1, 1, 1, -1, 1, -1):
        x = sign * (torch.rand(9, device="cuda") + 0.1)
        same(compiled(x).clone(), program(x))
