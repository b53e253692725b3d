"""Noisy Replicate Padding on the canvas."""

from __future__ import annotations

from comfy_api.latest import io

from ...host import prompts
from ...host.schema import schema
from . import replicate

_SEED_MAX = 0xFFFFFFFFFFFFFFFF


class NoisyReplicatePadding(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_NoisyReplicatePadding",
            display_name="Noisy Replicate Padding",
            category="glassbox/conditioning",
            description=(
                "Encodes a text like CLIP Text Encode, then fills the padding with noisy copies of the prompt's own "
                "tokens, per encoder and per chunk. On Improved Conditioning Mechanisms and Pre-training Strategies "
                "for Diffusion Models (arXiv 2411.03177) trains with it; on models trained with their own padding "
                "this is an experiment."
            ),
            search_aliases=["improved conditioning", "prompt padding", "replicate tokens", "clip text encode",
                            "padding tokens"],
            inputs=[
                io.Clip.Input("clip", tooltip="Text models of SD1.5, SD2, SDXL, SD3, Flux or the demo model."),
                io.String.Input("text", multiline=True, dynamic_prompts=True,
                                tooltip="The prompt; weights such as (word:1.2), embeddings and long prompts work as "
                                "in CLIP Text Encode."),
                io.Combo.Input("padding", options=list(replicate.PADDINGS), tooltip="Noisy copies: the paper's. "
                               "Copies: without noise. Zeros: a usual baseline. Stock: what the text model makes of "
                               "its padding tokens, bit for bit CLIP Text Encode."),
                io.Float.Input("strength", default=0.02, min=0.0, max=10.0, step=0.01, tooltip="Noise on the copies, "
                               "in standard deviations of each channel over the prompt. As we recall it, the paper "
                               "uses about 0.02 and tries up to 0.2. 0: plain copies."),
                io.Boolean.Input("automatic", default=True, tooltip="Multiply the noise by sqrt(m - 1), where the "
                                 "prompt fills the slots m times over: more noise for more copies."),
                io.Int.Input("seed", default=0, min=0, max=_SEED_MAX, control_after_generate=True,
                             tooltip="Seed of the noise, from a private generator."),
                io.Boolean.Input("empty_too", default=False, tooltip="Treat an empty text too. Off, it stays stock: "
                                 "there would be nothing but start and end to copy."),
            ],
            outputs=[
                io.Conditioning.Output(display_name="CONDITIONING", tooltip="The encoded prompt."),
                io.String.Output(display_name="report", tooltip="Tokens, slots and noise of every chunk."),
            ],
        )  # fmt: skip

    @classmethod
    def execute(cls, clip, text: str, padding, strength, automatic, seed, empty_too) -> io.NodeOutput:
        tokens, conditioning = prompts.encode(clip, text)
        settings = replicate.Settings(padding, strength, automatic)
        if not text.strip() and not empty_too:
            return io.NodeOutput(conditioning, replicate.describe([], settings, "the text is empty"))
        if padding == replicate.STOCK:
            return io.NodeOutput(conditioning, replicate.describe([], settings, "asked for"))
        found = prompts.chunks(clip, tokens, conditioning[0][0].shape)
        blocks = [replicate.Block(part.encoder, part.rows, part.channels, part.real) for part in found]
        filled = [prompts.unmasked(entry, replicate.padded(entry[0], blocks, settings, seed)) for entry in conditioning]
        return io.NodeOutput(filled, replicate.describe(blocks, settings, None))
