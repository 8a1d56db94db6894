"""Views of views: long chains are shortened, so that tracing a program takes time in proportion to
its length.

    x.t().t()...t()      a view of x through n views    ->    x.as_strided(...)      a view of x
                         through one

For a tensor with a dispatch key of Python's, autograd keeps the functions of the whole chain and
copies them for each further view. What has no gradient needs only the base and the geometry. A
chain with a gradient stays as it is: its steps may have hooks.
"""

from __future__ import annotations

from typing import Any

import torch

from flambeau_prims.fake import FakeTensor, make_fake
from flambeau_prims.tracer import Tracer

LONGEST = 32
"""So many views are a chain that is left alone."""


class _Maker(Tracer):
    """Answers one call of `as_strided` without its rule: the geometry is known."""

    def __init__(self, view: FakeTensor) -> None:
        super().__init__(record=False)
        self._view = view

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        view = self._view
        result = make_fake(view.spec, view.storage_record, inference=view.is_inference())
        result.value, result.literal = view.value, view.literal
        result.chain, result.no_grad_view = 1, view.no_grad_view
        return result


def shortened(view: FakeTensor) -> FakeTensor:
    """The same view, made from its base at once; `view` itself if its chain is short or has a
    gradient.

    Called before anything else holds `view`.
    """
    if view.chain <= LONGEST or view.requires_grad:
        return view
    base = view._base
    if not isinstance(base, FakeTensor) or base.requires_grad or base.dtype != view.dtype:
        return view
    if view.is_conj() or view.is_neg():
        return view
    # What has a step in no_grad mode refuses writes that have a gradient.
    with torch.set_grad_enabled(not view.no_grad_view), _Maker(view):
        return torch.ops.aten.as_strided.default(
            base, view.shape, view.stride(), view.storage_offset()
        )
