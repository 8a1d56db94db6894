"""accelerate recognises, prepares, trains in mixed precision, and unwraps compiled modules."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

import flambeau

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

accelerate = pytest.importorskip("accelerate")


@pytest.fixture(autouse=True)
def fresh_state() -> Iterator[None]:
    yield
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()


def test_recognised_and_unwrapped() -> None:
    from accelerate.utils import extract_model_from_parallel
    from accelerate.utils.other import has_compiled_regions, is_compiled_module

    module = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    compiled = flambeau.compile(module)
    assert is_compiled_module(compiled) and not is_compiled_module(module)
    assert has_compiled_regions(nn.Sequential(compiled))
    assert extract_model_from_parallel(compiled) is compiled
    assert extract_model_from_parallel(compiled, keep_torch_compile=False) is module


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_training(precision: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
    x, y = torch.randn(8, 3), torch.randn(8, 1)
    found = {}
    for name, compile_it in (("eager", lambda m: m), ("compiled", flambeau.compile)):
        accelerator = accelerate.Accelerator(mixed_precision=precision, cpu=True)
        trained = copy.deepcopy(module)
        optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
        prepared, optimizer = accelerator.prepare(compile_it(trained), optimizer)
        for _ in range(3):
            optimizer.zero_grad()
            out = prepared(x)
            assert out.dtype is torch.float32
            accelerator.backward((out - y).square().mean())
            optimizer.step()
        found[name] = [p.detach().clone() for p in trained.parameters()]
        unwrapped = accelerator.unwrap_model(prepared, keep_torch_compile=False)
        assert unwrapped is trained
        accelerator.save_model(prepared, str(tmp_path / name))
        assert list((tmp_path / name).iterdir())
        fresh = accelerate.state
        fresh.AcceleratorState._reset_state(reset_partial_state=True)
    torch.testing.assert_close(found["compiled"], found["eager"], rtol=2e-2, atol=2e-3)
