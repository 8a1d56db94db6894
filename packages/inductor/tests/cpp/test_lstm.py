"""Layers of LSTMs in kernels of our own: values beside float64, layouts, threads, ISA levels, and
what stays a call of oneDNN.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flambeau_inductor import compile_graph
from flambeau_inductor.options import InductorOptions
from flambeau_prims.evaluate import run_graph
from flambeau_prims.graph import Graph, Node, Value
from flambeau_prims.rules.registry import infer
from flambeau_prims.spec import Spec
from flambeau_runtime import RuntimeOptions, load
from flambeau_runtime.build.isa import LEVELS, detect

LAYER = torch.ops.aten.mkldnn_rnn_layer.default
OPTIONS = InductorOptions(debug_checks=True)
KERNELS = ["cpu_lstm_weights", "cpu_lstm_recurrence"]


def operands(
    steps: int, batch: int, features: int, hidden: int, dtype: torch.dtype = torch.float32
) -> list[torch.Tensor]:
    """x, the four parameters, and the states."""
    shapes = [(4 * hidden, features), (4 * hidden, hidden), (4 * hidden,), (4 * hidden,)]
    scale = max(hidden, 1) ** -0.5
    parameters = [torch.randn(shape) * scale for shape in shapes]
    states = [torch.randn(batch, hidden), torch.randn(batch, hidden)]
    tensors = [torch.randn(steps, batch, features), *parameters, *states]
    return [tensor.to(dtype) for tensor in tensors]


def graph_of(
    tensors: list[torch.Tensor], reverse: bool = False, biases: bool = True, train: bool = False,
    mode: int = 2,
) -> Graph:  # fmt: skip
    """A layer on inputs; it returns the output and the last states."""
    values = [
        Value(f"x{n}", Spec.of(each.shape, dtype=each.dtype).replace(stride=each.stride()))
        for n, each in enumerate(tensors)
    ]
    hidden = tensors[2].shape[1]
    settings = (reverse, [], mode, hidden, 1, biases, False, False, train)
    specs = infer(LAYER, (*(value.spec for value in values), *settings), {})
    node = Node(LAYER, (*values, *settings), {}, (), "model.py:1")
    node.outputs = tuple(spec and Value(f"y{n}", spec, node) for n, spec in enumerate(specs))
    graph = Graph(values, [node])
    graph.outputs = list(node.outputs[:3])
    return graph


def exact(
    tensors: list[torch.Tensor], reverse: bool = False, biases: bool = True
) -> tuple[torch.Tensor, ...]:
    """The results in double precision."""
    x, wi, w, b, b2, h, c = (each.double() for each in tensors)
    out = x.new_empty(*x.shape[:2], w.shape[1])
    for t in reversed(range(len(x))) if reverse else range(len(x)):
        sums = x[t] @ wi.t() + h @ w.t() + (b + b2 if biases else 0)
        i, f, g, o = sums.chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        out[t] = h = o.sigmoid() * c.tanh()
    return out, h, c


def kernels_of(graph: Graph, options: InductorOptions = OPTIONS) -> list[str]:
    return [each.name for each in compile_graph(graph, options).kernels if "lstm" in each.name]


def check(results: Any, graph: Graph, tensors: list[torch.Tensor], *settings: bool) -> None:
    """The results are about as near to the exact ones as the library's, and in its layouts."""
    expected = run_graph(graph, tensors)
    for result, wanted, best in zip(results, expected, exact(tensors, *settings), strict=True):
        assert (result.shape, result.stride()) == (wanted.shape, wanted.stride())
        if result.numel():
            assert (result - best).abs().max() <= 2 * (wanted - best).abs().max() + 1e-6


SHAPES = [
    (1, 1, 3, 1),
    (1, 5, 7, 17),
    (2, 1, 16, 16),
    (4, 3, 20, 50),
    (3, 57, 9, 33),
    (3, 13, 130, 130),
    (9, 1, 64, 200),
    (2, 107, 31, 64),
    (3, 8, 40, 272),
]
"""Steps, rows, features, hidden units."""


@pytest.mark.parametrize("biases", [True, False])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_values_and_layouts(shape: tuple[int, ...], reverse: bool, biases: bool) -> None:
    tensors = operands(*shape)
    graph = graph_of(tensors, reverse, biases)
    program = compile_graph(graph_of(tensors, reverse, biases), OPTIONS)
    assert [each.name for each in program.kernels if "lstm" in each.name] == KERNELS
    check(load(program)(*tensors), graph, tensors, reverse, biases)


