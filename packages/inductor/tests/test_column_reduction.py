"""Rows and columns reduced by one kernel: which reductions share it, and what it computes."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from run_cpp import Library

from flambeau_inductor import InductorOptions, explain_graph
from flambeau_inductor.emit_program import build_kernels
from flambeau_inductor.evaluate import run_kernel
from flambeau_inductor.ir import ColumnReduce
from flambeau_inductor.lowering import column_reduction
from flambeau_inductor.pipeline import schedule_graph
from flambeau_prims.builder import Builder
from flambeau_prims.decompositions.norm import layer_norm_backward
from flambeau_prims.graph import Graph, Node, Value
from flambeau_prims.sizes import SizeEnv
from flambeau_prims.spec import Spec
from flambeau_runtime.program import Allocate

OPTIONS = InductorOptions(debug_checks=True)


def norm_gradients(b, grad, x, average, rstd, weight):
    """Layer norm's gradients of its operand, weight and bias."""
    dims = (x.spec.shape[-1],)
    mask = (True, True, True)
    return layer_norm_backward(b, grad, x, dims, average, rstd, weight, weight, mask)


def softmax_gradients(b, grad, y):
    """Softmax's gradient, and that of what was added to its operand."""
    total = b.sum(b.mul(grad, y), (1,))
    of_x = b.mul(y, b.sub(grad, b.expand(b.unsqueeze(total, 1), y.spec.shape)))
    return of_x, b.sum(of_x, (0,))


def scales(b, x):
    """The greatest elements of rows and of columns, and both divided away."""
    size = b.abs(x)
    along = b.expand(b.unsqueeze(b.amax(size, (1,)), 1), x.spec.shape)
    return b.div(x, along), b.amax(size, (0,)), b.amin(x, (0,))


def norm_tensors(rows: int, row: int, dtype=torch.float32) -> list[torch.Tensor]:
    x = torch.randn(rows, row, dtype=dtype)
    rstd = torch.rand(rows, 1, dtype=dtype)
    return [torch.randn_like(x), x, torch.randn_like(rstd), rstd, torch.randn(row, dtype=dtype)]


def kernels_on(device: str, build, *shapes, dtype=torch.float32) -> list:
    graph = Graph(
        [
            Value(f"x{n}", Spec.of(shape, device=torch.device(device), dtype=dtype))
            for n, shape in enumerate(shapes)
        ]
    )
    graph.outputs = list(build(Builder(graph.nodes, []), *graph.inputs))
    return [
        launch.kernel for launch in build_kernels(schedule_graph(graph, OPTIONS), OPTIONS).values()
    ]


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_layer_norm_gradients_read_their_operands_once(device):
    rows, row = 4096, 1024
    shapes = [(rows, row), (rows, row), (rows, 1), (rows, 1), (row,)]
    first, *rest = kernels_on(device, norm_gradients, *shapes)
    assert sum(isinstance(s, ColumnReduce) for s in first.body) == 2 and first.shares >= 64
    assert all(kernel.shares == 0 for kernel in rest)
    # Beside it, only the partial results are read.
    assert all(axis.size != rows for kernel in rest for axis in (*kernel.outer, *kernel.inner))
    assert len(rest) == 1 if device != "cpu" else len(rest) <= 2


def test_each_value_is_visited_once_to_find_what_reductions_share(monkeypatch):
    graph = Graph([Value(f"x{n}", Spec.of((4096, 64))) for n in range(2)])
    b, (grad, x) = Builder(graph.nodes, []), graph.inputs
    columns = []
    for _ in range(8):
        product = b.mul(grad, x)
        row = b.expand(b.unsqueeze(b.sum(product, (1,)), 1), x.spec.shape)
        columns.append(b.sum(b.mul(grad, row), (0,)))
        grad = b.add(grad, row)
    graph.outputs = [grad, *columns]
    visited = []
    bit = column_reduction._bit
    monkeypatch.setattr(
        column_reduction, "_bit", lambda value, n: visited.append(value) or bit(value, n)
    )
    found = column_reduction.find_shared_rows(graph, OPTIONS)
    assert {node.outputs[0] for node in found} <= set(columns)
    assert len(found) >= 7
    assert len(visited) == len(set(visited)) <= 2 + len(graph.nodes)


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_softmax_and_quantisation_share_rows(device):
    first, *_ = kernels_on(device, softmax_gradients, (4096, 512), (4096, 512))
    assert first.shares != 0
    first, *_ = kernels_on(device, scales, (4096, 512))
    kinds = {s.kind for s in first.body if isinstance(s, ColumnReduce)}
    assert kinds == {"max", "min"}


