"""Noisy Replicate Padding on the canvas."""

from __future__ import annotations

from typing import TYPE_CHECKING

from comfy_api.latest import io

from ..host import text_encoding
from ..host.schema import CONDITIONING, float_input, schema, seed
from .replicate_padding import (
    Padding,
    PaddingSettings,
    PromptChunk,
    describe_padding,
    replace_padding,
)

if TYPE_CHECKING:
    from ..host.socket_types import CLIP


class NoisyReplicatePadding(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_NoisyReplicatePadding",
            display_name="Noisy Replicate Padding",
            category=CONDITIONING,
            is_experimental=True,
            description=(
                "Encodes a prompt like CLIP Text Encode, then fills the padding with noisy "
                "copies of the prompt's own tokens, per encoder and per chunk. On Improved "
                "Conditioning Mechanisms and Pre-training Strategies for Diffusion Models (arXiv "
                "2411.03177) trains with it; experimental on models trained without it."
            ),
            search_aliases=[
                "improved conditioning",
                "prompt padding",
                "replicate tokens",
                "clip text encode",
                "padding tokens",
            ],
            inputs=[
                io.Clip.Input(
                    "clip", tooltip="Text models of SD1.5, SD2, SDXL, SD3, Flux or the demo model."
                ),
                io.String.Input(
                    "text",
                    multiline=True,
                    dynamic_prompts=True,
                    tooltip=(
                        "The prompt; weights such as (word:1.2), embeddings and long prompts work "
                        "as in CLIP Text Encode."
                    ),
                ),
                io.Combo.Input(
                    "padding",
                    options=list(Padding),
                    tooltip=(
                        "noisy_copies: as in the paper. copies: without noise. zeros: a common "
                        "baseline. stock: the output of CLIP Text Encode, bit for bit."
                    ),
                ),
                float_input(
                    "strength",
                    0.02,
                    (0.0, 10.0, 0.01),
                    "Noise on the copies, in standard deviations of each channel over the "
                    "prompt; 0.02 to 0.2 is usual. 0: exact copies.",
                ),
                io.Boolean.Input(
                    "scale_by_copies",
                    default=True,
                    tooltip=(
                        "Multiply the noise by sqrt(m - 1), where m is the number of prompt "
                        "copies that fill the slots."
                    ),
                ),
                seed("Seed of the noise, from a private generator."),
                io.Boolean.Input(
                    "pad_empty_prompt",
                    default=False,
                    tooltip=(
                        "Pad an empty prompt too, with copies of its start and end tokens. Off: "
                        "as in CLIP Text Encode."
                    ),
                ),
            ],
            outputs=[
                io.Conditioning.Output(display_name="conditioning", tooltip="The encoded prompt."),
                io.String.Output(
                    display_name="report", tooltip="Tokens, slots and noise of every chunk."
                ),
            ],
        )

    @classmethod
    def execute(
        cls,
        clip: CLIP,
        text: str,
        padding: str,
        strength: float,
        scale_by_copies: bool,
        seed: int,
        pad_empty_prompt: bool,
    ) -> io.NodeOutput:
        tokens, conditioning = text_encoding.encode(clip, text)
        settings = PaddingSettings(
            padding=Padding(padding), strength=strength, scale_by_copies=scale_by_copies
        )
        if not text.strip() and not pad_empty_prompt:
            return io.NodeOutput(
                conditioning, describe_padding([], settings, "the prompt is empty")
            )
        if padding == Padding.STOCK:
            return io.NodeOutput(conditioning, describe_padding([], settings, "padding is stock"))
        found = text_encoding.chunks(clip, tokens, conditioning[0][0].shape)
        chunks = [PromptChunk(part.encoder, part.rows, part.channels, part.real) for part in found]
        filled = [
            text_encoding.unmasked(entry, replace_padding(entry[0], chunks, settings, seed))
            for entry in conditioning
        ]
        return io.NodeOutput(filled, describe_padding(chunks, settings, None))


NODES = [NoisyReplicatePadding]
