"""`tools.tilings` has the code generator write each kernel with other tiles; no GPU is needed for
that.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch

import flambeau
from flambeau_inductor import InductorOptions, compile_graph
from flambeau_inductor.codegen.triton import backend
from flambeau_inductor.codegen.triton.tiling import Tiling
from flambeau_prims.builder import Builder
from flambeau_prims.graph import Graph, Value
from flambeau_prims.spec import Spec
from tools.tilings.measure import CASES, Trial, tilings_beside


def softmax() -> Graph:
    x = Value("x", Spec.of((512, 3000), device=torch.device("cuda:0")))
    graph = Graph([x])
    b = Builder(graph.nodes, "x")

    def along(row: Value) -> Value:
        return b.expand(b.unsqueeze(row, 1), x.spec.shape)

    powers = b.exp(b.sub(x, along(b.amax(x, (1,)))))
    graph.outputs = [b.div(powers, along(b.sum(powers, (1,))))]
    return graph


def test_each_trial_writes_other_tiles() -> None:
    before = backend.choose_tiling, backend.write_kernel
    options, texts, tilings = InductorOptions(debug_checks=True), set(), []
    for number in range(3):
        trial = Trial(number)
        with trial.patched():
            program = compile_graph(softmax(), options)
        assert trial.most > 3
        assert list(trial.tilings) == [kernel.name for kernel in program.kernels]
        (tiling,) = trial.tilings.values()
        assert (tiling == trial.chosen[program.kernels[0].name]) == (number == 0)
        tilings.append(tiling)
        texts.add((program.sources[0].text, str(program.kernels[0].meta)))
    assert len(set(tilings)) == len(texts) == 3
    assert (backend.choose_tiling, backend.write_kernel) == before


def test_neighbours_of_threads_are_measured_both_ways() -> None:
    lone = tilings_beside(Tiling(512, warps=4))
    assert {dataclasses.replace(each, dealt=False) for each in lone} == {
        each for each in lone if not each.dealt
    }
    assert sum(each.dealt for each in lone) == len(lone) / 2
    assert not any(each.dealt for each in tilings_beside(Tiling(8, 128, lanes=("i1",))))


@pytest.mark.parametrize(
    "name",
    [
        "flip_bf16", "gather_f16", "mean_pool_odd", "select_bf16", "row_log_softmax_640",
        "row_norm_512", "row_softmax_768", "row_sum",
    ],
)  # fmt: skip
def test_cases_compile_to_what_eager_gives(name: str, monkeypatch) -> None:
    case = CASES[name]
    randn, randint = torch.randn, torch.randint
    less = lambda shape: tuple(min(size, 40) for size in shape)  # noqa: E731
    monkeypatch.setattr(torch, "randn", lambda shape, **more: randn(less(shape), **more))
    monkeypatch.setattr(
        torch, "randint", lambda low, high, shape, **more: randint(0, 40, less(shape), **more)
    )
    arguments = case.inputs("cpu")
    compiled = flambeau.compile(case.function, fullgraph=True)
    torch.testing.assert_close(compiled(*arguments), case.function(*arguments))
