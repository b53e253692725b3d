"""Reduced text encoders with the real tokenizers, as the CLIP of each network."""

from __future__ import annotations

from typing import Any

import torch

from . import small_tokenizers
from .networks import Configuration, fill

_CLIP = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "projection_dim": 64,
}
_T5 = {"d_model": 64, "d_ff": 128, "d_kv": 16, "num_heads": 4, "num_layers": 2}
_LANGUAGE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
_LANGUAGE_MODELS = (
    "qwen3_4b qwen25_7b mistral3_24b qwen3_8b gemma2_2b gemma3_4b qwen25_3b qwen3_06b qwen3vl_4b "
    "qwen3vl_8b qwen3vl_32b ministral3_3b qwen3_2b llama"
)
_SIZES = {
    **{f"{name}_model_config": _CLIP for name in ("clip_l", "clip_g", "clip_h", "hydit_clip")},
    **{
        f"{name}_model_config": _T5
        for name in ("t5xxl", "umt5xxl", "pile_t5xl", "mt5xl", "byt5_small")
    },
    **{f"{name}_model_config": _LANGUAGE for name in _LANGUAGE_MODELS.split()},
    "gemma3_12b_model_config": {**_LANGUAGE, "num_hidden_layers": 4},
    "gpt_oss_config": {
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
    "selected_layers": (0, 1, 2, 3),  # of GPT-OSS, each a quarter of what Lens reads
}


def clip(configuration: Configuration, seed: int = 0):
    """The CLIP of a network. Raises whatever ComfyUI raises where it lacks a tokenizer's file."""
    import comfy.sd

    _without_vision()
    pieces = small_tokenizers.sentence_pieces()
    tokenizers = {
        "spiece_model": pieces,
        "mt5xl.spiece_model": pieces,
        "tekken_model": small_tokenizers.tekken(),
        "tokenizer_json": small_tokenizers.harmony(),
    }
    with torch.inference_mode(False), torch.no_grad():
        made = comfy.sd.CLIP(
            _target(configuration),
            model_options={**_SIZES, **_lens_template(configuration)},
            tokenizer_data=tokenizers,
        )
        fill(made.cond_stage_model, torch.Generator().manual_seed(seed))
    return made


def _target(configuration: Configuration):
    """ComfyUI's ClipTarget of a network; for some the loader chooses it by the files, so here."""
    import comfy.supported_models
    import comfy.supported_models_base
    import comfy.text_encoders.flux

    target = comfy.supported_models_base.ClipTarget
    if configuration.supported == "Flux2":
        encoders = comfy.text_encoders.flux
        return target(encoders.KleinTokenizer, encoders.klein_te(model_type="qwen3_4b"))
    if configuration.supported == "HiDream":
        from comfy.text_encoders import hidream

        encoder = hidream.hidream_clip(
            clip_l=True,
            clip_g=True,
            t5=True,
            llama=True,
            dtype_t5=torch.float32,
            dtype_llama=torch.float32,
        )
        return target(hidream.HiDreamTokenizer, encoder)
    if configuration.supported == "HunyuanVideo":
        from comfy.text_encoders import hunyuan_video

        return target(hunyuan_video.HunyuanVideoTokenizer, hunyuan_video.hunyuan_video_clip())
    if configuration.supported.startswith("CogVideoX"):
        from comfy.text_encoders import cogvideo

        return target(cogvideo.CogVideoXTokenizer, cogvideo.cogvideo_te())
    if configuration.supported == "Lens":
        return target(*_lens())
    if configuration.supported == "LTXAV":
        return target(*_ltxav())
    supported = getattr(comfy.supported_models, configuration.supported)
    marks = {}
    if configuration.supported == "SD3":
        marks = {
            f"text_encoders.{name}.transformer.text_model.final_layer_norm.weight": None
            for name in ("clip_l", "clip_g")
        }
    return supported(dict(configuration.network)).clip_target(marks)


def _lens() -> tuple[Any, Any]:
    from comfy.text_encoders import gpt_oss

    base = gpt_oss.lens_te()

    class WithWeights(base):
        def __init__(self, *args: Any, **options: Any):
            super().__init__(*args, **options)
            _add_missing_weights(self)

    return gpt_oss.LensTokenizer, WithWeights


def _add_missing_weights(encoder: torch.nn.Module) -> None:
    """Weights of the layers that have none before a file is read (GPT-OSS)."""
    for module in encoder.modules():
        if hasattr(module, "in_features") and getattr(module, "weight", None) is None:
            experts = getattr(module, "num_experts", None)
            shape = (module.out_features, module.in_features)
            module.weight = torch.nn.Parameter(
                torch.empty(shape if experts is None else (experts, *shape))
            )


def _lens_template(configuration: Configuration) -> dict[str, int]:
    """Where the prompt begins in Lens's chat template with the small tokenizer's tokens."""
    if configuration.supported != "Lens":
        return {}
    from comfy.text_encoders import gpt_oss

    data = {"tokenizer_json": small_tokenizers.harmony()}
    tokenizer = gpt_oss.LensGptOssTokenizer(tokenizer_data=data)
    first, second = (
        [token for token, _ in tokenizer.tokenize_with_weights(text)[0]] for text in ("a", "b")
    )
    same = [one == other for one, other in zip(first, second, strict=True)]
    return {"txt_offset": same.index(False)}


def _ltxav() -> tuple[Any, Any]:
    """LTX-2 reads Gemma 3 12B, whose vision half has a fixed size: T5 stands in for it here."""
    from comfy.text_encoders import lt

    base = lt.ltxv_te()

    class StandIn(base):
        def encode_token_weights(self, token_weight_pairs: dict):
            text, pooled, *_ = super().encode_token_weights(token_weight_pairs)
            return text, pooled, {"unprocessed_ltxav_embeds": False}

    return lt.LTXVT5Tokenizer, StandIn


class _NoVision(torch.nn.Module):
    """Stands in for the vision half of a language model, whose size is fixed."""

    def __init__(self, *_args: Any, **_options: Any):
        super().__init__()


def _without_vision() -> None:
    for module, name in (
        ("qwen_vl", "Qwen2VLVisionTransformer"),
        ("qwen3vl", "Qwen3VLVisionModel"),
    ):
        try:
            encoder = __import__(f"comfy.text_encoders.{module}", fromlist=[name])
        except ImportError:
            continue
        setattr(encoder, name, _NoVision)
