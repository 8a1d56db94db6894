"""Guards that keep calls from `__torch_dispatch__` and from transforms: captured where they change
nothing, and a graph break where they would.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.testing._internal.two_tensor import TwoTensor

import flambeau
from flambeau_capture import state_of


def _guarded(x: Any) -> Any:
    guard = torch._C._DisableTorchDispatch()  # type: ignore[attr-defined]
    y = x.sin()
    del guard
    with torch._C._DisableFuncTorch():  # type: ignore[attr-defined]
        return y + x


def _reasons(compiled: Any) -> set[str]:
    return {event.reason.id for event in state_of(compiled).events if event.reason is not None}


def test_plain_tensors() -> None:
    compiled = flambeau.compile(_guarded, fullgraph=True)
    for _ in range(3):
        x = torch.randn(5, requires_grad=True)
        torch.testing.assert_close(compiled(x), _guarded(x))


def test_wrappers_break() -> None:
    compiled = flambeau.compile(_guarded)
    x = TwoTensor(torch.randn(5), torch.randn(5))
    outcomes = []
    for function in (_guarded, compiled):
        try:
            outcomes.append(type(function(x)))
        except RuntimeError as error:
            outcomes.append(type(error))
    assert outcomes[0] is outcomes[1]
    assert _reasons(compiled)


def test_transforms_break() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.func.vmap(lambda row: row * 2 + _guarded(row))(x)

    compiled = flambeau.compile(program)
    x = torch.randn(3, 5)
    outcomes: list[Any] = []
    for function in (program, compiled):
        try:
            outcomes.append(function(x))
        except RuntimeError as error:
            outcomes.append(type(error))
    if isinstance(outcomes[0], torch.Tensor):
        torch.testing.assert_close(outcomes[1], outcomes[0])
    else:
        assert outcomes[0] is outcomes[1]
    assert _reasons(compiled)
