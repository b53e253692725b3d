"""Token Heat Map: where each word of the prompt acts in the image."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from comfy_api.latest import io
from torch.nn import functional as F

from ..host.schema import float_input, schema
from ..host.sockets import Activations as ActivationsSocket
from .activations import FRAMES, MAP_SIZES, Activations
from .select_ids import ATTENTION_MEAN
from .tap_inputs import PAPER, SEE, images_of

if TYPE_CHECKING:
    from ..host.socket_types import CLIP

_IMAGES = 32  # in the panel: of more, those at even distances
_TILE = 256  # pixels of an image's longer side in the figure


class TokenHeatMap(io.ComfyNode):
    EVALUATES = False

    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_TokenHeatMap",
            display_name="Token Heat Map (Attention)",
            category=SEE,
            description=(
                "Shows where each word of the prompt acts: cross-attention averaged over heads, "
                "layers and recorded steps, as in DAAM (arXiv 2210.04885). Attention as features "
                f"is from {PAPER}."
            ),
            search_aliases=[
                "diffusion features",
                "DAAM",
                "attention map",
                "word heat map",
                "prompt attribution",
            ],
            inputs=[
                ActivationsSocket.Input(
                    "activations",
                    tooltip=(
                        "Activations tapped or recorded with the preset cross_attention or "
                        "cross_attention_mean."
                    ),
                ),
                io.Image.Input(
                    "image",
                    tooltip=(
                        "Images to draw on: the tapped images, or the output of the recorded run."
                    ),
                ),
                io.Clip.Input(
                    "clip", tooltip="The CLIP used for the prompt; needed for its tokenizer."
                ),
                io.String.Input(
                    "prompt",
                    default="",
                    multiline=True,
                    tooltip="The exact encoded text, including weights.",
                ),
                io.String.Input(
                    "words",
                    default="",
                    multiline=True,
                    tooltip=(
                        "Words or phrases of the prompt, separated by commas or line breaks, "
                        "e.g. red hair, hoodie. Empty: every word. <start> and <end>: the tokens "
                        "around the text."
                    ),
                ),
                io.Combo.Input(
                    "prompt_role",
                    options=["positive", "negative"],
                    tooltip=(
                        "Conditioning that used the prompt. For negative, record rows both (CFG "
                        "above 1)."
                    ),
                ),
                io.Boolean.Input(
                    "normalize_per_word",
                    default=True,
                    tooltip=(
                        "Normalize each word's map to its own range in each image. Off: one "
                        "range for all words, to compare strong and weak words."
                    ),
                ),
                float_input(
                    "opacity",
                    0.65,
                    (0.0, 1.0, 0.05),
                    "Maximum opacity of the heat maps.",
                ),
            ],
            outputs=[
                io.Image.Output(
                    display_name="figure",
                    tooltip=(
                        "All images, and for each word its fraction of the attention and its "
                        "heat map over them."
                    ),
                ),
                io.Mask.Output(
                    display_name="masks",
                    tooltip=("The heat maps as shown, grouped by word."),
                ),
                io.String.Output(
                    display_name="words", tooltip="The words, in the same order, one per line."
                ),
            ],
        )

    @classmethod
    def execute(
        cls,
        activations: Activations,
        image: torch.Tensor,
        clip: CLIP,
        prompt: str,
        words: str,
        prompt_role: str,
        normalize_per_word: bool,
        opacity: float,
    ) -> io.NodeOutput:
        from ..host.image_output import save_previews
        from . import overlays
        from .token_heatmap import word_panel
        from .token_heatmap_comfy import placed_words

        selected = _attention_rows(activations, prompt_role)
        images = images_of(image, selected)
        positions, length, tokens = placed_words(selected, clip, prompt, words)
        maps = _heat_maps(selected, tokens, list(positions.values()), length)
        shares = [
            float(one.mean()) * len(found)
            for one, found in zip(maps, positions.values(), strict=True)
        ]
        numbers = _evenly_spaced(len(images), _IMAGES)
        panel = word_panel(
            maps[:, numbers], list(map(len, positions.values())), list(positions), shares
        )
        panel["images"] = save_previews(images, numbers)
        panel["video"] = selected.settings.get(FRAMES, 1) > 1
        names = [f"{word}  {share:.1%}" for word, share in zip(positions, shares, strict=True)]
        over = (2, 3) if normalize_per_word else (0, 1, 2, 3)
        low = maps.amin(over, keepdim=True)
        high = maps.amax(over, keepdim=True)
        maps = (maps - low) / (high - low).clamp_min(1e-12)
        shown = overlays.shrink(images, _TILE)  # before they are colored, as the tiles show no more
        lines = [("image (%: share of attention)", shown)]
        lines += [
            (word, overlays.overlay(shown, one, opacity))
            for word, one in zip(names, maps, strict=True)
        ]
        rows = -(-len(lines) // max(1, 4 // len(images)))
        figure = overlays.contact_sheet(lines, side=_TILE, columns=-(-len(lines) // rows))
        masks = F.interpolate(maps.flatten(0, 1)[:, None], size=images.shape[1:3], mode="bilinear")[
            :, 0
        ]
        return io.NodeOutput(figure, masks, "\n".join(positions), ui={"glassbox_words": [panel]})


def _evenly_spaced(count: int, most: int) -> list[int]:
    """Up to ``most`` of the numbers below ``count``, the first and the last among them."""
    return torch.linspace(0, count - 1, min(count, most)).round().int().tolist()


def _attention_rows(activations: Activations, prompt_role: str) -> Activations:
    """The rows of one conditioning, with the attention alone: maps of single layers, or else their
    mean.
    """
    ids = [id_ for id_ in activations.tensors if id_.endswith("cross-map")] or [ATTENTION_MEAN]
    if not set(ids) <= activations.tensors.keys():
        raise ValueError(
            "These activations hold no cross-attention. Tap or record with the preset "
            "'cross_attention'."
        )
    conditional = prompt_role == "positive"
    rows = [number for number, row in enumerate(activations.rows) if row.conditional == conditional]
    if not rows:
        raise ValueError(
            f"There are no rows of the {prompt_role} prompt. Record rows 'both' with a CFG above "
            "1, or use the other prompt_role."
        )
    return activations.select(ids).select_rows(rows)


def _heat_maps(
    activations: Activations, tokens: list[int] | slice, words: list[list[int]], length: int
) -> torch.Tensor:
    """The heat maps (words, rows, H, W) of words, each by the positions of its tokens."""
    from ..host.compute import on_device
    from . import token_heatmap

    if ATTENTION_MEAN in activations.tensors:
        attention = activations.tensors[ATTENTION_MEAN][:, tokens]
        return torch.stack([token_heatmap.heat_map(attention, word, length) for word in words])
    maps = {id_: value[..., tokens] for id_, value in activations.tensors.items()}
    return token_heatmap.daam_heat_maps(
        maps, activations.settings[MAP_SIZES], words=words, length=length, run=on_device
    )


NODES = [TokenHeatMap]
