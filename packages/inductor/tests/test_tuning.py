"""Tuned schedules: every way to compute a part is right, and the program takes the chosen one.

There is no GPU here: graphs are declared on one, the tuner is a stand-in that takes the way it is
told, and the programs run through the reference generator on CPU tensors.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch
from on_gpu import OPTIONS, OnGpu, StandIn, aten, kinds

from flambeau_inductor import InductorOptions, compile_graph
from flambeau_inductor.codegen.reference import ReferenceBackend
from flambeau_prims.graph import Node, Value
from flambeau_prims.sizes import SizeEnv
from flambeau_prims.spec import Spec
from flambeau_runtime import check_program
from flambeau_runtime.dims import evaluate
from flambeau_runtime.program import Launch
from flambeau_runtime.tuning.contest import DeviceFacts


def linear_gelu(bias=True):
    """relu(x @ w + b) * r, twice read."""
    torch.manual_seed(0)
    on = OnGpu(torch.randn(64, 96), torch.randn(96, 80), torch.randn(80), torch.randn(64, 80))
    x, w, b, r = on.graph.inputs
    y = on.call(aten.addmm.default, b, x, w) if bias else on.call(aten.mm.default, x, w)
    z = on.builder.mul(on.builder.tanh(y), r)
    return on, y, z


@pytest.mark.parametrize("bias", [False, True])
def test_nest_joins_the_product(bias: bool) -> None:
    on, _, z = linear_gelu(bias)
    tuner = StandIn()
    (result,), program = on.run([z], tuner)
    x, w, b, r = on.tensors
    torch.testing.assert_close(result, ((x @ w + b if bias else x @ w).tanh() * r))
    assert len(kinds(program)) == 1 and "mm_mul_tanh" in kinds(program)[0]
    (contest,) = tuner.contests
    assert contest.title == "mm(64x96, 96x80)"  # a float32 bias is the nest's already
    assert contest.candidates[0].name.startswith("aten.")


def test_first_way_changes_nothing() -> None:
    on, _, z = linear_gelu()
    (_,), tuned = on.run([z], StandIn("nothing has this name"))
    other, _, same = linear_gelu()
    (_,), plain = other.run([same], None)
    assert kinds(tuned) == kinds(plain)


def test_product_that_others_read_is_stored() -> None:
    on, y, z = linear_gelu()
    total = on.builder.sum(z, (1,))
    results, program = on.run([y, z, total], StandIn())
    x, w, b, r = on.tensors
    expected = torch.addmm(b, x, w)
    gated = expected.tanh() * r
    for ours, theirs in zip(results, (expected, gated, gated.sum(1)), strict=True):
        torch.testing.assert_close(ours, theirs)
    assert not any(name.startswith("aten") for name in kinds(program))


def test_split_inner_axis() -> None:
    torch.manual_seed(0)
    on = OnGpu(torch.randn(16, 2048), torch.randn(2048, 32), torch.randn(32))
    x, w, b = on.graph.inputs
    z = on.builder.exp(on.call(aten.addmm.default, b, x, w, beta=0.5, alpha=0.01))
    (result,), program = on.run([z], StandIn("4 parts"))
    x, w, b = on.tensors
    torch.testing.assert_close(result, torch.addmm(b, x, w, beta=0.5, alpha=0.01).exp())
    assert len(kinds(program)) == 2 and "parts" in kinds(program)[0]


def test_two_split_products() -> None:
    torch.manual_seed(0)
    on = OnGpu(torch.randn(16, 1024), torch.randn(1024, 32), torch.randn(1024, 48))
    x, v, w = on.graph.inputs
    results, program = on.run(
        [on.call(aten.mm.default, x, each) for each in (v, w)], StandIn("4 parts")
    )
    x, v, w = on.tensors
    torch.testing.assert_close(results[0], x @ v, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(results[1], x @ w, rtol=1e-4, atol=1e-3)
    assert sum("parts" in name for name in kinds(program)) == 2


def test_batches_transposed_and_viewed() -> None:
    torch.manual_seed(0)
    on = OnGpu(torch.randn(3, 33, 65), torch.randn(3, 40, 65), torch.randn(3, 40, 33))
    x, y, r = on.graph.inputs
    turned = on.builder.permute(y, (0, 2, 1))
    product = on.call(aten.bmm.default, x, turned)
    z = on.builder.add(on.builder.permute(product, (0, 2, 1)), r)
    (result,), _ = on.run([z], StandIn())
    x, y, r = on.tensors
    torch.testing.assert_close(result, (x @ y.mT).mT + r)


def test_zero_beta_ignores_what_is_added() -> None:
    on = OnGpu(torch.full((40,), torch.nan), torch.randn(32, 64), torch.randn(64, 40))
    b, x, w = on.graph.inputs
    (result,), _ = on.run([on.call(aten.addmm.default, b, x, w, beta=0)], StandIn())
    torch.testing.assert_close(result, on.tensors[1] @ on.tensors[2])


def test_integers() -> None:
    x, w = (torch.randint(-128, 128, shape, dtype=torch.int8) for shape in ((48, 64), (64, 40)))
    on = OnGpu(x, w)
    product = on.call(aten._int_mm.default, *on.graph.inputs)
    (result,), program = on.run([product], StandIn())
    assert torch.equal(result, x.int() @ w.int())
    assert kinds(program) == ["cuda_int_mm_0"]


def test_two_products_in_one_sum_make_no_circle() -> None:
    """Each of two nests reads both products: only one may be joined."""
    torch.manual_seed(0)
    on = OnGpu(torch.randn(32, 64), torch.randn(64, 48), torch.randn(64, 48))
    x, v, w = on.graph.inputs
    a, b = on.call(aten.mm.default, x, v), on.call(aten.mm.default, x, w)
    first = on.builder.mul(on.builder.tanh(a), b)
    second = on.call(aten.mm.default, first, on.builder.permute(on.builder.exp(v), (1, 0)))
    results, program = on.run([first, second], StandIn())
    x, v, w = on.tensors
    expected = (x @ v).tanh() * (x @ w)
    torch.testing.assert_close(results[0], expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(results[1], expected @ v.exp().T, rtol=1e-4, atol=1e-3)
    assert not any(name.startswith("aten") for name in kinds(program))


def test_equal_layers_are_one_contest() -> None:
    on = OnGpu(torch.randn(32, 64), *(torch.randn(64, 64) / 8 for _ in range(3)))
    x, *weights = on.graph.inputs
    for w in weights:
        x = on.builder.tanh(on.call(aten.mm.default, x, w))
    tuner = StandIn()
    (result,), _ = on.run([x], tuner)
    assert len(tuner.contests) == 1
    x, *weights = on.tensors
    for w in weights:
        x = (x @ w).tanh()
    torch.testing.assert_close(result, x)


def test_without_a_tuner_or_options_nothing_is_measured() -> None:
    on, _, z = linear_gelu()
    tuner = StandIn()
    on.run([z], tuner, InductorOptions(debug_checks=True))
    assert not tuner.contests


def test_backends() -> None:
    for backends, count in (("ATEN", 0), ("TRITON", 1), ("ATEN,TRITON", 1)):
        on, _, z = linear_gelu()
        tuner = StandIn()
        options = dataclasses.replace(OPTIONS, max_autotune_gemm_backends=backends)
        on.run([z], tuner, options)
        assert len(tuner.contests) == count
        if count:
            names = [candidate.name for candidate in tuner.contests[0].candidates]
            assert any(name.startswith("aten") for name in names) == ("ATEN" in backends)


def test_loops_and_descent() -> None:
    on = OnGpu(torch.randn(512, 96))
    z = on.builder.tanh(on.graph.inputs[0])
    tuner = StandIn("warps=2")
    options = InductorOptions(max_autotune_pointwise=True, coordinate_descent_tuning=True)
    (result,), _ = on.run([z], tuner, options)
    torch.testing.assert_close(result, on.tensors[0].tanh())
    assert len(tuner.contests) > 1 and tuner.contests[0].title == "tanh(49152)"
    small = OnGpu(torch.randn(64, 96))
    tuner = StandIn()
    small.run([small.builder.tanh(small.graph.inputs[0])], tuner, options)
    assert not tuner.contests  # nothing to gain


@pytest.mark.parametrize("turned", [False, True])
def test_factors_computed_in_the_kernel(turned: bool) -> None:
    """Dequantised weights, and a pointwise function of the other factor."""
    torch.manual_seed(0)
    weights = torch.randint(-20, 20, (40, 64) if turned else (64, 40), dtype=torch.int8)
    scale = torch.rand(40, 1) if turned else torch.rand(40)
    on = OnGpu(torch.randn(32, 64, dtype=torch.bfloat16), weights, scale)
    x, q, s = on.graph.inputs
    b = on.builder
    w = b.mul(b.cast(q, torch.float32), b.expand(s, q.spec.shape) if turned else on.spread(s, q))
    w = b.cast(w, torch.bfloat16)
    wide = b.cast(b.tanh(b.cast(x, torch.float32)), torch.bfloat16)
    product = on.call(aten.mm.default, wide, b.permute(w, (1, 0)) if turned else w)
    z = b.cast(b.tanh(b.cast(product, torch.float32)), torch.bfloat16)
    tuner = StandIn()
    (result,), program = on.run([z], tuner)
    x, q, s = on.tensors
    w = (q.float() * s).bfloat16()
    expected = (x.float().tanh().bfloat16() @ (w.t() if turned else w)).float().tanh()
    torch.testing.assert_close(result.float(), expected, rtol=2e-2, atol=2e-2)
    assert len(kinds(program)) == 1, kinds(program)
    (contest,) = tuner.contests
    for candidate in contest.candidates:
        text = candidate.make().sources[0].text
        if "aten" not in candidate.name:
            assert ".to(tl.bfloat16)" in text.split("tl.dot")[0]


@pytest.mark.parametrize("way", ["factors, ", "x"])
def test_padded_factors_before_or_inside_the_kernel(way: str) -> None:
    torch.manual_seed(0)
    on = OnGpu(torch.randn(70, 61, dtype=torch.float16), torch.randn(61, 90, dtype=torch.float16))
    x, w = on.graph.inputs
    b = on.builder
    product = on.call(
        aten.mm.default, b.pad(x, (0, 0), (0, 3), 0), b.pad(w, (0, 0), (3, 6), 0)
    )  # fmt: skip
    z = b.tanh(b.cast(b.slice(product, 1, 0, 90, 1), torch.float32))
    tuner = StandIn(way)
    (result,), program = on.run([z], tuner)
    x, w = on.tensors
    torch.testing.assert_close(result, (x.float() @ w.float()).tanh(), rtol=2e-2, atol=2e-2)
    (contest,) = tuner.contests
    names = [candidate.name for candidate in contest.candidates]
    assert any(way in name for name in names) and not any("aten" in name for name in kinds(program))
    assert len(kinds(program)) == (3 if way == "factors, " else 1), kinds(program)


@pytest.mark.parametrize("rows", [1, 3])
def test_one_row_may_be_a_loop_nest_of_sums(rows: int) -> None:
    torch.manual_seed(0)
    on = OnGpu(torch.randn(rows, 600), torch.randn(90, 600), torch.randn(90))
    x, w, c = on.graph.inputs
    b = on.builder
    product = on.call(aten.mm.default, x, b.permute(w, (1, 0)))
    tuner = StandIn("sums")
    (result,), program = on.run([b.tanh(b.add(product, on.spread(c, product)))], tuner)
    x, w, c = on.tensors
    torch.testing.assert_close(result, (x @ w.t() + c).tanh(), rtol=1e-4, atol=1e-4)
    (contest,) = tuner.contests
    assert any("sums" in each.name for each in contest.candidates) == (rows == 1)
    assert (len(kinds(program)) == 1) == (rows == 1), kinds(program)


def test_few_rows_get_narrow_tiles_in_deep_steps() -> None:
    """A tile that is taller than the product has rows would only compute zeros."""
    for rows, tallest in ((4, 16), (24, 32), (2048, 256)):
        x = torch.empty(rows, 1024, dtype=torch.bfloat16)
        on = OnGpu(x, torch.empty(1024, 4096, dtype=torch.bfloat16))
        tuner = StandIn("none of them")
        result = on.graph.inputs[1].spec.replace(shape=(rows, 4096))
        on.graph.outputs = [on.call_like(result, aten.mm.default, *on.graph.inputs)]
        compile_graph(on.graph, OPTIONS, tuner=tuner)
        names = [each.name for each in tuner.contests[0].candidates if " warps=" in each.name]
        heights = {int(name.removesuffix(name[name.index("x") :]).split()[-1]) for name in names}
        assert max(heights) <= tallest and (rows == 2048) == (min(heights) >= 64), names


def test_a_factor_that_others_read_is_not_computed_again() -> None:
    torch.manual_seed(0)
    on = OnGpu(torch.randn(32, 64), torch.randn(64, 40))
    x, w = on.graph.inputs
    t = on.builder.tanh(x)
    results, program = on.run([t, on.call(aten.mm.default, t, w)], StandIn())
    x, w = on.tensors
    torch.testing.assert_close(results[0], x.tanh())
    torch.testing.assert_close(results[1], x.tanh() @ w, rtol=1e-4, atol=1e-4)
    assert len(kinds(program)) == 2


def test_symbolic_sizes() -> None:
    """The kernel takes the sizes of a call; likely ones are measured."""
    torch.manual_seed(0)
    env = SizeEnv()
    rows = env.symbol(48, "rows")
    for count in (33, 48, 70):
        x, w, r = torch.randn(count, 64), torch.randn(64, 40), torch.randn(count, 40)
        on = OnGpu(x, r, w, env=env, shapes=((rows, 64), (rows, 40)))
        a, c, b = on.graph.inputs
        spec = Spec.of((rows, 40), device=torch.device("cuda:0"))
        product = Value("product", spec)
        product.producer = Node(aten.mm.default, (a, b), {}, (product,), "")
        on.graph.nodes.append(product.producer)
        tuner = StandIn()
        (result,), program = on.run([on.builder.add(on.builder.tanh(product), c)], tuner)
        torch.testing.assert_close(result, (x @ w).tanh() + r)
        assert kinds(program) == ["cuda_mm_add_tanh_0"]
        (contest,) = tuner.contests
        assert contest.numbers == (48,) and contest.title == "mm(s0x64, 64x40)"
        for candidate in contest.candidates:
            alone = candidate.make()
            check_program(alone)
            assert len(alone.inputs) == 4 and "tma" not in candidate.name
            for launch in alone.steps:
                if isinstance(launch, Launch):
                    assert evaluate(launch.grid[0], {"s0": 48}) > 0


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
def test_convolution_of_one_point(form: torch.memory_format, stride: int) -> None:
    torch.manual_seed(0)
    bf16 = torch.bfloat16
    x = torch.randn(3, 32, 9, 7, dtype=bf16).to(memory_format=form)
    w = torch.randn(40, 32, 1, 1, dtype=bf16).to(memory_format=form)
    on = OnGpu(x, w, torch.randn(40, dtype=bf16))
    rest = [[stride] * 2, [0, 0], [1, 1], False, [0, 0], 1]
    product = on.call(aten.convolution.default, *on.graph.inputs, *rest)
    wide = on.builder.tanh(on.builder.cast(product, torch.float32))
    (result,), program = on.run([wide], StandIn())
    expected = torch.nn.functional.conv2d(x, w, on.tensors[2], stride=stride).float().tanh()
    torch.testing.assert_close(result, expected, rtol=2e-2, atol=2e-2)
    assert result.stride() == expected.stride()
    assert len(kinds(program)) == 1 and "convolution" in kinds(program)[0]


def test_what_is_no_product_of_matrices() -> None:
    """A window, groups, one summand, no rows."""
    convolutions = [
        (torch.randn(2, 8, 5, 5), torch.randn(4, 8, 3, 3), [1, 1], [0, 0], 1),
        (torch.randn(2, 8, 5, 5), torch.randn(4, 8, 1, 1), [1, 1], [1, 1], 1),
        (torch.randn(2, 8, 5, 5), torch.randn(4, 4, 1, 1), [1, 1], [0, 0], 2),
    ]
    for x, w, stride, padding, groups in convolutions:
        on = OnGpu(x.bfloat16(), w.bfloat16())
        rest = [None, stride, padding, [1, 1], False, [0, 0], groups]
        tuner = StandIn()
        product = on.call(aten.convolution.default, *on.graph.inputs, *rest)
        on.run([on.builder.tanh(on.builder.cast(product, torch.float32))], tuner)
        assert not tuner.contests
    for rows, depth in ((32, 1), (0, 16)):
        on = OnGpu(torch.randn(rows, depth), torch.randn(depth, 24))
        tuner = StandIn()
        (result,), _ = on.run([on.builder.tanh(on.call(aten.mm.default, *on.graph.inputs))], tuner)
        torch.testing.assert_close(result, (on.tensors[0] @ on.tensors[1]).tanh())
        assert not tuner.contests


@pytest.mark.parametrize("alone", [True, False])
def test_padding_is_not_computed(alone: bool) -> None:
    """If others read the padded product, the reader stays a kernel of its own."""
    torch.manual_seed(0)
    on = OnGpu(torch.randn(40, 64), torch.randn(64, 48), torch.randn(37, 41))
    x, w, r = on.graph.inputs
    b = on.builder
    product = on.call(aten.mm.default, x, w)
    part = b.slice(b.slice(product, 0, 0, 37, 1), 1, 0, 41, 1)
    z = b.add(b.tanh(part), r)
    results, program = on.run([z] if alone else [z, product], StandIn())
    x, w, r = on.tensors
    torch.testing.assert_close(results[0], (x @ w)[:37, :41].tanh() + r, rtol=1e-4, atol=1e-4)
    assert len(kinds(program)) == (1 if alone else 2)


@pytest.mark.parametrize(
    ("rows", "weights", "joins"),
    [(1, 1024, True), (16, 1024, True), (65, 1024, False), (16, 100, False)],
)
def test_quantised_weights_without_a_tuner(rows: int, weights: int, joins: bool) -> None:
    torch.manual_seed(0)
    q, s = torch.randint(-100, 100, (weights, 512), dtype=torch.int8), torch.rand(weights, 1)
    on = OnGpu(torch.randn(rows, 512).bfloat16(), q, s)
    x, c, d = on.graph.inputs
    b = on.builder
    w = b.cast(b.mul(b.cast(c, torch.float32), b.expand(d, q.shape)), torch.bfloat16)
    product = on.call(aten.mm.default, x, b.permute(w, (1, 0)))
    on.graph.outputs = [b.cast(b.tanh(b.cast(product, torch.float32)), torch.bfloat16)]
    backend = ReferenceBackend()
    program = compile_graph(
        on.graph,
        InductorOptions(debug_checks=True),
        backends={"cuda": backend},
        facts=lambda device: DeviceFacts(),
    )
    assert (len(kinds(program)) == 1) is joins, kinds(program)
    here = [dataclasses.replace(tensor, device="cpu") for tensor in program.tensors]
    (ours,) = backend.load(dataclasses.replace(program, tensors=tuple(here)))(*on.tensors)
    x, q, s = on.tensors
    expected = (x.float() @ (q * s).bfloat16().float().t()).tanh()
    torch.testing.assert_close(ours.float(), expected, rtol=2e-2, atol=2e-2)


def test_products_of_groups() -> None:
    torch.manual_seed(0)
    ends = torch.tensor([9, 7, 7, 30, 40], dtype=torch.int32)[1:]
    x, w = torch.randn(40, 64).bfloat16(), torch.randn(4, 48, 64).bfloat16()
    on = OnGpu(x, w, ends)
    a, c, bounds = on.graph.inputs
    b = on.builder
    like = Spec.of((40, 48), dtype=torch.bfloat16, device=torch.device("cuda:0"))
    product = on.call_like(like, aten._grouped_mm.default, a, b.permute(c, (0, 2, 1)), bounds)
    tuner = StandIn()
    (ours,), program = on.run([b.tanh(b.cast(product, torch.float32))], tuner)
    expected = torch.cat([
        x[first:end].float() @ w[group].float().t()
        for group, (first, end) in enumerate(((0, 7), (7, 7), (7, 30), (30, 40)))
    ])  # fmt: skip
    torch.testing.assert_close(ours, expected.tanh(), rtol=2e-2, atol=2e-2)
    assert len(kinds(program)) == 1
    (contest,) = tuner.contests
    assert [(each.below, each.rising) for each in contest.indices] == [(40, True)]
