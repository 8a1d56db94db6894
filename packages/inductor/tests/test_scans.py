"""Lowering and scheduling of scans and sorts, against the primitives' references."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from flambeau_inductor import InductorOptions
from flambeau_inductor.check import BorderError, check_kernel
from flambeau_inductor.indexing.expressions import symbol
from flambeau_inductor.ir import Axis, Load, LoopKernel, Param, Scan, Sort, Store, format_kernel
from flambeau_inductor.lowering.split_scan import choose_chunk
from flambeau_prims.builder import Builder
from flambeau_prims.graph import Value
from flambeau_prims.spec import Spec

SCANS = ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp")
SPECIAL = torch.tensor([0.0, -0.0, float("nan"), 1.0, float("inf"), -float("inf"), 2.0])


def inputs() -> list[torch.Tensor]:
    """Tensors of several layouts, with special values."""
    x = torch.randn(5, 7)
    x[1] = SPECIAL
    return [
        x, torch.randn(7, 5).t(), torch.randn(5, 21)[:, ::3], torch.randn(1, 7).expand(5, 7),
        torch.randn(0, 7), torch.randn(5, 1), torch.randn(3, 4, 6)[:, 1],
    ]  # fmt: skip


@pytest.mark.parametrize("parts", [None, 3])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", SCANS)
def test_scan(tester, name, reverse, parts):
    options = dataclasses.replace(tester.options, reduction_parts=parts)
    for x in inputs():
        for dim in (0, 1):
            tester.check(
                lambda b, x, dim=dim: getattr(b, name)(x, dim, reverse), x, options=options
            )


@pytest.mark.parametrize(
    ("shape", "dim", "chunk"),
    [
        ((1 << 20,), 0, 1024),
        ((1 << 22,), 0, 4096),
        ((1 << 25,), 0, 4096),
        ((1 << 26,), 0, 8192),
        ((4096, 16384), 0, 0),
        ((1 << 20, 8), 0, 1024),
    ],
)
def test_chunks_on_a_gpu_are_those_that_registers_hold(shape, dim, chunk):
    x = Value("x", Spec.of(shape, device=torch.device("cuda:0")))
    builder = Builder([], ["x"])
    builder.cumsum(x, dim, False)
    assert choose_chunk(builder.nodes[-1], InductorOptions()) == chunk


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.float64])
@pytest.mark.parametrize("parts", [None, 2])
def test_scan_of_other_dtypes(tester, dtype, parts):
    options = dataclasses.replace(tester.options, reduction_parts=parts)
    x = torch.randint(0, 5, (4, 9)).to(dtype)
    for name in SCANS[:4]:
        tester.check(lambda b, x, name=name: getattr(b, name)(x, 1, False), x, options=options)
    if not dtype.is_floating_point:
        truth = x > 2
        tester.check(lambda b, x: (b.cummax(x, 1, False), b.cummin(x, 0, True)), truth)


def sorted_along(b, x, dim, descending):
    count = x.spec.shape[dim]
    few = min(count, 3)
    return (
        b.sort(x, dim, descending, count), b.argsort(x, dim, descending, count),
        b.sort(x, dim, descending, few), b.argsort(x, dim, descending, few),
    )  # fmt: skip


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("count", [1, 2, 7, 8, 100])
def test_search(tester, count, right):
    edges = torch.randn(count).sort().values
    x = torch.cat([torch.randn(40), edges, torch.tensor([float("nan"), float("inf")])])
    tester.check(lambda b, e, x: b.searchsorted(e, x, right), edges, x)
    rows = torch.randint(0, 9, (3, count)).sort(1).values
    tester.check(
        lambda b, e, x: b.searchsorted(e, x, right), rows, torch.randint(-1, 10, (6, 3)).t()
    )
    # Boundaries that are computed get memory; what reads the places joins the search.
    tester.check(lambda b, e, x: b.add(b.searchsorted(b.mul(e, 2.0), b.neg(x), right), 1), edges, x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_search_for_computed_halves_among_themselves(tester, dtype):
    def build(b, x, right):
        y = b.cast(b.mul(b.cast(x, torch.float32), 3.0), dtype)
        return b.searchsorted(b.sort(y, 1, False, 64), y, right)

    x = torch.randn(8, 64).to(dtype)
    for right in (False, True):
        tester.check(lambda b, x, right=right: build(b, x, right), x)


@pytest.mark.parametrize("descending", [False, True])
def test_sort(tester, descending):
    for x in (*inputs(), torch.randint(0, 4, (6, 40)), torch.rand(3, 50) > 0.5):
        for dim in (0, 1):
            tester.check(
                lambda b, x, dim=dim: (*sorted_along(b, x, dim, descending),),
                x,
            )


def test_neighbours_join_a_scan(tester):
    def build(b, x):
        scanned = b.cumsum(b.exp(x), 1, False)
        return b.mul(scanned, 2.0), b.sum(scanned, (1,))

    program = tester.check(build, torch.randn(5, 7))
    assert len(program.kernels) == 1


def test_a_scan_follows_a_reduction(tester):
    def build(b, x):
        powers = b.exp(b.sub(x, b.spread(b.amax(x, (1,)), (1,), x.spec.shape)))
        share = b.div(powers, b.spread(b.sum(powers, (1,)), (1,), x.spec.shape))
        return b.cumsum(share, 1, False)

    assert len(tester.check(build, torch.randn(5, 7)).kernels) == 1


def test_reduction_behind_a_sort(tester):
    def build(b, x):
        ordered = b.sort(x, 1, False, 7)
        return b.sub(ordered, b.spread(b.sum(ordered, (1,)), (1,), x.spec.shape))

    assert len(tester.check(build, torch.randn(5, 7)).kernels) == 1


def test_one_kernel_scans_in_one_direction(tester):
    def build(b, x):
        return b.cumsum(x, 1, False), b.cumsum(x, 1, True)

    assert len(tester.check(build, torch.randn(5, 7)).kernels) == 2


def test_scans_along_other_dims_stay_apart(tester):
    x = torch.randn(6, 6)
    assert len(tester.check(lambda b, x: b.cumsum(b.cumsum(x, 1, False), 0, False), x).kernels) == 2


def test_chunks_are_three_kernels(tester):
    options = dataclasses.replace(tester.options, reduction_parts=4)
    for size in (64, 65):
        build = lambda b, x: b.add(b.cumsum(b.exp(x), 1, False), 1.0)  # noqa: E731
        program = tester.check(build, torch.randn(3, size), options=options)
        # A short last chunk stores under a mask: what follows has no axes in common with it.
        assert len(program.kernels) == (3 if size == 64 else 4)


@pytest.mark.parametrize(("size", "parts"), [(600_000, 16), (600_001, 16), (700_000, 16)])
def test_long_rows_on_a_cpu_are_scanned_in_chunks(tester, size, parts):
    """Chunks that divide the row, where there are such: then what follows joins the last kernel."""
    graph = tester.graph(lambda b, x: b.neg(b.cumsum(x, 0, False)), [torch.empty(size)])
    options = dataclasses.replace(tester.options, threads=2)
    program = tester.compile(graph, options)[0]
    assert len(program.kernels) == (4 if size % parts else 3)


@pytest.mark.parametrize("limited", [False, True])
def test_one_thread_scans_a_long_row_at_once(tester, limited):
    """By the option, or where torch has one thread."""
    options = dataclasses.replace(tester.options, threads=int(limited))
    threads = torch.get_num_threads()
    torch.set_num_threads(2 if limited else 1)
    try:
        program = tester.check(
            lambda b, x: b.cumsum(x, 0, False), torch.randn(600_001), options=options
        )
    finally:
        torch.set_num_threads(threads)
    assert len(program.kernels) == 1


def kernel(*middle) -> LoopKernel:
    i, r = symbol("i0"), symbol("r0")
    body = (Load("v0", torch.float32, "b0", 7 * i + r), *middle, Store("b1", 7 * i + r, "v1"))
    params = (Param("b0", torch.float32, "read"), Param("b1", torch.float32, "write"))
    return LoopKernel("cpu", params, (), (Axis(i, 5),), (Axis(r, 7),), body)


def test_text_and_checks():
    good = kernel(Scan("v1", torch.float32, "sum", "v0", True))
    check_kernel(good)
    assert "v1 = scan sum v0 reversed" in format_kernel(good)
    ordered = kernel(Sort("v1", torch.float32, "values", "v0", True))
    check_kernel(ordered)
    assert "v1 = sort values v0 descending" in format_kernel(ordered)
    for bad in (
        kernel(Scan("v1", torch.float32, "mean", "v0")),
        kernel(Sort("v1", torch.float32, "median", "v0")),
        dataclasses.replace(good, inner=()),
        kernel(
            Scan("v2", torch.float32, "sum", "v0"), Scan("v1", torch.float32, "sum", "v2", True)
        ),
    ):
        with pytest.raises(BorderError):
            check_kernel(bad)