@pytest.mark.parametrize("shape", [(6, 3, 40, 272), (5, 20, 30, 150), (12, 1, 64, 256)])
def test_one_thread_and_many_give_the_same_bits(shape: tuple[int, ...]) -> None:
    tensors = operands(*shape)
    programs = [
        compile_graph(graph_of(tensors), InductorOptions(threads=threads)) for threads in (1, 2, 5)
    ]
    recurrences = [load(program)(*tensors) for program in programs]
    for results in recurrences[1:]:
        for one, two in zip(recurrences[0], results, strict=True):
            assert torch.equal(one, two)


@pytest.mark.parametrize("isa", LEVELS)
def test_isa_levels(isa: str) -> None:
    if LEVELS.index(isa) < LEVELS.index(detect()):
        pytest.skip(f"the CPU has no {isa}")
    for shape in ((4, 7, 20, 50), (3, 2, 64, 64), (6, 1, 64, 200)):
        tensors = operands(*shape)
        graph = graph_of(tensors, True)
        program = compile_graph(graph_of(tensors, True), OPTIONS)
        check(load(program, RuntimeOptions(isa=isa))(*tensors), graph, tensors, True)


def test_states_and_weights_in_other_layouts() -> None:
    tensors = operands(3, 4, 10, 24)
    tensors[0] = torch.randn(4, 3, 10).transpose(0, 1)
    tensors[2] = torch.randn(24, 96).t()
    tensors[5] = torch.randn(24, 4).t()
    tensors[6] = torch.randn(1, 24).expand(4, 24)
    results = load(compile_graph(graph_of(tensors), OPTIONS))(*tensors)
    for result, best in zip(results, exact(tensors), strict=True):  # oneDNN takes no such operands
        assert result.is_contiguous()
        torch.testing.assert_close(result, best.float(), rtol=1e-4, atol=1e-5)


def test_gates_that_are_saturated_or_no_numbers() -> None:
    tensors = operands(2, 6, 8, 20)
    tensors[0][:, 0] = 1e4
    tensors[0][:, 1] = -1e4
    tensors[0][0, 2, 3], tensors[0][0, 3, 1], tensors[6][4, 5] = torch.nan, torch.inf, torch.nan
    results = load(compile_graph(graph_of(tensors), OPTIONS))(*tensors)
    for result, best in zip(results, exact(tensors), strict=True):
        kept = [0, 1, 2, 4, 5]  # infinity times weights of both signs is no number in either
        torch.testing.assert_close(
            result[..., kept, :], best[..., kept, :].float(), rtol=1e-5, atol=1e-5, equal_nan=True
        )
    small = operands(1, 1, 8, 20)
    small = [each * 1e-6 for each in small]
    results = load(compile_graph(graph_of(small), OPTIONS))(*small)
    for result, best in zip(results, exact(small), strict=True):
        torch.testing.assert_close(result, best.float(), rtol=1e-5, atol=0)


def test_weights_that_do_not_change_are_ordered_once() -> None:
    tensors = operands(4, 3, 10, 40)
    graph = graph_of(tensors)
    graph.frozen = frozenset(graph.inputs[1:5])
    program = compile_graph(graph, OPTIONS)
    assert program.prepared is not None
    launched = [step.kernel for step in program.steps if hasattr(step, "kernel")]
    assert KERNELS[0] not in launched and KERNELS[1] in launched
    check(load(program)(*tensors), graph_of(tensors), tensors)


def test_what_stays_a_call_of_onednn() -> None:
    tensors = operands(4, 3, 10, 16)
    assert kernels_of(graph_of(tensors)) == KERNELS
    assert kernels_of(graph_of(tensors), InductorOptions(numerics="strict")) == []
    assert kernels_of(graph_of([each.bfloat16() for each in tensors])) == []
    assert kernels_of(graph_of(operands(2, 16, 10, 512))) == KERNELS
    assert kernels_of(graph_of(operands(2, 17, 10, 512))) == []
    # A workspace that nobody reads is none.
    assert kernels_of(graph_of(tensors, train=True)) == KERNELS
    graph = graph_of(tensors, train=True)
    graph.outputs = list(graph.nodes[0].outputs)
    assert graph.outputs[3] is not None and kernels_of(graph) == []
