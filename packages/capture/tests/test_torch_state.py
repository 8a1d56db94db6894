"""Whether a thread can capture."""

from __future__ import annotations

import torch

from flambeau_capture.torch_state import lets_capture


def test_no_stack_of_layers_is_made(monkeypatch):
    monkeypatch.delattr(torch._C._functorch, "peek_interpreter_stack")
    assert lets_capture()


def test_nothing_is_captured_under_a_transform():
    seen = []

    def function(x):
        seen.append(lets_capture())
        return x.sin().sum()

    torch.func.vmap(function)(torch.ones(2, 3))
    torch.func.grad(function)(torch.ones(3))
    torch.func.vmap(torch.func.grad(function))(torch.ones(2, 3))
    assert seen == [False] * 3
    assert lets_capture()


def test_nothing_is_captured_while_a_transform_handles_an_operator():
    seen = []

    @torch.library.custom_op("flambeau_tests::layered", mutates_args=())
    def layered(x: torch.Tensor) -> torch.Tensor:
        return x.sin()

    @layered.register_vmap
    def rule(info, in_dims, x):
        seen.append(lets_capture())
        return layered(x), in_dims[0]

    torch.func.vmap(layered)(torch.ones(2, 3))
    assert seen == [False]
