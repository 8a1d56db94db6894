"""The architectures: the class, what its small configuration overrides, and what it is called with.

Every configuration starts from SMALL, as far as it knows the names; None takes a name out again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from tools.sweep.models.inputs import (
    Inputs,
    bare_text,
    boxed_text,
    full_text,
    image,
    image_and_text,
    image_in_text,
    large_image,
    patches_and_text,
    sequences,
    text,
    tokens,
    video,
    video_and_text,
    wave,
)

SMALL: dict[str, Any] = {
    **dict.fromkeys(
        (
            "num_hidden_layers",
            "n_layer",
            "n_layers",
            "num_layers",
            "encoder_layers",
            "decoder_layers",
            "num_decoder_layers",
            "num_encoder_layers",
            "num_key_value_heads",
            "num_experts_per_tok",
        ),
        2,
    ),
    **dict.fromkeys(
        (
            "num_attention_heads",
            "n_head",
            "n_heads",
            "num_heads",
            "encoder_attention_heads",
            "decoder_attention_heads",
            "num_experts",
            "num_local_experts",
            "n_routed_experts",
            "sliding_window",
            "rotary_dim",
        ),
        4,
    ),
    **dict.fromkeys(
        (
            "hidden_size",
            "d_model",
            "n_embd",
            "dim",
            "word_embed_proj_dim",
            "text_dim",
            "image_size",
        ),
        32,
    ),
    **dict.fromkeys(
        (
            "intermediate_size",
            "d_ff",
            "d_inner",
            "ffn_dim",
            "encoder_ffn_dim",
            "decoder_ffn_dim",
            "max_position_embeddings",
            "n_positions",
            "n_inner",
            "ffn_hidden_size",
            "hidden_dim",
            "max_seq_len",
        ),
        64,
    ),
    **dict.fromkeys(("d_kv", "head_dim", "patch_size"), 8),
    **dict.fromkeys(("embedding_size", "moe_intermediate_size", "projection_dim"), 16),
    "vocab_size": 99,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 0,
    "max_window_layers": 1,
}
_PART = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "image_size",
    "patch_size",
    "projection_dim",
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
)


def part(model_type: str | None = None, **overrides: Any) -> dict[str, Any]:
    """The configuration of one tower of a model that has several."""
    named = {} if model_type is None else {"model_type": model_type}
    return {**named, **{name: SMALL[name] for name in _PART}, **overrides}


@dataclass(frozen=True, slots=True)
class Architecture:
    """One row: the class of transformers, overrides of its configuration, and its inputs."""

    name: str
    class_name: str
    inputs: Callable[[], Inputs] = text
    overrides: dict[str, Any] = field(default_factory=dict)


TABLE: dict[str, Architecture] = {}


def _row(
    name: str,
    inputs: Callable[[], Inputs] = text,
    class_name: str | None = None,
    **overrides: Any,
) -> None:
    if name in TABLE:
        raise ValueError(f"{name} stands twice in the table")
    TABLE[name] = Architecture(name, class_name or f"{name}Model", inputs, overrides)


# ---------------------------------------------------------------- text
for _name in [
    "Bert",
    "Roberta",
    "DistilBert",
    "Albert",
    "Electra",
    "Deberta",
    "MPNet",
    "GPT2",
    "GPTNeoX",
    "GPTJ",
    "Bloom",
    "Mistral",
    "Qwen2",
    "Qwen3",
    "Gemma",
    "Gemma2",
    "Phi",
    "Phi3",
    "StableLm",
    "Starcoder2",
    "OPT",
    "Llama",
    "Mixtral",
    "Qwen2Moe",
    "Qwen3Moe",
    "Olmo",
    "Olmo2",
    "Cohere",
    "Cohere2",
    "Granite",
    "Glm",
    "Glm4",
    "Helium",
    "Nemotron",
    "Persimmon",
    "Mpt",
    "GPTBigCode",
    "CodeGen",
    "BioGpt",
    "Ernie",
    "RoFormer",
    "XLMRoberta",
    "Camembert",
    "XGLM",
    "MegatronBert",
    "RemBert",
    "Esm",
    "Olmoe",
    "GraniteMoe",
    "SmolLM3",
    "Exaone4",
    "OpenAIGPT",
    "Splinter",
    "Arcee",
    "Gemma3Text",
    "Ministral",
    "GptOss",
    "IBert",
]:
    _row(_name)
_row("Falcon", head_dim=None)
_row("FNet", bare_text, tpu_short_seq_length=9)
_row("Yoso", use_expectation=True)
_row("DebertaV2", relative_attention=True, position_buckets=8, pos_att_type=["p2c", "c2p"])
_row(
    "DebertaRelative",
    class_name="DebertaModel",
    relative_attention=True,
    pos_att_type=["p2c", "c2p"],
)
_row("XLNet", full_text, max_position_embeddings=None)
_row("GPTNeo", attention_types=[[["global", "local"], 1]], window_size=4)
_row("Mamba", bare_text, state_size=4)
_row("Mamba2", bare_text, state_size=4, num_heads=8, head_dim=8, n_groups=2, chunk_size=4)
_row("FalconMamba", bare_text, state_size=4)
_row("Rwkv", bare_text, attention_hidden_size=32)
_row(
    "Jamba",
    attn_layer_period=2,
    attn_layer_offset=1,
    expert_layer_period=2,
    expert_layer_offset=1,
    mamba_d_state=4,
    use_mamba_kernels=False,
    mamba_dt_rank=4,
)
_row(
    "Bamba",
    mamba_d_state=4,
    mamba_n_heads=8,
    mamba_d_head=8,
    mamba_chunk_size=4,
    attn_layer_indices=[1],
)
_row(
    "Zamba2",
    mamba_d_state=4,
    n_mamba_heads=8,
    mamba_ngroups=1,
    chunk_size=4,
    layers_block_type=["mamba", "hybrid"],
    hybrid_layer_ids=[1],
    num_mem_blocks=1,
    attention_head_dim=16,
)
_row("RecurrentGemma", lru_width=32, num_hidden_layers=3, attention_window_size=8)
_LATENT = {
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "kv_lora_rank": 8,
    "q_lora_rank": 8,
    "first_k_dense_replace": 1,
    "n_group": 2,
    "topk_group": 1,
    "num_key_value_heads": 4,
}
_row("DeepseekV2", **_LATENT)
_row("DeepseekV3", **_LATENT, head_dim=None)
_row("Llama4Text", class_name="Llama4TextModel", intermediate_size_mlp=64, attention_chunk_size=4)
_row(
    "Dbrx",
    ffn_config={"ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2},
    attn_config={"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8.0},
)
_row("CTRL", dff=64)
_row("ConvBert", embedding_size=32)
_row("SqueezeBert", embedding_size=32)
_row("MobileBert", embedding_size=32, intra_bottleneck_size=16, true_hidden_size=16)
_row("Funnel", block_sizes=[1, 1], d_head=8, num_decoder_layers=1, num_hidden_layers=None)
_row(
    "Canine",
    lambda: text(length=16),
    local_transformer_stride=4,
    num_hash_buckets=32,
    downsampling_rate=4,
    upsampling_kernel_size=4,
    max_position_embeddings=256,
)
_row("Nystromformer", lambda: full_text(8), segment_means_seq_len=8, num_landmarks=4)
_row("ModernBert", local_attention=4)
_row("Lfm2", layer_types=["conv", "full_attention"], conv_L_cache=3)
_row("MiniMax", layer_types=["linear_attention", "full_attention"], block_size=4)
_row(
    "Qwen3Next",
    layer_types=["linear_attention", "full_attention"],
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=8,
    linear_value_head_dim=8,
    shared_expert_intermediate_size=16,
)
_row("XLM", emb_dim=32)
_row("Flaubert", emb_dim=32)
_row("ErnieMoe", class_name="Ernie4_5_MoeModel")
_row("Longformer", lambda: text(length=16), attention_window=4)
_row(
    "BigBird",
    lambda: full_text(64),
    attention_type="block_sparse",
    block_size=4,
    num_random_blocks=1,
    max_position_embeddings=128,
)

# ---------------------------------------------------------------- encoder and decoder
for _name in [
    "Bart",
    "Pegasus",
    "MBart",
    "Marian",
    "Blenderbot",
    "BlenderbotSmall",
    "PLBart",
    "M2M100",
    "T5",
    "MT5",
    "UMT5",
    "SwitchTransformers",
    "LongT5",
]:
    _row(_name, sequences)
_row("FSMT", sequences, src_vocab_size=99, tgt_vocab_size=99, langs=["en", "de"])
_row(
    "ProphetNet",
    sequences,
    num_hidden_layers=None,
    num_encoder_attention_heads=4,
    num_decoder_attention_heads=4,
)
_row("PegasusX", sequences, block_size=4, num_global_tokens=4)
_row("BigBirdPegasus", sequences, attention_type="original_full")
_row(
    "LED",
    lambda: {"input_ids": tokens(length=16), "decoder_input_ids": tokens(length=5)},
    attention_window=4,
    max_encoder_position_embeddings=64,
    max_decoder_position_embeddings=64,
)

# ---------------------------------------------------------------- images
for _name in [
    "ViT",
    "DeiT",
    "Beit",
    "Dinov2",
    "Dinov2WithRegisters",
    "ViTMSN",
    "VitDet",
    "Data2VecVision",
    "IJepa",
    "DINOv3ViT",
    "Pixio",
]:
    _row(_name, image)
_row("Yolos", image, image_size=[32, 32], num_detection_tokens=5)
_row("ViTMAE", lambda: {**image(), "noise": torch.rand(2, 16)}, mask_ratio=0.5)
_row(
    "Hiera",
    large_image,
    embed_dim=8,
    image_size=[64, 64],
    patch_size=[7, 7],
    patch_stride=[4, 4],
    patch_padding=[3, 3],
    depths=[1, 1, 1, 1],
    num_heads=[1, 1, 2, 2],
)
for _name in ("Swin", "Swinv2", "DonutSwin"):
    _row(
        _name,
        image,
        image_size=32,
        patch_size=2,
        embed_dim=8,
        depths=[1, 2],
        num_heads=[2, 2],
        window_size=4,
    )
_row(
    "Swin2SR",
    image,
    image_size=32,
    patch_size=1,
    embed_dim=8,
    depths=[2],
    num_heads=[2],
    window_size=4,
)
for _name in ("ConvNext", "ConvNextV2"):
    _row(_name, large_image, hidden_sizes=[8, 16, 16, 32], depths=[1, 1, 1, 1], patch_size=None)
_row("ResNet", image, embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
_row("RegNet", image, embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], groups_width=4)
_row(
    "MobileViT",
    large_image,
    hidden_sizes=[16, 24, 32],
    neck_hidden_sizes=[8, 8, 16, 16, 24, 24, 32],
    image_size=64,
    patch_size=2,
)
_row(
    "MobileViTV2",
    large_image,
    image_size=64,
    patch_size=2,
    width_multiplier=0.25,
    base_attn_unit_dims=[16, 24, 32],
    n_attn_blocks=[1, 1, 1],
)
_row("MobileNetV1", image, depth_multiplier=0.25, min_depth=4)
_row("MobileNetV2", image, depth_multiplier=0.25)
_row("EfficientNet", image, width_coefficient=0.25, depth_coefficient=0.3, hidden_dim=320)
_PYRAMID = {
    "hidden_sizes": [8, 16, 16, 32],
    "depths": [1, 1, 1, 1],
    "num_attention_heads": [1, 2, 2, 4],
}
_row("Segformer", large_image, **_PYRAMID, image_size=64, patch_size=None)
_row(
    "SegformerSegmentation",
    large_image,
    "SegformerForSemanticSegmentation",
    **_PYRAMID,
    decoder_hidden_size=16,
    patch_sizes=[7, 3, 3, 3],
)
_row("Pvt", large_image, **_PYRAMID, image_size=64, patch_size=None)
_row("PvtV2", large_image, **_PYRAMID)
_row("GLPN", large_image, **_PYRAMID, patch_sizes=[7, 3, 3, 3])
_row("PoolFormer", large_image, hidden_sizes=[8, 16, 16, 32], depths=[1, 1, 1, 1], patch_size=16)
_row(
    "FocalNet",
    image,
    image_size=32,
    patch_size=2,
    embed_dim=8,
    depths=[1, 1],
    focal_levels=[2, 2],
    focal_windows=[3, 3],
    hidden_sizes=None,
)
_row(
    "Bit",
    image,
    embedding_size=8,
    hidden_sizes=[8, 16],
    depths=[1, 1],
    num_groups=2,
    hidden_size=None,
)
_row(
    "Levit",
    large_image,
    image_size=64,
    hidden_sizes=[16, 32, 48],
    num_attention_heads=[2, 2, 3],
    depths=[1, 1, 1],
    key_dim=[8, 8, 8],
    patch_size=16,
)
_row("Cvt", image, embed_dim=[8, 16, 32], num_heads=[1, 2, 4], depth=[1, 2, 3])
_row("SwiftFormer", large_image, embed_dims=[8, 16, 16, 32], depths=[1, 1, 1, 1])
_row("DPT", image, backbone_out_indices=[0, 1])
_row("TextNet", large_image)
_row("Blip2Vision", image, "Blip2VisionModel")
_row("Vivit", video, num_frames=4, tubelet_size=[2, 8, 8])
_row("VideoMAE", video, num_frames=4, tubelet_size=2)
_row("Timesformer", video, num_frames=4)
_row(
    "Sam",
    lambda: {
        "pixel_values": torch.randn(1, 3, 32, 32),
        "input_points": torch.rand(1, 1, 2, 2) * 30,
    },
    vision_config={
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 32,
        "patch_size": 4,
        "mlp_dim": 64,
        "output_channels": 16,
        "window_size": 4,
        "global_attn_indexes": [1],
        "num_pos_feats": 8,
    },
    prompt_encoder_config={
        "hidden_size": 16,
        "image_size": 32,
        "patch_size": 4,
        "mask_input_channels": 4,
        "image_embedding_size": 8,
    },
    mask_decoder_config={
        "hidden_size": 16,
        "mlp_dim": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "iou_head_hidden_dim": 16,
    },
)
_BACKBONE = {
    "model_type": "resnet",
    "embedding_size": 8,
    "hidden_sizes": [8, 16],
    "depths": [1, 1],
    "layer_type": "basic",
    "out_features": ["stage2"],
}
_row("Detr", large_image, backbone_config=_BACKBONE, num_queries=4)
_row("ConditionalDetr", large_image, backbone_config=_BACKBONE, num_queries=4)

# ---------------------------------------------------------------- images and text
for _name in [
    "CLIP",
    "Siglip",
    "Blip",
    "ChineseCLIP",
    "AltCLIP",
    "CLIPSeg",
    "OwlViT",
    "Aimv2",
    "GroupViT",
]:
    _row(_name, image_and_text, text_config=part(), vision_config=part())
_row(
    "XCLIP",
    video_and_text,
    projection_dim=32,
    text_config=part(projection_dim=32),
    vision_config=part(
        projection_dim=32,
        num_frames=4,
        mit_hidden_size=32,
        mit_intermediate_size=64,
        mit_num_attention_heads=4,
        mit_num_hidden_layers=1,
    ),
)
_row("Siglip2", patches_and_text, text_config=part(), vision_config=part())
_row("Owlv2", lambda: {**bare_text(), **image()}, text_config=part(), vision_config=part())
_row("Vilt", image_and_text)
_row("Flava", image_and_text, text_config=part(), image_config=part(), multimodal_config=part())
_row(
    "VisualBert",
    lambda: {**bare_text(), "visual_embeds": torch.randn(2, 3, 16)},
    visual_embedding_dim=16,
)
_row("LayoutLM", boxed_text, max_2d_position_embeddings=128)
_row("Lilt", boxed_text, hidden_size=48, max_2d_position_embeddings=128, channel_shrink_ratio=4)
_row("Bros", lambda: text(bbox=torch.rand(2, 9, 4)), hidden_size=64)
_row(
    "Lxmert",
    lambda: {
        **bare_text(),
        "visual_feats": torch.randn(2, 3, 16),
        "visual_pos": torch.rand(2, 3, 4),
    },
    visual_feat_dim=16,
    l_layers=1,
    x_layers=1,
    r_layers=1,
)
_row(
    "Llava",
    image_in_text,
    "LlavaForConditionalGeneration",
    text_config=part("llama", num_key_value_heads=2),
    vision_config=part("clip_vision_model"),
    image_token_index=98,
    image_token_id=98,
)
_row(
    "PaliGemma",
    image_in_text,
    "PaliGemmaForConditionalGeneration",
    text_config=part("gemma", num_key_value_heads=2, head_dim=8),
    vision_config=part("siglip_vision_model"),
    image_token_index=98,
    projection_dim=32,
)

# ---------------------------------------------------------------- sound and time
_WAVE = {
    "conv_dim": (16, 16),
    "conv_stride": (5, 2),
    "conv_kernel": (10, 3),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
}
for _name in ["Wav2Vec2", "Hubert", "WavLM", "UniSpeech", "UniSpeechSat", "Wav2Vec2Conformer"]:
    _row(_name, wave, **_WAVE)
_row("SEW", wave, **_WAVE, squeeze_factor=2)
_row("Data2VecAudio", wave, **{**_WAVE, "num_conv_pos_embeddings": 2}, conv_pos_kernel_size=3)
_row(
    "AST",
    lambda: {"input_values": torch.randn(2, 40, 16)},
    max_length=40,
    num_mel_bins=16,
    patch_size=8,
    frequency_stride=8,
    time_stride=8,
)
_row(
    "Wav2Vec2Bert",
    lambda: {"input_features": torch.randn(2, 20, 16)},
    feature_projection_input_dim=16,
)
_row(
    "Whisper",
    lambda: {"input_features": torch.randn(2, 8, 40), "decoder_input_ids": tokens(length=5)},
    num_mel_bins=8,
    max_source_positions=20,
    max_target_positions=20,
)
_row(
    "Speech2Text",
    lambda: {"input_features": torch.randn(2, 40, 8), "decoder_input_ids": tokens(length=5)},
    input_feat_per_channel=8,
    conv_channels=16,
    max_source_positions=40,
    max_target_positions=20,
)
_row(
    "Encodec",
    lambda: {"input_values": torch.randn(1, 1, 640)},
    num_filters=4,
    hidden_size=8,
    codebook_size=16,
    num_lstm_layers=1,
    upsampling_ratios=[4, 2],
)
_row(
    "Dac",
    lambda: {"input_values": torch.randn(1, 1, 512)},
    encoder_hidden_size=8,
    decoder_hidden_size=32,
    downsampling_ratios=[2, 4],
    upsampling_ratios=[4, 2],
    n_codebooks=2,
    codebook_size=16,
    codebook_dim=4,
    hidden_size=16,
)
_row(
    "Vits",
    lambda: {"input_ids": tokens(length=7, vocabulary=38)},
    vocab_size=38,
    flow_size=16,
    spectrogram_bins=9,
    upsample_initial_channel=16,
    upsample_rates=[2, 2],
    upsample_kernel_sizes=[4, 4],
    posterior_encoder_num_wavenet_layers=2,
    prior_encoder_num_wavenet_layers=2,
    resblock_kernel_sizes=[3],
    resblock_dilation_sizes=[[1, 3]],
    num_attention_heads=2,
)
_row(
    "TimeSeriesTransformer",
    lambda: {
        "past_values": torch.rand(2, 17),
        "past_time_features": torch.rand(2, 17, 1),
        "past_observed_mask": torch.ones(2, 17),
        "future_values": torch.rand(2, 4),
        "future_time_features": torch.rand(2, 4, 1),
    },
    prediction_length=4,
    context_length=10,
    num_time_features=1,
)
for _name in ("PatchTST", "PatchTSMixer"):
    _row(
        _name,
        lambda: {"past_values": torch.rand(2, 16, 3)},
        num_input_channels=3,
        context_length=16,
        patch_length=4,
        patch_stride=4,
    )
_row(
    "DecisionTransformer",
    lambda: {
        "states": torch.randn(2, 5, 4),
        "actions": torch.randn(2, 5, 3),
        "rewards": torch.randn(2, 5, 1),
        "returns_to_go": torch.randn(2, 5, 1),
        "timesteps": torch.randint(0, 20, (2, 5)),
        "attention_mask": torch.ones(2, 5),
    },
    state_dim=4,
    act_dim=3,
    max_ep_len=32,
)
_row(
    "Perceiver",
    lambda: {"inputs": torch.randn(2, 10, 16)},
    d_model=16,
    d_latents=32,
    num_latents=6,
    num_self_attends_per_block=2,
    num_self_attention_heads=4,
    num_cross_attention_heads=4,
)

# ---------------------------------------------------------------- with heads and losses
_row(
    "BertClassification", lambda: text(labels=torch.tensor([0, 1])), "BertForSequenceClassification"
)
_row("BertMaskedLM", lambda: text(labels=tokens()), "BertForMaskedLM")
_row(
    "BertQuestions",
    lambda: text(start_positions=torch.tensor([1, 2]), end_positions=torch.tensor([2, 3])),
    "BertForQuestionAnswering",
)
_row("GPT2LM", lambda: text(labels=tokens()), "GPT2LMHeadModel")
_row("LlamaLM", lambda: text(labels=tokens()), "LlamaForCausalLM")
_row("MixtralLM", lambda: text(labels=tokens()), "MixtralForCausalLM", output_router_logits=True)
_row("T5Generation", sequences, "T5ForConditionalGeneration")
_row(
    "BartGeneration",
    lambda: {**bare_text(), "labels": tokens(length=5)},
    "BartForConditionalGeneration",
)
_row(
    "ViTClassification",
    lambda: {**image(), "labels": torch.tensor([0, 1])},
    "ViTForImageClassification",
)
_row("Wav2Vec2CTC", lambda: {**wave(), "labels": tokens(length=4)}, "Wav2Vec2ForCTC", **_WAVE)

SAMPLE = (
    "Mixtral",
    "DebertaV2",
    "Mamba",
    "Segformer",
    "Wav2Vec2",
    "Whisper",
)
"""The fixed sample that CI runs, beside the models of the end-to-end tests."""
