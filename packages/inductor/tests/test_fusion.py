"""Which loop nests share a kernel: golden text of the kernels, and the numbers they compute."""

from __future__ import annotations

import pytest
import torch

from flambeau_inductor import InductorOptions, explain_graph
from flambeau_prims.graph import Node, Value
from flambeau_prims.spec import spec_of
from flambeau_runtime import format_program
from flambeau_runtime.program import Allocate, Launch


def along(b, row, x, dim=1):
    """A reduced value beside x again."""
    return b.expand(b.unsqueeze(row, dim), x.spec.shape)


def softmax(b, x):
    e = b.exp(b.sub(x, along(b, b.amax(x, (1,)), x)))
    return b.div(e, along(b, b.sum(e, (1,)), x))


def layer_norm(b, x, weight, bias):
    n = float(x.spec.shape[1])
    mean = b.div(b.sum(x, (1,)), n)
    centred = b.sub(x, along(b, mean, x))
    rstd = b.rsqrt(b.add(b.div(b.sum(b.mul(centred, centred), (1,)), n), 1e-5))
    scaled = b.mul(b.mul(centred, along(b, rstd, x)), b.expand(weight, x.spec.shape))
    return b.add(scaled, b.expand(bias, x.spec.shape)), mean, rstd


def batch_norm(b, x, weight):
    n = float(x.spec.shape[0] * x.spec.shape[2] * x.spec.shape[3])

    def channels(v):
        return b.expand(b.unsqueeze(b.unsqueeze(v, 1), 2), x.spec.shape)

    mean = b.div(b.sum(x, (0, 2, 3)), n)
    centred = b.sub(x, channels(mean))
    rstd = b.rsqrt(b.add(b.div(b.sum(b.mul(centred, centred), (0, 2, 3)), n), 1e-5))
    return b.mul(b.mul(centred, channels(rstd)), channels(weight)), mean, rstd


def chain(b, x, y):
    z = b.mul(b.add(x, y), 2.0)
    return b.tanh(b.sub(z, b.exp(y)))


def two_outputs_of_one(b, x, y):
    z = b.add(x, y)
    return b.tanh(z), b.mul(z, 2.0)


def independent(b, x, y):
    return b.exp(x), b.sin(y)


def transpose_between(b, x):
    """The transposed reader takes the producer in, so that both run over one order of loops."""
    return b.neg(b.permute(b.exp(x), (1, 0)))


def transpose_of_stored(b, x):
    """Both memory orders are results: the loops of one nest are reordered to follow the other."""
    y = b.exp(x)
    return y, _contiguous(b, b.permute(y, (1, 0)))


def _contiguous(b, x):
    y = b.clone(x)
    y.spec = y.spec.replace(shape=y.spec.shape)
    return y


def row_and_column_sums(b, x):
    y = b.exp(x)
    return y, b.sum(y, (1,)), b.sum(y, (0,))


def attention_heads(b, x):
    """[2, 3, 4*5] -> heads in front -> a copy in that order."""
    heads = b.permute(b.reshape(b.add(x, 1.0), (2, 3, 4, 5)), (0, 2, 1, 3))
    return _contiguous(b, b.mul(heads, 0.5))


def half_precision(b, x):
    """Casts down and up again inside a kernel are elided."""
    y = b.cast(b.tanh(b.cast(x, torch.float32)), torch.bfloat16)
    return b.cast(b.mul(b.cast(y, torch.float32), 2.0), torch.bfloat16)


def rotary(b, x):
    """Rotate half of the last dim: a short cat, inlined."""
    left, right = b.slice(x, 1, 0, 6, 1), b.slice(x, 1, 6, 12, 1)
    return b.add(b.mul(x, 0.5), b.cat([b.neg(right), left], 1))


