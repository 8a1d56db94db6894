"""Tensors and nodes of autograd that the program hangs hooks on, as a captured graph has them.

    y = x * 2                               y = x * 2; hook_point(y); z = y.sin()
    y.register_hook(print)          ->
    z = y.sin()                             and after the graph: Tensor.register_hook(y, print)

A hook sees the whole gradient of its tensor, so a compiler must not hide in one function what makes
the tensor and what uses it: `hook_point` is where it cuts the graph. The hooks themselves are
Python functions of the program's, which backward calls as they are. They are registered when the
graph has run, in the program's order: backward comes later.

Calls that raise after they have written to a tensor, and whose error the program handles.

    try:
        y.add_(1)            # an inference tensor, outside inference mode: torch adds, then raises
    except RuntimeError:     ->      failing_add_(y)
        ...

What was written stays written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch.nn.modules._functions import BackwardHookFunction
from torch.utils.hooks import RemovableHandle

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch


def hook_point(tensor: torch.Tensor) -> None:
    """Nothing: the tensor is one that hooks see the gradient of."""


def pass_hooks(*tensors: torch.Tensor) -> Any:
    """The identity, by a node of autograd's own that modules' backward hooks are registered on."""
    return BackwardHookFunction.apply(*tensors)


def register_on_node(tensor: torch.Tensor, method: str, hook: Any) -> Any:
    """Register a hook on the node that made a tensor; `method` names the node's method."""
    return getattr(tensor.grad_fn, method)(hook)


class _Hooks(dict[int, Any]):
    """What a handle can refer to weakly."""


def removed_handle() -> RemovableHandle:
    """A handle whose hook has been removed."""
    return RemovableHandle(_Hooks())


# ---------------------------------------------------------------- failing call


@dataclass(frozen=True, eq=False)
class FailingCall:
    """`function`, whose RuntimeError has been handled when it was captured."""

    function: Callable[..., Any]

    @property
    def __name__(self) -> str:
        return f"failing_{getattr(self.function, '__name__', 'call')}"

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        try:
            self.function(*args, **kwargs)
        except RuntimeError:
            return
