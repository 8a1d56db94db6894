"""Rows of a matrix product that are reduced in its tiles: the schedule before and after, and the
numbers beside eager's, of every reduction and many chains between product and reduction.

There is no GPU here: graphs are declared on one and run through the reference generator.
`triton/test_ways.py` runs the kernels in Triton's interpreter.
"""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest
import torch
from on_gpu import OPTIONS, OnGpu, StandIn, aten, kinds

from flambeau_inductor import InductorOptions, compile_graph
from flambeau_inductor.codegen.reference import ReferenceBackend
from flambeau_prims.graph import Value
from flambeau_prims.sizes import SizeEnv
from flambeau_prims.spec import Spec, spec_of
from flambeau_runtime import check_program
from flambeau_runtime.dims import evaluate
from flambeau_runtime.program import Allocate, Launch
from flambeau_runtime.tuning.contest import DeviceFacts

F32 = torch.float32
ROWS, LENGTH, DEPTH = 37, 300, 24


def product(*shape: int, dtype: torch.dtype = F32, special: bool = False):
    """A graph with the product of x and the transpose of c, and the product as eager has it."""
    *batch, rows, length, depth = shape
    x, c = torch.randn(*batch, rows, depth), torch.randn(*batch, length, depth)
    if special:
        x[1, 3], c[200, 3] = math.inf, 0.0  # one NaN
        x[2] = 0  # equal elements: the first is the extreme one
        x[3], c[:, 0] = 0, c[:, 0].abs() + 0.1
        x[3, 0], x[4, 5] = -math.inf, math.nan
    x, c = x.to(dtype), c.to(dtype)
    on = OnGpu(x, c)
    order = (*range(len(batch)), len(batch) + 1, len(batch))
    op = aten.bmm.default if batch else aten.mm.default
    value = on.call(op, on.graph.inputs[0], on.builder.permute(on.graph.inputs[1], order))
    return on, on.builder.cast(value, F32), (x @ c.mT).float()


def spread(on: OnGpu, value, like):
    """A value of rows, repeated along them."""
    return on.builder.expand(on.builder.unsqueeze(value, value.spec.ndim), like.spec.shape)


def logsumexp(on: OnGpu, value):
    """As it is decomposed."""
    b, dim = on.builder, value.spec.ndim - 1
    top = b.amax(value, (dim,))
    zero = b.full(top.spec.shape, 0.0, F32, torch.device("cuda:0"))
    top = b.where(b.isinf(top), zero, top)
    return b.add(b.log(b.sum(b.exp(b.sub(value, spread(on, top, value))), (dim,))), top)


def variance(on: OnGpu, value):
    """Around the mean, in two passes."""
    b, dim = on.builder, value.spec.ndim - 1
    size = value.spec.shape[-1]
    mean = b.mul(b.sum(value, (dim,)), 1.0 / size)
    apart = b.sub(value, spread(on, mean, value))
    return b.mul(b.sum(b.mul(apart, apart), (dim,)), 1.0 / size)


CHAINS = {
    "argmin": (lambda on, v: on.builder.argmin(v, v.spec.ndim - 1), lambda p: p.argmin(-1)),
    "argmax": (lambda on, v: on.builder.argmax(v, v.spec.ndim - 1), lambda p: p.argmax(-1)),
    "amax of abs": (lambda on, v: on.builder.amax(on.builder.abs(v), (v.spec.ndim - 1,)),
                    lambda p: p.abs().amax(-1)),
    "amin": (lambda on, v: on.builder.amin(v, (v.spec.ndim - 1,)), lambda p: p.amin(-1)),
    "sum of squares": (lambda on, v: on.builder.sum(on.builder.mul(v, v), (v.spec.ndim - 1,)),
                       lambda p: p.square().sum(-1)),
    "any": (lambda on, v: on.builder.any(on.builder.isnan(v), (v.spec.ndim - 1,)),
            lambda p: p.isnan().any(-1)),
    "logsumexp": (logsumexp, lambda p: p.logsumexp(-1)),
}  # fmt: skip


def both(on: OnGpu, outputs):
    """The results with rows reduced in tiles and as the schedule has it, and the new program."""
    inputs = tuple(on.graph.inputs), list(on.graph.nodes)
    before, _ = on.run(outputs, StandIn("nothing of this name"))
    assert tuple(on.graph.inputs) == inputs[0]
    on.graph.nodes[:] = inputs[1]
    tuner = StandIn("reduced rows")
    after, program = on.run(outputs, tuner)
    assert any("reduced rows" in each.name for c in tuner.contests for each in c.candidates)
    return before, after, program


