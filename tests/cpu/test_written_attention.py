"""Attention that a program writes out becomes one kernel, with the results that it had."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import flambeau
from flambeau_autograd import aot, fused_attention
from flambeau_prims.evaluate import run_graph

KERNEL = "aten._scaled_dot_product_flash_attention_for_cpu.default"
LEAST = torch.finfo(torch.float32).min


@pytest.fixture(autouse=True)
def _at_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_attention, "FEWEST_SCORES_OF_CPU", 0)
    monkeypatch.setattr(fused_attention, "FEWEST_TRAINED_SCORES_OF_CPU", 0)


def plain(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).softmax(-1) @ v


def batches(q: Any, k: Any, v: Any, mask: Any) -> Any:
    b, h, n, d = q.shape
    q, k, v = (x.reshape(b * h, n, d) for x in (q, k, v))
    return torch.bmm(F.softmax(torch.bmm(q, k.mT) * 0.3, dim=2), v)


def one_head(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return torch.softmax(q[0, 0] @ k[0, 0].T, 1) @ v[0, 0]


def equations(q: Any, k: Any, v: Any, mask: Any) -> Any:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k).mul(0.25)
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(dim=-1), v)


def filled(q: Any, k: Any, v: Any, mask: Any) -> Any:
    scores = (q @ k.transpose(-2, -1)) * 0.2
    scores = scores.masked_fill(mask, -math.inf)
    weights = F.dropout(F.softmax(scores, dim=-1), 0.1, False)
    return (weights @ v).transpose(1, 2).contiguous().view(q.shape[0], q.shape[2], -1)


def filled_with_a_number(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return torch.where(mask, -1e9, q @ k.mT).softmax(-1) @ v


def written_in_place(q: Any, k: Any, v: Any, mask: Any) -> Any:
    scores = q @ k.mT
    scores /= 4
    scores += torch.where(mask, -math.inf, 0.0)[None, None]
    return F.softmax(scores, -1, dtype=torch.float32).to(q.dtype) @ v


def causal(q: Any, k: Any, v: Any, mask: Any) -> Any:
    place = torch.arange(q.shape[2])
    seen = place[None, :] <= place[:, None]
    return ((q @ k.mT).masked_fill(~seen, -math.inf)).softmax(-1) @ v


def of_windows(q: Any, k: Any, v: Any, mask: Any) -> Any:
    b, h, n, _ = q.shape
    scores = q @ k.mT * 0.2 + torch.linspace(0, 1, h * n * n).view(1, h, n, n)
    shifted = scores.view(b // 2, 2, h, n, n) + torch.where(mask, -100.0, 0.0).expand(1, 2, 1, n, n)
    return shifted.view(-1, h, n, n).softmax(-1) @ v


def with_slopes(q: Any, k: Any, v: Any, mask: Any) -> Any:
    b, h, n, d = q.shape
    slopes = torch.linspace(-1, 1, n, dtype=q.dtype).expand(b * h, 1, n)
    q, k, v = (x.reshape(b * h, n, d) for x in (q, k, v))
    scores = torch.baddbmm(slopes, q, k.mT, beta=0.5, alpha=0.3).view(b, h, n, n)
    return scores.masked_fill(mask, LEAST).softmax(-1).view(b * h, n, n) @ v


def added_number(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return ((q @ k.mT) + torch.where(mask, LEAST, 0.0)).softmax(-1) @ v


TRAINED = [
    plain, batches, one_head, equations, filled, filled_with_a_number, written_in_place, causal,
]  # fmt: skip


def arguments(dtype: torch.dtype = torch.float32, blind: bool = False) -> list[Any]:
    mask = torch.ones(9, 9, dtype=torch.bool).triu(1)
    if blind:
        mask[4] = True
    return [*(torch.randn(4, 3, 9, 8).to(dtype) for _ in range(3)), mask]


def graphs_of(program: Any, given: list[Any]) -> tuple[Any, list[str]]:
    """The compiled program, and the text of its graphs as they are compiled."""
    texts: list[str] = []

    def compiler(graph: Any, kind: str) -> Any:
        texts.append(str(graph))
        return lambda *args: run_graph(graph, args)

    def backend(gm: Any, examples: list[Any]) -> Any:
        return aot(gm, examples, compiler)

    compiled = flambeau.compile(program, backend=backend)
    compiled(*given)
    return compiled, texts


def compare(program: Any, given: list[Any], trains: bool) -> None:
    """No farther from float64 than eager, in eager's layout; NaN where eager has NaN."""
    results = []
    for run, dtype in (
        (flambeau.compile(program), torch.float32), (program, torch.float32),
        (program, torch.float64),
    ):  # fmt: skip
        *tensors, mask = given
        tensors = [x.to(dtype).detach().requires_grad_(trains) for x in tensors]
        out = run(*tensors, mask)
        gradients = (
            torch.autograd.grad((out * out.detach().sign()).sum(), tensors) if trains else ()
        )
        results.append((out.detach(), *gradients))
    for at, (mine, its, exact) in enumerate(zip(*results, strict=True)):
        assert (mine.shape, mine.dtype, mine.stride()) == (its.shape, its.dtype, its.stride())
        if at == 0:
            assert torch.equal(mine.isnan(), its.isnan())
        fine = ~(mine.isnan() | its.isnan() | exact.isnan())
        error, its_error = ((x.double() - exact)[fine].abs().max() for x in (mine, its))
        assert error <= 4 * its_error + 1e-5


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("program", TRAINED)
def test_becomes_one_kernel(program: Any, trains: bool) -> None:
    given = arguments()
    for x in given[:3]:
        x.requires_grad_(trains)
    _, texts = graphs_of(program, given)
    assert texts[0].count(KERNEL) == 1
    assert not any("aten.bmm" in text or "aten.mm" in text for text in texts)
    compare(program, arguments(), trains)


