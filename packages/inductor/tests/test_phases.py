"""Kernels cut into phases: the phases, replayed one by one, compute what the kernel computes."""

from __future__ import annotations

import pytest
import torch

from flambeau_inductor import InductorOptions
from flambeau_inductor.emit_program import build_kernels
from flambeau_inductor.evaluate import Evaluator, run_kernel
from flambeau_inductor.pipeline import schedule_graph
from flambeau_inductor.scalar_ops import Replay
from flambeau_inductor.scheduler.phases import split_phases


def softmax(b, x):
    e = b.exp(b.sub(x, b.expand(b.unsqueeze(b.amax(x, (1,)), 1), x.spec.shape)))
    return b.div(e, b.expand(b.unsqueeze(b.sum(e, (1,)), 1), x.spec.shape))


def row_results(b, x):
    """Values of rows between reductions, and row results stored beside full ones."""
    s = b.tanh(b.sum(b.exp(x), (1,)))
    y = b.mul(b.sin(x), b.expand(b.unsqueeze(s, 1), x.spec.shape))
    return y, s, b.neg(b.sum(y, (1,)))


def needed_late(b, x):
    """A costly value that no reduction needs before the second one, though nothing but loads stands
    before it.
    """

    def spread(row):
        return b.expand(b.unsqueeze(row, 1), x.spec.shape)

    total = b.sum(x, (1,))
    costly = b.exp(b.sin(b.exp(x)))
    return b.mul(costly, spread(b.sum(b.mul(costly, spread(total)), (1,))))


def pointwise(b, x):
    return b.exp(x)


def kernel_of(tester, build, x):
    schedule = schedule_graph(tester.graph(build, [x]), InductorOptions())
    (launch,) = build_kernels(schedule, InductorOptions()).values()
    return launch.kernel


@pytest.mark.parametrize("keep_cost", [None, 0, 10, 1000])
@pytest.mark.parametrize("build", [softmax, row_results, needed_late, pointwise])
def test_phases_compute_the_kernel(tester, build, keep_cost):
    x = torch.randn(5, 9)
    kernel = kernel_of(tester, build, x)
    buffers = {
        param.name: x.clone() if param.access == "read" else torch.zeros(5, 9)
        for param in kernel.params
    }
    run_kernel(kernel, list(buffers.values()), ())
    again = {
        name: tensor.clone() if name == "b0" else torch.zeros(5, 9)
        for name, tensor in buffers.items()
    }
    evaluator = Evaluator(kernel, {name: tensor.view(-1) for name, tensor in again.items()}, {})
    replay = Replay(evaluator)
    kept: set[str] = set()
    for phase in split_phases(kernel, keep_cost):
        assert set(phase.fetches) <= kept
        replay.run(phase.row)
        rows = set(replay.values)
        replay.run(phase.inner)
        replay.run(phase.reduces)
        kept |= set(phase.keeps)
        # What the loop computed is gone, unless it was kept or reduced.
        reduced = {reduce.name for reduce in phase.reduces}
        for name in set(replay.values) - rows - reduced - kept:
            del replay.values[name]
    for stored, index, value in evaluator.stores:
        again[stored].view(-1)[index] = value
    for name, tensor in buffers.items():
        torch.testing.assert_close(again[name], tensor)


def test_what_is_kept(tester):
    kernel = kernel_of(tester, softmax, torch.randn(5, 9))
    everything_again = split_phases(kernel)
    assert len(everything_again) == 3 and not any(phase.keeps for phase in everything_again)
    keeping = split_phases(kernel, keep_cost=10)
    assert [len(phase.keeps) for phase in keeping] == [0, 1, 0]
    assert keeping[2].fetches == keeping[1].keeps
