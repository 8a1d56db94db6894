"""Graphs that a compile no longer needs are freed without the cyclic collector."""

from __future__ import annotations

import gc
from collections import Counter

import pytest
import torch
from torch import nn

import flambeau
from flambeau_prims.graph import Node, Value


@pytest.mark.parametrize("trains", [False, True])
def test_no_calls_are_left_to_the_collector(trains: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2))
    x = torch.randn(3, 4)
    gc.collect()
    earlier = [item for item in gc.get_objects() if isinstance(item, (Node, Value))]
    known = set(map(id, earlier))  # of other tests' functions, which may be dropped meanwhile
    flags = gc.get_debug()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        with torch.set_grad_enabled(trains):
            result = flambeau.compile(model, fullgraph=True)(x)
            if trains:
                result.sum().backward()
        gc.collect()
        left = Counter(type(item) for item in gc.garbage if id(item) not in known)
    finally:
        gc.set_debug(flags)
        gc.garbage.clear()
        gc.enable()
    assert (left[Node], left[Value]) == (0, 0)