@pytest.mark.parametrize("program", [of_windows, with_slopes, added_number])
def test_added_masks_become_one_kernel_without_gradients(program: Any) -> None:
    _, texts = graphs_of(program, arguments())
    assert texts[0].count(KERNEL) == 1
    compare(program, arguments(), False)


@pytest.mark.parametrize("program", [of_windows, with_slopes, added_number])
def test_added_masks_keep_their_gradients(program: Any) -> None:
    compare(program, arguments(blind=True), True)


@pytest.mark.parametrize(
    "program", [filled, filled_with_a_number, written_in_place, with_slopes, added_number]
)
def test_queries_that_see_no_key(program: Any) -> None:
    compare(program, arguments(blind=True), False)


def test_gradients_of_queries_that_see_no_key() -> None:
    compare(filled_with_a_number, arguments(blind=True), True)


def test_several_numbers_of_one_query() -> None:
    def program(q: Any, k: Any, v: Any, mask: Any) -> Any:
        first = torch.where(mask, -math.inf, 0.0)
        return (q @ k.mT + first + mask.flip(1).float() * -3e38).softmax(-1) @ v

    compare(program, arguments(), False)


def test_what_is_not_finite_in_queries_stays() -> None:
    given = arguments()
    given[0][0, 0, 1] = math.nan
    given[0][0, 1, 2] = math.inf
    given[0][1, 0, 3] = -math.inf
    given[1] = given[1].abs()
    compare(plain, given, False)
    compare(filled, given, False)


def test_a_causal_mask_is_no_tensor() -> None:
    _, texts = graphs_of(causal, arguments())
    assert "0.0, True, scale=1.0" in texts[0].replace("attn_mask=None, ", "")
    assert "prims.where" not in texts[0]


def test_products_with_other_readers_stay() -> None:
    def weights_too(q: Any, k: Any, v: Any, mask: Any) -> Any:
        weights = (q @ k.mT).softmax(-1)
        return weights @ v, weights

    def scores_too(q: Any, k: Any, v: Any, mask: Any) -> Any:
        scores = q @ k.mT
        return scores.softmax(-1) @ v, scores.sum()

    def other_rows(q: Any, k: Any, v: Any, mask: Any) -> Any:
        return (q @ k.mT).softmax(-2) @ v

    def dropped(q: Any, k: Any, v: Any, mask: Any) -> Any:
        return F.dropout((q @ k.mT).softmax(-1), 0.5) @ v

    def odd_scales(q: Any, k: Any, v: Any, mask: Any) -> Any:
        return ((q @ k.mT) * -1.0).softmax(-1) @ v + ((q @ k.mT) * 0.0).softmax(-1) @ v

    def scale_of_data(q: Any, k: Any, v: Any, mask: Any) -> Any:
        return ((q @ k.mT) * q.max()).softmax(-1) @ v

    for program in (weights_too, scores_too, other_rows, dropped, odd_scales, scale_of_data):
        _, texts = graphs_of(program, arguments())
        assert KERNEL not in texts[0]


