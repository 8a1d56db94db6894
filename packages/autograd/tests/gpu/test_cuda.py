"""aot on a GPU against eager: a training step of small models, graphs evaluated call by call."""

from __future__ import annotations

import copy

import pytest
import torch
from recording import GraphLog, module_tensors, record_module
from test_models import MODELS, compare

from flambeau_autograd import AutogradOptions, aot

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("decompose", [False, True], ids=["aten", "prims"])
@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_training_step(make, decompose, monkeypatch):
    # In channels-last layout cuDNN picks kernels of other precision.
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    torch.manual_seed(0)
    theirs, args, call = make()
    theirs.cuda().train()
    args = [arg.cuda() for arg in args]
    mine = copy.deepcopy(theirs)
    gm = record_module(mine, args, call)
    options = AutogradOptions(decompose=decompose, check=True)
    compiled = aot(gm, [*args, *module_tensors(mine)], GraphLog(), options=options)
    for seed in (1, 2):
        torch.manual_seed(seed)
        out_mine = compiled(*args, *module_tensors(mine))
        torch.manual_seed(seed)
        out_theirs = call(theirs, *args)
        out_theirs = out_theirs if isinstance(out_theirs, tuple) else (out_theirs,)
        compare(out_mine, out_theirs, decompose=True)
        for outputs in (out_mine, out_theirs):
            sum((out * out).sum() for out in outputs).backward()
    compare(
        [p.grad for p in mine.parameters()], [p.grad for p in theirs.parameters()], decompose=True
    )
    compare(list(mine.buffers()), list(theirs.buffers()), decompose=True)


def test_autocast_is_traced_into_casts():
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 8)
    ).cuda()
    x = torch.randn(4, 16, device="cuda")
    gm = record_module(model, [x], lambda module, x: module(x))
    with torch.autocast("cuda", torch.bfloat16):
        compiled = aot(
            gm, [x, *module_tensors(model)], GraphLog(), options=AutogradOptions(check=True)
        )
        (mine,) = compiled(x, *module_tensors(model))
        theirs = model(x)
    assert mine.dtype == theirs.dtype == torch.bfloat16
    torch.testing.assert_close(mine, theirs, rtol=2e-2, atol=2e-2)
