"""Random inputs of the kinds that models take; each function makes the keyword arguments of one
call.
"""

from __future__ import annotations

from typing import Any

import torch

Inputs = dict[str, Any]


def moved(value: Any, device: str) -> Any:
    """The same inputs on a device."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {name: moved(item, device) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(moved(item, device) for item in value)
    return value


def tokens(batch: int = 2, length: int = 9, vocabulary: int = 99) -> torch.Tensor:
    """Token ids without the special ones, [batch, length]."""
    return torch.randint(3, vocabulary, (batch, length))


def text(batch: int = 2, length: int = 9, **more: Any) -> Inputs:
    """Token ids and a mask that pads the first sequence by two."""
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[0, length - 2 :] = 0
    return {"input_ids": tokens(batch, length), "attention_mask": mask, **more}


def bare_text(length: int = 9) -> Inputs:
    """Token ids alone."""
    return {"input_ids": tokens(length=length)}


def full_text(length: int = 9) -> Inputs:
    """Token ids and a mask that hides nothing."""
    return {
        "input_ids": tokens(length=length),
        "attention_mask": torch.ones(2, length, dtype=torch.long),
    }


def sequences() -> Inputs:
    """What an encoder and a decoder read."""
    return {"input_ids": tokens(), "decoder_input_ids": tokens(length=5)}


def image(size: int = 32) -> Inputs:
    """Two images, [2, 3, size, size]."""
    return {"pixel_values": torch.randn(2, 3, size, size)}


def large_image() -> Inputs:
    """Two images of 64 x 64."""
    return image(64)


def video() -> Inputs:
    """One video of four frames."""
    return {"pixel_values": torch.randn(1, 4, 3, 32, 32)}


def image_and_text() -> Inputs:
    """Two pairs of an image and a text."""
    return {**bare_text(), **image(), "attention_mask": torch.ones(2, 9, dtype=torch.long)}


def image_in_text() -> Inputs:
    """One text whose first 16 tokens stand for an image."""
    ids = torch.cat([torch.full((1, 16), 98), tokens(1, 5, 97)], 1)
    return {"input_ids": ids, "pixel_values": torch.randn(1, 3, 32, 32)}


def boxed_text() -> Inputs:
    """Token ids, a mask, and the corners of each token's box on the page."""
    low, extent = torch.randint(0, 30, (2, 9, 2)), torch.randint(0, 30, (2, 9, 2))
    return text(bbox=torch.cat([low, low + extent], -1))


def patches_and_text() -> Inputs:
    """Two pairs of a text and an image of 16 patches, in two shapes."""
    return {
        **bare_text(),
        "pixel_values": torch.randn(2, 16, 192),
        "pixel_attention_mask": torch.ones(2, 16, dtype=torch.long),
        "spatial_shapes": torch.tensor([[4, 4], [2, 8]]),
    }


def video_and_text() -> Inputs:
    """Two pairs of a text and a video of four frames."""
    return {**bare_text(), "pixel_values": torch.randn(2, 4, 3, 32, 32)}


def wave(length: int = 800) -> Inputs:
    """Two waveforms."""
    return {"input_values": torch.randn(2, length)}
