"""A program and what it can change, made anew twice: called compiled in one world, eagerly in the
other, and both compared.

def make():
    net = Linear(4, 3)
    return World(lambda x: net(x), lambda call: (randn(2, 4),), lambda: net)

compare(make)                       calls it several times each way; returns the compiled callable
                                    for a look at its events
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

import flambeau
import flambeau_capture

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass
class World:
    """`program(*arguments(call))` for call 0, 1, ...; `seen()` gives what a user could look at
    afterwards.
    """

    program: Callable[..., Any]
    arguments: Callable[[int], tuple[Any, ...]]
    seen: Callable[[], Any] = lambda: None


def compare(
    make: Callable[[], World], *, calls: int = 3, backward: bool = False, **options: Any
) -> Any:
    """Both worlds must show the same: results, exceptions, gradients, the random generator, and
    what is `seen` at the end.
    """
    theirs = _run(make, calls, backward, None)
    ours = _run(make, calls, backward, options)
    same(ours[1], theirs[1], "call")
    same(ours[2], theirs[2], "seen")
    return ours[0]


def _run(
    make: Callable[[], World], calls: int, backward: bool, options: dict[str, Any] | None
) -> tuple[Any, Any, Any]:
    torch.manual_seed(0)
    world = make()
    call = world.program if options is None else flambeau.compile(world.program, **options)
    shown = []
    for number in range(calls):
        torch.manual_seed(number + 1)
        arguments = world.arguments(number)
        try:
            result = call(*arguments)
        except flambeau_capture.CaptureError:
            raise
        except Exception as error:
            result = f"{type(error).__name__}: {error}"
        if backward:
            out = result[0] if isinstance(result, tuple) else result
            out.sum().backward()
        shown.append((result, arguments if backward else None, torch.get_rng_state()))
        shown.append((torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")))
    return call, shown, world.seen()


def kinds(compiled: Any) -> list[str]:
    """What happened to a compiled callable: "capture", "recompile", "break", "limit"."""
    return [event.kind for event in flambeau_capture.state_of(compiled).events]


def same(got: Any, want: Any, path: str) -> None:
    """Equal in type at every level; tensors to within rounding, with their gradients."""
    assert type(got) is type(want), f"{path}: {type(got)}, not {type(want)}"
    if isinstance(want, torch.Tensor):
        with torch._C.DisableTorchFunctionSubclass():
            same_tensor(got, want, path)
    elif isinstance(want, nn.Module):
        same(dict(got.named_buffers()), dict(want.named_buffers()), f"{path} (buffers)")
        same(list(got.parameters()), list(want.parameters()), f"{path} (parameters)")
        mine, other = (
            {name: value for name, value in vars(module).items() if not name.startswith("_")}
            for module in (got, want)
        )
        same(mine, other, path)
    elif isinstance(want, (list, tuple)):
        assert len(got) == len(want), path
        for at, (a, b) in enumerate(zip(got, want, strict=True)):
            same(a, b, f"{path}[{at}]")
    elif isinstance(want, dict):
        assert len(got) == len(want), f"{path}: {list(got)}, not {list(want)}"
        for (mine, a), (other, b) in zip(got.items(), want.items(), strict=True):
            assert not isinstance(other, (str, int)) or mine == other, path
            same(a, b, f"{path}[{other if isinstance(other, (str, int)) else '...'}]")
    elif isinstance(want, (str, int, float, type(None), torch.dtype, torch.device)):
        assert got == want or (got != got and want != want), f"{path}: {got!r}, not {want!r}"
    elif isinstance(want, type):
        assert got is want, f"{path}: {got!r}, not {want!r}"
    elif dataclasses.is_dataclass(want):
        same(vars(got), vars(want), path)
    else:
        raise TypeError(f"{path}: no way to compare {type(want)} is known here")


def same_tensor(got: torch.Tensor, want: torch.Tensor, path: str) -> None:
    """Equal values (NaNs too), metadata and gradients."""
    assert got.stride() == want.stride() or got.numel() < 2, f"{path}: strides"
    assert got.requires_grad == want.requires_grad, f"{path}: requires_grad"
    assert got.is_inference() == want.is_inference(), f"{path}: is_inference"
    torch.testing.assert_close(
        got.detach(), want.detach(), equal_nan=True, msg=lambda text: f"{path}: {text}"
    )
    if want.is_leaf and want.requires_grad:
        same(got.grad, want.grad, f"{path}.grad")