CASES = {
    softmax: [(6, 33)],
    layer_norm: [(6, 33), (33,), (33,)],
    batch_norm: [(3, 5, 4, 7), (5,)],
    chain: [(6, 33), (6, 33)],
    two_outputs_of_one: [(6, 33), (6, 33)],
    independent: [(6, 33), (6, 33)],
    transpose_between: [(6, 33)],
    transpose_of_stored: [(6, 33)],
    row_and_column_sums: [(6, 33)],
    attention_heads: [(2, 3, 20)],
    half_precision: [(6, 33)],
    rotary: [(5, 12)],
}
ONE_KERNEL = {
    softmax,
    layer_norm,
    batch_norm,
    chain,
    two_outputs_of_one,
    independent,
    transpose_between,
    transpose_of_stored,
    attention_heads,
    half_precision,
    rotary,
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_kernels(tester, golden, case):
    dtype = torch.bfloat16 if case is half_precision else torch.float32
    tensors = [torch.randn(shape).to(dtype) for shape in CASES[case]]
    program = tester.check(
        case,
        *tensors,
        rtol=2e-2 if case is half_precision else None,
        atol=1e-2 if case is half_precision else None,
    )
    explanation = explain_graph(tester.graph(case, tensors))
    golden(case.__name__, f"{explanation}\n\n{format_program(program)}")
    if case in ONE_KERNEL:
        assert len([step for step in program.steps if isinstance(step, Launch)]) == 1


def test_refusals_have_reasons(tester):
    explanation = explain_graph(tester.graph(row_and_column_sums, [torch.randn(6, 33)]))
    assert any(refusal.reason for refusal in explanation.refusals)
    assert "not fused" in str(explanation)


def test_equal_layers_share_kernels(tester):
    def layers(b, x, w, *rest):
        for _ in range(4):
            node = Node(
                torch.ops.aten.mm.default, (softmax(b, x), w), {}, (Value(b.fresh_name(), x.spec),)
            )
            node.outputs[0].producer = node
            b.nodes.append(node)
            x = b.add(b.tanh(node.outputs[0]), x)
        return x

    program = tester.check(layers, torch.randn(7, 7), torch.randn(7, 7))
    assert len([step for step in program.steps if isinstance(step, Launch)]) == 5
    assert len(program.kernels) == 3  # first softmax; tanh + add + softmax; last tanh + add


def test_memory_is_reused_and_freed(tester):
    def build(b, x, w):
        for _ in range(4):
            node = Node(
                torch.ops.aten.mm.default, (b.exp(x), w), {}, (Value(b.fresh_name(), x.spec),)
            )
            node.outputs[0].producer = node
            b.nodes.append(node)
            x = node.outputs[0]
        return x

    program = tester.check(build, torch.randn(5, 5) * 0.01, torch.randn(5, 5) * 0.01)
    fresh = [step for step in program.steps if isinstance(step, Allocate) and step.reuse is None]
    assert len(fresh) == 2
    graph = tester.graph(build, [torch.randn(5, 5), torch.randn(5, 5)])
    program, _ = tester.compile(graph, InductorOptions(reuse_memory=False))
    assert not any(isinstance(step, Allocate) and step.reuse for step in program.steps)


def test_cast_pairs_are_kept_on_demand(tester):
    x = torch.randn(6, 33).bfloat16()
    strict = InductorOptions(elide_cast_pairs=False, debug_checks=True)
    tester.check(half_precision, x, options=strict, rtol=0, atol=0)
    graph = tester.graph(half_precision, [x])
    assert str(explain_graph(graph)).count("cast") == 2
    assert str(explain_graph(graph, strict)).count("cast") == 4


def test_casts_that_round_nothing_are_left_out(tester):
    """A sign or a choice of numbers of bfloat16 is one, whatever the options."""
    strict = InductorOptions(elide_cast_pairs=False, debug_checks=True)

    def build(b, x, y):
        wide, other = b.cast(x, torch.float32), b.cast(y, torch.float32)
        size = b.cast(b.maximum(b.abs(wide), b.neg(other)), torch.bfloat16)
        chosen = b.cast(b.where(b.lt(other, 0.0), wide, 0.5), torch.bfloat16)
        inexact = b.cast(b.maximum(wide, 0.1), torch.bfloat16)
        results = (b.cast(each, torch.float32) for each in (size, chosen, inexact))
        return tuple(results)

    x, y = (torch.randn(6, 33).bfloat16() for _ in range(2))
    x[0, :3] = torch.tensor([float("nan"), -float("inf"), -0.0])
    tester.check(build, x, y, options=strict, rtol=0, atol=0)
    text = str(explain_graph(tester.graph(build, [x, y]), strict))
    assert text.count("cast") == 4  # two operands; the last result, rounded


def test_horizontal_fusion_is_an_option(tester):
    graph = tester.graph(independent, [torch.randn(6, 33), torch.randn(6, 33)])
    program, _ = tester.compile(graph, InductorOptions(fuse_horizontal=False))
    assert len(program.kernels) == 2


def test_the_same_values_in_specs_of_other_strides(tester):
    """Channels-last and contiguous operands in one graph."""
    x = torch.randn(2, 5, 4, 3)
    y = torch.randn(2, 5, 4, 3).to(memory_format=torch.channels_last)
    tester.check(
        lambda b, x, y: (b.add(x, y), b.add(y, b.exp(y)), b.sum(b.mul(x, y), (0, 2, 3))), x, y
    )
    assert spec_of(y).stride != spec_of(x).stride
