"""Padding by reflection and replication, shuffled pixels and channels."""

from __future__ import annotations

import pytest
import torch
from one_op import Make, check

from flambeau_prims.decompositions import borders

aten = torch.ops.aten


@pytest.mark.parametrize("kind", ["reflection", "replication"])
@pytest.mark.parametrize("spatial", [1, 2, 3])
def test_padding(kind: str, spatial: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random amounts, images in rows and channels last, without a batch; gradients. On a CPU they
    are ATen's; here it stands for a GPU.
    """
    monkeypatch.setattr(borders, "pays", lambda device: True)
    forward = getattr(aten, f"{kind}_pad{spatial}d").default
    backward = getattr(aten, f"{kind}_pad{spatial}d_backward").default
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        make = Make(spatial, dtype)
        for _ in range(4):
            x = make(2, 3, *(make.integer(4, 9) for _ in range(spatial)))
            padding = [make.integer(0, 4) for _ in range(2 * spatial)]
            images = [x, x[0]]
            if spatial == 2:
                images.append(x.contiguous(memory_format=torch.channels_last))
            for image in images:
                check(forward, image, padding, exact=True)
                result = forward(image, padding)
                grad = torch.empty_like(result).copy_(make(*result.shape))
                check(backward, grad, image, padding, near=4.0)


def test_shuffled_pixels() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        x = Make(0, dtype)(2, 8, 6, 9)
        for image in (x, x.contiguous(memory_format=torch.channels_last), x[0]):
            check(aten.pixel_shuffle.default, image, 2, exact=True)
            check(aten.pixel_unshuffle.default, image, 3, exact=True)
        check(aten.native_channel_shuffle.default, x, 4, exact=True)
