"""Matrix products, attention and convolutions in half precision: padded sizes, biases taken out,
eager's kernels, frozen weights. Compiled results are as near to float64 as eager's are.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import flambeau

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

VOCABULARY = 5021
TOKENS = torch.arange(512) * 37 % VOCABULARY

PROGRAMS: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "vocabulary": (
        lambda x, w: F.cross_entropy(F.linear(x, w).float(), TOKENS.to(x.device)),
        [(512, 768), (VOCABULARY, 768)],
    ),
    "vocabulary, logits returned": (
        lambda x, w: (F.cross_entropy((y := F.linear(x, w)), TOKENS.to(x.device)), y),
        [(512, 768), (VOCABULARY, 768)],
    ),
    "vocabulary with a bias": (
        lambda x, w, b: F.log_softmax(F.linear(x, w, b), -1)[:, :100],
        [(512, 768), (VOCABULARY, 768), (VOCABULARY,)],
    ),
    "odd depth": (lambda x, w: torch.tanh(x @ w), [(2048, 2049), (2049, 2051)]),
    "batches": (
        lambda x, w: torch.tanh(x @ w) @ w.transpose(1, 2),
        [(16, 1024, 1023), (16, 1023, 1025)],
    ),
    "bias, residual, norm": (
        lambda x, w, b, r: F.layer_norm(F.linear(x, w, b) + r, (1024,)),
        [(512, 1024), (1024, 1024), (1024,), (512, 1024)],
    ),
    "convolution": (
        lambda x, w, b: F.relu(F.conv2d(x, w, b, padding=1)),
        [(8, 32, 28, 28), (64, 32, 3, 3), (64,)],
    ),
}


def run(
    program: Callable[..., Any], tensors: list[torch.Tensor], dtype: torch.dtype
) -> list[torch.Tensor]:
    """Results and gradients."""
    given = [tensor.to("cuda", dtype).requires_grad_() for tensor in tensors]
    results = program(*given)
    results = results if isinstance(results, tuple) else (results,)
    total = torch.zeros((), device="cuda", dtype=torch.float64)
    for result in results:
        weights = torch.linspace(0.5, 1.5, result.numel(), device="cuda", dtype=torch.float64)
        total = total + (result.double() * weights.view(result.shape)).sum()
    total.backward()
    return [*(result.detach() for result in results), *(each.grad for each in given)]


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_as_near_to_float64_as_eager(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    program, shapes = PROGRAMS[name]
    tensors = [torch.randn(shape) / shape[-1] ** (0.5 * (number > 0)) for number, shape in
               enumerate(shapes)]  # fmt: skip
    compiled = flambeau.compile(program, fullgraph=True)
    exact = run(program, tensors, torch.float64)
    eager = run(program, tensors, dtype)
    for _ in range(2):
        ours = run(compiled, tensors, dtype)
        for mine, its, reference in zip(ours, eager, exact, strict=True):
            assert mine.stride() == its.stride() and mine.dtype == its.dtype
            errors = [(result.double() - reference).norm() for result in (mine, its)]
            assert errors[0] <= 1.3 * errors[1] + 1e-4 * reference.norm()


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any, **options: Any) -> Any:
    return F.scaled_dot_product_attention(q, k, v, mask, **options)


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"dropout_p": 0.1}], ids=str)
@pytest.mark.parametrize("masked", [None, "bool", "number"])
def test_attention_takes_eagers_kernel(options: dict[str, Any], masked: str | None) -> None:
    if masked and "is_causal" in options:
        pytest.skip("eager refuses both")
    torch.manual_seed(0)
    tensors = [torch.randn(2, 4, 128, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    mask = None
    if masked:
        mask = torch.rand(2, 1, 128, 128, device="cuda") > 0.3
        mask[:, :, 3, 1:] = False
        mask[:, :, 3, 0] = True
    if masked == "number":
        mask = torch.zeros(mask.shape, device="cuda", dtype=torch.bfloat16).masked_fill(~mask, -1e4)
    results = []
    for call in (attend, flambeau.compile(attend, fullgraph=True)):
        given = [tensor.clone().requires_grad_() for tensor in tensors]
        torch.manual_seed(1)
        out = call(*given, mask, **options)
        out.backward(torch.linspace(0, 1, out.numel(), device="cuda").view(out.shape).to(out))
        results.append([out.detach(), *(each.grad for each in given)])
    assert torch.equal(results[0][0], results[1][0])
    for mine, its in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(mine, its, rtol=2e-2, atol=2e-2)
        assert mine.stride() == its.stride()


def test_frozen_weights() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(576, 10)
    )
    model = model.cuda().eval()
    compiled = flambeau.compile(model, options={"freezing": True})
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(4, 3, 8, 8, device="cuda")
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-2, atol=1e-2)
            model[4].weight.mul_(1.5)


@pytest.mark.parametrize("rows", [1, 16, 64, 100])
@pytest.mark.parametrize("digits", [1, 2])
def test_quantised_weights(rows: int, digits: int) -> None:
    """In one kernel where rows are few; rounded as eager rounds."""
    torch.manual_seed(0)
    x = torch.randn(rows, 1024, device="cuda", dtype=torch.bfloat16)
    kind = torch.int8 if digits == 1 else torch.uint8
    q = torch.randint(-100 if digits == 1 else 0, 127, (520, 1024 // digits), device="cuda")
    s = torch.rand(520, 8, 1, device="cuda")

    def program(x: torch.Tensor, q: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        w = torch.stack([q & 15, q >> 4], -1) if digits == 2 else q
        w = (w.view(520, 8, 128).float() * s).to(x.dtype).view(520, 1024)
        return F.gelu(F.linear(x, w))

    q = q.to(kind)
    ours, theirs = flambeau.compile(program, fullgraph=True)(x, q, s), program(x, q, s)
    assert ours.dtype is theirs.dtype and ours.stride() == theirs.stride()
    assert (ours.double() - theirs.double()).norm() <= 1e-2 * theirs.double().norm()


@pytest.mark.parametrize("sizes", [(512, 768, 1024), (33, 65, 129)])
@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_gradients_of_float32_weights_under_autocast(
    sizes: tuple[int, int, int], mode: str | None
) -> None:
    rows, width, out = sizes
    model = nn.Sequential(nn.Linear(width, out), nn.GELU(), nn.Linear(out, width)).cuda()
    compiled = flambeau.compile(model, mode=mode)
    for _ in range(7):
        x = torch.randn(rows, width, device="cuda")
        found = []
        for function, given, half in (
            (copy.deepcopy(model).double(), x.double(), False),
            (model, x, True),
            (compiled, x, True),
        ):
            with torch.autocast("cuda", torch.bfloat16, enabled=half):
                loss = function(given).float().square().mean()
            parameters = list(function.parameters())
            found.append(torch.autograd.grad(loss, parameters))
        for exact, eager, ours in zip(*found, strict=True):
            assert (ours.dtype, ours.stride()) == (eager.dtype, eager.stride())
            error, eager_error = ((g.double() - exact).norm() for g in (ours, eager))
            assert error <= 1.2 * eager_error + 1e-6 * exact.norm()