def test_what_reads_no_rows_of_another_is_not_shared():
    def apart(b, x, y):
        return b.sum(x, (1,)), b.sum(y, (0,))

    def few(b, x):
        return b.sum(x, (1,)), b.sum(x, (0,))

    def behind(b, x):
        columns = b.sum(x, (0,))
        less = b.sub(x, b.expand(b.unsqueeze(columns, 0), x.spec.shape))
        return columns, b.sum(less, (1,))

    for build, shapes in (
        (apart, [(4096, 512)] * 2), (few, [(32, 512)]), (few, [(4096, 100_000)]),
        (behind, [(4096, 512)]),
    ):  # fmt: skip
        for device in ("cpu", "cuda:0"):
            assert all(kernel.shares == 0 for kernel in kernels_on(device, build, *shapes))


@pytest.mark.parametrize(("rows", "row"), [(130, 33), (257, 8), (128, 1000), (1025, 3)])
def test_results_equal_the_primitives(tester, rows, row):
    program = tester.check(norm_gradients, *norm_tensors(rows, row, torch.float64))
    assert program.kernels
    tester.check(
        softmax_gradients, *(torch.randn(rows, row, dtype=torch.float64) for _ in range(2))
    )
    x = torch.randn(rows, row)
    x[3, 1] = torch.nan
    tester.check(scales, x)


def test_rows_of_several_dims_and_other_orders(tester):
    def summed(b, x):
        rows = b.expand(b.unsqueeze(b.sum(x, (2,)), 2), x.spec.shape)
        return b.mul(x, rows), b.sum(b.mul(x, rows), (0, 1))

    tester.check(summed, torch.randn(20, 13, 24, dtype=torch.float64))
    tester.check(summed, torch.randn(13, 20, 24, dtype=torch.float64).transpose(0, 1))
    tester.check(summed, torch.randn(20, 24, 13, dtype=torch.float64).transpose(1, 2))


@pytest.fixture(scope="module")
def library():
    return {
        (rows, row, dtype): kernels_on(
            "cpu",
            norm_gradients,
            (rows, row),
            (rows, row),
            (rows, 1),
            (rows, 1),
            (row,),
            dtype=dtype,
        )[0]
        for rows, row, dtype in product((130, 1025), (37, 512), (torch.float32, torch.float64))
    }


def test_cpp_equals_the_evaluator(library):
    built = Library({f"k{n}": kernel for n, kernel in enumerate(library.values())})
    for number, ((rows, row, _), kernel) in enumerate(library.items()):
        assert kernel.shares != 0
        torch.manual_seed(number)
        counts = {p.name: kernel.shares * row for p in kernel.params}
        buffers = [
            torch.randn(max(rows * row, counts[p.name]), dtype=p.dtype) for p in kernel.params
        ]
        ours, theirs = ([b.clone() for b in buffers] for _ in range(2))
        assert built.run(f"k{number}", ours) == 0
        run_kernel(kernel, theirs, ())
        columns = {s.name for s in kernel.body if isinstance(s, ColumnReduce)}
        partial = {s.buffer for s in kernel.body if getattr(s, "value", None) in columns}
        partial &= {p.name for p in kernel.params}
        for param, a, b in zip(kernel.params, ours, theirs, strict=True):
            if param.name in partial:
                # Which rows make a share is up to the code generator.
                size = kernel.shares * row
                a, b = (t[:size].reshape(kernel.shares, row).sum(0) for t in (a, b))
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-3)


def test_the_gradient_takes_over_the_memory_of_what_it_is_computed_from(tester):
    rows, row = 2048, 64

    def chain(b, x, y):
        # A product, in memory of its own, which the gradients alone read.
        node = Node(torch.ops.aten.mm.default, (x, y), {})
        grad = Value("grad", x.spec, node)
        node.outputs = (grad,)
        b.nodes.append(node)
        return softmax_gradients(b, grad, x)

    x = torch.randn(rows, row, dtype=torch.float64)
    program = tester.check(chain, x, torch.randn(row, row, dtype=torch.float64))
    large = [t for t in program.tensors if math.prod(t.shape) == rows * row]
    reused = [step.reuse for step in program.steps if isinstance(step, Allocate)]
    assert any(reused), (large, reused)


def test_symbolic_rows_are_dealt_out():
    env = SizeEnv()
    rows = env.symbol(4096, "rows")
    graph = Graph([Value(f"x{n}", Spec.of((rows, 64))) for n in range(2)], env=env)
    graph.outputs = list(softmax_gradients(Builder(graph.nodes, []), *graph.inputs))
    assert "shares share0 <" in str(explain_graph(graph, OPTIONS))
