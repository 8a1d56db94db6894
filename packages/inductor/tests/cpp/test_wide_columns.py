"""Column reductions whose blocks are whole rows: widths around the limits, one and more threads."""

from __future__ import annotations

import pytest
import torch
from run_cpp import OPTIONS

from flambeau_inductor import InductorOptions, compile_graph
from flambeau_inductor.codegen.cpp.plan import WHOLE_ROWS
from flambeau_prims.evaluate import run_graph
from flambeau_runtime import load


def reductions(b, x):
    """One reduction, two together, and one whose rows are read again."""
    shape = x.spec.shape
    centred = b.sub(x, b.expand(b.unsqueeze(b.amax(x, (0,)), 0), shape))
    return [b.sum(x, (0,)), b.argmax(x, 0), b.sum(b.exp(centred), (0,)), b.mul(centred, x)]


@pytest.mark.parametrize("width", [127, 129, 515, 1023, 1024, 1025])
@pytest.mark.parametrize("threads", [1, 3])
def test_widths(tester, width, threads):
    x = torch.randn(301, width)
    x[7, 5], x[100, 5], x[3, 6] = float("nan"), float("nan"), float("inf")
    graph = tester.graph(reductions, [x])
    got = load(compile_graph(graph, InductorOptions(threads=threads)), OPTIONS)(x)
    for mine, theirs in zip(got, run_graph(graph, [x]), strict=True):
        assert mine.dtype is theirs.dtype
        torch.testing.assert_close(mine, theirs, equal_nan=True, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("shape", [(70, 2500), (3, 40, 4099)])
@pytest.mark.parametrize("name", ["amax", "argmin"])
def test_extremes_of_wide_columns(tester, name, shape, threads):
    """Pieces of rows as long as whole rows may be."""

    def extremes(b, x):
        dim = x.spec.ndim - 2
        return [b.amax(x, (dim,)) if name == "amax" else b.argmin(x, dim)]

    x = torch.randn(shape)
    x[..., 7, 5], x[..., 20, 5], x[..., 3, 2047] = float("nan"), float("nan"), float("inf")
    graph = tester.graph(extremes, [x])
    program = compile_graph(graph, InductorOptions(threads=threads))
    got = load(program, OPTIONS)(x)
    for mine, theirs in zip(got, run_graph(graph, [x]), strict=True):
        torch.testing.assert_close(mine, theirs, equal_nan=True)
    text = "".join(source.text for source in program.sources)
    assert f"_all[{WHOLE_ROWS}];" in text
