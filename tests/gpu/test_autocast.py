"""Autocast on a GPU: dtypes and values are eager's, also of what C++ composes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.nn import functional

import flambeau

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@torch.library.custom_op("flambeau_gpu_tests::scaled", mutates_args=())
def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * 3


scaled.register_fake(torch.empty_like)
scaled.register_autocast("cuda", torch.bfloat16)

PROGRAMS: dict[str, Callable[..., Any]] = {
    "normalized": lambda x, w: (x @ w) / torch.linalg.norm(x @ w, dim=-1, keepdim=True),
    "rms_norm": lambda x, w: functional.rms_norm(x @ w, (8,)),
    "interpolated": lambda x, w: functional.interpolate((x @ w)[None, None], scale_factor=2),
    "inner": lambda x, w: torch.inner(x, w) + torch.linalg.matrix_power(w, 3)[:6],
    "distances": lambda x, w: torch.cdist(x @ w, w) + functional.pairwise_distance(w, w).sum(),
    "cosines": lambda x, w: functional.cosine_similarity(x @ w, x),
    "custom": lambda x, w: scaled(x) @ w,
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_eager(name: str, dtype: torch.dtype) -> None:
    if name == "custom" and dtype is torch.float16:
        pytest.skip("its own rule names bfloat16")
    program = PROGRAMS[name]

    def run(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", dtype):
            return program(x, w)

    x, w = torch.randn(6, 8, device="cuda"), torch.randn(8, 8, device="cuda")
    found, expected = flambeau.compile(run, fullgraph=True)(x, w), run(x, w)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)
