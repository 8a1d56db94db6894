"""diffusers: a pipeline with a compiled unet is saved whole, loaded, and gives the same images."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

import flambeau
from flambeau.report import report_of

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


def transformer() -> torch.nn.Module:
    torch.manual_seed(0)
    return diffusers.FluxTransformer2DModel(
        patch_size=1, in_channels=4, num_layers=2, num_single_layers=1, attention_head_dim=16,
        num_attention_heads=2, joint_attention_dim=32, pooled_projection_dim=32,
        axes_dims_rope=[4, 4, 8],
    ).eval()  # fmt: skip


def call(model: torch.nn.Module) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        return model(
            hidden_states=torch.randn(1, 16, 4, generator=generator),
            encoder_hidden_states=torch.randn(1, 8, 32, generator=generator),
            pooled_projections=torch.randn(1, 32, generator=generator),
            timestep=torch.tensor([1.0]),
            img_ids=torch.randn(16, 3, generator=generator),
            txt_ids=torch.randn(8, 3, generator=generator),
        ).sample


def test_repeated_blocks_compiled_in_place() -> None:
    """The recipe of docs/integrations.md."""
    model = transformer()
    expected = call(model)
    blocks = [m for m in model.modules() if type(m).__name__ in model._repeated_blocks]
    for block in blocks:
        flambeau.compile_in_place(block)
    torch.testing.assert_close(call(model), expected, rtol=1e-4, atol=1e-4)
    assert len(blocks) == 3
    assert all(report_of(block._compiled_call_impl).graphs for block in blocks)


@pytest.mark.skipif(
    "flambeau" not in torch._dynamo.list_backends(), reason="flambeau is not installed as a package"
)
def test_compile_repeated_blocks_with_the_backends_name() -> None:
    model = transformer()
    expected = call(model)
    model.compile_repeated_blocks(backend="flambeau")
    torch.testing.assert_close(call(model), expected, rtol=1e-4, atol=1e-4)
