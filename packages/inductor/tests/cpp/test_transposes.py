"""Transposing kernels: tiles of elements of every size, at every ISA level, against the primitives'
references.
"""

from __future__ import annotations

import dataclasses

import pytest
import run_cpp
import torch

from flambeau_inductor import InductorOptions, compile_graph
from flambeau_prims.evaluate import run_graph
from flambeau_runtime import load
from flambeau_runtime.build import isa

DTYPES = (torch.int8, torch.bool, torch.int16, torch.float32, torch.int64, torch.bfloat16)
SHAPES = ((64, 64), (17, 33), (130, 100), (3, 65, 200), (2, 16, 16), (2, 1031, 19), (577, 613))


@pytest.fixture(params=isa.LEVELS)
def options(request):
    if isa.LEVELS.index(request.param) < isa.LEVELS.index(isa.detect()):
        pytest.skip(f"this machine has no {request.param}")
    return dataclasses.replace(run_cpp.OPTIONS, isa=request.param)


def random(shape, dtype) -> torch.Tensor:
    return (torch.randn(shape) * 50).to(dtype)


def transposed(b, *xs):
    """Each with its last dim first or its last dims swapped, changed on the way."""
    results = []
    for x in xs:
        dims = list(range(x.spec.ndim))
        for order in ([*dims[:-2], dims[-1], dims[-2]], [dims[-1], *dims[:-1]]):
            wide = b.cast(b.permute(x, order), torch.float32)
            results.append(b.cast(b.minimum(wide, 100.0), x.spec.dtype))
    return results


def test_transposes(tester, options):
    tensors = [random(shape, dtype) for dtype in DTYPES for shape in SHAPES]
    graph = tester.graph(transposed, tensors)
    got = load(compile_graph(graph, InductorOptions()), options)(*tensors)
    for mine, theirs in zip(got, run_graph(graph, tensors), strict=True):
        assert mine.dtype is theirs.dtype and mine.stride() == theirs.stride()
        assert torch.equal(mine, theirs)


def test_three_transposed_operands(tester, options):
    tensors = [random((70, 50), dtype) for dtype in (torch.float32, torch.float64, torch.int16)]

    def build(b, x, y, z):
        x, y, z = (b.cast(b.permute(v, [1, 0]), torch.float64) for v in (x, y, z))
        return b.add(b.mul(x, y), z)

    graph = tester.graph(build, tensors)
    (got,) = load(compile_graph(graph, InductorOptions()), options)(*tensors)
    torch.testing.assert_close(got, run_graph(graph, tensors)[0])


def test_operands_in_both_orders(tester, options):
    """Rows of what is not transposed are asked for a tile ahead; sizes leave partial tiles."""
    tensors = []
    for shape in ((96, 64), (33, 70), (2, 130, 300)):
        tensors += [
            random(shape, torch.bfloat16),
            random((*shape[:-2], shape[-1], shape[-2]), torch.float32),
        ]

    def build(b, *xs):
        sums = []
        for x, y in zip(xs[::2], xs[1::2], strict=True):
            dims = [*range(x.spec.ndim - 2), x.spec.ndim - 1, x.spec.ndim - 2]
            sums.append(b.add(b.cast(b.permute(x, dims), torch.float32), y))
        return sums

    graph = tester.graph(build, tensors)
    got = load(compile_graph(graph, InductorOptions()), options)(*tensors)
    for mine, theirs in zip(got, run_graph(graph, tensors), strict=True):
        assert torch.equal(mine, theirs)
