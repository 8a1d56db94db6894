"""How much memory compiled programs plan to hold: writes to parts of inputs make no copies of them,
and what a backward reads goes as it is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

import flambeau
from flambeau import backends
from flambeau_runtime.peak_memory import live_bytes, planned_peak
from tests.programs import updates

if TYPE_CHECKING:
    from flambeau_runtime.program import Program


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> list[Program]:
    """What is compiled during a test."""
    made: list[Program] = []
    compile_graph = backends.compile_graph

    def noting(*args: Any, **kwargs: Any) -> Program:
        made.append(compile_graph(*args, **kwargs))
        return made[-1]

    monkeypatch.setattr(backends, "compile_graph", noting)
    return made


@pytest.mark.parametrize("name", sorted(updates.IN_PLACE))
def test_a_write_to_a_part_makes_no_copy_of_the_whole(name: str, programs: list[Program]) -> None:
    function, make, _ = updates.PROGRAMS[name]
    x, k = make()
    flambeau.compile(function, fullgraph=True)(x, k)
    (program,) = programs
    held = planned_peak(program) - live_bytes(program)[0]
    assert held < x.numel() * x.element_size()


def test_a_backward_frees_what_it_has_read(programs: list[Program]) -> None:
    """The peak is that of what was saved, not of that and all gradients."""
    layers = [
        torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.LayerNorm(64))
        for _ in range(8)
    ]
    model = torch.nn.Sequential(*layers)
    flambeau.compile(model, fullgraph=True)(torch.randn(4096, 64)).sum().backward()
    _, backward = programs
    saved = live_bytes(backward)[0]
    activation = 4096 * 64 * 4
    assert saved > 16 * activation
    assert planned_peak(backward) <= saved + 2 * activation
    assert live_bytes(backward)[-1] < saved / 4
