"""The fuzz of test_fuzz.py on a GPU: where eager takes the call, the rule gives the geometry that
eager gives.
"""

from __future__ import annotations

import random
import warnings

import pytest
import rules.calls_model
import rules.calls_nn
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
    assert check(forward, args) is None
    r = forward(*args)
    grad = torch.randn_like(r[0])
    saved = {
        "flash": (*r[:6], 0.0, False, *r[6:8]),
        "efficient": (None, *r[:4], 0.0, [True, True, True, False], False),
        "cudnn": (r[0], r[1], r[6], r[7], None, *r[2:6], 0.0, False),
    }[kernel]
    assert check(backward, (grad, query, key, value, *saved)) is None
