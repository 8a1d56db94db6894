"""diffusers: a pipeline with a compiled unet is saved whole, loaded, and gives the same images."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

import flambeau

if TYPE_CHECKING:
    from pathlib import Path

diffusers = pytest.importorskip("diffusers")


def test_a_pipeline_with_a_compiled_unet(tmp_path: Path) -> None:
    torch.manual_seed(0)
    unet = diffusers.UNet2DModel(
        sample_size=8,
        in_channels=3,
        out_channels=3,
        layers_per_block=1,
        block_out_channels=(8, 8),
        norm_num_groups=4,
        down_block_types=("DownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "UpBlock2D"),
    ).eval()
    pipeline = diffusers.DDPMPipeline(unet=unet, scheduler=diffusers.DDPMScheduler())
    pipeline.set_progress_bar_config(disable=True)

    def images(pipe: diffusers.DDPMPipeline) -> torch.Tensor:
        generator = torch.Generator().manual_seed(0)
        return torch.from_numpy(
            pipe(generator=generator, num_inference_steps=2, output_type="np").images
        )

    expected = images(pipeline)
    pipeline.unet = flambeau.compile(unet)
    torch.testing.assert_close(images(pipeline), expected, rtol=1e-4, atol=1e-4)
    pipeline.save_pretrained(tmp_path)
    assert (tmp_path / "unet" / "config.json").exists()
    loaded = diffusers.DDPMPipeline.from_pretrained(tmp_path)
    loaded.set_progress_bar_config(disable=True)
    assert type(loaded.unet) is type(unet)
    torch.testing.assert_close(images(loaded), expected)
