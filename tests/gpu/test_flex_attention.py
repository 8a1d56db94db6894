"""flex_attention on a GPU: gradients, too, which eager has on a GPU only."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import flambeau
from tests.programs.flex_attention import LENGTH, MASKS, SCORES, functions, qkv

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile"),
]


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("mask", MASKS)
def test_gradients(score: str | None, mask: str | None) -> None:
    programs = functions("cuda")
    score_mod = score and getattr(programs, score)
    seen = mask and create_block_mask(
        getattr(programs, mask), None, None, LENGTH, LENGTH, device="cuda"
    )

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return flex_attention(q, k, v, score_mod=score_mod, block_mask=seen)

    compiled = flambeau.compile(function, fullgraph=True)
    inputs = [one.requires_grad_() for one in qkv("cuda", width=16)]
    exact_inputs = [one.detach().double().requires_grad_() for one in inputs]
    tangent = torch.randn_like(inputs[0])
    results = []
    for run, given in ((function, exact_inputs), (function, inputs), (compiled, inputs)):
        out = run(*given)
        results.append((out, *torch.autograd.grad(out, given, tangent.to(out.dtype))))
    assert results[2][0].stride() == results[1][0].stride()
    for exact, eager, got in zip(*results, strict=True):
        error = (eager.double() - exact).abs().max()
        assert (got.double() - exact).abs().max() <= 4 * error + 1e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "queries", "keys", "width", "value_width"),
    [(4, 4, 512, 512, 64, 64), (4, 2, 300, 333, 128, 96), (8, 2, 1, 999, 64, 64)],
)
def test_no_farther_from_the_exact_result_than_eager(
    dtype: torch.dtype, heads: int, kv_heads: int, queries: int, keys: int, width: int,
    value_width: int,
) -> None:  # fmt: skip
    slopes = torch.rand(heads, device="cuda")

    def score(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return 20 * torch.tanh(s / 20) + slopes[h] * (j - i) * 0.05

    mask = create_block_mask(
        lambda b, h, i, j: (i - j).abs() <= 200, None, None, queries, keys, device="cuda"
    )

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return flex_attention(q, k, v, score, mask, enable_gqa=True, return_lse=True)

    compiled = flambeau.compile(function, fullgraph=True)
    shapes = [(2, heads, queries, width), (2, kv_heads, keys, width),
              (2, kv_heads, keys, value_width)]  # fmt: skip
    inputs = [torch.randn(s, device="cuda", dtype=dtype, requires_grad=True) for s in shapes]
    exact_inputs = [one.detach().double().requires_grad_() for one in inputs]
    tangent = torch.randn(2, heads, queries, value_width, device="cuda", dtype=dtype)
    results = []
    for run, given in ((function, exact_inputs), (function, inputs), (compiled, inputs)):
        out, lse = run(*given)
        gradients = torch.autograd.grad(out, given, tangent.to(out.dtype))
        results.append((out, lse, *gradients))
    for exact, eager, got in zip(*results, strict=True):
        assert got.dtype == eager.dtype and got.stride() == eager.stride()
        error = (eager.double() - exact).abs().max()
        assert (got.double() - exact).abs().max() <= 3 * error + 1e-6 * exact.abs().max()


CHANGES: dict[str, Any] = {
    "key and query": lambda t: lambda s, b, h, i, j: s + t[h, j] * t[0, i],
    "distance": lambda t: lambda s, b, h, i, j: s + t[h, i - j],
    "bucket": lambda t: lambda s, b, h, i, j: s * t[h, (i - j).clamp(0, 31)],
    "head": lambda t: lambda s, b, h, i, j: s + t[h, 0] * (j - i) * 0.01,
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_of_what_a_score_function_reads(
    name: str, kv_heads: int, masked: bool, dtype: torch.dtype
) -> None:
    length = 300
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, length, length, device="cuda")

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, table: torch.Tensor) -> Any:
        change = CHANGES[name](table)
        return flex_attention(q, k, v, change, mask if masked else None, enable_gqa=True)

    compiled = flambeau.compile(function, fullgraph=True)
    shapes = [(2, heads, length, 64) for heads in (4, kv_heads, kv_heads)]
    inputs = [torch.randn(s, device="cuda", dtype=dtype, requires_grad=True) for s in shapes]
    inputs.append(torch.randn(4, 2 * length, device="cuda", requires_grad=True))
    exact_inputs = [one.detach().double().requires_grad_() for one in inputs]
    tangent = torch.randn(2, 4, length, 64, device="cuda", dtype=dtype)
    results = []
    for run, given in ((function, exact_inputs), (function, inputs), (compiled, inputs)):
        out = run(*given)
        results.append(torch.autograd.grad(out, given, tangent.to(out.dtype)))
    for exact, eager, got in zip(*results, strict=True):
        assert (got.dtype, got.stride()) == (eager.dtype, eager.stride())
        error = (eager.double() - exact).abs().max()
        assert (got.double() - exact).abs().max() <= 3 * error + 4e-6 * exact.abs().max()
    assert "attention_query_gradient" in kernels_of(compiled)


def test_lengths_that_vary() -> None:
    programs = functions("cuda")

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return flex_attention(q, k, v, score_mod=programs.relative)

    compiled = flambeau.compile(function, dynamic=True, fullgraph=True)
    for length in (33, 128, 517):
        inputs = [one.requires_grad_() for one in qkv("cuda", length=length, width=16)]
        expected, got = function(*inputs), compiled(*inputs)
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
        tangent = torch.randn_like(got)
        torch.testing.assert_close(
            torch.autograd.grad(got, inputs, tangent),
            torch.autograd.grad(expected, inputs, tangent),
            rtol=1e-4,
            atol=1e-4,
        )


def kernels_of(compiled: Any) -> str:
    return "\n".join(str(graph) for graph in flambeau.explain(compiled).graphs)


@pytest.mark.parametrize("queries", [1, 5])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("turned", [False, True])
def test_decoding_with_heads_that_share_keys(queries: int, masked: bool, turned: bool) -> None:
    slopes = torch.rand(12, device="cuda")
    here = torch.tensor(700, device="cuda")
    mask = create_block_mask(
        lambda b, h, i, j: j <= here + i, None, None, queries, 1500, device="cuda"
    )

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return flex_attention(
            q, k, v, lambda s, b, h, i, j: s + slopes[h] * (j - i) * 0.01,
            mask if masked else None, enable_gqa=True, return_lse=True,
        )  # fmt: skip

    compiled = flambeau.compile(function, fullgraph=True)
    shapes = [(2, 12, queries, 64), (2, 3, 1500, 64), (2, 3, 1500, 48)]
    inputs = [torch.randn(s, device="cuda", dtype=torch.bfloat16) for s in shapes]
    if turned:
        inputs = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in inputs]
    exact = function(*(x.double() for x in inputs))
    for got, eager, right in zip(compiled(*inputs), function(*inputs), exact, strict=True):
        assert got.dtype == eager.dtype and got.stride() == eager.stride()
        error = (eager.double() - right).abs().max()
        assert (got.double() - right).abs().max() <= 3 * error + 4e-6 * right.abs().max()
    assert "attention_forward" in kernels_of(compiled)


OPTIONS: tuple[dict[str, Any], ...] = (
    {"BLOCK_M": 32, "BLOCK_N": 64, "num_warps": 4, "num_stages": 2},
    {"bwd_BLOCK_M1": 32, "bwd_BLOCK_N1": 64, "bwd_BLOCK_M2": 64, "bwd_BLOCK_N2": 32},
    {"PRESCALE_QK": True, "ROWS_GUARANTEED_SAFE": True, "BLOCKS_ARE_CONTIGUOUS": True},
    {"FORCE_USE_FLEX_ATTENTION": True},
    {"BACKEND": "TRITON"},
)


@pytest.mark.parametrize("options", OPTIONS)
def test_kernel_options(options: dict[str, Any]) -> None:
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 256, 256, device="cuda")

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: Any = None) -> Any:
        score = lambda s, b, h, i, j: s + (j - i) * 0.01  # noqa: E731
        return flex_attention(q, k, v, score, mask, kernel_options=options)

    inputs = [torch.randn(2, 4, 256, 64, device="cuda", requires_grad=True) for _ in range(3)]
    tangent = torch.randn(2, 4, 256, 64, device="cuda")
    results = []
    for run in (function, flambeau.compile(function, fullgraph=True)):
        out = run(*inputs, options=options)
        results.append((out, *torch.autograd.grad(out, inputs, tangent)))
    torch.testing.assert_close(results[1], results[0], rtol=1e-3, atol=1e-3)


def test_impossible_kernel_options_reach_the_caller() -> None:
    inputs = [torch.randn(1, 2, 256, 64, device="cuda") for _ in range(3)]
    for options, message in (
        ({"BLOCK_M": 24}, "power of two"),
        ({"BACKEND": "FLASH"}, "FLASH"),
        ({"BACKEND": "TRITON_DECODE"}, "TRITON_DECODE"),
    ):
        compiled = flambeau.compile(flex_attention, fullgraph=True)
        with pytest.raises(ValueError, match=message):
            compiled(*inputs, kernel_options=options)


@pytest.mark.parametrize("wanted", [(1,), (2,), (0, 2), (1, 2)])
def test_gradients_of_some(wanted: tuple[int, ...]) -> None:
    inputs = [torch.randn(2, 4, 200, 32, device="cuda") for _ in range(3)]
    leaves = [inputs[at].requires_grad_() for at in wanted]
    compiled = flambeau.compile(lambda q, k, v: flex_attention(q, k, v), fullgraph=True)
    tangent = torch.randn(2, 4, 200, 32, device="cuda")
    expected = torch.autograd.grad(flex_attention(*inputs), leaves, tangent)
    got = torch.autograd.grad(compiled(*inputs), leaves, tangent)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


def test_another_mask_of_the_same_shape_is_no_new_graph() -> None:
    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, which: torch.Tensor) -> Any:
        def same_document(b: Any, h: Any, i: Any, j: Any) -> Any:
            return (which[i] == which[j]) & (i >= j)

        mask = create_block_mask(same_document, None, None, 512, 512, device="cuda")
        return flex_attention(q, k, v, block_mask=mask)

    compiled = flambeau.compile(function, fullgraph=True)
    inputs = [torch.randn(1, 2, 512, 64, device="cuda") for _ in range(3)]
    for length in (50, 130, 512):
        which = torch.arange(512, device="cuda") // length
        expected = function(*inputs, which)
        torch.testing.assert_close(compiled(*inputs, which), expected, rtol=1e-4, atol=1e-4)
    assert len(flambeau.explain(compiled).graphs) == 1
    assert "attention_forward" in kernels_of(compiled)


@pytest.mark.parametrize("length", [16, 64, 200])
def test_blocks_that_reach_behind_the_last_position(length: int) -> None:
    mask = create_block_mask(lambda b, h, i, j: i - j < 9, None, None, length, length, "cuda")
    compiled = flambeau.compile(lambda q: flex_attention(q, q, q, block_mask=mask), fullgraph=True)
    wide = torch.randn(1, 2, length + 128, 64, device="cuda")
    wide[:, :, length:] = torch.inf
    query = wide[:, :, :length].requires_grad_()
    expected = flex_attention(query, query, query, block_mask=mask)
    got = compiled(query)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    gradients = [torch.autograd.grad(x.square().sum(), query) for x in (got, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize(("length", "width", "value_width"), [(300, 24, 24), (128, 256, 32)])
def test_operands_at_any_address(
    dtype: torch.dtype, length: int, width: int, value_width: int, masked: bool
) -> None:
    """Queries that begin at no multiple of 16 bytes, keys whose positions are contiguous."""

    def at_an_odd_address(*shape: int) -> torch.Tensor:
        count = torch.Size(shape).numel()
        return torch.randn(count + 1, device="cuda").to(dtype)[1:].view(shape)

    seen = create_block_mask(
        lambda b, h, i, j: (i >= j) & (i - j <= 64), None, None, length, length, device="cuda"
    )

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        def score(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            return torch.where((i - j).abs() <= 7, s, s - 5)

        return flex_attention(q, k, v, score_mod=score, block_mask=seen if masked else None)

    q, v = at_an_odd_address(2, 3, length, width), at_an_odd_address(2, 3, length, value_width)
    k = at_an_odd_address(2, 3, width, length).transpose(2, 3)
    exact = function(q.double(), k.double(), v.double())
    eager, got = function(q, k, v), flambeau.compile(function, fullgraph=True)(q, k, v)
    error = (eager.double() - exact).abs().max()
    assert (got.double() - exact).abs().max() <= 4 * error + 1e-5
