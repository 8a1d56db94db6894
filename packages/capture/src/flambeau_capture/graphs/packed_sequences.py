"""Packed sequences in tensor operations, which the interpreter follows: torch's own functions read
the lengths in C++.

    lengths 3 1, T = 4:     mask  1 1     data: input[mask], a row for each one
                                  1 0     batch_sizes: 2 1 1, the ones of each step
                                  1 0
                                  0 0
"""

from __future__ import annotations

from typing import Any

import torch


def pack(input: Any, lengths: Any, batch_first: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """`torch._pack_padded_sequence`: lengths decrease, and are from 1 to the number of steps."""
    if batch_first:
        input = input.transpose(0, 1)
    steps = input.shape[0]
    wrong = (lengths[:-1] < lengths[1:]).any() | (lengths[-1] < 1) | (lengths[0] > steps)
    if wrong:
        raise RuntimeError("lengths are not as eager torch wants them")
    mask = torch.arange(steps).unsqueeze(1) < lengths
    sizes = mask.sum(1)
    return input[mask.to(input.device)], sizes[sizes > 0]


def pad(
    data: Any, batch_sizes: Any, batch_first: bool, padding_value: float, total_length: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """`torch._pad_packed_sequence`, for a total length that fits."""
    step = torch.arange(total_length)
    last = batch_sizes.shape[0] - 1
    sizes = torch.where(step > last, 0, batch_sizes[step.clamp(max=last)])
    first = torch.where(step > last, 0, sizes.cumsum(0) - sizes).unsqueeze(1)
    member = torch.arange(batch_sizes[0].item())
    mask = member < sizes.unsqueeze(1)
    row = torch.where(mask, first + member, 0).to(data.device)
    inside = mask.to(data.device).reshape(*mask.shape, *[1] * (data.ndim - 1))
    padded = torch.where(inside, data[row], padding_value)
    return padded.transpose(0, 1) if batch_first else padded, mask.sum(0)
