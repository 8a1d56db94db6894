"""How much memory compiled programs plan to hold: writes to parts of inputs make no copies of them,
and what a backward reads goes as it is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

import flambeau
from examples.models import ResNet18, bert
from flambeau import program_compiler
from flambeau_runtime.c_executor import byte_size
from flambeau_runtime.peak_memory import fixed_peak, live_bytes, planned_peak
from tests.programs import updates

if TYPE_CHECKING:
    from flambeau_runtime.program import Program


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> list[Program]:
    """What is compiled during a test."""
    made: list[Program] = []
    compile_graph = program_compiler.compile_graph

    def noting(*args: Any, **kwargs: Any) -> Program:
        made.append(compile_graph(*args, **kwargs))
        return made[-1]

    monkeypatch.setattr(program_compiler, "compile_graph", noting)
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


def resnet() -> tuple[torch.nn.Module, torch.Tensor]:
    """A narrow ResNet-18 and some images."""
    return ResNet18(width=8), torch.randn(8, 3, 64, 64)


def small_bert() -> tuple[torch.nn.Module, torch.Tensor]:
    """A BERT of two layers and some token ids."""
    return bert(layers=2, hidden=64, heads=4, vocabulary=1000), torch.randint(0, 1000, (4, 32))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("make", [resnet, small_bert])
def test_models_hold_few_large_values_at_a_time(
    make: Any, training: bool, programs: list[Program]
) -> None:
    """Besides its arguments and results: a residual, and what one operator reads and makes."""
    model, x = make()
    compiled = flambeau.compile(model.train(training), fullgraph=True)
    with torch.set_grad_enabled(training):
        compiled(x)
    forward = programs[0]
    held = live_bytes(forward)
    made = [t for t in forward.tensors if t.name not in forward.inputs]
    largest = max(int(byte_size(tensor)) for tensor in made)
    assert max(held) - max(held[0], held[-1]) <= (1 if training else 3) * largest


def test_explain_tells_of_memory() -> None:
    def program(x: torch.Tensor, places: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        x.masked_scatter_(places, values)
        return x.sum()

    compiled = flambeau.compile(program)
    compiled(torch.randn(256, 4), torch.rand(256, 4) > 0.5, torch.randn(1024))
    (graph,) = flambeau.explain(compiled).graphs
    assert graph.memory == (
        "inference: holds 13,316 bytes at its peak, 9,216 of them its arguments",
    )
    (extern,) = graph.externs
    assert extern.operator.startswith("aten.masked_scatter_") and "scatters" in extern.reason


def test_the_peak_is_fixed_where_all_sizes_are(programs: list[Program]) -> None:
    x = torch.randn(300, 7)
    for dynamic in (False, True):
        flambeau.compile(lambda x: x.sin().softmax(1), dynamic=dynamic)(x)
    fixed, symbolic = programs
    assert fixed_peak(fixed) == planned_peak(fixed) >= 2 * x.nbytes
    assert fixed_peak(symbolic) is None
