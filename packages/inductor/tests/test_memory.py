"""Whose memory buffers take, and when it is free: planned peaks, kernels that overwrite."""

from __future__ import annotations

import pytest
import torch

from flambeau_inductor import InductorOptions, compile_graph
from flambeau_inductor.codegen.reference import ReferenceBackend
from flambeau_prims.graph import Node, Value
from flambeau_prims.spec import Spec
from flambeau_runtime import RuntimeOptions, load
from flambeau_runtime.peak_memory import live_bytes, planned_peak
from flambeau_runtime.program import Allocate, Free

OVERWRITE = InductorOptions(debug_checks=True, smallest_overwrite=0)


def product(b, x, w):
    """A matrix product, which a library computes."""
    result = Value(b.fresh_name(), Spec.of((x.spec.shape[0], w.spec.shape[1])))
    result.producer = Node(torch.ops.aten.mm.default, (x, w), {}, (result,))
    b.nodes.append(result.producer)
    return result


def rowwise(b, x, reduce):
    return b.expand(b.unsqueeze(reduce(x, (1,)), 1), x.spec.shape)


def softmax(b, x):
    e = b.exp(b.sub(x, rowwise(b, x, b.amax)))
    return b.div(e, rowwise(b, e, b.sum))


def pointwise_of_product(b, x, w):
    return product(b, b.tanh(product(b, x, w)), w)


def softmax_of_product(b, x, w):
    return softmax(b, product(b, x, w))


def residual_and_norm(b, x, w):
    total = b.add(product(b, x, w), product(b, w, x))
    centered = b.sub(total, b.mul(rowwise(b, total, b.sum), 1 / 37))
    return product(b, b.mul(centered, total), w), product(b, total, w)


def transposed(b, x, w):
    y = product(b, x, w)
    return product(b, b.clone(b.permute(b.add(y, b.permute(y, (1, 0))), (1, 0))), w)


def shifted(b, x, w):
    y = product(b, x, w)
    return product(b, b.add(y, b.flip(y, (1,))), w)


def returned(b, x, w):
    y = product(b, x, w)
    return y, b.tanh(y)


def overwrites(program):
    return sum(isinstance(step, Allocate) and step.in_place for step in program.steps)


@pytest.mark.parametrize(
    ("build", "count"),
    [
        (pointwise_of_product, 1),
        (softmax_of_product, 1),
        (residual_and_norm, 1),  # what is summed is read again, by the rest of the norm
        (transposed, 0),
        (shifted, 0),
        (returned, 0),
    ],
)
@pytest.mark.parametrize("generator", ["reference", "cpp", "python"])
def test_a_kernel_overwrites_what_it_reads_last(tester, build, count, generator, tmp_path):
    tensors = [torch.randn(37, 37) for _ in range(2)]
    program = tester.check(build, *tensors, options=OVERWRITE)
    assert overwrites(program) == count
    if generator == "reference":
        return
    graph = tester.graph(build, tensors)
    executor = "python" if generator == "python" else "auto"
    run = load(
        compile_graph(graph, OVERWRITE),
        RuntimeOptions(cache_dir=tmp_path / "cache", executor=executor, debug=True),
    )
    want = load(
        compile_graph(tester.graph(build, tensors), InductorOptions(reuse_memory=False)),
        RuntimeOptions(cache_dir=tmp_path / "cache"),
    )(*tensors)
    torch.testing.assert_close(run(*tensors), want)


def test_small_buffers_are_not_overwritten(tester):
    tensors = [torch.randn(37, 37) for _ in range(2)]
    assert not overwrites(tester.check(pointwise_of_product, *tensors))
    larger = [torch.randn(160, 160) for _ in range(2)]
    program = tester.check(pointwise_of_product, *larger, rtol=1e-4, atol=1e-3)
    assert overwrites(program) == 1
    inputs = live_bytes(program)[0]
    assert planned_peak(program) == inputs + 2 * 160 * 160 * 4


def test_memory_does_not_wait_at_the_peak(tester):
    """A buffer that is wanted again only behind the largest one is freed in between."""

    def build(b, x, w):
        small = product(b, x, w)
        wide = b.expand(b.unsqueeze(b.sum(product(b, small, w), (1,)), 1), (32, 4096))
        large = product(b, b.clone(b.exp(wide)), b.clone(b.expand(b.sum(w, (0, 1)), (4096, 32))))
        return product(b, large, w)

    def peak(options):
        graph = tester.graph(build, [torch.randn(32, 32) * 0.01, torch.randn(32, 32) * 0.01])
        return planned_peak(compile_graph(graph, options, backends={"cpu": ReferenceBackend()}))

    assert peak(InductorOptions()) <= peak(InductorOptions(reuse_memory=False))


def test_spent_inputs_are_freed_behind_their_last_use(tester):
    def build(b, x, w, unused):
        y = product(b, x, w)
        return product(b, y, w), w

    tensors = [torch.randn(8, 8) for _ in range(3)]
    graph = tester.graph(build, tensors)
    program = compile_graph(graph, backends={"cpu": ReferenceBackend()}, spends_inputs=True)
    freed = [step.name for step in program.steps if isinstance(step, Free)]
    assert freed[0] == "arg0" and "arg1" not in freed
    kept = compile_graph(tester.graph(build, tensors), backends={"cpu": ReferenceBackend()})
    assert not {"arg0", "arg1"} & {s.name for s in kept.steps if isinstance(s, Free)}
    assert planned_peak(program) < planned_peak(kept)
