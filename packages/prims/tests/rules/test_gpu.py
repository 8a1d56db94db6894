"""The fuzz of test_fuzz.py on a GPU: where eager takes the call, the rule gives the geometry that
eager gives.
"""

from __future__ import annotations

import random
import warnings

import pytest
import rules.calls_model
import rules.calls_nn
import rules.calls_rare
import rules.calls_view  # noqa: F401
import torch
from rules.calls import CALLS
from rules.compare import check
from rules.tensors import to_device

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

# Which dtypes a kernel takes differs between devices and is not compared here; the rest of CPU_ONLY
# has no CUDA kernel.
CPU_ONLY = {
    "aten._scaled_dot_product_flash_attention_for_cpu.default",
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default",
    # Its random arguments come from the CPU kernel, whose saved statistics have another shape.
    "aten.native_batch_norm_backward.default",
}


@pytest.mark.parametrize("name", sorted(set(CALLS) - CPU_ONLY))
def test_rule_agrees_with_eager_on_gpu(name: str) -> None:
    """Shape, dtype, stride and offset."""
    rng = random.Random(name)
    differing = []
    for _ in range(4):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            op, args, kwargs = CALLS[name](rng)
            text = check(op, to_device(args, "cuda"), kwargs)
        if text is not None and "Error(" not in text:
            differing.append(text)
    assert not differing, "\n".join(differing)


def _operand(layout: str, length: int, dtype: torch.dtype) -> torch.Tensor:
    if layout == "contiguous":
        return torch.randn(2, 4, length, 64, device="cuda", dtype=dtype)
    projected = torch.randn(2, length, 3, 4, 64, device="cuda", dtype=dtype)
    return projected[:, :, 1].transpose(1, 2)


@pytest.mark.parametrize("layout", ["contiguous", "projected"])
@pytest.mark.parametrize("kernel", ["flash", "efficient", "cudnn"])
def test_attention_agrees_with_eager(kernel: str, layout: str) -> None:
    """Forward and backward of the fused CUDA kernels."""
    aten = torch.ops.aten
    query, key, value = (_operand(layout, length, torch.bfloat16) for length in (37, 50, 50))
    forward = getattr(aten, f"_scaled_dot_product_{kernel}_attention").default
    backward = getattr(aten, f"_scaled_dot_product_{kernel}_attention_backward").default
    args = {
        "flash": (query, key, value, 0.0, False, False),
        "efficient": (query, key, value, None, True, 0.0, False),
        "cudnn": (query, key, value, None, True, 0.0, False, False),
    }[kernel]
    text = check(forward, args)
    assert text is None, text
    r = forward(*args)
    grad = torch.randn_like(r[0])
    saved = {
        "flash": lambda: (*r[:6], 0.0, False, *r[6:8]),
        "efficient": lambda: (None, *r[:4], 0.0, [True, True, True, False], False),
        "cudnn": lambda: (r[0], r[1], r[6], r[7], None, *r[2:6], 0.0, False),
    }[kernel]()
    text = check(backward, (grad, query, key, value, *saved))
    assert text is None, text


@pytest.mark.parametrize("layout", ["contiguous", "projected"])
def test_cudnn_attention_of_narrower_values_agrees_with_eager(layout: str) -> None:
    query, key = (_operand(layout, length, torch.bfloat16) for length in (37, 50))
    value = _operand(layout, 50, torch.bfloat16)[..., :16].contiguous()
    args = (query, key, value, None, True, 0.0, False, False)
    text = check(torch.ops.aten._scaled_dot_product_cudnn_attention.default, args)
    assert text is None, text


@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
def test_unpooled_maxima_agree_with_eager(form: torch.memory_format) -> None:
    x = torch.randn(3, 5, 8, 6, device="cuda").to(memory_format=form)
    pooled, places = torch.nn.functional.max_pool2d(x, 2, return_indices=True)
    text = check(torch.ops.aten.max_unpool2d.default, (pooled, places, [8, 6]))
    assert text is None, text


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("one_row", [False, True], ids=["batch", "sequences_in_one_row"])
def test_efficient_attention_of_rows_agrees_with_eager(one_row: bool, biased: bool) -> None:
    """Forward and backward, of strided [b, s, h, d] operands."""
    aten = torch.ops.aten
    lengths = (24, 32, 32)
    query, key, value = (
        torch.randn(1 if one_row else 2, n * (2 if one_row else 1), 4, 32, device="cuda")
        .transpose(0, 2)
        .contiguous()
        .transpose(0, 2)
        for n in lengths
    )
    starts = [torch.tensor([0, n, 2 * n], dtype=torch.int32, device="cuda") for n in lengths[:2]]
    rows = (*starts, *lengths[:2]) if one_row else (None,) * 4
    bias = torch.randn(2, 4, 24, 32, device="cuda") if biased and not one_row else None
    args = (query, key, value, bias, *rows, 0.0, 0, True)
    text = check(aten._efficient_attention_forward.default, args)
    assert text is None, text
    out, *saved, longest_q, longest_k = aten._efficient_attention_forward(*args)
    grad = torch.randn_like(out)
    args = (
        grad, query, key, value, bias, out, *rows[:2], longest_q, longest_k, saved[0], 0.0,
        *saved[1:], 0, biased and bias is not None,
    )  # fmt: skip
    text = check(aten._efficient_attention_backward.default, args)
    assert text is None, text


def _signal(rng: random.Random, dtype: torch.dtype) -> tuple[torch.Tensor, list[int]]:
    """A tensor of up to five dimensions in any order in memory, perhaps at an odd offset, and
    dimensions to transform.
    """
    sizes = [rng.randint(2, 5) for _ in range(rng.randint(1, 5))]
    order = rng.sample(range(len(sizes)), len(sizes))
    start = rng.randint(0, 2)
    count = torch.Size(sizes).numel()
    memory = torch.randn(count + start, dtype=dtype, device="cuda")[start:]
    made = memory.view([sizes[dim] for dim in order])
    made = made.permute([order.index(dim) for dim in range(len(sizes))])
    if rng.random() < 0.2:
        made = made.unsqueeze(0).expand(3, *made.shape)
    dims = rng.sample(range(made.ndim), rng.randint(1, made.ndim))
    return made, sorted(dims) if rng.random() < 0.5 else dims


@pytest.mark.parametrize("name", ["_fft_c2c", "_fft_r2c", "_fft_c2r"])
def test_fourier_transforms_of_any_layout(name: str) -> None:
    """One plan or a chain of them."""
    rng = random.Random(name)
    op = getattr(torch.ops.aten, name).default
    differing = []
    for _ in range(150):
        dtype = torch.float32 if name == "_fft_r2c" else torch.complex64
        signal, dims = _signal(rng, dtype)
        length = signal.shape[dims[-1]]
        last = max(1, 2 * length - rng.randint(1, 2)) if name == "_fft_c2r" else rng.random() < 0.5
        text = check(op, (signal, dims, rng.randint(0, 2), last))
        if text is not None and text not in differing:
            differing.append(text)
    assert not differing, f"{len(differing)} differ:\n" + "\n".join(differing[:12])
