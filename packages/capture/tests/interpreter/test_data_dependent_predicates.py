"""Random numbers against bounds that they never cross are no branches on data; the numbers are
drawn all the same.
"""

from __future__ import annotations

import pytest
import torch
from capture_harness import compiled, same

import flambeau_capture

X = torch.randn(3)


def layer_drop(x, p):
    drawn = torch.rand([])
    if drawn < p:
        return x
    return x * 2 + torch.rand(3)


def every_relation(x, p):
    drawn = torch.rand_like(x[0])
    found = [
        bool(drawn >= 0),
        bool(drawn.le(1)),
        bool(0.0 > drawn),  # noqa: SIM300 (the reflected operator)
        bool(torch.gt(drawn, 1.5)),
        bool(drawn < -p),
    ]
    return x + drawn, found


def shifted(x, p):
    drawn = torch.rand([])
    drawn.sub_(0.5)
    return x if drawn < 0 else x + 1


def written_through_a_view(x, p):
    drawn = torch.rand(1)
    drawn.view(1, 1).sub_(2)
    return x if drawn < 0 else x + 1


@pytest.mark.parametrize(
    ("program", "p"), [(layer_drop, 0.0), (layer_drop, -1), (layer_drop, 2), (every_relation, 1)]
)
def test_is_known(program, p):
    run = compiled(program)
    for seed in range(4):
        results = []
        for function in (run, program):
            torch.manual_seed(seed)
            results.append((function(X, p), torch.rand(2)))
        same(*results)


@pytest.mark.parametrize(
    ("program", "p"),
    [(layer_drop, 0.3), (layer_drop, 1), (shifted, 0), (written_through_a_view, 0)],
)
def test_is_not_known(program, p):
    run = compiled(program, fullgraph=False, speculate=False)
    for seed in range(4):
        results = []
        for function in (run, program):
            torch.manual_seed(seed)
            results.append(function(X, p))
        same(*results)
    assert "break" in [event.kind for event in flambeau_capture.state_of(run).events]
