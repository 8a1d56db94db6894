"""flex_attention: whole graphs that equal eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import flambeau
from tests.programs.flex_attention import LENGTH, MASKS, SCORES, functions, qkv

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")

FUNCTIONS = functions("cpu")


def block_mask(name: str | None) -> Any:
    if name is None:
        return None
    return create_block_mask(getattr(FUNCTIONS, name), None, None, LENGTH, LENGTH, device="cpu")


def same(function: Callable[..., Any], inputs: list[torch.Tensor]) -> torch.Tensor:
    """Compiled as one graph equals eager: results and strides."""
    compiled = flambeau.compile(function, fullgraph=True)
    expected, got = function(*inputs), compiled(*inputs)
    torch.testing.assert_close(got, expected, rtol=2e-5, atol=2e-5)
    assert got.stride() == expected.stride()
    explained = flambeau.explain(compiled)
    assert len(explained.graphs) == 1
    return got


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("mask", MASKS)
def test_scores_and_masks(score: str | None, mask: str | None) -> None:
    score_mod, seen = score and getattr(FUNCTIONS, score), block_mask(mask)
    same(lambda q, k, v: flex_attention(q, k, v, score_mod=score_mod, block_mask=seen), qkv("cpu"))


def test_rows_that_see_nothing() -> None:
    mask = block_mask("nothing_for_some_rows")
    got = same(lambda q, k, v: flex_attention(q, k, v, block_mask=mask), qkv("cpu"))
    assert (got[:, :, :6] == 0).all()


def test_grouped_heads_and_a_scale() -> None:
    score_mod = FUNCTIONS.relative
    same(
        lambda q, k, v: flex_attention(q, k, v, score_mod=score_mod, enable_gqa=True, scale=0.3),
        qkv("cpu", kv_heads=2),
    )


def test_inputs_of_other_strides() -> None:
    inputs = [one.transpose(1, 2).contiguous().transpose(1, 2) for one in qkv("cpu")]
    same(lambda q, k, v: flex_attention(q, k, v, score_mod=FUNCTIONS.alibi), inputs)


def test_a_bias_that_is_an_argument() -> None:
    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> Any:
        return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + bias[h, j] + bias[0, i])

    same(function, [*qkv("cpu"), torch.randn(4, LENGTH)])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_dtypes(dtype: torch.dtype) -> None:
    inputs = qkv("cpu", dtype=dtype, width=16)
    compiled = flambeau.compile(flex_attention, fullgraph=True)
    exact = flex_attention(*(one.double() for one in inputs), score_mod=FUNCTIONS.relative)
    expected = flex_attention(*inputs, score_mod=FUNCTIONS.relative)
    got = compiled(*inputs, score_mod=FUNCTIONS.relative)
    assert got.dtype == dtype
    error = (expected.double() - exact).abs().max()
    assert (got.double() - exact).abs().max() <= 2 * error + 1e-12


def test_the_log_of_the_sum() -> None:
    inputs = qkv("cpu")

    def function(*inputs: torch.Tensor) -> Any:
        return flex_attention(*inputs, score_mod=FUNCTIONS.relative, return_lse=True)

    for got, want in zip(
        flambeau.compile(function, fullgraph=True)(*inputs), function(*inputs), strict=True
    ):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("grad", [False, True])
def test_errors_are_eagers(grad: bool) -> None:
    inputs = qkv("cpu", kv_heads=4 if grad else 2)
    if grad:
        inputs[0].requires_grad_()
    with pytest.raises((ValueError, NotImplementedError)) as eager:
        flex_attention(*inputs)
    with pytest.raises(eager.type) as ours:
        flambeau.compile(lambda q, k, v: flex_attention(q, k, v))(*inputs)
    assert str(ours.value) == str(eager.value)


def test_other_lengths_recompile_once() -> None:
    compiled = flambeau.compile(
        lambda q, k, v: flex_attention(q, k, v, score_mod=FUNCTIONS.relative)
    )
    for length in (16, 30, 41, 52):
        inputs = qkv("cpu", length=length)
        torch.testing.assert_close(
            compiled(*inputs), flex_attention(*inputs, score_mod=FUNCTIONS.relative)
        )
    assert len(flambeau.explain(compiled).graphs) <= 2


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_block_mask_that_the_program_makes(dynamic: bool | None) -> None:
    """One graph; its mask function reads tensors at positions, and differs in each call."""

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, which: torch.Tensor) -> Any:
        def same_document(b: Any, h: Any, i: Any, j: Any) -> Any:
            return (which[i] == which[j]) & (i >= j)

        length = q.shape[2]
        mask = create_block_mask(same_document, None, None, length, length, "cpu", BLOCK_SIZE=16)
        return flex_attention(q, k, v, block_mask=mask), mask.kv_num_blocks

    compiled = flambeau.compile(function, fullgraph=True, dynamic=dynamic)
    for every in (9, 33):
        inputs = [*qkv("cpu", width=16), torch.arange(LENGTH) // every]
        torch.testing.assert_close(compiled(*inputs), function(*inputs), rtol=2e-5, atol=2e-5)
    assert len(flambeau.explain(compiled).graphs) == 1


def test_a_mask_function_that_breaks_the_graph_equals_eager() -> None:
    def function(length: torch.Tensor) -> Any:
        def visible(b: Any, h: Any, i: Any, j: Any) -> Any:
            torch._dynamo.graph_break()
            return j < length

        scaled = length * 2
        return create_block_mask(visible, None, None, LENGTH, LENGTH, "cpu").to_dense() + scaled

    compiled = flambeau.compile(function)
    for length in (torch.tensor(30), torch.tensor(LENGTH)):
        torch.testing.assert_close(compiled(length), function(length))
    assert flambeau.explain(compiled).breaks


def test_strides_that_are_equal() -> None:
    """With one batch and few heads the strides of batch and positions may be equal."""
    inputs = [x[:1, :2].transpose(1, 2).contiguous().transpose(1, 2) for x in qkv("cpu")]
    query = inputs[0].as_strided(inputs[0].shape, (32, 16, 32, 1))
    same(lambda q, k, v: flex_attention(q, k, v), [query, *inputs[1:]])


def test_another_mask_of_the_same_shape_is_no_new_graph() -> None:
    compiled = flambeau.compile(
        lambda q, k, v, mask: flex_attention(q, k, v, block_mask=mask), fullgraph=True
    )
    inputs = qkv("cpu")

    def mask_of(which: torch.Tensor) -> Any:
        def same_document(b: Any, h: Any, i: Any, j: Any) -> Any:
            return (which[i] == which[j]) & (i >= j)

        return create_block_mask(same_document, None, None, LENGTH, LENGTH, "cpu", BLOCK_SIZE=16)

    for length in (5, 20, 70):
        mask = mask_of(torch.arange(LENGTH) // length)
        expected = flex_attention(*inputs, block_mask=mask)
        torch.testing.assert_close(compiled(*inputs, mask), expected, rtol=2e-5, atol=2e-5)
    assert len(flambeau.explain(compiled).graphs) == 1
    cut = mask[:, :, :1]  # whose mask function torch refuses, by its identity
    with pytest.raises(RuntimeError, match="sliced"):
        compiled(inputs[0][:, :, :16], *inputs[1:], cut)
