"""Masks that the program makes of constants: known, and attention without them."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from flambeau_prims.function_table import FunctionTable
from flambeau_prims.spec import Spec
from flambeau_prims.tracer import Tracer

CUDA = torch.device("cuda:0")
LENGTH = 6


def positions(x):
    return torch.arange(LENGTH, device=x.device)


def rows(x):
    """Bidirectional, as model libraries make it: the last dim repeats one element."""
    return (positions(x)[None, None, :, None] >= 0).expand(2, -1, LENGTH, LENGTH)


def padding(x):
    """Of a padding mask of ones like an input."""
    ones = torch.ones_like(x[:, 0, :, 0], dtype=torch.bool)
    batch = torch.arange(2, device=x.device)[:, None, None, None]
    return ones[batch, positions(x)[None, None, None]].expand(2, 1, LENGTH, LENGTH)


def zeros(x):
    return torch.zeros(LENGTH, LENGTH, dtype=x.dtype, device=x.device)


def causal(x):
    """Within sequences that consecutive positions make up, of which there is one."""
    step = torch.diff(positions(x).expand(2, -1), prepend=x.new_full((2, 1), -1).long())
    sequence = (step != 1).cumsum(-1)
    batch = torch.arange(2, device=x.device)[:, None, None, None]
    q, k = positions(x)[None, None, :, None], positions(x)[None, None, None]
    mask = q.new_ones((), dtype=torch.bool) & (k <= q)
    return mask & (sequence[batch, q] == sequence[batch, k])


def additive(x):
    mask = torch.full((LENGTH, LENGTH), -torch.inf, dtype=x.dtype, device=x.device)
    return torch.triu(mask, 1)


def window(x):
    q, k = positions(x)[:, None], positions(x)[None]
    return (k <= q) & (k > q - 2)


def written(x):
    mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool, device=x.device)
    mask[0].fill_(False)
    return mask & True


def written_base(x):
    mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool, device=x.device)
    mask[:, 1:].fill_(False)
    return mask


def of_an_input(x):
    return x[0, 0, :, :1] > 0


def drawn(x):
    return torch.rand(LENGTH, LENGTH, device=x.device) > 2


def trace(mask, dtype=torch.float16, dropout=0.0, compiled=False):
    """The attention call of a trace, and the result."""
    tracer = Tracer(device="cuda")
    tracer.observed_is_compiling = compiled
    spec = Spec.of((2, 3, LENGTH, 16), dtype=dtype, device=CUDA)
    q, k, v = (tracer.fake(spec) for _ in range(3))
    with FunctionTable(tracer.device), tracer:
        result = F.scaled_dot_product_attention(q, k, v, mask(q), dropout)
    calls = [node for node in tracer.nodes if "scaled_dot_product" in str(node.op)]
    assert not any("bmm" in str(node.op) for node in tracer.nodes) or not calls
    return (calls or [None])[0], result


@pytest.mark.parametrize("mask", [rows, padding, zeros, causal, additive])
def test_known_masks_are_left_out(mask):
    call, result = trace(mask)
    assert "flash" in str(call.op)
    assert (call.args[4:5] == (True,)) == (mask in (causal, additive))
    assert result.shape == (2, 3, LENGTH, 16)


@pytest.mark.parametrize("mask", [window, written, written_base, of_an_input, drawn])
def test_other_masks_stay(mask):
    call, _ = trace(mask)
    assert call is None or ("efficient" in str(call.op) and call.args[3] is not None)


def test_the_layout_is_that_of_eagers_kernel():
    """The math form gives dense results, the memory-efficient kernel rows of all heads."""
    for dtype in (torch.float16, torch.float32):
        assert trace(rows, dtype)[1].stride() == (288, 96, 16, 1)
        assert trace(causal, dtype)[1].stride() == (288, 16, 48, 1)


def test_dropout_draws_as_with_the_mask_unless_the_program_knows_that_it_is_compiled():
    assert trace(rows, dropout=0.1)[0] is None
    call, _ = trace(rows, dropout=0.1, compiled=True)
    assert "flash" in str(call.op) and call.args[3] == 0.1


def test_doubles_have_the_math_form_only():
    assert trace(rows, torch.float64)[0] is None


def test_a_mask_that_does_not_fit_raises_as_in_eager():
    with pytest.raises(RuntimeError):
        trace(lambda x: torch.ones(LENGTH, LENGTH + 1, dtype=torch.bool, device=x.device))
