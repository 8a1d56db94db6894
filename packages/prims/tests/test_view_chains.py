"""Chains of views are shortened where nobody can tell."""

from __future__ import annotations

import pytest
import torch

from flambeau_prims.fake import FakeTensor, fake_like
from flambeau_prims.tracer import Tracer
from flambeau_prims.view_chains import LONGEST, shortened


def transposed(view: torch.Tensor, times: int) -> FakeTensor:
    for _ in range(times):
        view = shortened(view.t())  # type: ignore[arg-type]
    assert isinstance(view, FakeTensor)
    return view


def test_a_long_chain_keeps_base_geometry_and_memory() -> None:
    with Tracer():
        x = fake_like(torch.ones(3, 4))
        view = transposed(x, 4 * LONGEST + 1)
        assert view.chain <= LONGEST
        assert view._base is x and view.storage_record is x.storage_record
        assert view.spec == x.t().spec and (view.shape, view.stride()) == ((4, 3), (1, 4))
        before = x._version
        view.add_(1)
        assert x._version == before + 1


def test_what_has_a_gradient_keeps_its_steps() -> None:
    with Tracer():
        view = transposed(fake_like(torch.ones(3, 4, requires_grad=True)), 2 * LONGEST)
        assert view.chain == 2 * LONGEST and view.grad_fn is not None
        assert view.grad_fn.name() == "TBackward0"


def test_a_gradient_that_is_written_reaches_the_base() -> None:
    with Tracer():
        x = fake_like(torch.ones(3, 4))
        transposed(x, 2 * LONGEST).mul_(fake_like(torch.ones(3, 4, requires_grad=True)))
        assert x.requires_grad


def test_writes_that_autograd_refuses_are_refused() -> None:
    with Tracer():
        weight = fake_like(torch.ones(3, 4, requires_grad=True))
        with torch.no_grad():
            view = fake_like(torch.ones(3, 4)).t()
        view = transposed(view, 2 * LONGEST + 1)
        with pytest.raises(RuntimeError, match="no_grad mode"):
            view.mul_(weight)
        view = transposed(fake_like(torch.ones(2, 3, 4)).unbind()[0], 2 * LONGEST)
        with pytest.raises(RuntimeError, match="multiple views"):
            view.mul_(weight)
