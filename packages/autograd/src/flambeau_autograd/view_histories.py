"""Views whose gradient is not that of a view.

The caller takes a returned view (`x.view_as(x)`) again outside of the graph. The result of a custom
Function may be a view, too; its gradient is what the Function says, which a view taken again lacks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.autograd.function import BackwardCFunction

if TYPE_CHECKING:
    import torch


def has_own_backward(view: torch.Tensor, base: torch.Tensor | None) -> bool:
    """Whether a custom autograd Function stands between a tensor and what it is a view of.

    A Function with `keeps_gradients` only gives a tensor another class.
    """
    end = None if base is None else base.grad_fn
    node = view.grad_fn
    while node is not None and node is not end:
        if isinstance(node, BackwardCFunction):
            function = type(node)._forward_cls  # type: ignore[attr-defined]
            if not getattr(function, "keeps_gradients", False):
                return True
        node = node.next_functions[0][0] if node.next_functions else None
    return False
