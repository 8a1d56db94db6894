"""Whole Programs for a GPU, their kernels run in Triton's interpreter, beside eager. No GPU needed.

The interpreter is chosen when Triton is imported, so the Programs run in a process of their own:
this file, run as a program.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch


def programs() -> Any:
    """(name, Program, inputs, expected results)."""
    from test_split_reduction import graph_of, images, moments

    from flambeau_inductor import InductorOptions, compile_graph
    from flambeau_prims.builder import Builder
    from flambeau_prims.decompositions.reduction import variance
    from flambeau_prims.graph import Graph, Value
    from flambeau_prims.spec import Spec

    options = InductorOptions(debug_checks=True)
    torch.manual_seed(0)
    for shape, group in (((2, 8, 64, 80), 2), ((1, 6, 67, 71), 3), ((2, 64, 80, 32), 2)):
        x = images(*shape)
        rows = x.reshape(shape[0], group, -1)
        expected = [rows.var(2, correction=0), rows.mean(2)]
        program = compile_graph(graph_of(x, moments(group)), options)
        yield f"moments {shape}", program, [x], expected

    for shape in ((4, 24, 33, 35), (64, 64, 12, 12)):
        x, y, g = (images(*shape) for _ in range(3))
        spec = Spec.of(shape, stride=x.stride(), device=torch.device("cuda:0"))
        graph = Graph([Value(name, spec) for name in "xyg"])
        b = Builder(graph.nodes, "xyg")
        a, c, d = graph.inputs
        masked = b.where(b.le(a, 0), 0, b.add(c, d))
        graph.outputs = [masked, b.sum(masked, (0, 2, 3)), b.sum(b.mul(masked, a), (0, 2, 3))]
        result = torch.where(x <= 0, 0, y + g)
        expected = [result, result.sum((0, 2, 3)), (result * x).sum((0, 2, 3))]
        yield f"masked {shape}", compile_graph(graph, options), [x, y, g], expected

    def normalized(b: Builder, x: Value, dims: tuple[int, ...]) -> list[Value]:
        squares, mean = variance(b, x, dims, 0)
        rstd = b.rsqrt(b.add(squares, 1e-5))
        far = b.sub(x, b.spread(mean, dims, x.spec.shape))
        return [b.mul(far, b.spread(rstd, dims, x.spec.shape)), mean, squares]

    # One tile, several, a loop over a row, cut rows, cut and whole columns.
    for shape, dims in (
        ((6, 33), (1,)), ((3, 5003), (1,)), ((300, 9001), (1,)), ((3, 20000), (1,)),
        ((300, 40), (0,)), ((50, 40), (0,)), ((8, 6, 300), (0, 2)),
    ):  # fmt: skip
        kept = [1 if d in dims else size for d, size in enumerate(shape)]
        mean = 100 * torch.randn(kept)
        spec = Spec.of(shape, device=torch.device("cuda:0"))
        graph = Graph([Value("x", spec)])
        graph.outputs = list(normalized(Builder(graph.nodes, ["x"]), graph.inputs[0], dims))
        zero, row = torch.zeros(shape), mean.squeeze(dims)
        x = mean.expand(shape).contiguous()
        expected = [zero, row, torch.zeros_like(row)]
        yield f"equal {shape}", compile_graph(graph, options), [x], expected

    yield from products(options)

    from test_patch_products import call, image, settings

    for last in (False, True):
        x, w = image(2, 3, 8, 12, last=last), image(5, 3, 4, 2)
        rest = (None, *settings((4, 2)))
        graph = call(torch.ops.aten.convolution.default, [x, w], rest, "cuda:0")
        expected = [torch.nn.functional.conv2d(x, w, stride=(4, 2))]
        yield f"patches {last}", compile_graph(graph, options), [x, w], expected

    shapes = ((7, 5, 3, 3), (40, 33), (16, 3, 3, 3), (100,), (40, 33), (30, 7))
    tensors = [torch.randn(shape) for shape in shapes]
    specs = [Spec.of(shape, device=torch.device("cuda:0")) for shape in shapes]
    graph = Graph([Value(f"x{number}", spec) for number, spec in enumerate(specs)])
    b = Builder(graph.nodes, [value.name for value in graph.inputs])  # type: ignore[union-attr]
    values = graph.inputs
    nhwc = b.exp(values[0])
    nhwc.spec = nhwc.spec.replace(stride=(45, 1, 15, 5))
    graph.outputs = [
        nhwc,
        b.cast(values[1], torch.int32), b.neg(values[2]), b.exp(values[3]),
        b.sum(values[4], (1,)), b.sum(values[5], (0,)),
    ]  # fmt: skip
    program = compile_graph(graph, options)
    (launch,) = [step for step in program.steps if type(step).__name__ == "Launch"]
    assert launch.kernel == "cuda_combined_0"
    expected = [
        tensors[0].exp(), tensors[1].int(), -tensors[2], tensors[3].exp(), tensors[4].sum(1),
        tensors[5].sum(0),
    ]  # fmt: skip
    yield "combined", program, tensors, expected


def products(options: Any) -> Any:
    """Products that cancel what other kernels, or the same one, compute from them; `equal` results
    are exact.
    """
    from flambeau_inductor import compile_graph
    from flambeau_prims.builder import Builder
    from flambeau_prims.decompositions.reduction import variance
    from flambeau_prims.graph import Graph, Value
    from flambeau_prims.spec import Spec

    def less(b: Builder, x: Value, row: Value, dims: tuple[int, ...]) -> Value:
        return b.sub(x, b.spread(row, dims, x.spec.shape))

    def against_mean(b: Builder, x: Value, y: Value, dims: tuple[int, ...]) -> Value:
        p = b.mul(x, y)
        squares, mean = variance(b, p, dims, 0)
        rstd = b.rsqrt(b.add(squares, 1e-5))
        return b.mul(less(b, p, mean, dims), b.spread(rstd, dims, x.spec.shape))

    def against_most(b: Builder, x: Value, y: Value, dims: tuple[int, ...]) -> Value:
        p = b.mul(x, y)
        return less(b, p, b.amax(p, dims), dims)

    def negated(b: Builder, x: Value, y: Value, dims: tuple[int, ...]) -> Value:
        p = b.neg(b.mul(x, y))
        return b.sub(b.spread(b.amin(p, dims), dims, x.spec.shape), p)

    def swapped(b: Builder, x: Value, y: Value, dims: tuple[int, ...]) -> Value:
        return b.sub(b.mul(x, y), b.mul(y, x))

    def scanned(b: Builder, x: Value, y: Value, dims: tuple[int, ...]) -> Value:
        p = b.mul(x, y)
        first = b.slice(b.sub(b.cumsum(p, dims[0], False), p), dims[0], 0, 1, 1)
        return b.expand(first, x.spec.shape)

    columns = ((300, 40), (0,))
    rows = (((3, 1), (1,)), ((6, 33), (1,)), ((3, 5003), (1,)), ((300, 9001), (1,)))
    cases = [(against_mean, *each) for each in (*rows, ((3, 20000), (1,)), columns)]
    cases += [(against_most, *each) for each in (*rows, columns)]
    cases += [(negated, *rows[1]), (swapped, *rows[1]), (scanned, *rows[1]), (scanned, *rows[2])]
    for build, shape, dims in cases:
        kept = [1 if d in dims else size for d, size in enumerate(shape)]
        spec = Spec.of(shape, device=torch.device("cuda:0"))
        graph = Graph([Value("x", spec), Value("y", spec)])
        graph.outputs = [build(Builder(graph.nodes, "xy"), *graph.inputs, dims)]
        tensors = [(100 * torch.randn(kept)).expand(shape).contiguous() for _ in range(2)]
        program = compile_graph(graph, options)
        yield f"equal products {build.__name__} {shape}", program, tensors, [torch.zeros(shape)]


def report() -> dict[str, str]:
    """What differs from eager, by Program."""
    from contextlib import nullcontext

    from contraction import contraction
    from test_ways import run_steps

    result = {}
    for name, program, tensors, expected in programs():
        values = dict(zip(program.inputs, tensors, strict=True))
        try:
            with contraction() if "products" in name else nullcontext():
                values = run_steps(program, values, products=True) or {}
            for output, reference in zip(program.outputs, expected, strict=True):
                exact = {"atol": 0, "rtol": 0} if name.startswith("equal") else {}
                tolerances = {"atol": 2e-3, "rtol": 1e-4} | exact
                torch.testing.assert_close(values[output], reference, **tolerances)
            result[name] = ""
        except Exception as error:
            result[name] = f"{type(error).__name__}: {error}"
    return result


if __name__ == "__main__":
    import interpreter  # noqa: F401  # sets TRITON_INTERPRET before Triton is imported

    print(json.dumps(report()))


def test_every_program_computes_what_eager_does() -> None:
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    here = Path(__file__).parent
    path = os.pathsep.join([str(here), str(here.parent), *sys.path])
    done = subprocess.run(
        [sys.executable, __file__],
        capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    wrong = {name: text for name, text in json.loads(done.stdout.splitlines()[-1]).items() if text}
    assert not wrong, "\n".join(f"{name}: {text}" for name, text in wrong.items())
