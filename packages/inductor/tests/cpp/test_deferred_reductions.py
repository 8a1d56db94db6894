"""Reductions that count only where a condition holds: what may be left out, and that the kernels
which leave it out compute the same in rows, columns and threads.
"""

from __future__ import annotations

import pytest
import sympy
import torch

from flambeau_inductor import InductorOptions, compile_graph
from flambeau_inductor.emit_program import build_kernels
from flambeau_inductor.evaluate import Evaluator, run_kernel
from flambeau_inductor.ir import Compute, Reduce, Store, inner_names
from flambeau_inductor.pipeline import schedule_graph
from flambeau_inductor.scalar_ops import Replay
from flambeau_inductor.scheduler.deferred_reductions import find_deferrals
from flambeau_inductor.scheduler.phases import split_phases
from flambeau_prims.evaluate import run_graph
from flambeau_runtime import load

F32 = torch.float32
SUM = Reduce("s", F32, "sum", "x")
SHIFT = Compute("t", F32, "neg", ("s",))
CHOICE = Compute("y", F32, "where", ("c", "t", "n"))


def corrected(b, x, dims=(1,)):
    """x less its mean or, of rows far from 0, less their mean distance from half the mean."""

    def spread(row):
        return b.spread(row, dims, x.spec.shape)

    size = 1.0
    for d in dims:
        size *= x.spec.shape[d]
    near = b.div(b.sum(x, dims), size)
    far = b.sub(x, spread(near))
    squares = b.sum(b.mul(far, far), dims)
    is_far = b.gt(b.mul(near, b.mul(near, size)), b.add(squares, 16.0))
    half = b.abs(b.sub(x, spread(b.mul(near, 0.5))))
    shift = b.div(b.sum(half, dims), size)
    return b.sub(x, spread(b.where(is_far, b.add(near, b.mul(shift, 0.3)), near)))


def rows_and_columns(b, x):
    return corrected(b, x), corrected(b, b.permute(x, (1, 0)))


BUILDS = {
    "rows": corrected,
    "columns": lambda b, x: corrected(b, x, (0,)),
    "whole": lambda b, x: corrected(b, x, (0, 1)),
    "twice": lambda b, x: corrected(b, b.mul(corrected(b, x), 1e3)),
    "two": lambda b, x: b.mul(corrected(b, x), corrected(b, b.mul(x, 2.0))),
    "kept": lambda b, x: corrected(b, b.add(x, b.exp(b.sin(b.exp(b.neg(b.abs(x))))))),
    "rows of columns": rows_and_columns,
}


def sample(rows: int, columns: int) -> torch.Tensor:
    """Some rows far from 0, some columns, too."""
    x = torch.randn(rows, columns)
    x[::3] *= 1e-3
    x[::3] += 100.3
    x[:, ::40] = 50 + torch.rand(rows, 1) / 1e3
    return x


@pytest.mark.parametrize("shape", [(6, 37), (5, 700), (300, 90), (2, 70000)])
@pytest.mark.parametrize("name", BUILDS)
def test_kernels_compute_the_same(tester, name, shape):
    x = sample(*shape)
    if name == "whole":
        x = x * 1e-3 + 100.3
    graph = tester.graph(BUILDS[name], [x])
    program = compile_graph(graph, InductorOptions(debug_checks=True))
    # Of two long rows, kernels leave the sums in memory for others.
    is_deferred = any("__builtin_expect" in source.text for source in program.sources)
    assert is_deferred or (name == "two" and shape[1] == 70000)
    for ours, theirs in zip(load(program)(x), run_graph(graph, [x]), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5 * theirs.abs().max().item())


@pytest.mark.parametrize("keep_cost", [None, 0, 1000])
@pytest.mark.parametrize("name", ["rows", "columns", "twice", "two", "kept"])
def test_phases_compute_the_kernel(tester, name, keep_cost):
    """Behind its loop a phase computes what its deferrals name, and nothing else does."""
    x = sample(5, 9)
    schedule = schedule_graph(tester.graph(BUILDS[name], [x]), InductorOptions())
    launch, *_ = build_kernels(schedule, InductorOptions()).values()
    kernel = launch.kernel
    read = {p.name: x.clone() for p in kernel.params if p.access == "read"}
    buffers = {p.name: read.get(p.name, torch.zeros(5, 9)) for p in kernel.params}
    run_kernel(kernel, list(buffers.values()), ())
    again = {p.name: read.get(p.name, torch.zeros(5, 9)) for p in kernel.params}
    evaluator = Evaluator(kernel, {key: t.view(-1) for key, t in again.items()}, {})
    replay = Replay(evaluator)
    phases = split_phases(kernel, keep_cost, defers=True)
    assert any(phase.deferrals for phase in phases)
    kept: set[str] = set()
    for phase in phases:
        assert set(phase.fetches) <= kept and not (phase.deferrals and phase.keeps)
        replay.run(phase.row)
        rows = set(replay.values)
        replay.run(phase.inner)
        replay.run(phase.reduces)
        late = [statement for deferral in phase.deferrals for statement in deferral.body]
        replay.run(late)
        choices = {c.name for deferral in phase.deferrals for c in deferral.choices}
        kept |= set(phase.keeps)
        reduced = set() if phase.deferrals else {reduce.name for reduce in phase.reduces}
        for value in set(replay.values) - rows - reduced - kept - choices:
            del replay.values[value]
    for stored, index, value in evaluator.stores:
        again[stored].view(-1)[index] = value
    for key, tensor in buffers.items():
        torch.testing.assert_close(again[key], tensor)


def deferred(*body) -> list[tuple[str, set[str], list[str]]]:
    inner = inner_names((), ()) | {"x"}
    return [
        (d.condition, set(d.reduces), [s.name for s in d.body]) for d in find_deferrals(body, inner)
    ]


def test_what_is_deferred() -> None:
    second = Compute("z", F32, "where", ("c", "s", "m"))
    assert deferred(SUM, SHIFT, CHOICE) == [("c", {"s"}, ["t", "y"])]
    assert deferred(SUM, SHIFT, CHOICE, second) == [("c", {"s"}, ["t", "y", "z"])]
    assert deferred(Reduce("r", F32, "max", "x"), SUM, Compute("t", F32, "add", ("s", "r")), CHOICE)


@pytest.mark.parametrize(
    "reader",
    [
        Store("b1", sympy.S.Zero, "s"),
        Store("b1", sympy.S.Zero, "t"),
        Compute("z", F32, "neg", ("t",)),
        Compute("z", F32, "where", ("d", "t", "n")),
        Compute("z", F32, "where", ("c", "n", "t")),
        Compute("z", F32, "where", ("c", "t", "t")),
        Compute("z", F32, "add", ("x", "t")),
        Compute("z", F32, "where", ("x", "t", "n")),
    ],
)
def test_what_others_read_is_not_deferred(reader) -> None:
    assert deferred(SUM, SHIFT, CHOICE, reader) == []


def test_a_loop_that_runs_anyway_takes_the_sum_along(tester) -> None:
    """The maximum's loop stands where the deferred sum would."""

    def build(b, x):
        y = corrected(b, x)
        scaled = x
        for _ in range(2):
            total = b.spread(b.sum(b.abs(scaled), (1,)), (1,), x.spec.shape)
            scaled = b.div(scaled, total)
        return y, b.amax(scaled, (1,))

    x = sample(6, 37)
    graph = tester.graph(build, [x])
    program = compile_graph(graph, InductorOptions(debug_checks=True))
    assert not any("__builtin_expect" in source.text for source in program.sources)
    for ours, theirs in zip(load(program)(x), run_graph(graph, [x]), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-4)
