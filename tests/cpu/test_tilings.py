"""`tools.tilings` has the code generator write each kernel with other tiles; no GPU is needed for
that.
"""

from __future__ import annotations

import torch

from flambeau_inductor import InductorOptions, compile_graph
from flambeau_inductor.codegen.triton import backend
from flambeau_prims.builder import Builder
from flambeau_prims.graph import Graph, Value
from flambeau_prims.spec import Spec
from tools.tilings.measure import Trial


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
