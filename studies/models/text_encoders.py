"""Reduced text encoders with the real tokenizers, as the CLIP of each network."""

from __future__ import annotations

import functools
import io
from typing import Any

import torch

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
}
_PIECES = 2000


def clip(configuration: Configuration, seed: int = 0):
    """The CLIP of a network. Raises whatever ComfyUI raises where it lacks a tokenizer's file."""
    import comfy.sd

    _without_vision()
    pieces = _sentence_pieces()
    with torch.inference_mode(False), torch.no_grad():
        made = comfy.sd.CLIP(
            _target(configuration),
            model_options=dict(_SIZES),
            tokenizer_data={"spiece_model": pieces, "mt5xl.spiece_model": pieces},
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


@functools.cache
def _sentence_pieces() -> torch.Tensor:
    """A small SentencePiece model, where a checkpoint would bring the tokenizer (Gemma, mT5)."""
    import sentencepiece

    words = ["a", "red", "cat", "and", "blue", "dog", "one", "man", "photo", "of", "on"]
    sentences = [" ".join(words[at:] + words[:at]) for at in range(len(words))] * 20
    sentences += [chr(code) for code in range(33, 127)]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences),
        model_writer=model,
        vocab_size=_PIECES,
        hard_vocab_limit=False,
        model_type="bpe",
        byte_fallback=True,
        pad_id=0,
        eos_id=1,
        bos_id=2,
        unk_id=3,
        add_dummy_prefix=False,
        minloglevel=2,
    )
    return torch.frombuffer(bytearray(model.getvalue()), dtype=torch.uint8)