@pytest.mark.parametrize("shape", [(ROWS, LENGTH, DEPTH), (3, 20, 150, 8), (5, 16, 24)],
                         ids=["odd", "batch", "one tile"])  # fmt: skip
@pytest.mark.parametrize("name", CHAINS)
def test_each_reduction(name: str, shape: tuple[int, ...]) -> None:
    on, value, exact = product(*shape)
    chain, eager = CHAINS[name]
    before, after, program = both(on, [chain(on, value)])
    assert [each.startswith("cuda_") for each in kinds(program)] == [True, True]
    assert not any(len(t.shape) > 1 and t.shape[-1] == shape[-2] for t in program.tensors
                   if t.name not in program.inputs), "the product is never written"  # fmt: skip
    torch.testing.assert_close(after[0], eager(exact), rtol=2e-5, atol=2e-5)
    torch.testing.assert_close(after[0], before[0], rtol=2e-5, atol=2e-5)


def test_schedule_before_and_after() -> None:
    on, value, _ = product(ROWS, LENGTH, DEPTH, dtype=torch.float16)
    result = on.builder.argmin(value, 1)
    nodes = list(on.graph.nodes)
    _, before = on.run([result], StandIn("nothing of this name"))
    assert kinds(before) == ["aten.mm.out", "cuda_cast_argmin_0"]
    on.graph.nodes[:] = nodes
    _, after = on.run([result], StandIn("reduced rows 16x64x32"))
    assert kinds(after) == ["cuda_mm_cast_argmin_0", "cuda_cast_argmin_1"]
    assert "reduce argmin v7 by 64" in after.sources[0].text
    allocated = [step.name for step in after.steps if isinstance(step, Allocate)]
    shapes = {tensor.name: tensor.shape for tensor in after.tensors}
    assert sorted(shapes[name] for name in allocated) == [(ROWS,), (ROWS, 5), (ROWS, 5)]


@pytest.mark.parametrize("name", CHAINS)
def test_infinities_and_nans(name: str) -> None:
    on, value, exact = product(ROWS, LENGTH, DEPTH, special=True)
    chain, eager = CHAINS[name]
    before, after, _ = both(on, [chain(on, value)])
    torch.testing.assert_close(after[0], eager(exact), rtol=2e-5, atol=2e-5, equal_nan=True)
    torch.testing.assert_close(after[0], before[0], rtol=2e-5, atol=2e-5, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", CHAINS)
def test_halves_are_rounded_as_before(name: str, dtype: torch.dtype) -> None:
    """Ties that rounding makes are decided alike; what is summed need not be rounded."""
    on, value, _ = product(ROWS, LENGTH, DEPTH, dtype=dtype)
    chain, eager = CHAINS[name]
    (before,), (after,), _ = both(on, [chain(on, value)])
    if name in ("sum of squares", "amax of abs"):
        x, c = on.tensors
        exact = eager(x.double() @ c.double().mT)
        assert (after - exact).norm() <= (before - exact).norm()
    else:
        torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-5)


def test_nearest_entries_of_a_codebook() -> None:
    on, value, exact = product(ROWS, LENGTH, DEPTH)
    b = on.builder
    x, c = on.graph.inputs
    squares = [b.sum(b.mul(each, each), (1,)) for each in (x, c)]
    distance = b.sub(spread(on, squares[0], value), b.mul(value, 2.0))
    distance = b.add(distance, on.spread(squares[1], value))
    _, after, program = both(on, [b.argmin(distance, 1)])
    x, c = on.tensors
    expected = (x.square().sum(1, keepdim=True) - 2 * exact + c.square().sum(1)).argmin(1)
    assert torch.equal(after[0], expected)
    assert not any(each.startswith("aten") for each in kinds(program))


