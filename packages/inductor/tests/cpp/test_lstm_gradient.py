"""LSTM layers in training by kernels of our own: what the forward keeps and what the backward makes
of it, beside float64; gradients that are left out, layouts, threads, ISA levels.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flambeau_inductor import compile_graph
from flambeau_inductor.options import InductorOptions
from flambeau_prims.builder import Builder
from flambeau_prims.graph import Graph, Node, Value
from flambeau_prims.lstm import append_product, lstm_gate_gradients, lstm_training_recurrence
from flambeau_prims.rules.registry import infer
from flambeau_prims.spec import Spec
from flambeau_runtime import RuntimeOptions, load
from flambeau_runtime.build.isa import LEVELS, detect
from flambeau_runtime.program import Allocate

OPTIONS = InductorOptions(debug_checks=True)


def graph_of(op: Any, args: tuple[Any, ...]) -> Graph:
    """A call on inputs, all of whose results are returned."""
    values = [
        Value(f"x{n}", Spec.of(each.shape, dtype=each.dtype).replace(stride=each.stride()))
        if isinstance(each, torch.Tensor)
        else each
        for n, each in enumerate(args)
    ]
    specs = infer(op, tuple(each.spec if isinstance(each, Value) else each for each in values), {})
    node = Node(op, tuple(values), {}, (), "model.py:1")
    node.outputs = tuple(Value(f"y{n}", spec, node) for n, spec in enumerate(specs))
    graph = Graph([each for each in values if isinstance(each, Value)], [node])
    graph.outputs = list(node.outputs)
    return graph


def run(
    op: Any, args: tuple[Any, ...], options: InductorOptions = OPTIONS, isa: str | None = None
) -> tuple[torch.Tensor, ...]:
    program = compile_graph(graph_of(op, args), options)
    assert any("lstm" in kernel.name for kernel in program.kernels)
    tensors = [each for each in args if isinstance(each, torch.Tensor)]
    runtime = RuntimeOptions() if isa is None else RuntimeOptions(isa=isa)
    return load(program, runtime)(*tensors)


def direct(op: Any, args: tuple[Any, ...]) -> Any:
    """A call of the operator itself."""
    return op(*args)


def operands(steps: int, batch: int, hidden: int) -> list[Any]:
    """Gates, weight, biases and states of a forward."""
    scale = hidden**-0.5
    return [
        torch.randn(steps, batch, 4 * hidden), torch.randn(4 * hidden, hidden) * scale,
        torch.randn(4 * hidden), torch.randn(4 * hidden), torch.randn(batch, hidden),
        torch.randn(batch, hidden),
    ]  # fmt: skip


def gradient_operands(forward: list[Any], reverse: bool) -> list[Any]:
    """Gradients of the results, and what the forward kept."""
    _, weight, _, _, hx, cx = forward
    out, h, c, kept, cells = lstm_training_recurrence(*forward, reverse)
    given = [torch.randn_like(each) for each in (out, h, c)]
    return [*given, kept, cells, out, weight, hx, cx]


def doubles(args: Any) -> list[Any]:
    return [each.double() if isinstance(each, torch.Tensor) else each for each in args]


def check(results: Any, best: Any, tolerance: float = 1e-5) -> None:
    for result, exact in zip(results, best, strict=True):
        assert (result.shape, result.stride()) == (exact.shape, exact.stride())
        torch.testing.assert_close(result, exact.float(), rtol=tolerance, atol=tolerance)


SHAPES = [
    (1, 1, 1), (1, 5, 17), (2, 1, 16), (4, 3, 50), (3, 57, 33), (3, 13, 130), (9, 1, 200),
    (2, 107, 64), (3, 8, 272), (2, 6, 312), (3, 0, 20),
]  # fmt: skip
"""Steps, rows, hidden units."""


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_values_and_layouts(shape: tuple[int, ...], reverse: bool) -> None:
    forward = operands(*shape)
    best = lstm_training_recurrence(*doubles(forward), reverse)
    check(run(lstm_training_recurrence, (*forward, reverse)), best)
    without = [*forward[:2], None, None, *forward[4:]]
    best = lstm_training_recurrence(*doubles(without), reverse)
    check(run(lstm_training_recurrence, (*without, reverse)), best)
    args = gradient_operands(forward, reverse)
    best = lstm_gate_gradients(*doubles(args), reverse)
    check(run(lstm_gate_gradients, (*args, reverse)), best)


@pytest.mark.parametrize("given", [(0,), (1,), (2,), (0, 2), (1, 2)])
def test_gradients_that_are_left_out(given: tuple[int, ...]) -> None:
    args = gradient_operands(operands(4, 3, 50), False)
    args[:3] = [each if n in given else None for n, each in enumerate(args[:3])]
    best = lstm_gate_gradients(*doubles(args), False)
    check(run(lstm_gate_gradients, (*args, False)), best)


def test_operands_in_other_layouts() -> None:
    args = gradient_operands(operands(4, 3, 50), True)
    args[0] = torch.randn(3, 4, 100).transpose(0, 1)[..., 50:]
    args[1] = torch.randn(1, 50).expand(3, 50)
    args[2] = torch.randn(3, 80)[:, 10:60]
    args[6] = torch.randn(50, 200).t()
    args[7], args[8] = torch.randn(3, 99)[:, :50], torch.randn(1, 50).expand(3, 50)
    best = lstm_gate_gradients(*doubles(args), True)
    check(run(lstm_gate_gradients, (*args, True)), best)


@pytest.mark.parametrize("shape", [(6, 3, 272), (5, 20, 150), (12, 1, 256)])
def test_one_thread_and_many_give_the_same_bits(shape: tuple[int, ...]) -> None:
    forward = operands(*shape)
    calls = (
        (lstm_training_recurrence, (*forward, False)),
        (lstm_gate_gradients, (*gradient_operands(forward, False), False)),
    )
    for op, args in calls:
        one, *others = (run(op, args, InductorOptions(threads=threads)) for threads in (1, 2, 5))
        for results in others:
            assert all(map(torch.equal, one, results))


@pytest.mark.parametrize("isa", LEVELS)
def test_isa_levels(isa: str) -> None:
    if LEVELS.index(isa) < LEVELS.index(detect()):
        pytest.skip(f"the CPU has no {isa}")
    for shape in ((4, 7, 50), (3, 2, 64), (6, 1, 200)):
        forward = operands(*shape)
        best = lstm_training_recurrence(*doubles(forward), True)
        check(run(lstm_training_recurrence, (*forward, True), isa=isa), best)
        args = gradient_operands(forward, True)
        best = lstm_gate_gradients(*doubles(args), True)
        check(run(lstm_gate_gradients, (*args, True), isa=isa), best)


def test_gates_that_are_saturated_or_no_numbers() -> None:
    forward = operands(3, 6, 20)
    forward[0][:, 0], forward[0][:, 1] = 1e4, -1e4
    forward[0][1, 2, 3], forward[5][3, 4] = torch.nan, torch.nan
    best = lstm_training_recurrence(*doubles(forward), False)
    results = run(lstm_training_recurrence, (*forward, False))
    for position, (result, exact) in enumerate(zip(results, best, strict=True)):
        # A gate that is no number may make others of its unit such: so is the unit's state.
        rows = [0, 1, 4, 5] if position == 3 else [*range(6)]
        torch.testing.assert_close(
            result[..., rows, :], exact[..., rows, :].float(), rtol=1e-5, atol=1e-5, equal_nan=True
        )
    args = gradient_operands(forward, False)
    best = lstm_gate_gradients(*doubles(args), False)
    for result, exact in zip(run(lstm_gate_gradients, (*args, False)), best, strict=True):
        torch.testing.assert_close(result, exact.float(), rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("size", [1.0, 8.0, 1e4])
def test_derivatives_of_gates_that_are_almost_saturated(size: float) -> None:
    """What is left of a gate to 1 has few digits where the gate is rounded more than once."""
    forward = operands(2, 20, 64)
    forward[0] *= size
    exact, given = doubles(forward), [torch.randn(2, 20, 64), None, None]
    results = []
    for args, call in ((forward, run), (forward, direct), (exact, direct)):
        out, _, _, gates, cells = call(lstm_training_recurrence, (*args, False))
        kept = (gates, cells, out, args[1], *args[4:], False)
        gradients = [each if each is None else each.to(out.dtype) for each in given]
        results.append(call(lstm_gate_gradients, (*gradients, *kept))[0])
    ours, theirs, best = results
    assert (ours - best).norm() <= 1.2 * (theirs - best).norm() + 1e-6 * best.norm()


@pytest.mark.parametrize("is_read_again", [False, True])
def test_gates_overwrite_the_products_that_nobody_reads_again(is_read_again: bool) -> None:
    _, weight, b, b2, hx, cx = operands(4, 3, 50)
    tensors = [torch.randn(4, 3, 200), weight, b, b2, hx, cx, torch.randn(200, 200) / 14]
    inputs = [Value(f"x{n}", Spec.of(each.shape)) for n, each in enumerate(tensors)]
    graph = Graph(inputs)
    builder = Builder(graph.nodes, [value.name for value in inputs])
    flat = append_product(builder, builder.reshape(inputs[0], (12, 200)), inputs[-1])
    sums = builder.reshape(flat, (4, 3, 200))
    args = (sums, *inputs[1:-1], False)
    specs = infer(lstm_training_recurrence, tuple(getattr(each, "spec", each) for each in args), {})
    node = Node(lstm_training_recurrence, args, {})
    node.outputs = tuple(Value(f"y{n}", spec, node) for n, spec in enumerate(specs))
    graph.nodes.append(node)
    graph.outputs = [*node.outputs, *([builder.exp(flat)] if is_read_again else [])]
    program = compile_graph(graph, InductorOptions(debug_checks=True, smallest_overwrite=0))
    if not is_read_again:
        assert any(isinstance(step, Allocate) and step.in_place for step in program.steps)
    product = (tensors[0].reshape(12, 200) @ tensors[-1]).double().reshape(4, 3, 200)
    best = lstm_training_recurrence(product, *doubles((weight, b, b2, hx, cx)), False)
    results = load(program)(*tensors)
    check(results[:5], best)
    check(results[5:], [product.reshape(12, 200).exp()] * is_read_again)
