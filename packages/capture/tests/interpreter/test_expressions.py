"""Expressions beside eager: results, types, errors, draws."""

from __future__ import annotations

import collections
import copy
import functools
import itertools
import math
import operator

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from capture_harness import compiled
from expression_programs import EXPRESSIONS

from tests.same import same

NAMES = {
    "collections": collections, "copy": copy, "functools": functools, "itertools": itertools,
    "math": math, "operator": operator, "np": np, "torch": torch, "F": F, "T": torch.tensor,
}  # fmt: skip


def result(function):
    generator = torch.Generator().manual_seed(5)
    x, m, y = (torch.randn(shape, generator=generator) for shape in ((3,), (3, 3), (3,)))
    torch.manual_seed(0)
    try:
        value = function(x, y, torch.tensor([2, 1, 4]), torch.tensor([True, False, True]), m)
    except Exception as error:
        return type(error), str(error)
    return value, torch.rand(3)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_same_as_eager(expression):
    function = eval(f"lambda x, y, i, b, m: {expression}", dict(NAMES))
    same(result(compiled(function, fullgraph=False)), result(function))


@pytest.mark.parametrize("everywhere", [False, True])
def test_hooks_are_called_though_forward_raises(everywhere):
    class Raising(torch.nn.Module):
        def forward(self, x):
            if x.shape[0] == 3:
                raise ValueError("three")
            return x * 2

    def guarded(x):
        try:
            return module(x)
        except ValueError as error:
            return str(error)

    module, seen = Raising(), []
    register = (
        torch.nn.modules.module.register_module_forward_hook
        if everywhere
        else module.register_forward_hook
    )
    handle = register(lambda module, args, result: seen.append(result is None), always_call=True)
    try:
        run = compiled(guarded)
        assert run(torch.ones(3)) == "three"
        same(run(torch.ones(2)), torch.ones(2) * 2)
        with pytest.raises(ValueError, match="three"):
            compiled(module, fullgraph=False)(torch.ones(3))
    finally:
        handle.remove()
    assert seen == [True, False, True]
