"""A CompiledModule is recognised as compiled, copied, saved and patched as torch.compile's
OptimizedModule is.
"""

from __future__ import annotations

import copy
import importlib
import io
import pickle
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import flambeau
from tests.ranks import leave_groups

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


RECOGNISED = """
import sys, torch, flambeau
module = torch.nn.Linear(3, 2)
compiled = flambeau.compile(module)
compiled(torch.randn(2, 3))
assert "torch._dynamo" not in sys.modules and compiled.__class__ is flambeau.CompiledModule
assert isinstance(compiled, torch._dynamo.eval_frame.OptimizedModule)   # imported by the question
assert isinstance(compiled, flambeau.CompiledModule) and type(compiled) is flambeau.CompiledModule
assert not isinstance(module, torch._dynamo.eval_frame.OptimizedModule)
assert not isinstance(compiled, torch.nn.Linear)
torch.testing.assert_close(compiled(torch.ones(2, 3)), module(torch.ones(2, 3)))
"""


def test_recognised_without_importing_torchs_compiler() -> None:
    done = subprocess.run(
        [sys.executable, "-c", RECOGNISED], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("loaded", [False, True])
def test_copies(loaded: bool, tmp_path: Path) -> None:
    if loaded:
        importlib.import_module("torch._dynamo.eval_frame")
    module, x = model(), torch.randn(2, 3)
    compiled = flambeau.compile(module)
    buffer = io.BytesIO()
    torch.save(compiled, buffer)
    buffer.seek(0)
    for other in (
        copy.copy(compiled),
        copy.deepcopy(compiled),
        pickle.loads(pickle.dumps(compiled)),
        torch.load(buffer, weights_only=False),
    ):
        assert type(other) is flambeau.CompiledModule
        torch.testing.assert_close(other(x), module(x))
    assert copy.copy(compiled)._orig_mod is module
    assert copy.deepcopy(compiled)._orig_mod is not module


def double(module: nn.Module, args: tuple[torch.Tensor], out: torch.Tensor) -> torch.Tensor:
    return out * 2


class AddsItsBias:
    """A `forward` bound to a module, as accelerate assigns one."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return type(self.module).forward(self.module, x) + self.module[0].bias.sum()


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_copies_keep_what_is_put_on_the_wrapper(copied: Callable[[Any], Any]) -> None:
    compiled, x = flambeau.compile(model()), torch.randn(2, 3)
    compiled.register_forward_hook(double)
    compiled.register_buffer("steps", torch.zeros(1))
    compiled.forward = AddsItsBias(compiled)
    other = copied(compiled)
    torch.testing.assert_close(other(x), compiled(x))
    assert list(other.state_dict()) == list(compiled.state_dict())
    if copied is not copy.copy:
        assert other.forward.module is other
        with torch.no_grad():
            compiled[0].bias.add_(1)
            compiled._orig_mod[2].weight.zero_()
        assert not torch.allclose(other(x), compiled(x))
        other._forward_hooks.clear()
        assert compiled._forward_hooks


def test_state_dict() -> None:
    module, other = model(), model()
    compiled = flambeau.compile(module)
    assert list(compiled.state_dict()) == [f"_orig_mod.{name}" for name in module.state_dict()]
    flambeau.compile(other).load_state_dict(compiled.state_dict())
    x = torch.randn(2, 3)
    torch.testing.assert_close(other(x), module(x))


def test_forward_assigned_and_deleted() -> None:
    module, x = model(), torch.randn(2, 3)
    compiled = flambeau.compile(module)
    inner = compiled.forward
    compiled.forward = lambda *args: inner(*args) * 2
    torch.testing.assert_close(compiled(x), module(x) * 2)
    assert "forward" not in module.__dict__
    handle = compiled.register_forward_hook(lambda mod, args, out: out + 1)
    torch.testing.assert_close(compiled(x), module(x) * 2 + 1)
    handle.remove()
    del compiled.forward
    torch.testing.assert_close(compiled(x), module(x))


def test_forward_of_the_original_assigned() -> None:
    module, x = model(), torch.randn(2, 3)
    compiled = flambeau.compile(module)
    before = compiled(x)
    inner = module.forward
    module.forward = lambda *args: inner(*args) * 2  # type: ignore[method-assign]
    torch.testing.assert_close(compiled(x), before * 2)


def test_original_replaced() -> None:
    compiled, other, x = flambeau.compile(model()), nn.Linear(3, 2), torch.randn(2, 3)
    compiled(x)
    compiled._orig_mod = other
    torch.testing.assert_close(compiled(x), other(x))
    compiled.eval()
    assert not other.training


def test_names_of_distributed_state_dicts() -> None:
    from torch.distributed.checkpoint.state_dict import get_model_state_dict

    module = nn.Sequential(flambeau.compile(nn.Linear(3, 4)), nn.Linear(4, 2))
    assert get_model_state_dict(module).keys() == {"0.weight", "0.bias", "1.weight", "1.bias"}


@pytest.mark.parametrize("wrapped_first", [False, True])
def test_distributed_data_parallel(wrapped_first: bool, tmp_path: Path) -> None:
    from torch.nn.parallel import DistributedDataParallel

    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    try:
        module, x = model(), torch.randn(2, 3)
        twin = copy.deepcopy(module)
        if wrapped_first:
            parallel = flambeau.compile(DistributedDataParallel(module))
        else:
            parallel = DistributedDataParallel(flambeau.compile(module))
        for _ in range(3):
            torch.testing.assert_close(parallel(x), twin(x))
            parallel(x).sum().backward()
            twin(x).sum().backward()
        for parameter, other in zip(module.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(parameter.grad, other.grad)
    finally:
        leave_groups()