def test_operands_written_in_between() -> None:
    def program(q: Any, k: Any, v: Any, mask: Any) -> Any:
        scores = q @ k.mT
        q.mul_(2)
        return scores.softmax(-1) @ v

    given = arguments()
    want = program(*(x.clone() for x in given))
    compiled, texts = graphs_of(program, [x.clone() for x in given])
    assert KERNEL not in texts[0]
    torch.testing.assert_close(compiled(*given), want)


def test_masks_that_the_program_writes_to() -> None:
    def an_index(q: Any, k: Any, v: Any, mask: Any) -> Any:
        hidden = torch.zeros(9, 9, dtype=torch.bool)
        hidden[3:, 2:] = True
        return (q @ k.mT).masked_fill(hidden, -1e9).softmax(-1) @ v

    def a_view(q: Any, k: Any, v: Any, mask: Any) -> Any:
        bias = torch.zeros(9, 9)
        bias.view(-1)[5:8] = -math.inf
        return (q @ k.mT + bias).softmax(-1) @ v

    def a_causal_mask(q: Any, k: Any, v: Any, mask: Any) -> Any:
        seen = torch.ones(9, 9, dtype=torch.bool).tril()
        row = seen[0]
        row.logical_not_()
        return (q @ k.mT).masked_fill(~seen, -math.inf).softmax(-1) @ v

    def one_number(q: Any, k: Any, v: Any, mask: Any) -> Any:
        bias = torch.where(mask, LEAST, 0.0)
        bias[:, 3] = 2.0
        return (q @ k.mT + bias).softmax(-1) @ v

    def finite_no_more(q: Any, k: Any, v: Any, mask: Any) -> Any:
        bias = torch.where(mask, -100.0, 0.0)
        bias[4].fill_(-math.inf)
        return (q @ k.mT + bias).softmax(-1) @ v

    for program in (an_index, a_view, a_causal_mask, one_number, finite_no_more):
        compare(program, arguments(), False)


def test_learned_mask_on_a_cpu_keeps_its_gradient() -> None:
    bias = torch.randn(3, 9, 9, requires_grad=True)

    def program(q: Any, k: Any, v: Any, mask: Any) -> Any:
        return (q @ k.mT + bias).softmax(-1) @ v

    given = arguments()
    (mine,) = torch.autograd.grad(flambeau.compile(program)(*given).square().sum(), [bias])
    (its,) = torch.autograd.grad(program(*given).square().sum(), [bias])
    torch.testing.assert_close(mine, its)


EQUATIONS = {
    "sums": ("bhqdx,bhkdy->bhqk", (2, 3, 5, 4, 2), (2, 3, 5, 4, 3)),
    "one more dim": ("bhqdx,bhkd->bhqk", (2, 3, 5, 4, 2), (2, 3, 5, 4)),
    "repeated widths": ("bhqd,bhkd->bhqk", (2, 3, 5, 1), (2, 3, 5, 4)),
    "repeated batches": ("bhqd,bhkd->bhqk", (2, 1, 5, 4), (1, 3, 5, 4)),
}


@pytest.mark.parametrize("name", EQUATIONS)
def test_equations_that_are_no_products_of_matrices(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLAMBEAU_CHECK", "1")
    equation, *shapes = EQUATIONS[name]

    def program(q: Any, k: Any, v: Any) -> Any:
        return torch.einsum("bhqk,bhkd->bhqd", torch.einsum(equation, q, k).softmax(-1), v)

    q, k = (torch.randn(shape) for shape in shapes)
    compiled = flambeau.compile(program)
    for keys in (5, 1):  # the keys of one value are repeated
        v = torch.randn(2, 3, keys, 4)
        torch.testing.assert_close(compiled(q, k, v), program(q, k, v))


def test_option() -> None:
    given = arguments()
    compiled = flambeau.compile(plain, options={"fuse_attention": False})
    torch.testing.assert_close(compiled(*given), plain(*given))


def test_sizes_that_change() -> None:
    compiled = flambeau.compile(filled, dynamic=True)
    for length in (5, 9, 12):
        q, k, v = (torch.randn(2, 3, length, 8) for _ in range(3))
        mask = torch.ones(length, length, dtype=torch.bool).triu(1)
        torch.testing.assert_close(compiled(q, k, v, mask), filled(q, k, v, mask))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_dtypes(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_attention, "DTYPES_OF_CPU", (torch.bfloat16, torch.float64))
    for program in (plain, filled):
        given = arguments(dtype)
        exact = program(*(x.double() if x.is_floating_point() else x for x in given))
        mine, its = (run(*given).double() for run in (flambeau.compile(program), program))
        assert (mine - exact).abs().max() <= 2 * (its - exact).abs().max() + 1e-12
