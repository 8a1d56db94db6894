"""Operands of attention on a GPU begin at multiples of 16 bytes; no GPU needed: fakes of one."""

from __future__ import annotations

import pytest
import torch

from flambeau_capture.graphs import flex_attention


@pytest.mark.parametrize(("offset", "copied"), [(0, False), (1, True), (4, True), (8, False)])
def test_what_begins_elsewhere_is_copied(offset: int, copied: bool) -> None:
    memory = torch.randn(2 * 3 * 5 * 4 + offset).half()
    x = memory[offset:].view(2, 3, 5, 4).transpose(1, 2).requires_grad_()
    aligned = flex_attention._aligned(x)
    assert (aligned is not x) == copied
    assert aligned.storage_offset() * 2 % 16 == 0
    assert aligned.stride() == x.stride() and torch.equal(aligned, x)
    (gradient,) = torch.autograd.grad(aligned.sum(), x)
    assert torch.equal(gradient, torch.ones_like(x))