def test_several_reductions_of_a_product_that_is_written() -> None:
    on, value, exact = product(ROWS, LENGTH, DEPTH)
    b = on.builder
    scaled = b.tanh(value)
    norm = b.sqrt(b.sum(b.mul(scaled, scaled), (1,)))
    outputs = [scaled, norm, b.unsqueeze(b.amax(scaled, (1,)), 1), b.argmax(scaled, 1)]
    _, after, _ = both(on, outputs)
    exact = exact.tanh()
    expected = [exact, exact.norm(dim=1), exact.amax(1, keepdim=True), exact.argmax(1)]
    for ours, theirs in zip(after, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("length", [300, 256, 40])
def test_variance(length: int) -> None:
    """Squares around the mean need the mean first: in one pass where a row is long."""
    on, value, _ = product(ROWS, length, DEPTH)
    result = variance(on, value)
    tuner = StandIn("reduced rows")
    on.run([result], tuner)
    names = [each.name for c in tuner.contests for each in c.candidates]
    assert not any("reduced rows" in name for name in names), "two passes are left as they are"


@pytest.mark.parametrize("length", [300, 256, 40])
def test_squared_deviations(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    module = "flambeau_inductor.graph_passes.one_pass_reductions"
    monkeypatch.setattr(f"{module}.reads_row_again", lambda *_: True)
    on, value, exact = product(ROWS, length, DEPTH)
    _, after, _ = both(on, [variance(on, on.builder.add(value, 100.0))])
    expected = (exact.double() + 100).var(1, unbiased=False)
    torch.testing.assert_close(after[0].double(), expected, rtol=1e-4, atol=1e-4)


def test_columns() -> None:
    """Results of columns are those of the transpose's rows, if that is not written."""
    for is_written in (False, True):
        on, value, exact = product(ROWS, LENGTH, DEPTH)
        result = on.builder.argmin(value, 0)
        tuner = StandIn("reduced rows")
        after, _ = on.run([value, result] if is_written else [result], tuner)
        torch.testing.assert_close(after[-1], exact.argmin(0))
        names = [each.name for c in tuner.contests for each in c.candidates]
        assert any("reduced rows" in name for name in names) is not is_written


def launches(on: OnGpu):
    """The launches of the last program that would be measured, its kernels in Triton."""
    tuner = StandIn("nothing of this name")
    on.run(on.graph.outputs, tuner)
    program = tuner.contests[0].candidates[-1].make()
    check_program(program)
    return [step for step in program.steps if isinstance(step, Launch)]


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("sizes", [(29, LENGTH), (64, 45), (1, 300)])
def test_symbolic_sizes(name: str, sizes: tuple[int, int]) -> None:
    """Numbers of rows and of elements in each that the kernel takes from a call."""
    env = SizeEnv()
    rows, length = env.symbol(64, "rows"), env.symbol(256, "length")
    x, c = torch.randn(sizes[0], DEPTH), torch.randn(DEPTH, sizes[1])
    on = OnGpu(x, c, env=env, shapes=[(rows, DEPTH), (DEPTH, length)])
    spec = Spec.of((rows, length), device=torch.device("cuda:0"))
    value = on.call_like(spec, aten.mm.default, *on.graph.inputs)
    chain, eager = CHAINS[name]
    before, after, program = both(on, [chain(on, value)])
    assert all(evaluate(step.grid[0], {"s0": 29, "s1": 45}) > 0 for step in launches(on))
    torch.testing.assert_close(after[0], eager(x @ c), rtol=2e-5, atol=2e-5)
    torch.testing.assert_close(after[0], before[0], rtol=2e-5, atol=2e-5)
    assert not any(each.startswith("aten") for each in kinds(program))


def test_no_rows() -> None:
    env = SizeEnv()
    rows = env.symbol(64, "rows")
    x, c = torch.randn(0, DEPTH), torch.randn(DEPTH, LENGTH)
    on = OnGpu(x, c, env=env, shapes=[(rows, DEPTH)])
    spec = Spec.of((rows, LENGTH), device=torch.device("cuda:0"))
    value = on.call_like(spec, aten.mm.default, *on.graph.inputs)
    _, after, _ = both(on, [on.builder.argmin(value, 1), on.builder.sum(value, (1,))])
    assert [each.shape for each in after] == [(0,), (0,)]


def test_padded_columns_are_not_reduced() -> None:
    """Of a product whose factors were padded, what is read is computed and reduced."""
    x, c = torch.randn(ROWS, 21), torch.randn(21, 299)
    on = OnGpu(x, c)
    b, (a, d) = on.builder, on.graph.inputs
    wide = on.call(aten.mm.default, b.pad(a, (0, 0), (0, 3), 0), b.pad(d, (0, 0), (3, 5), 0))
    value = b.slice(wide, 1, 0, 299, 1)
    _, after, program = both(on, [b.argmax(value, 1), b.amin(value, (1,))])
    torch.testing.assert_close(after[0], (x @ c).argmax(1))
    torch.testing.assert_close(after[1], (x @ c).amin(1))
    assert "i1 < 299" in program.sources[0].text


def test_descent_keeps_the_tiles_that_are_combined() -> None:
    on, value, exact = product(ROWS, LENGTH, DEPTH, dtype=torch.float16)
    tuner = StandIn("reduced rows 16x64x32")
    options = dataclasses.replace(OPTIONS, coordinate_descent_tuning=True)
    (ours,), _ = on.run([on.builder.argmin(value, 1)], tuner, options)
    assert torch.equal(ours, exact.argmin(1))
    near = [each.name for contest in tuner.contests[1:] for each in contest.candidates]
    tiles = [name for name in near if "x64x" in name or "16x" in name]
    assert any("16x64x64" in name for name in tiles)
    assert not any("16x32x" in name or "16x128x" in name for name in near)


def test_what_cannot_be_cut() -> None:
    """Softmax writes rows behind their reductions; scans follow rows."""
    on, value, _ = product(ROWS, LENGTH, DEPTH)
    b = on.builder
    top = b.amax(value, (1,))
    weights = b.exp(b.sub(value, spread(on, top, value)))
    softmax = b.div(weights, spread(on, b.sum(weights, (1,)), value))
    tuner = StandIn("reduced rows")
    (ours,), _ = on.run([softmax], tuner)
    assert not any("reduced rows" in e.name for c in tuner.contests for e in c.candidates)
    assert ours.shape == (ROWS, LENGTH)


@pytest.mark.parametrize("beside", [False, True])
def test_one_element_that_is_read_behind(beside: bool) -> None:
    """The product is written for it, whoever reads it."""
    on, value, exact = product(ROWS, LENGTH, DEPTH)
    b = on.builder
    first = b.reshape(b.slice(value, 1, 0, 1, 1), (ROWS,))
    top = b.amax(value, (1,))
    outputs = [top, b.tanh(first)] if beside else [b.sub(top, first)]
    after, _ = on.run(outputs, StandIn("reduced rows"))
    expected = [exact.amax(1), exact[:, 0].tanh()] if beside else [exact.amax(1) - exact[:, 0]]
    for ours, theirs in zip(after, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("name", "shape", "is_joined"),
    [
        ("argmin", (16384, 8192, 64), True),
        ("amax of abs", (16384, 8192, 128), True),
        ("argmin", (16384, 8192, 1024), False),  # the product takes the time
        ("logsumexp", (16384, 8192, 512), False),  # and the exponentials
        ("argmin", (2048, 8192, 64), False),  # the caches hold it
    ],
)
def test_without_a_tuner(name: str, shape: tuple[int, int, int], is_joined: bool) -> None:
    """The model takes the reduction into the kernel of a large product with a short inner axis."""
    for others_read, dtype in itertools.product((False, True), (torch.bfloat16, F32)):
        rows, length, depth = shape
        one = torch.empty(1, 1, dtype=dtype)
        on = OnGpu(one, one, shapes=[(rows, depth), (depth, length)])
        spec = Spec.of((rows, length), dtype=dtype, device=torch.device("cuda:0"))
        value = on.call_like(spec, aten.mm.default, *on.graph.inputs)
        chain, _ = CHAINS[name]
        result = chain(on, on.builder.cast(value, F32))
        on.graph.outputs = [value, result] if others_read else [result]
        program = compile_graph(
            on.graph, InductorOptions(debug_checks=True), backends={"cuda": ReferenceBackend()},
            facts=lambda _: DeviceFacts(),
        )  # fmt: skip
        expected = is_joined and not others_read and dtype is not F32
        assert ("aten.mm.out" not in kinds(program)) is expected


def factor(on: OnGpu, rows: int):
    """One more input: a matrix of so many rows."""
    tensor = torch.randn(rows, 16)
    spec = spec_of(tensor).replace(device=torch.device("cuda:0"))
    on.tensors = (*on.tensors, tensor)
    on.graph.inputs.append(Value(f"x{len(on.tensors) - 1}", spec))
    return on.graph.inputs[-1], tensor


def test_another_reads_the_product_before() -> None:
    """It runs behind the product's kernel, though the reduction stands behind it in the program."""
    on, value, exact = product(ROWS, LENGTH, DEPTH)
    right, d = factor(on, LENGTH)
    between = on.call(aten.mm.default, value, right)
    after = both(on, [between, on.builder.amax(value, (1,))])[1]
    torch.testing.assert_close(after[0], exact @ d, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(after[1], exact.amax(1), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("joins", [False, True])
def test_another_runs_between_two_reductions(joins: bool) -> None:
    """It reads the first of those that share a kernel, or the second reads it."""
    on, value, exact = product(ROWS, LENGTH, DEPTH)
    right, d = factor(on, 1)
    b = on.builder
    top = b.amax(value, (1,))
    column = b.slice(on.graph.inputs[0], 1, 0, 1, 1) if joins else b.unsqueeze(top, 1)
    between = on.call(aten.mm.default, column, right)
    scale = b.amax(between, (1,)) if joins else None
    second = b.mul(value, spread(on, scale, value)) if scale is not None else b.tanh(value)
    after = both(on, [between, top, b.sum(second, (1,))])[1]
    wide = (on.tensors[0][:, :1] if joins else exact.amax(1, keepdim=True)) @ d
    scaled = exact * wide.amax(1, keepdim=True) if joins else exact.tanh()
    for ours, theirs in zip(after, (wide, exact.amax(1), scaled.sum(1)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_a_product_that_is_written_is_measured_apart() -> None:
    """Its kernels write more, and others may be worth measuring."""
    x, c, d = (torch.randint(-3, 4, (256, 64)).half() for _ in range(3))
    on = OnGpu(x, c, d)
    b = on.builder
    turned = [b.permute(each, (1, 0)) for each in on.graph.inputs[1:]]
    first, second = (on.call(aten.mm.default, on.graph.inputs[0], each) for each in turned)
    results = [b.argmin(b.cast(each, F32), 1) for each in (first, second)]
    tuner = StandIn("reduced rows")
    apart = dataclasses.replace(OPTIONS, fuse_horizontal=False)
    after, _ = on.run([*results, second], tuner, apart)
    assert len({contest.key for contest in tuner.contests}) == len(tuner.contests) == 2
    for ours, factors in zip(after, (c, d), strict=False):
        assert torch.equal(ours, (x @ factors.mT).argmin(1))


def test_strict_numerics() -> None:
    """Nothing is reduced in another order than without measuring."""
    on, value, _ = product(ROWS, LENGTH, DEPTH)
    tuner = StandIn("reduced rows")
    on.run([on.builder.amax(value, (1,))], tuner, dataclasses.replace(OPTIONS, numerics="strict"))
    assert not any("reduced rows" in e.name for c in tuner.contests for e in c.candidates)


def test_a_reduction_that_stands_before_the_product() -> None:
    """It shares the kernel of one that reads both."""
    x, c, t = torch.randn(ROWS, DEPTH), torch.randn(DEPTH, LENGTH), torch.randn(ROWS, LENGTH)
    on = OnGpu(x, c, t)
    b, (left, right, other) = on.builder, on.graph.inputs
    total = b.sum(other, (1,))
    top = b.amax(b.add(on.call(aten.mm.default, left, right), other), (1,))
    _, after, program = both(on, [total, top])
    torch.testing.assert_close(after[0], t.sum(1), rtol=2e-5, atol=2e-5)
    torch.testing.assert_close(after[1], (x @ c + t).amax(1), rtol=2e-5, atol=2e-5)
    assert len(kinds(program)) == 2


def test_exponentials_of_what_is_rounded_for_its_maximum_alone() -> None:
    x, c = (torch.randint(-3, 4, (rows, DEPTH)).float() for rows in (ROWS, LENGTH))
    on = OnGpu(x, c)
    b = on.builder
    right = b.permute(on.graph.inputs[1], (1, 0))
    value = b.mul(on.call(aten.mm.default, on.graph.inputs[0], right), 0.101)
    rounded = b.cast(b.cast(value, torch.bfloat16), F32)
    tops = spread(on, b.amax(rounded, (1,)), value)
    sums = [b.sum(b.exp(b.sub(each, tops)), (1,)) for each in (value, rounded)]
    after = both(on, sums)[1]
    exact = (x @ c.mT) * 0.101
    top = exact.bfloat16().float().amax(1, keepdim=True)
    for ours, each in zip(after, (exact, exact.bfloat16().float()), strict=True):
        torch.testing.assert_close(ours, (each - top).exp().sum(1), rtol=2e-5, atol=2e-5)
